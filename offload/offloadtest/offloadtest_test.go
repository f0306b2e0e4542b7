package offloadtest_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"culvert/offload"
	"culvert/offload/offloadtest"
	"culvert/offload/soft"
)

// faulty is software with one fault.
type faulty struct {
	offload.Engine
	f fault
}

// fault is what an engine can get wrong. Nil parts are right.
type fault struct {
	name   string
	says   string // in the suite's complaint
	job    func(dir offload.Direction, j *offload.Job)
	submit func(l offload.Lane, b *offload.Burst) error
	reap   func(l offload.Lane, dst []*offload.Burst, wait bool) int
	close  func(l offload.Lane) error
	caps   func(c *offload.Caps)
	ses    func(e offload.Engine, t *offload.Transform, dir offload.Direction, k offload.Keys) (offload.Session, error)
}

var sink []byte

// talkative is a session that prints its key.
type talkative struct {
	offload.Session
	Key []byte
}

var faults = []fault{
	{name: "long packets sealed wrongly", says: "byte 800 is", job: func(dir offload.Direction, j *offload.Job) {
		if dir == offload.Seal && len(j.ESP) > 1500 {
			j.ESP[800] ^= 1
		}
	}},
	{name: "one length opened wrongly", says: "payload of 79", job: func(dir offload.Direction, j *offload.Job) {
		if t := j.Session; dir == offload.Open && j.Status == offload.OK && len(j.ESP) == t.Transform().SealedLen(79) {
			j.ESP[t.Transform().HeaderLen()+3] ^= 1
		}
	}},
	{name: "bad ICVs are taken", says: "the status is ok, not bad-icv", job: func(_ offload.Direction, j *offload.Job) {
		if j.Status == offload.BadICV {
			j.Status = offload.OK
		}
	}},
	{name: "short lengths are bad ICVs", says: "the status is bad-icv, not bad-length", job: func(_ offload.Direction, j *offload.Job) {
		if j.Status == offload.BadLength {
			j.Status = offload.BadICV
		}
	}},
	{name: "a byte after the packet is written", says: "a byte outside has changed", job: func(_ offload.Direction, j *offload.Job) {
		if len(j.ESP) < cap(j.ESP) && j.ESP != nil {
			j.ESP[:len(j.ESP)+1][len(j.ESP)]++
		}
	}},
	{name: "the IV is written", says: "byte 9 is", job: func(_ offload.Direction, j *offload.Job) {
		if len(j.ESP) > 60 {
			j.ESP[9]++
		}
	}},
	{name: "a refused length is written", says: "length", job: func(dir offload.Direction, j *offload.Job) {
		if dir == offload.Seal && j.Status == offload.BadLength && len(j.ESP) > 0 {
			j.ESP[0]++
		}
	}},
	{name: "one bad packet fails the burst", says: "not ok", submit: func(l offload.Lane, b *offload.Burst) error {
		err := l.Submit(b)
		for i := range b.Jobs {
			if b.Jobs[i].Status == offload.BadICV {
				b.Fail()
				break
			}
		}
		return err
	}},
	{name: "a bad status is left as it was", says: "status(99)", submit: func(l offload.Lane, b *offload.Burst) error {
		before := make([]offload.Status, len(b.Jobs))
		for i := range b.Jobs {
			before[i] = b.Jobs[i].Status
		}
		err := l.Submit(b)
		for i := range b.Jobs {
			if b.Jobs[i].Status == offload.EngineError {
				b.Jobs[i].Status = before[i]
			}
		}
		return err
	}},
	{name: "the tag is used", says: "changed the burst itself", submit: func(l offload.Lane, b *offload.Burst) error {
		b.Tag = 0
		return l.Submit(b)
	}},
	{name: "ESN is ignored", says: "esn", ses: func(e offload.Engine, t *offload.Transform, dir offload.Direction, k offload.Keys) (offload.Session, error) {
		k.ESN = false
		return e.NewSession(t, dir, k)
	}},
	{name: "the keys are not copied", says: "the status is engine-error, not ok", ses: func(e offload.Engine, t *offload.Transform, dir offload.Direction, k offload.Keys) (offload.Session, error) {
		s, err := e.NewSession(t, dir, k)
		if err != nil {
			return nil, err
		}
		return &lazy{Session: s, e: e, k: k}, nil
	}, submit: func(l offload.Lane, b *offload.Burst) error {
		for i := range b.Jobs {
			if s, ok := b.Jobs[i].Session.(*lazy); ok {
				s.k.Auth = append(offload.Key(nil), s.k.Auth...)
				if made, err := s.e.NewSession(s.Transform(), s.Direction(), s.k); err == nil {
					s.Session = made
				} else {
					b.Fail()
				}
			}
		}
		return l.Submit(b)
	}},
	{name: "unusable keys are used", says: "want ErrKey", ses: func(e offload.Engine, t *offload.Transform, dir offload.Direction, k offload.Keys) (offload.Session, error) {
		s, err := e.NewSession(t, dir, k)
		if errors.Is(err, offload.ErrKey) {
			k = offload.Keys{Enc: make(offload.Key, t.EncKeyLen()), Auth: make(offload.Key, t.AuthKeyLen)}
			for i := range k.Enc {
				k.Enc[i] = byte(i + 1)
			}
			for i := range k.Auth {
				k.Auth[i] = byte(i + 1)
			}
			return e.NewSession(t, dir, k)
		}
		return s, err
	}},
	{name: "the session prints its key", says: "prints the session's key", ses: func(e offload.Engine, t *offload.Transform, dir offload.Direction, k offload.Keys) (offload.Session, error) {
		s, err := e.NewSession(t, dir, k)
		if err != nil {
			return nil, err
		}
		return &talkative{s, k.Clone().Auth}, nil
	}},
	{name: "memory is allocated", says: "allocations per burst", job: func(_ offload.Direction, j *offload.Job) { sink = make([]byte, 100) }},
	{name: "a full lane does the work", says: "ErrFull, and yet", submit: func(l offload.Lane, b *offload.Burst) error {
		err := l.Submit(b)
		if errors.Is(err, offload.ErrFull) {
			for i := range b.Jobs {
				b.Jobs[i].Status = offload.OK
			}
		}
		return err
	}},
	{name: "a burst is lost", says: "came back", reap: func(l offload.Lane, dst []*offload.Burst, wait bool) int {
		n := l.Reap(dst, wait)
		if n > 0 && n == len(dst) && n > 1 {
			n--
		}
		return n
	}},
	{name: "Reap gives nothing though something is in flight", says: "Reap with wait gives nothing", reap: func(offload.Lane, []*offload.Burst, bool) int { return 0 }},
	{name: "a closed lane takes bursts", says: "want ErrClosed", close: func(offload.Lane) error { return nil }},
	{name: "a closed lane forgets its bursts", says: "never came back", close: func(l offload.Lane) error {
		dst := make([]*offload.Burst, 8)
		for l.Reap(dst, true) > 0 {
		}
		return l.Close()
	}},
	{name: "the depth is not the lane's", says: "its depth is 1", caps: func(c *offload.Caps) { c.Depth = 1 }},
	{name: "a transform is listed twice", says: "listed twice", caps: func(c *offload.Caps) { c.Transforms = append(slices.Clone(c.Transforms), c.Transforms[0]) }},
	{name: "a transform is kept quiet", says: "which is not among the capabilities", caps: func(c *offload.Caps) { c.Transforms = c.Transforms[:1] }},
}

