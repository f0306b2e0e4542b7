package soft

import (
	"bytes"
	"crypto/hmac"
	"encoding"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"os"
	"reflect"
	"runtime"
	"sync"
	"testing"
	"unsafe"

	"culvert/offload"
)

// byName are the hashes of testdata/hmac.json.
var byName = map[string]offload.Auth{
	"md5": offload.HMACMD5, "sha1": offload.HMACSHA1, "sha256": offload.HMACSHA256,
	"sha384": offload.HMACSHA384, "sha512": offload.HMACSHA512,
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// opaque hides that a hash is a plain struct, so that its state must be marshalled.
type opaque struct {
	hash.Hash
	encoding.BinaryMarshaler
	encoding.BinaryUnmarshaler
}

func newOpaque(newHash func() hash.Hash) func() hash.Hash {
	return func() hash.Hash {
		h := newHash()
		return opaque{h, h.(encoding.BinaryMarshaler), h.(encoding.BinaryUnmarshaler)}
	}
}

// The vectors of RFC 2202 and RFC 4231, keys longer than a block among them, whole and in two parts, again and again with
// one object; with states copied and with states marshalled.
func TestHMACVectors(t *testing.T) {
	file, err := os.ReadFile("testdata/hmac.json")
	if err != nil {
		t.Fatal(err)
	}
	var vectors []struct{ Source, Hash, Key, Data, MAC string }
	if err := json.Unmarshal(file, &vectors); err != nil {
		t.Fatal(err)
	}
	if want := 5 * 7; len(vectors) != want {
		t.Fatalf("%d vectors, not %d", len(vectors), want)
	}
	for _, v := range vectors {
		newHash := hashes[byName[v.Hash]]
		for way, newHash := range map[string]func() hash.Hash{"copied": newHash, "marshalled": newOpaque(newHash)} {
			m, err := newMAC(newHash, unhex(t, v.Key))
			if err != nil {
				t.Fatal(err)
			}
			if copied := m.work != nil; copied != (way == "copied") {
				t.Errorf("HMAC-%s: states are copied: %t, not as the test wants", v.Hash, copied)
			}
			data := unhex(t, v.Data)
			for cut := range 4 {
				if got := m.compute(data[:len(data)-cut], data[len(data)-cut:]); hex.EncodeToString(got) != v.MAC {
					t.Errorf("HMAC-%s, %s, %s, cut %d bytes before the end: %x, not %s", v.Hash, v.Source, way, cut, got, v.MAC)
				}
			}
		}
	}
}

// The packets of RFC 3602 section 4 open to their payloads, with the next headers and the padding printed there, under every
// HMAC around them.
func TestRFC3602Packets(t *testing.T) {
	file, err := os.ReadFile("../answers/rfc3602_esp.json")
	if err != nil {
		t.Fatal(err)
	}
	var packets []struct {
		Case              int
		Key, ESP, Payload string
		NH                byte
	}
	if err := json.Unmarshal(file, &packets); err != nil {
		t.Fatal(err)
	}
	if len(packets) != 4 {
		t.Fatalf("%d packets, not 4", len(packets))
	}
	for _, p := range packets {
		for _, tr := range offload.Transforms() {
			if tr.Cipher != offload.AESCBC || tr.KeyBits != 128 {
				continue
			}
			auth := bytes.Repeat([]byte{7}, tr.AuthKeyLen)
			m := hmac.New(hashes[tr.Auth], auth)
			m.Write(unhex(t, p.ESP))
			esp := append(unhex(t, p.ESP), m.Sum(nil)[:tr.ICVLen]...)
			sealed := bytes.Clone(esp)

			payload := unhex(t, p.Payload)
			want := bytes.Clone(payload)
			for i := range tr.PadLen(len(payload)) {
				want = append(want, byte(i+1))
			}
			want = append(want, byte(tr.PadLen(len(payload))), p.NH)
			for _, dir := range []offload.Direction{offload.Open, offload.Seal} {
				s, err := newSession(tr, dir, offload.Keys{Enc: unhex(t, p.Key), Auth: auth})
				if err != nil {
					t.Fatal(err)
				}
				b := &offload.Burst{Dir: dir, Jobs: []offload.Job{{Session: s, ESP: esp}}}
				run(b)
				if b.Jobs[0].Status != offload.OK {
					t.Fatalf("case %d, %s, %v: %v", p.Case, tr, dir, b.Jobs[0].Status)
				}
				if dir == offload.Open {
					if got := esp[tr.HeaderLen() : len(esp)-tr.ICVLen]; !bytes.Equal(got, want) {
						t.Errorf("case %d, %s: the plaintext is %x, not %x", p.Case, tr, got, want)
					}
					clear(esp[len(esp)-tr.ICVLen:])
				}
			}
			if !bytes.Equal(esp, sealed) {
				t.Errorf("case %d, %s: sealed again it is %x, not %x", p.Case, tr, esp, sealed)
			}
		}
	}
}

func testKeys(tr *offload.Transform) offload.Keys {
	k := offload.Keys{Enc: make(offload.Key, tr.EncKeyLen()), Auth: make(offload.Key, tr.AuthKeyLen)}
	for i := range k.Enc {
		k.Enc[i] = byte(3*i + 0x41)
	}
	for i := range k.Auth {
		k.Auth[i] = byte(5*i + 0x93)
	}
	return k
}

// secrets gathers all memory that depends on the keys: key schedules, hash states, salts.
func (st *state) secrets() map[string][]byte {
	all := map[string][]byte{"salt": st.nonce[:]}
	for name, x := range map[string]any{"block": st.block, "aead": st.aead, "encrypt": st.encrypt, "decrypt": st.decrypt} {
		for i, m := range plainFields(x) {
			all[fmt.Sprint(name, i)] = m
		}
	}
	if st.mac != nil {
		all["inner"], all["outer"], all["hash"] = st.mac.inner, st.mac.outer, st.mac.work
	}
	return all
}

// plainFields is the memory of every number or array in the struct behind x.
func plainFields(x any) [][]byte {
	v := reflect.ValueOf(x)
	if v.Kind() != reflect.Pointer || v.IsNil() {
		return nil
	}
	var fields [][]byte
	for i := range v.Elem().NumField() {
		if f := v.Elem().Type().Field(i); plain(f.Type) {
			fields = append(fields, unsafe.Slice((*byte)(unsafe.Add(v.UnsafePointer(), f.Offset)), f.Type.Size()))
		}
	}
	return fields
}

func blank(b []byte) bool { return bytes.Count(b, []byte{0}) == len(b) }

// Close leaves no key schedule, no hash state, no salt and no key behind: neither of a state at rest nor, once it is put
// back, of one that was in use.
func TestCloseWipes(t *testing.T) {
	for _, tr := range offload.Transforms() {
		for _, dir := range []offload.Direction{offload.Seal, offload.Open} {
			s, err := newSession(tr, dir, testKeys(tr))
			if err != nil {
				t.Fatal(err)
			}
			rest, busy := s.acquire(), s.acquire()
			if rest == nil || busy == nil || rest == busy {
				t.Fatalf("%s: two states of one session: %p, %p", tr, rest, busy)
			}
			keys := s.keys
			s.release(rest)
			if blank(keys.Enc) && blank(keys.Auth) {
				t.Fatalf("%s: the keys are gone before Close", tr)
			}
			if tr.KeyBits != 0 {
				long := 0
				for name, m := range busy.secrets() {
					if name != "salt" && len(m) >= tr.KeyBits/8 && !blank(m) {
						long++
					}
				}
				if long == 0 {
					t.Fatalf("%s: there is nothing as long as the key to wipe: this test would see nothing", tr)
				}
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			for name, m := range rest.secrets() {
				if !blank(m) {
					t.Errorf("%s, %v: Close left %s: %x", tr, dir, name, m)
				}
			}
			if !blank(keys.Enc) || !blank(keys.Auth) {
				t.Errorf("%s: Close left the keys", tr)
			}
			s.release(busy)
			for name, m := range busy.secrets() {
				if !blank(m) {
					t.Errorf("%s, %v: release after Close left %s: %x", tr, dir, name, m)
				}
			}
			if st := s.acquire(); st != nil {
				t.Errorf("%s: a closed session gives a state", tr)
			}
		}
	}
}

// A session makes no more states than were in use at once, and one that finds no room is wiped.
func TestStatesAreKept(t *testing.T) {
	tr := offload.Transforms()[0]
	s, err := newSession(tr, offload.Seal, testKeys(tr))
	if err != nil {
		t.Fatal(err)
	}
	first := s.acquire()
	s.release(first)
	if again := s.acquire(); again != first {
		t.Error("the state that was put back is not the one that is taken")
	}
	made := []*state{first}
	for range cap(s.free) {
		made = append(made, s.acquire())
	}
	for _, st := range made {
		s.release(st)
	}
	surplus := made[len(made)-1]
	for name, m := range surplus.secrets() {
		if !blank(m) {
			t.Errorf("the surplus state keeps %s", name)
		}
	}
	known := map[*state]bool{}
	for _, st := range made[:len(made)-1] {
		known[st] = true
	}
	for range s.free {
		if st := s.acquire(); !known[st] {
			t.Error("a state is made though there are some at rest")
		}
	}
}

// Closing a session while lanes use it: every job ends, done or failed, and nothing is left unwiped. The race detector
// watches.
func TestCloseWhileInUse(t *testing.T) {
	tr, err := offload.Lookup("rfc4106(gcm(aes))", 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range 50 {
		s, err := newSession(tr, offload.Seal, testKeys(tr))
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for range 3 {
			b := &offload.Burst{Jobs: make([]offload.Job, 50)}
			for i := range b.Jobs {
				b.Jobs[i] = offload.Job{Session: s, ESP: make([]byte, tr.SealedLen(64))}
			}
			wg.Go(func() {
				run(b)
				for i := range b.Jobs {
					if st := b.Jobs[i].Status; st != offload.OK && st != offload.EngineError {
						t.Errorf("job %d: %v", i, st)
					}
				}
			})
		}
		runtime.Gosched()
		s.Close()
		wg.Wait()
		for i := range s.free {
			if s.free[i].Load() != nil {
				t.Fatal("a state is left in a closed session")
			}
		}
	}
}

// A session says what it is for, and nothing else.
func TestSessionPrints(t *testing.T) {
	tr := offload.Transforms()[0]
	s, err := newSession(tr, offload.Open, testKeys(tr))
	if err != nil {
		t.Fatal(err)
	}
	want := "soft session to open " + tr.String()
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%x"} {
		if got := fmt.Sprintf(format, s); got != want {
			t.Errorf("%s gives %q, not %q", format, got, want)
		}
	}
	if got := s.LogValue().String(); got != want {
		t.Errorf("slog gives %q", got)
	}
}

// memory and wipe touch nothing that is not a plain struct behind a pointer.
func TestMemory(t *testing.T) {
	type flat struct {
		a [3]uint32
		b bool
	}
	type deep struct {
		n uint64
		p *int
		s string
	}
	for _, x := range []any{nil, 5, flat{}, (*flat)(nil), new(int), &deep{}} {
		if m := memory(x); m != nil {
			t.Errorf("memory of a %T has %d bytes", x, len(m))
		}
	}
	f := &flat{[3]uint32{1, 2, 3}, true}
	if m := memory(f); len(m) != int(unsafe.Sizeof(*f)) {
		t.Errorf("memory of a plain struct has %d bytes", len(m))
	}
	n := 4
	d := &deep{9, &n, "kept"}
	wipe(f)
	wipe(d)
	wipe(nil)
	wipe((*flat)(nil))
	if *f != (flat{}) || d.n != 0 || d.p != &n || d.s != "kept" {
		t.Errorf("after wipe: %v, %v", *f, *d)
	}
}

// BenchmarkHMAC sets our way of resuming an HMAC beside crypto/hmac's, for a short and a full-size packet.
func BenchmarkHMAC(b *testing.B) {
	for name, a := range byName {
		for _, size := range []int{96, 1424} {
			data, key := make([]byte, size), make([]byte, 20)
			b.Run(fmt.Sprintf("%s/%d/soft", name, size), func(b *testing.B) {
				m, err := newMAC(hashes[a], key)
				if err != nil {
					b.Fatal(err)
				}
				b.ReportAllocs()
				for b.Loop() {
					m.compute(data, nil)
				}
			})
			b.Run(fmt.Sprintf("%s/%d/crypto-hmac", name, size), func(b *testing.B) {
				m := hmac.New(hashes[a], key)
				var sum [64]byte
				b.ReportAllocs()
				for b.Loop() {
					m.Reset()
					m.Write(data)
					m.Sum(sum[:0])
				}
			})
		}
	}
}
