package configs

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"
)

// FuzzLoad: whatever the text, loading neither panics nor gives an error without a place; a text that go-toml's decoder
// refuses is refused, and one that it takes is never called no TOML.
func FuzzLoad(f *testing.F) {
	files, _ := filepath.Glob("testdata/mistakes/*.toml")
	own, _ := filepath.Glob("*.toml")
	for _, file := range append(files, own...) {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text))
	}
	for _, text := range []string{
		"", "\xef\xbb\xbfa = 1", "a", "a =", "\"\"=1", "a.b = 1\n[a]\nc = 1", "[a.b]\n[a]\n[a.c]\n[a]", "[[a]]\n[a.b]\n[[a]]\n[a.b]\n[a]",
		"a = {b = 1, b.c = 2}", "a = [{b = 1, b = 2}]", "[[a.b]]\n[a.b.c]\n[[a.b]]\nc = 1", "workers = 0x\nworkers = 1__0", "log = {level = \"info\"}\nlog.format = \"text\"",
		"enc_key = \"\\uD800\"", "tun.mtu = 99999999999999999999", "[tunnel]\n[[tunnel]]", "[\x00]", "a = '''\n'''\r", "a = 2001-02-30", "a = 1e400",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		// The decoder's own judgement, without key files that the text may name.
		var any map[string]any
		decoded := toml.Unmarshal([]byte(text), &any)
		l := &loader{file: "f.toml", noFiles: true}
		c := l.run([]byte(text))
		for _, e := range l.errs {
			if e.Pos.File != "f.toml" || e.Pos.Line < 1 || e.Pos.Column < 1 || e.Pos.Line > strings.Count(text, "\n")+1 {
				t.Errorf("no place: %v", e)
			}
			if e.Class == nil || e.What == "" {
				t.Errorf("says nothing: %#v", e)
			}
			if errors.Is(e, ErrSyntax) && decoded == nil {
				t.Errorf("refused as no TOML, which go-toml takes: %v", e)
			}
		}
		if decoded != nil && len(l.errs) == 0 {
			t.Errorf("taken, which go-toml refuses: %v", decoded)
		}
		if len(l.errs) == 0 {
			if _, err := Diff(c, c); err != nil {
				t.Errorf("differs from itself: %v", err)
			}
			for _, tn := range c.Tunnels {
				out, in := tn.OutParams(), tn.InParams()
				if err := errors.Join(out.ValidateFor(0), in.ValidateFor(1)); err != nil {
					t.Errorf("taken, which package sa refuses: %v", err)
				}
			}
			for _, p := range c.Policies {
				pol := p.SA()
				if err := pol.Validate(); err != nil {
					t.Errorf("taken, which package sa refuses: %v", err)
				}
			}
		}
	})
}