// lazy is a session that reads the caller's keys only when it is used.
type lazy struct {
	offload.Session
	e offload.Engine
	k offload.Keys
}

func (f faulty) Name() string { return "faulty" }

func (f faulty) Probe() (offload.Caps, error) {
	c, err := f.Engine.Probe()
	// A few transforms of all kinds; the suite is the same for each.
	c.Transforms = nil
	for _, name := range []string{"authenc(hmac(sha1),ecb(cipher_null))", "authenc(hmac(sha256),cbc(aes))", "rfc4106(gcm(aes))"} {
		t, err := offload.Lookup(name, 0, 0)
		if err != nil {
			panic(err)
		}
		c.Transforms = append(c.Transforms, t)
	}
	c.Shared = false
	if f.f.caps != nil {
		f.f.caps(&c)
	}
	return c, err
}

func (f faulty) NewSession(t *offload.Transform, dir offload.Direction, k offload.Keys) (offload.Session, error) {
	if c, _ := f.Probe(); t != nil && f.f.caps == nil && !c.Supports(t) {
		return nil, offload.ErrUnsupported
	}
	if f.f.ses != nil {
		return f.f.ses(f.Engine, t, dir, k)
	}
	return f.Engine.NewSession(t, dir, k)
}

func (f faulty) NewLane(id int) (offload.Lane, error) {
	l, err := f.Engine.NewLane(id)
	return &faultyLane{l, f.f}, err
}

