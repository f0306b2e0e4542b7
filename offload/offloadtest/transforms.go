package offloadtest

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"testing"

	"culvert/offload"
)

// runTransform is the suite for one transform.
func runTransform(t *testing.T, r *rig, tr *offload.Transform) {
	t.Run("answers", func(t *testing.T) { testAnswers(t, r, tr) })
	t.Run("sizes", func(t *testing.T) { testSizes(t, r, tr) })
	t.Run("alignments", func(t *testing.T) { testAlignments(t, r, tr) })
	t.Run("flips", func(t *testing.T) { testFlips(t, r, tr) })
	t.Run("lengths", func(t *testing.T) { testLengths(t, r, tr) })
	t.Run("esn", func(t *testing.T) { testESN(t, r, tr) })
	t.Run("one bad", func(t *testing.T) { testOneBad(t, r, tr) })
	t.Run("keys", func(t *testing.T) { testKeys(t, r, tr) })
	t.Run("allocations", func(t *testing.T) { testAllocations(t, r, tr) })
}

// testAnswers: what the registry will ask of the engine, it can answer.
func testAnswers(t *testing.T, r *rig, tr *offload.Transform) {
	n, err := offload.Admit(r.e, tr)
	if err != nil {
		t.Fatal(err)
	}
	if n == 0 {
		t.Fatal("no answers")
	}
}

// sizes are payloads: every remainder of every block size where packets are short, then what networks carry.
func sizes() []int {
	var s []int
	step := 1
	if testing.Short() {
		step = 7
	}
	for n := 16; n < 160; n += step {
		s = append(s, n)
	}
	return append(s, 0, 1, 254, 255, 256, 510, 511, 512, 576, 1000, 1023, 1024, 1280, 1400, 1438, 1500, 2047, 4096, 8998, 9000)
}

// testSizes: packets of all sizes, mixed in one burst, are the reference's, bit for bit.
func testSizes(t *testing.T, r *rig, tr *offload.Transform) {
	for _, esn := range []bool{false, true} {
		p := r.newPair(t, tr, esn)
		var seal, open []*probe
		for _, n := range sizes() {
			name, plain, hi := fmt.Sprintf("payload of %d, esn %t", n, esn), r.packet(tr, n), r.rnd.Uint32()
			if want := tr.SealedLen(n); len(plain)+tr.ICVLen != want {
				t.Fatalf("SealedLen(%d) is %d; the packet has %d bytes", n, want, len(plain)+tr.ICVLen)
			}
			seal = append(seal, p.sealing(name, plain, hi))
			open = append(open, p.opening(name, p.seal(plain, hi), hi))
		}
		for _, ps := range [][]*probe{seal, open} {
			r.rnd.Shuffle(len(ps), func(i, j int) { ps[i], ps[j] = ps[j], ps[i] })
		}
		r.run(t, offload.Seal, seal)
		r.run(t, offload.Open, open)
	}
}

// testAlignments: a packet may begin at any address.
func testAlignments(t *testing.T, r *rig, tr *offload.Transform) {
	p := r.newPair(t, tr, false)
	var seal, open []*probe
	for align := range 64 {
		name, plain := fmt.Sprintf("address %d", align), r.packet(tr, 90+align%5)
		s, o := p.sealing(name, plain, 0), p.opening(name, p.seal(plain, 0), 0)
		s.align, o.align = align, align
		seal, open = append(seal, s), append(open, o)
	}
	r.run(t, offload.Seal, seal)
	r.run(t, offload.Open, open)
}

// testFlips: no byte of a packet can change without notice, and bad packets do not disturb the good one between them.
func testFlips(t *testing.T, r *rig, tr *offload.Transform) {
	p := r.newPair(t, tr, false)
	sealed := p.seal(r.packet(tr, 33), 0)
	var open []*probe
	for i := range sealed {
		bad := bytes.Clone(sealed)
		bad[i] ^= 1 << (i % 8)
		open = append(open, p.opening(fmt.Sprintf("byte %d flipped", i), bad, 0))
		if open[len(open)-1].status != offload.BadICV {
			t.Fatalf("the reference takes a packet whose byte %d is flipped", i)
		}
		if i%16 == 15 {
			open = append(open, p.opening("intact", sealed, 0))
		}
	}
	r.run(t, offload.Open, open)
}

// testLengths: a packet cut short anywhere, and lengths that cannot be sealed.
func testLengths(t *testing.T, r *rig, tr *offload.Transform) {
	p := r.newPair(t, tr, false)
	sealed := p.seal(r.packet(tr, 50), 0)
	var seal, open []*probe
	for n := range len(sealed) {
		open = append(open, p.opening(fmt.Sprintf("cut to %d", n), sealed[:n], 0))
		if open[n].status == offload.OK || (open[n].status == offload.BadLength) == tr.ValidLen(n) {
			t.Fatalf("a packet cut to %d bytes: the reference says %v, ValidLen %t", n, open[n].status, tr.ValidLen(n))
		}
		if !tr.ValidLen(n) {
			junk := randomBytes(r.rnd, n)
			seal = append(seal, &probe{
				name: fmt.Sprintf("length %d", n), ses: p.sessions[offload.Seal], in: junk, status: offload.BadLength, out: junk,
			})
		}
	}
	r.run(t, offload.Seal, seal)
	r.run(t, offload.Open, open)
}

