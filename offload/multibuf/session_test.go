package multibuf

import (
	"encoding/binary"
	"testing"

	"culvert/offload"
)

func keysFor(t *offload.Transform) offload.Keys {
	k := offload.Keys{Enc: make(offload.Key, t.EncKeyLen()), Auth: make(offload.Key, t.AuthKeyLen)}
	for i := range k.Enc {
		k.Enc[i] = byte(3*i + 1)
	}
	for i := range k.Auth {
		k.Auth[i] = byte(5*i + 1)
	}
	return k
}

// secrets are all the places of a session that depend on its keys.
func (s *session) secrets() []byte {
	b := append([]byte(nil), s.schedule...)
	b = append(b, s.salt[:]...)
	b = append(b, s.resume[0]...)
	b = append(b, s.resume[1]...)
	for i := range s.inner {
		b = binary.NativeEndian.AppendUint64(b, s.inner[i])
		b = binary.NativeEndian.AppendUint64(b, s.outer[i])
	}
	return b
}

func wipedAll(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// Close wipes everything that depends on the keys; while a lane holds the session, the lane's letting go does.
func TestWipe(t *testing.T) {
	k, err := choose("")
	if err != nil {
		t.Fatal(err)
	}
	for _, tr := range offload.Transforms() {
		if !k.runs(tr) {
			continue
		}
		for _, dir := range []offload.Direction{offload.Seal, offload.Open} {
			for _, held := range []bool{false, true} {
				s, err := newSession(k, tr, dir, keysFor(tr))
				if err != nil {
					t.Fatal(err)
				}
				if wipedAll(s.secrets()) {
					t.Fatalf("%s: nothing of the session depends on its keys", tr)
				}
				if held && !s.hold() {
					t.Fatalf("%s: an open session cannot be held", tr)
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				if s.hold() {
					t.Errorf("%s: a closed session can be held", tr)
				}
				if held {
					if wipedAll(s.secrets()) {
						t.Errorf("%s: the keys are gone while a lane works with them", tr)
					}
					s.letGo()
				}
				if !wipedAll(s.secrets()) {
					t.Errorf("%s to %v: keys are left, held: %t", tr, dir, held)
				}
				if err := s.Close(); err != nil {
					t.Errorf("closed again: %v", err)
				}
			}
		}
	}
}

// A lane that is closed has nothing of keys left in its scratch, and keeps no packets.
func TestScratch(t *testing.T) {
	k, err := choose("")
	if err != nil {
		t.Fatal(err)
	}
	w := newWorkshop(k)
	for _, tr := range offload.Transforms() {
		if !k.runs(tr) {
			continue
		}
		var jobs []offload.Job
		for i := range window {
			s, err := newSession(k, tr, offload.Seal, keysFor(tr))
			if err != nil {
				t.Fatal(err)
			}
			jobs = append(jobs, offload.Job{Session: s, ESP: make([]byte, tr.SealedLen(40+i))})
		}
		w.run(offload.Seal, jobs)
		for i := range jobs {
			if jobs[i].Status != offload.OK {
				t.Fatalf("%s: %v", tr, jobs[i].Status)
			}
		}
		for _, kept := range w.tasks[:cap(w.tasks)] {
			if kept.s != nil || kept.esp != nil || kept.job != nil {
				t.Fatalf("%s: the lane keeps a job", tr)
			}
		}
		for _, kept := range w.held[:cap(w.held)] {
			if kept != nil {
				t.Fatalf("%s: the lane keeps a session", tr)
			}
		}
	}
	if err := w.close(); err != nil {
		t.Fatal(err)
	}
	if w.cbc != nil && !wipedAll(w.cbc.table) || w.des != nil && !wipedAll(w.des.table) || !wipedAll(w.mac32.outer) || !wipedAll(w.mac64.outer) {
		t.Error("the scratch is not wiped")
	}
}