type faultyLane struct {
	offload.Lane
	f fault
}

func (l *faultyLane) Submit(b *offload.Burst) error {
	var err error
	if l.f.submit != nil {
		err = l.f.submit(l.Lane, b)
	} else {
		err = l.unwrapped(b)
	}
	if err == nil && l.f.job != nil {
		for i := range b.Jobs {
			if b.Jobs[i].Session != nil {
				l.f.job(b.Dir, &b.Jobs[i])
			}
		}
	}
	return err
}

// unwrapped submits with the sessions inside the faulty ones.
func (l *faultyLane) unwrapped(b *offload.Burst) error {
	for i := range b.Jobs {
		if s, ok := b.Jobs[i].Session.(*talkative); ok {
			b.Jobs[i].Session = s.Session
			defer func() { b.Jobs[i].Session = s }()
		}
	}
	return l.Lane.Submit(b)
}

func (l *faultyLane) Reap(dst []*offload.Burst, wait bool) int {
	if l.f.reap != nil {
		return l.f.reap(l.Lane, dst, wait)
	}
	return l.Lane.Reap(dst, wait)
}

func (l *faultyLane) Close() error {
	if l.f.close != nil {
		return l.f.close(l.Lane)
	}
	return l.Lane.Close()
}

// whichFault is the environment variable with which the test runs itself again as a faulty engine's test.
const whichFault = "OFFLOADTEST_FAULT"

// Each fault fails the suite, with a complaint that fits, and the same engine without one passes it.
func TestSuiteFindsFaults(t *testing.T) {
	if name := os.Getenv(whichFault); name != "" {
		i := slices.IndexFunc(faults, func(f fault) bool { return f.name == name })
		f := fault{}
		if i >= 0 {
			f = faults[i]
		}
		offloadtest.Run(t, faulty{soft.New(), f})
		return
	}
	if testing.Short() {
		t.Skip("runs itself once per fault")
	}
	for _, f := range append([]fault{{name: "none"}}, faults...) {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(os.Args[0], "-test.run=^TestSuiteFindsFaults$", "-test.short")
			cmd.Env = append(os.Environ(), whichFault+"="+f.name)
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			switch {
			case f.name == "none" && err != nil:
				t.Errorf("without a fault: %v\n%s", err, out)
			case f.name == "none":
			case err == nil:
				t.Error("the suite passes it")
			case !errors.As(err, &exit) || exit.ExitCode() != 1 || strings.Contains(string(out), "panic:"):
				t.Errorf("%v\n%s", err, out)
			case !strings.Contains(string(out), f.says):
				t.Errorf("the suite does not say %q, but\n%s", f.says, out)
			}
		})
	}
}

// Chaos is unruly within the contract: it passes the suite, full or not.
func TestChaosConforms(t *testing.T) {
	for _, o := range []offloadtest.ChaosOptions{{Seed: 1}, {Seed: 2, Depth: 1}, {Seed: 3, Depth: 20, Full: 40}} {
		t.Run(fmt.Sprint(o), func(t *testing.T) {
			c := offloadtest.NewChaos(soft.New(), o)
			offloadtest.Run(t, c)
			s := c.Stats()
			if s.Submitted == 0 || s.Touched != 0 || s.Failed != 0 {
				t.Errorf("%+v", s)
			}
			if (o.Depth != 1) != (s.Overtaken > 0) {
				t.Errorf("%d bursts overtook others in a lane of depth %d", s.Overtaken, o.Depth)
			}
		})
	}
}

