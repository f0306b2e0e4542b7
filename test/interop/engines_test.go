package interop

import (
	"encoding/binary"
	"os"
	"slices"
	"strings"
	"testing"

	"culvert/offload"
	"culvert/offload/multibuf"
	"culvert/offload/pool"
	"culvert/offload/soft"
)

// engines are all engines of the tree that run on this machine without special hardware.
func engines() []offload.Engine {
	return []offload.Engine{multibuf.New(multibuf.Options{Rest: soft.New()}), soft.New(), pool.New(soft.New(), pool.Options{Workers: 2})}
}

// admitted gives the engines with the transforms each was admitted for. An engine that was not admitted at all fails the test: none
// of these needs special hardware.
func admitted(t *testing.T) map[offload.Engine][]*offload.Transform {
	t.Helper()
	out := map[offload.Engine][]*offload.Transform{}
	all := engines()
	for i, r := range offload.NewRegistry(all...).Reports() {
		if r.Err != nil {
			t.Fatalf("engine %s: %v", r.Engine, r.Err)
		}
		for _, res := range r.Results {
			if res.Err != nil {
				t.Errorf("engine %s, %s: %v", r.Engine, res.Transform, res.Err)
			}
		}
		out[all[i]] = r.Admitted()
		if len(out[all[i]]) == 0 {
			t.Fatalf("engine %s was admitted for nothing", r.Engine)
		}
	}
	return out
}

// elsewhere are the folders of offload that are no engine, and the engines that another test judges, with where.
var elsewhere = map[string]string{
	"answers": "no engine", "offloadtest": "no engine", "internal": "no engine", "testdata": "no engine",
	"padlock": "test/padlock, under an emulator of its instructions",
	"ipsecmb": "its own tests, with the build tag of its name",
}

// Every engine in the tree is in the list above, so that a new one cannot be forgotten here.
func TestEveryEngineIsListed(t *testing.T) {
	dirs, err := os.ReadDir("../../offload")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range engines() {
		names = append(names, e.Name())
	}
	for _, d := range dirs {
		if !d.IsDir() || elsewhere[d.Name()] != "" {
			continue
		}
		// A pool is named after what it runs: "pool(soft)".
		if !slices.ContainsFunc(names, func(n string) bool { return n == d.Name() || strings.HasPrefix(n, d.Name()+"(") }) {
			t.Errorf("offload/%s is not among the engines that are judged here: %v", d.Name(), names)
		}
	}
}

// unsealed is an ESP packet ready for an engine to seal: all but the ICV is written. With a nil pad the padding is 1, 2, 3 …
func unsealed(tr *offload.Transform, spi, seq uint32, iv, inner, pad []byte, nextHeader byte) []byte {
	p := binary.BigEndian.AppendUint32(nil, spi)
	p = binary.BigEndian.AppendUint32(p, seq)
	p = append(append(p, iv...), inner...)
	if pad == nil {
		for i := range tr.PadLen(len(inner)) {
			pad = append(pad, byte(i+1))
		}
	}
	p = append(append(p, pad...), byte(len(pad)), nextHeader)
	return append(p, make([]byte, tr.ICVLen)...)
}

// work seals or opens packets in place, as one burst, with one session of their own.
func work(t *testing.T, e offload.Engine, tr *offload.Transform, dir offload.Direction, keys offload.Keys, seqHi uint32, packets ...[]byte) []offload.Status {
	t.Helper()
	s, err := e.NewSession(tr, dir, keys)
	if err != nil {
		t.Fatalf("%s: a session to %s with %s: %v", e.Name(), dir, tr, err)
	}
	defer s.Close()
	l, err := e.NewLane(0)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	b := &offload.Burst{Dir: dir}
	for _, p := range packets {
		b.Jobs = append(b.Jobs, offload.Job{Session: s, ESP: p, SeqHi: seqHi})
	}
	if err := offload.Do(l, b); err != nil {
		t.Fatal(err)
	}
	var out []offload.Status
	for _, j := range b.Jobs {
		out = append(out, j.Status)
	}
	return out
}
