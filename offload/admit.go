package offload

import (
	"bytes"
	"errors"
	"fmt"
	"time"
)

// Errors of admission.
var (
	ErrWrongAnswer = errors.New("wrong answer")
	ErrNoAnswers   = errors.New("there are no known answers")
	ErrStalled     = errors.New("the engine does not answer")
	ErrPanicked    = errors.New("the engine panicked")
	ErrDuplicate   = errors.New("an engine of this name is registered already")
)

// admitLimit is how long an engine may take over one transform. The slowest machine's software needs a hundredth of it: who
// takes longer has lost a burst.
const admitLimit = 10 * time.Second

// Admit runs the known answers of one transform: both directions, with and without ESN, several packets at once, and
// packets that were tampered with, which must give BadICV. It returns how many answers were right, and what was wrong.
func Admit(e Engine, t *Transform) (int, error) {
	l, err := e.NewLane(0)
	if err != nil {
		return 0, fmt.Errorf("open a lane: %w", err)
	}
	defer l.Close()
	return admitOn(e, l, t)
}

func admitOn(e Engine, l Lane, t *Transform) (int, error) {
	answers, err := Answers(t)
	if err != nil {
		return 0, err
	}
	if len(answers) == 0 {
		return 0, ErrNoAnswers
	}
	for i, a := range answers {
		if err := a.check(e, l); err != nil {
			return i, fmt.Errorf("%w (answer from %s, %d bytes)", err, a.Source, a.Len())
		}
	}
	return len(answers), nil
}

// guard bytes lie before and after every packet of a check.
const guard, guardByte = 32, 0xd6

// trial is one packet of a check and what must become of it.
type trial struct {
	name   string
	esp    []byte
	seqHi  uint32
	status Status
	buf    []byte // with the guards
}

func newTrial(name string, esp []byte, seqHi uint32, want Status) *trial {
	buf := bytes.Repeat([]byte{guardByte}, guard+len(esp)+guard)
	tr := &trial{name: name, esp: buf[guard : guard+len(esp)], seqHi: seqHi, status: want, buf: buf}
	copy(tr.esp, esp)
	return tr
}

// check seals and opens one answer.
func (a *Answer) check(e Engine, l Lane) error {
	t, end := a.Transform, len(a.Plain)

	// Two copies, since engines that work on several packets at once may get only some of them right.
	unsealed := append(bytes.Clone(a.Plain), bytes.Repeat([]byte{0xa5}, t.ICVLen)...)
	seals := []*trial{newTrial("first copy", unsealed, a.SeqHi, OK), newTrial("second copy", unsealed, a.SeqHi, OK)}
	if err := a.run(e, l, Seal, seals); err != nil {
		return err
	}
	for _, s := range seals {
		if !a.IsSealed(s.esp) {
			return fmt.Errorf("%w: seal: %s: the packet is another one", ErrWrongAnswer, s.name)
		}
	}

	sealed := seals[0].esp
	flipped := func(at int) []byte {
		p := bytes.Clone(sealed)
		p[at] ^= 0x10
		return p
	}
	opens := []*trial{
		newTrial("intact packet", sealed, a.SeqHi, OK),
		newTrial("last byte of the ICV flipped", flipped(len(sealed)-1), a.SeqHi, BadICV),
		newTrial("first byte of the ICV flipped", flipped(end), a.SeqHi, BadICV),
		newTrial("ciphertext flipped", flipped(t.HeaderLen()), a.SeqHi, BadICV),
		newTrial("intact packet after bad ones", sealed, a.SeqHi, OK),
		newTrial("SPI flipped", flipped(0), a.SeqHi, BadICV),
		newTrial("sequence number flipped", flipped(7), a.SeqHi, BadICV),
		newTrial("a block too short", sealed[:len(sealed)-t.BlockLen-1], a.SeqHi, BadLength),
	}
	if a.Keys.ESN {
		opens = append(opens, newTrial("high half of the sequence number flipped", sealed, a.SeqHi^1, BadICV))
	} else {
		opens = append(opens, newTrial("high half of the sequence number without ESN", sealed, a.SeqHi^1, OK))
	}
	if t.IVLen > 0 {
		opens = append(opens, newTrial("IV flipped", flipped(8), a.SeqHi, BadICV))
	}
	if err := a.run(e, l, Open, opens); err != nil {
		return err
	}
	for _, o := range opens {
		if o.status == OK && !bytes.Equal(o.esp[:end], a.Plain) {
			return fmt.Errorf("%w: open: %s: the plaintext is another one", ErrWrongAnswer, o.name)
		}
	}
	return nil
}