// newJobs makes a burst of n packets to seal.
func newJobs(t *testing.T, n, tag int) *offload.Burst {
	t.Helper()
	tr, err := offload.Lookup("authenc(hmac(sha256),cbc(aes))", 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	k := offload.Keys{Enc: offload.Key("0123456789abcdef"), Auth: offload.Key("0123456789abcdef0123456789abcdef")}
	s, err := soft.New().NewSession(tr, offload.Seal, k)
	if err != nil {
		t.Fatal(err)
	}
	b := &offload.Burst{Tag: tag, Jobs: make([]offload.Job, n)}
	for i := range b.Jobs {
		b.Jobs[i] = offload.Job{Session: s, ESP: make([]byte, tr.SealedLen(64))}
	}
	return b
}

// history drives a lane the same way every time, and writes down what it does.
func history(t *testing.T, c *offloadtest.Chaos, id int) string {
	t.Helper()
	l, err := c.NewLane(id)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var log strings.Builder
	dst := make([]*offload.Burst, 4)
	for i := range 60 {
		b := newJobs(t, 3, i)
		if err := l.Submit(b); err != nil {
			fmt.Fprintf(&log, "%d: %v\n", i, err)
		}
		n := l.Reap(dst, i%10 == 9)
		for _, b := range dst[:n] {
			fmt.Fprintf(&log, "%d:", b.Tag)
			for _, j := range b.Jobs {
				fmt.Fprintf(&log, " %v", j.Status)
			}
			fmt.Fprintln(&log)
		}
	}
	return log.String()
}

// The same seed gives the same history, another seed or lane another one; and it is as unruly as was asked for.
func TestChaosIsDeterministic(t *testing.T) {
	o := offloadtest.ChaosOptions{Seed: 42, Depth: 6, Full: 20, Errors: 10}
	c := offloadtest.NewChaos(soft.New(), o)
	first := history(t, c, 0)
	if again := history(t, offloadtest.NewChaos(soft.New(), o), 0); again != first {
		t.Errorf("the same seed gives\n%s\nand then\n%s", first, again)
	}
	if history(t, c, 1) == first {
		t.Error("another lane does the same")
	}
	o.Seed++
	if history(t, offloadtest.NewChaos(soft.New(), o), 0) == first {
		t.Error("another seed does the same")
	}
	s := c.Stats()
	if s.Full == 0 || s.Failed == 0 || s.Overtaken == 0 || s.Submitted == 0 {
		t.Errorf("something never happened: %+v", s)
	}
	if !strings.Contains(first, "engine-error") || !strings.Contains(first, offload.ErrFull.Error()) || !strings.Contains(first, "ok") {
		t.Errorf("something never happened:\n%s", first)
	}
}

// FailNext fails exactly so many jobs, and spoils what they held.
func TestChaosFailNext(t *testing.T) {
	c := offloadtest.NewChaos(soft.New(), offloadtest.ChaosOptions{})
	l, err := c.NewLane(0)
	if err != nil {
		t.Fatal(err)
	}
	c.FailNext(4)
	b := newJobs(t, 6, 0)
	if err := offload.Do(l, b); err != nil {
		t.Fatal(err)
	}
	good, tr := b.Jobs[5].ESP, b.Jobs[5].Session.Transform()
	for i, j := range b.Jobs {
		want := offload.OK
		if i < 4 {
			want = offload.EngineError
		}
		if j.Status != want {
			t.Errorf("job %d: %v, not %v", i, j.Status, want)
		}
		if spoilt := !slices.Equal(j.ESP[tr.HeaderLen():], good[tr.HeaderLen():]); spoilt != (i < 4) {
			t.Errorf("job %d is spoilt: %t", i, spoilt)
		}
	}
	if s := c.Stats(); s.Failed != 4 {
		t.Errorf("%d jobs failed", s.Failed)
	}
}

// A caller that writes into a packet while the lane has it is found out.
func TestChaosSeesTouch(t *testing.T) {
	c := offloadtest.NewChaos(soft.New(), offloadtest.ChaosOptions{})
	l, err := c.NewLane(0)
	if err != nil {
		t.Fatal(err)
	}
	b := newJobs(t, 2, 0)
	if err := l.Submit(b); err != nil {
		t.Fatal(err)
	}
	b.Jobs[1].ESP[20]++
	if n := l.Reap(make([]*offload.Burst, 1), true); n != 1 {
		t.Fatal("the burst is lost")
	}
	if s := c.Stats(); s.Touched != 1 {
		t.Errorf("%d bursts were touched, not 1", s.Touched)
	}
}