// testESN: the high half is authenticated if the session has it, every bit of it; and nothing of it if not.
func testESN(t *testing.T, r *rig, tr *offload.Transform) {
	const hi = 0x01020304
	for _, esn := range []bool{false, true} {
		p := r.newPair(t, tr, esn)
		plain := r.packet(tr, 21)
		sealed := p.seal(plain, hi)
		r.run(t, offload.Seal, []*probe{p.sealing("sealing", plain, hi)})
		open := []*probe{p.opening("the right half", sealed, hi)}
		for bit := range 32 {
			o := p.opening(fmt.Sprintf("bit %d of the high half flipped, esn %t", bit, esn), sealed, hi^1<<bit)
			if (o.status == offload.BadICV) != esn {
				t.Fatalf("%s: the reference says %v", o.name, o.status)
			}
			open = append(open, o)
		}
		r.run(t, offload.Open, open)
	}
}

// testOneBad: wherever in a burst the one bad packet is, the others are opened.
func testOneBad(t *testing.T, r *rig, tr *offload.Transform) {
	p := r.newPair(t, tr, false)
	for _, n := range []int{1, 2, 8, 17} {
		for bad := range n {
			var open []*probe
			for i := range n {
				sealed := p.seal(r.packet(tr, 40+i), 0)
				if i == bad {
					sealed[len(sealed)-1] ^= 0x80
				}
				open = append(open, p.opening(fmt.Sprintf("%d of %d, %d is bad", i, n, bad), sealed, 0))
			}
			r.run(t, offload.Open, open)
		}
	}
}

// testKeys: unusable keys make no session, and a session prints none of its key.
func testKeys(t *testing.T, r *rig, tr *offload.Transform) {
	good := randomKeys(r.rnd, tr, false)
	long := good.Clone()
	long.Auth, long.Enc = append(long.Auth, 1), append(long.Enc, 1)
	short := good.Clone()
	if len(short.Enc) > 0 {
		short.Enc = short.Enc[1:]
	} else {
		short.Auth = short.Auth[1:]
	}
	zero := good.Clone()
	zero.Zero()
	for name, k := range map[string]offload.Keys{"too long": long, "too short": short, "zeros": zero} {
		if s, err := r.e.NewSession(tr, offload.Seal, k); !errors.Is(err, offload.ErrKey) || s != nil {
			t.Errorf("keys %s: session %v, error %v; want ErrKey", name, s, err)
		}
	}
	if _, err := r.e.NewSession(tr, offload.Direction(7), good); !errors.Is(err, offload.ErrDirection) {
		t.Errorf("direction 7: %v; want ErrDirection", err)
	}
	if _, err := r.e.NewSession(nil, offload.Seal, good); !errors.Is(err, offload.ErrUnsupported) {
		t.Errorf("no transform: %v; want ErrUnsupported", err)
	}
	s, err := r.e.NewSession(tr, offload.Seal, good)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, format := range []string{"%v", "%+v", "%#v", "%x", "%X", "%s", "%q", "%d"} {
		printed := fmt.Sprintf(format, s)
		for _, k := range [][]byte{good.Enc, good.Auth} {
			if len(k) < 8 {
				continue
			}
			for _, shown := range []string{hex.EncodeToString(k[:4]), fmt.Sprint(k[:4])[1:], fmt.Sprintf("%#v", k[:4])[7:], string(k[:4])} {
				if bytes.Contains(bytes.ToLower([]byte(printed)), bytes.ToLower(bytes.Trim([]byte(shown), "[]{}"))) {
					t.Errorf("%s prints the session's key", format)
				}
			}
		}
	}
}

// testAllocations: neither a burst nor a job costs memory.
func testAllocations(t *testing.T, r *rig, tr *offload.Transform) {
	const jobs = 16
	p := r.newPair(t, tr, true)
	for _, dir := range []offload.Direction{offload.Seal, offload.Open} {
		b := &offload.Burst{Dir: dir, Jobs: make([]offload.Job, jobs)}
		pristine := make([][]byte, jobs)
		for i := range b.Jobs {
			pristine[i] = p.seal(r.packet(tr, 100+i), 3)
			b.Jobs[i] = offload.Job{Session: p.sessions[dir], ESP: bytes.Clone(pristine[i]), SeqHi: 3}
		}
		dst := make([]*offload.Burst, 1)
		if got := testing.AllocsPerRun(20, func() {
			for i := range b.Jobs {
				copy(b.Jobs[i].ESP, pristine[i])
			}
			if err := r.lane.Submit(b); err != nil {
				t.Fatal(err)
			}
			if r.lane.Reap(dst, true) != 1 || dst[0] != b {
				t.Fatal("the burst did not come back")
			}
		}); got != 0 {
			t.Errorf("%v: %v allocations per burst of %d", dir, got, jobs)
		}
		for i := range b.Jobs {
			if b.Jobs[i].Status != offload.OK {
				t.Fatalf("%v: %v", dir, b.Jobs[i].Status)
			}
		}
	}
}
