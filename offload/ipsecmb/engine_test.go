//go:build ipsecmb && cgo && amd64

package ipsecmb

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"culvert/offload"
	"culvert/offload/offloadtest"
)

func atLevel(t *testing.T, level string, tripleDES bool) offload.Engine {
	t.Helper()
	e, err := New(Options{TripleDES: tripleDES}).WithLevel(level)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// The known answers, and the whole conformance suite, at every level that this machine has. Of 3DES the lower levels run the
// answers only: the suite's packets would take them a minute.
func TestConformance(t *testing.T) {
	names := New(Options{}).Levels()
	for _, l := range levels {
		t.Run(l.name, func(t *testing.T) {
			for _, have := range names {
				if have == l.name {
					for _, r := range offload.NewRegistry(atLevel(t, l.name, true)).Reports()[0].Results {
						if r.Err != nil {
							t.Errorf("%s is not admitted: %v", r.Transform, r.Err)
						}
					}
					offloadtest.Run(t, atLevel(t, l.name, l.name == "avx512"))
					return
				}
			}
			if _, err := New(Options{Level: l.name}).Probe(); !errors.Is(err, ErrLevel) || !strings.Contains(err.Error(), names[0]) {
				t.Errorf("this machine has %v, and %q gives %v", names, l.name, err)
			}
		})
	}
}

// Arbitrary bytes are refused exactly as a plain composition of the standard library refuses them.
func FuzzOpen(f *testing.F) { offloadtest.Fuzz(f, New(Options{})) }

// An engine that was not asked for 3DES neither lists it nor makes sessions of it; all else it has.
func TestTripleDESIsRefused(t *testing.T) {
	e := New(Options{})
	caps, err := e.Probe()
	if err != nil {
		t.Fatal(err)
	}
	for _, tr := range offload.Transforms() {
		k := offload.Keys{Enc: make(offload.Key, tr.EncKeyLen()), Auth: make(offload.Key, tr.AuthKeyLen)}
		for i := range k.Enc {
			k.Enc[i] = byte(i + 1)
		}
		for i := range k.Auth {
			k.Auth[i] = byte(i + 1)
		}
		s, err := e.NewSession(tr, offload.Seal, k)
		triple := tr.Cipher == offload.TripleDESCBC
		if triple == caps.Supports(tr) || triple != errors.Is(err, offload.ErrUnsupported) {
			t.Errorf("%s: listed: %t; a session: %v", tr, caps.Supports(tr), err)
		}
		if err == nil {
			s.Close()
		}
	}
}

// Levels are named in Detail and Name, and a wrong one is refused with what there is.
func TestLevels(t *testing.T) {
	e := New(Options{})
	names := e.Levels()
	if len(names) == 0 || e.Level() != names[0] || e.Name() != "ipsecmb" {
		t.Fatalf("%s at %q; levels %v", e.Name(), e.Level(), names)
	}
	for _, n := range names {
		l := atLevel(t, n, false)
		caps, err := l.Probe()
		if err != nil || !strings.HasSuffix(caps.Detail, ", "+n) || l.Name() != "ipsecmb("+n+")" {
			t.Errorf("level %s: %s, %q, %v", n, l.Name(), caps.Detail, err)
		}
	}
	if _, err := e.WithLevel("mmx"); !errors.Is(err, ErrLevel) || !strings.Contains(err.Error(), strings.Join(names, ", ")) {
		t.Errorf("level mmx: %v", err)
	}
	if bad := New(Options{Level: "mmx"}); bad.Level() != "" {
		t.Errorf("an engine at no level says %q", bad.Level())
	}
}

// Sessions of another level's engine have another layout: their jobs fail.
func TestSessionOfAnotherLevel(t *testing.T) {
	names := New(Options{}).Levels()
	a, b := atLevel(t, names[0], false), atLevel(t, names[len(names)-1], false)
	tr := offload.Transforms()[0]
	s, err := a.NewSession(tr, offload.Seal, offload.Keys{Enc: []byte("0123456789abcdef"), Auth: []byte("0123456789abcdef")})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	l, err := b.NewLane(0)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	burst := &offload.Burst{Jobs: []offload.Job{{Session: s, ESP: make([]byte, tr.SealedLen(20))}}}
	if err := offload.Do(l, burst); err != nil || burst.Jobs[0].Status != offload.EngineError {
		t.Errorf("%v, %v", err, burst.Jobs[0].Status)
	}
}

// Closing a session while lanes use it frees its keys once, after the last of them; every job ends.
func TestCloseWhileInUse(t *testing.T) {
	e := New(Options{})
	tr, err := offload.Lookup("rfc4106(gcm(aes))", 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range 200 {
		s, err := e.NewSession(tr, offload.Seal, offload.Keys{Enc: []byte("0123456789abcdefsalt")})
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for id := range 3 {
			l, err := e.NewLane(id)
			if err != nil {
				t.Fatal(err)
			}
			wg.Go(func() {
				defer l.Close()
				b := &offload.Burst{Jobs: make([]offload.Job, 20)}
				for i := range b.Jobs {
					b.Jobs[i] = offload.Job{Session: s, ESP: make([]byte, tr.SealedLen(64))}
				}
				if err := offload.Do(l, b); err != nil {
					t.Error(err)
				}
				for i := range b.Jobs {
					if st := b.Jobs[i].Status; st != offload.OK && st != offload.EngineError {
						t.Errorf("job %d: %v", i, st)
					}
				}
			})
		}
		s.Close()
		s.Close()
		wg.Wait()
		if own := s.(*session); own.keys != nil || own.users.Load() != closed|freed {
			t.Fatalf("the keys are still there: users %#x", own.users.Load())
		}
	}
}

// A session says what it is for, and nothing else; a lane allocates nothing per burst once it has seen one as long.
func TestSessionPrintsAndLaneAllocates(t *testing.T) {
	e := New(Options{})
	tr := offload.Transforms()[0]
	s, err := e.NewSession(tr, offload.Seal, offload.Keys{Enc: []byte("0123456789abcdef"), Auth: []byte("0123456789abcdef")})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	want := "ipsecmb session to seal " + tr.String()
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%x"} {
		if got := fmt.Sprintf(format, s); got != want {
			t.Errorf("%s gives %q, not %q", format, got, want)
		}
	}
	l, err := e.NewLane(0)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	b := &offload.Burst{Jobs: make([]offload.Job, 32)}
	for i := range b.Jobs {
		b.Jobs[i] = offload.Job{Session: s, ESP: make([]byte, tr.SealedLen(100))}
	}
	var one [1]*offload.Burst
	if n := testing.AllocsPerRun(100, func() {
		if l.Submit(b) != nil || l.Reap(one[:], true) != 1 {
			t.Fatal("the burst is lost")
		}
	}); n != 0 {
		t.Errorf("%v allocations per burst", n)
	}
}