// run passes the trials through the engine in one burst, and checks statuses and guards.
func (a *Answer) run(e Engine, l Lane, dir Direction, trials []*trial) error {
	s, err := e.NewSession(a.Transform, dir, a.Keys)
	if err != nil {
		return fmt.Errorf("%v: make a session: %w", dir, err)
	}
	defer s.Close()
	b := &Burst{Dir: dir, Jobs: make([]Job, len(trials))}
	for i, tr := range trials {
		b.Jobs[i] = Job{Session: s, ESP: tr.esp, SeqHi: tr.seqHi}
	}
	if err := Do(l, b); err != nil {
		return fmt.Errorf("%v: %w", dir, err)
	}
	for i, tr := range trials {
		if got := b.Jobs[i].Status; got != tr.status {
			return fmt.Errorf("%w: %v: %s: the status is %v, not %v", ErrWrongAnswer, dir, tr.name, got, tr.status)
		}
		for j, c := range tr.buf {
			if (j < guard || j >= len(tr.buf)-guard) && c != guardByte {
				return fmt.Errorf("%w: %v: %s: memory outside the packet has changed", ErrWrongAnswer, dir, tr.name)
			}
		}
	}
	return nil
}

// admitAll probes an engine and runs all its answers. It lets the engine neither panic nor stall the program; one that
// stalls keeps the goroutine it stalled in.
func admitAll(e Engine, limit time.Duration) Report {
	start := time.Now()
	rep := Report{Engine: e.Name()}
	probed := make(chan Report, 1)
	go func() {
		r := Report{Engine: rep.Engine}
		defer func() {
			if p := recover(); p != nil {
				r.Err = fmt.Errorf("%w: %v", ErrPanicked, p)
			}
			probed <- r
		}()
		r.Caps, r.Err = e.Probe()
	}()
	select {
	case rep = <-probed:
	case <-time.After(limit):
		rep.Err = fmt.Errorf("%w: probe took longer than %v", ErrStalled, limit)
	}
	if rep.Err == nil {
		rep.Results, rep.Err = admitEach(e, rep.Caps.Transforms, limit)
	}
	rep.Took = time.Since(start)
	return rep
}

// admitEach runs the answers of each transform. An error is one that puts the whole engine out.
func admitEach(e Engine, ts []*Transform, limit time.Duration) ([]Result, error) {
	type step struct {
		Result
		fatal bool
	}
	steps := make(chan step, len(ts)+1) // room for all: the goroutine ends even if nobody listens any more
	go func() {
		now := step{fatal: true}
		defer func() {
			if p := recover(); p != nil {
				now.Err = fmt.Errorf("%w: %v", ErrPanicked, p)
			}
			if now.fatal {
				steps <- now
			}
		}()
		l, err := e.NewLane(0)
		if err != nil {
			now.Err = fmt.Errorf("open a lane: %w", err)
			return
		}
		defer l.Close()
		for _, t := range ts {
			now.Transform = t
			n, err := admitOn(e, l, t)
			steps <- step{Result: Result{Transform: t, Answers: n, Err: err}}
		}
		now.fatal = false
	}()
	results := make([]Result, 0, len(ts))
	for range ts {
		select {
		case s := <-steps:
			if s.fatal {
				return results, during(s.Err, s.Transform)
			}
			results = append(results, s.Result)
		case <-time.After(limit):
			return results, during(fmt.Errorf("%w within %v", ErrStalled, limit), ts[len(results)])
		}
	}
	return results, nil
}

// during says with which transform an engine failed.
func during(err error, t *Transform) error {
	if t == nil {
		return err
	}
	return fmt.Errorf("with %s: %w", t, err)
}
