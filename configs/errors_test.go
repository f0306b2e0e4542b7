package configs

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write what the errors are into testdata instead of comparing it")

// keyFiles are the key files that testdata/mistakes refers to.
var keyFiles = map[string]struct {
	text string
	mode os.FileMode
}{
	"letter.key": {"# a comment\n5ec3e75ec3e75ec3e7\n5ec3 e75ec3g75e00000001\n", 0o600},
	"base64.key": {"XsPnXsPnXsPnXsPnXl7DXg==\n", 0o600},
	"short.key":  {"5ec3e75e\n", 0o600},
	"empty.key":  {"# nothing but this\n", 0o600},
	"open.key":   {"5ec3e75ec3e75ec3e75ec3e75ec3e75e\n", 0o644},
}

// TestMistakes holds every message against the text that testdata has for it: file, line, column, what is wrong and how to
// mend it, in the order of the places, all of a file at once. The keys in testdata consist of the pattern 5ec3e7, of which
// nothing may show up in a message.
func TestMistakes(t *testing.T) {
	files, err := filepath.Glob("testdata/mistakes/*.toml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no testdata: %v", err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".toml")
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for key, f := range keyFiles {
				write(t, filepath.Join(dir, key), f.text, f.mode)
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, name+".toml")
			write(t, path, string(text), 0o600)
			_, err = Load(path)
			var all Errors
			if !errors.As(err, &all) {
				t.Fatalf("Load gave %v, not Errors", err)
			}
			for _, e := range all {
				if e.Pos.Line < 1 || e.Pos.Column < 1 || e.Class == nil || e.What == "" || e.Mend == "" {
					t.Errorf("incomplete error %#v", e)
				}
			}
			var b strings.Builder
			for _, e := range all {
				b.WriteString(e.Error() + "\n")
			}
			got := strings.NewReplacer(dir+"/", "", dir, "DIR").Replace(b.String())
			if regexp.MustCompile("(?i)5ec3|e75e|XsPn|Xl7D").MatchString(got) {
				t.Errorf("key material in\n%s", got)
			}
			golden := strings.TrimSuffix(file, ".toml") + ".want"
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(string(want), got); d != "" {
				t.Errorf("messages differ (-want +got):\n%s", d)
			}
		})
	}
}

// write writes a file for a test, whatever the umask.
func write(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

// TestManyMistakes: of thousands the first twenty are told and the others counted, and so it is with warnings.
func TestManyMistakes(t *testing.T) {
	_, err := LoadBytes("many.toml", []byte(strings.Repeat("[[tunnel]]\n", 20_000)))
	if lines := strings.Split(err.Error(), "\n"); len(lines) != 21 || lines[20] != "… and 119980 more" {
		t.Errorf("%d lines, the last is %q", len(lines), lines[len(lines)-1])
	}
	var all Errors
	if !errors.As(err, &all) || len(all) != 120_000 {
		t.Errorf("%d mistakes", len(all))
	}
	c := &Config{Warnings: make([]Warning, 23)}
	var told []string
	c.EachWarning(func(w string) { told = append(told, w) })
	if len(told) != 21 || told[20] != "… and 3 more" {
		t.Errorf("told %q", told)
	}
}

// A key that was pasted where something else belongs is not in the message, whatever the setting; what is no key is shown.
func TestPastedKeysAreNotShown(t *testing.T) {
	for _, key := range []string{"0123456789abcdef0123456789ABCDEF", "0x0123456789abcdef0123456789abcdef01234567", "AAECAwQFBgcICQoLDA0ODxAREhM=", "q83vEjRWeJq83vEjRWeJqw"} {
		for _, setting := range []string{"transform", "link", "local", "remote", "dscp", "local_subnets", "enc_key", "window", "local_port"} {
			for _, value := range []string{`"` + key + `"`, `["` + key + `"]`} {
				_, err := LoadBytes("x.toml", []byte("[[tunnel]]\n"+setting+" = "+value+"\n"))
				if err == nil {
					t.Fatalf("%s = %s is taken", setting, value)
				}
				if strings.Contains(err.Error(), key[2:14]) {
					t.Errorf("%s = %s: %v", setting, value, err)
				}
			}
		}
	}
	for _, s := range []string{"authenc(hmac(sha256),cbc(aes))", "2001:db8:1:2:3:4:5:6", "/var/lib/Culvert12345678901234567890", "a-rather-long-name-of-a-tunnel", "rfc7539esp(chacha20,poly1305)"} {
		if looksLikeKey(s) {
			t.Errorf("%q looks like a key", s)
		}
	}
}
