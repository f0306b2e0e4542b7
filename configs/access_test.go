package configs

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const nobody = 65534

// TestExposed: a file with keys, whether the configuration itself or a key file, is refused when somebody else could read or
// replace it, wherever on the way to it that is possible; and the command that the message gives mends it.
func TestExposed(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("giving files to others needs root")
	}
	t.Setenv("SUDO_UID", "4242")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name string
		do   func(dir string) // dir has via -> ., sub/culvert.toml and sub/enc.key
		want string           // "" = taken
	}{
		{"as it should be", func(string) {}, ""},
		{"the user behind sudo", func(dir string) {
			must(os.Chown(dir+"/sub/culvert.toml", 4242, 0))
			must(os.Chown(dir+"/sub", 4242, 0))
		}, ""},
		{"somebody else's file", func(dir string) { must(os.Chown(dir+"/sub/culvert.toml", nobody, 0)) },
			"culvert.toml:12:11: the file holds keys, and it belongs to user 65534, who is neither root nor the one who runs culvert; run: chown 0 DIR/via/sub/culvert.toml"},
		{"somebody else's key file", func(dir string) { must(os.Chown(dir+"/sub/enc.key", nobody, 0)) },
			"culvert.toml:12:16: tunnel.branch.out.enc_key_file: it is a key file, and it belongs to user 65534, who is neither root nor the one who runs culvert; run: chown 0 DIR/via/sub/enc.key"},
		{"a directory of the group", func(dir string) { must(os.Chmod(dir+"/sub", 0o775)) },
			"and the mode 0775 of the directory \"DIR/sub\" lets others replace it; run: chmod go-w DIR/sub"},
		{"a directory of everybody", func(dir string) { must(os.Chmod(dir, 0o777)) },
			"and the mode 0777 of the directory \"DIR\" lets others replace it; run: chmod go-w DIR"},
		{"a directory like /tmp", func(dir string) { must(os.Chmod(dir, 0o777|os.ModeSticky)) }, ""},
		{"somebody else's directory", func(dir string) { must(os.Chown(dir+"/sub", nobody, 0)) },
			"and the directory \"DIR/sub\", in which it can be replaced, belongs to user 65534, who is neither root nor the one who runs culvert; run: chown 0 DIR/sub"},
		{"somebody else's link", func(dir string) { must(os.Lchown(dir+"/via", nobody, 0)) },
			"and the link \"DIR/via\", which leads to it, belongs to user 65534, who is neither root nor the one who runs culvert; run: chown -h 0 DIR/via"},
	} {
		for _, keyFile := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, key file %v", c.name, keyFile), func(t *testing.T) {
				dir := t.TempDir()
				must(os.Mkdir(dir+"/sub", 0o755))
				must(os.Symlink(".", dir+"/via"))
				text := fmt.Sprintf(minimal, "")
				if keyFile {
					for _, key := range []string{"5ec3e75ec3e75ec3e75ec3e75ec3e701", "0x5EC3E75EC3E75EC3E75EC3E75EC3E75E00000001", "5ec3e75ec3e75ec3e75ec3e75ec3e702", "5ec3e75ec3e75ec3e75ec3e75ec3e75e 00000002"} {
						file := "k" + key[len(key)-4:] + ".key"
						if key == "5ec3e75ec3e75ec3e75ec3e75ec3e701" {
							file = "enc.key"
						}
						write(t, dir+"/sub/"+file, key, 0o600)
						text = strings.Replace(text, "key = \""+key, "key_file = \""+file, 1)
					}
				} else {
					write(t, dir+"/sub/enc.key", "", 0o600)
				}
				path := dir + "/via/sub/culvert.toml"
				write(t, path, text, 0o600)
				c.do(dir)
				_, err := Load(path)
				if c.want == "" || keyFile && strings.Contains(c.want, "holds keys") || !keyFile && strings.Contains(c.want, "key file") {
					must(err)
					return
				}
				if err == nil || !errors.Is(err, ErrAccess) || !strings.Contains(strings.ReplaceAll(err.Error(), dir, "DIR"), c.want) {
					t.Fatalf("got  %v\nwant %s", err, c.want)
				}
				first, _, _ := strings.Cut(err.Error(), "\n")
				_, command, _ := strings.Cut(first, "; run: ")
				if out, err := exec.Command("sh", "-c", command).CombinedOutput(); err != nil {
					t.Fatalf("%s: %v %s", command, err, out)
				}
				_, err = Load(path)
				must(err)
			})
		}
	}
}

// TestLinksThatNeverEnd: links in a circle end in a message and not in a loop.
func TestLinksThatNeverEnd(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.Symlink("b", dir+"/a"), os.Symlink("a", dir+"/b")); err != nil {
		t.Fatal(err)
	}
	if p := exposedWay("it is a key file", filepath.Join(dir, "a", "x")); p == nil || !strings.Contains(p.what, "links") {
		t.Errorf("got %v", p)
	}
}

// TestKeysAreNeverShown: whatever is written as a key, or where the file of one belongs, or as the name of a setting, is not in
// the messages about it, even in part; other values are, up to a length.
func TestKeysAreNeverShown(t *testing.T) {
	const enc = `"5ec3e75ec3e75ec3e75ec3e75ec3e701"`
	for _, secret := range []string{
		"5ec3e75ec3e75ec3e75ec3e75ec3e701", "XsPnXsPnXsPnXsPnXl7DXg==", "secret password", "/secret/file", "~secret", "0xsecret", "пароль", "sec:ret-1.2", "192.0.2.99", "5ec3e75ec3e75ec3e75ec3e75ec3e701.key", "XsPn/sPnXsPnX+PnXl7DXg==.key", "letter.key/XsPnXsPnXsPnXsPnXl7DXg",
		strings.Repeat("secret ", 200_000),
	} {
		for _, setting := range []string{"enc_key = %q", "enc_key_file = %q", "auth_key_file = %q\nenc_key = \"secret\"", "%q = \"enc_key\"", "enc_key = [%q]", "enc_key = {%q = 1}", "enc_key = 1 # %q", "enc_key = %s", "%s = %[1]q", "%q = 1\n%[1]q = 2"} {
			text := strings.Replace(fmt.Sprintf(minimal, ""), "enc_key = "+enc, fmt.Sprintf(setting, secret), 1)
			_, err := LoadBytes("test.toml", []byte(text))
			if err == nil {
				continue // it is a key
			}
			for _, piece := range []string{secret[:min(len(secret), 12)], secret[len(secret)/2:]} {
				if len(secret) > maxName || !strings.HasPrefix(setting, "%") { // a short name may be shown
					if strings.Contains(err.Error(), piece) {
						t.Errorf(setting+": shown in %v", "…", err)
					}
				}
			}
		}
	}
	for _, c := range []struct{ line, want string }{
		{`remote_ports = "99999999999999999999"`, `"99999999999999999999" is not a port`},
		{`icmp_type = 99999999999999999999`, `99999999999999999999 is out of range`},
		{`icmp_type = ` + strings.Repeat("9", 1_000_000), `it is out of range`},
		{`remote = "` + strings.Repeat("9.", 500_000) + `"`, strings.Repeat("9.", 32) + `"… is not a prefix`},
	} {
		_, err := LoadBytes("test.toml", []byte("[[policy]]\naction = \"discard\"\nprotocol = \"tcp\"\n"+c.line))
		if err == nil || !strings.Contains(err.Error(), c.want) || len(err.Error()) > 1000 {
			t.Errorf("got %.2000v, want %s", err, c.want)
		}
	}
}

// TestKeyFileIsNamed: a key file that is not there is named where it can be no key, with the setting and its place.
func TestKeyFileIsNamed(t *testing.T) {
	dir := t.TempDir()
	for path, shown := range map[string]bool{"branch-out.key": true, "/etc/culvert/Branch_1.key": true, "keys/enc.txt": true, "branch": false, "secret.pass": false, strings.Repeat("long/", 20) + "enc.key": false} {
		text := strings.Replace(fmt.Sprintf(minimal, ""), `enc_key = "5ec3e75ec3e75ec3e75ec3e75ec3e701"`, fmt.Sprintf("enc_key_file = %q", path), 1)
		_, err := LoadBytes(filepath.Join(dir, "test.toml"), []byte(text))
		if err == nil {
			t.Fatalf("%s: there is such a file", path)
		}
		if !filepath.IsAbs(path) {
			path = filepath.Join(dir, path)
		}
		what := "the key file that is named here does not exist"
		if shown {
			what = fmt.Sprintf("the key file %q does not exist", path)
			if len(path) > maxShown {
				what = fmt.Sprintf("the key file %q", path[:maxShown])
			}
		}
		if !strings.Contains(err.Error(), "enc_key_file: "+what) || !shown && strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v; it should say %q", path, err, what)
		}
	}
}
