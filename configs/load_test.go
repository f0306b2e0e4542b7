package configs

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"culvert/sa"
)

// example copies the examples into a directory with the modes that they must have, and loads one.
func example(t *testing.T, name string) *Config {
	t.Helper()
	dir := t.TempDir()
	for _, n := range Examples() {
		b, err := Example(n)
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, n), string(b), 0o600)
	}
	c, err := Load(filepath.Join(dir, name))
	if err != nil {
		t.Fatalf("%s:\n%v", name, err)
	}
	return c
}

// minimal is a configuration that is right and as short as can be; the %s takes more settings of its tunnel.
const minimal = `
[[tunnel]]
name = "branch"
local = "192.0.2.1"
remote = "192.0.2.2"
transform = "authenc(hmac(sha1),cbc(aes))"
local_subnets = ["10.1.0.0/16"]
remote_subnets = ["10.2.0.0/16"]
%s
[tunnel.out]
spi = 0x1001
enc_key = "5ec3e75ec3e75ec3e75ec3e75ec3e701"
auth_key = "0x5EC3E75EC3E75EC3E75EC3E75EC3E75E00000001"
[tunnel.in]
spi = 0x1002
enc_key = "5ec3e75ec3e75ec3e75ec3e75ec3e702"
auth_key = "5ec3e75ec3e75ec3e75ec3e75ec3e75e 00000002"
`

func loadMinimal(t *testing.T, more string) *Config {
	t.Helper()
	c, err := LoadBytes("test.toml", fmt.Appendf(nil, minimal, more))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// words writes values with blanks between all of them, which Sprint leaves out beside strings.
func words(values ...any) string { return strings.TrimSuffix(fmt.Sprintln(values...), "\n") }

// TestDefaults: what is not written has the value that the documentation promises.
func TestDefaults(t *testing.T) {
	c, err := LoadBytes("empty.toml", nil)
	if err != nil {
		t.Fatal(err)
	}
	got := words(c.StateDir, c.StateDirVolatile, c.Control, c.Engine, c.Workers, c.Tun, c.Log.Level, c.Log.Format, c.Metrics, c.Guard, len(c.Tunnels), len(c.Policies))
	if want := "/var/lib/culvert false /run/culvert/control.sock  0 {culvert0 0 [] true} info text {127.0.0.1:9750} {true false} 0 0"; got != want {
		t.Errorf("an empty file gives\n%s, want\n%s", got, want)
	}
	tn := *loadMinimal(t, "").Tunnels[0]
	got = words(tn.Link, tn.LocalPort, tn.RemotePort, tn.Transform.ID(), tn.ESN, tn.ReplayCheck, tn.ReplayWindow, tn.OuterMTU,
		tn.DF, tn.DSCP, tn.DSCPIn, tn.ECN, tn.TFCPad, tn.MSSClamp, tn.FollowPeer, tn.Keepalive, tn.Priority)
	if want := "udp 4500 4500 authenc(hmac(sha1),cbc(aes))/128/96 false true 1024 0 set keep keep true 0 true false 0s 1000"; got != want {
		t.Errorf("a tunnel gives\n%s, want\n%s", got, want)
	}
}

// TestParams: both directions come out as package sa takes them, mirrored, and valid for their direction.
func TestParams(t *testing.T) {
	c := loadMinimal(t, `
local_port = 4501
remote_port = 4502
outer_mtu = 1400
dscp = 46
dscp_in = "copy"
df = "copy"
mss_clamp = false
tfc_pad = 512
follow_peer = true
esn = true
replay_window = 64
lifetime = {soft_bytes = 1, hard_packets = 4_294_967_296, hard_time = "8h"}`)
	out, in := c.Tunnels[0].OutParams(), c.Tunnels[0].InParams()
	if err := out.ValidateFor(sa.Out); err != nil {
		t.Error(err)
	}
	if err := in.ValidateFor(sa.In); err != nil {
		t.Error(err)
	}
	show := func(p sa.Params) string {
		return words(p.Name, p.SPI, p.Src, p.Dst, p.Encap, p.SrcPort, p.DstPort, p.Mode, p.Keys.ESN, p.ReplayWindow, p.NoReplayCheck,
			p.TFCPad, p.DSCP, p.ECN, p.FollowPeer, p.Link, p.PathMTU, p.Lifetime, p.DF, p.ClampMSS)
	}
	if got, want := show(out), "branch 4097 192.0.2.1 192.0.2.2 udp 4501 4502 tunnel true 0 false 512 set 46 true false 0 1400 {{1 0 0s 0s} {0 4294967296 8h0m0s 0s}} copy false"; got != want {
		t.Errorf("out:\n%s, want\n%s", got, want)
	}
	if got, want := show(in), "branch 4098 192.0.2.2 192.0.2.1 udp 4502 4501 tunnel true 64 false 0 copy true true 0 0 {{1 0 0s 0s} {0 4294967296 8h0m0s 0s}} set false"; got != want {
		t.Errorf("in:\n%s, want\n%s", got, want)
	}
	for i, k := range [][]byte{out.Keys.Enc, out.Keys.Auth, in.Keys.Enc, in.Keys.Auth} {
		if want := byte(1 + i/2); k[len(k)-1] != want {
			t.Errorf("key %d does not end in %d", i, want)
		}
	}
	c.Wipe()
	for i, k := range [][]byte{out.Keys.Enc, out.Keys.Auth, in.Keys.Enc, in.Keys.Auth} {
		for _, b := range k {
			if b != 0 {
				t.Fatalf("key %d is not wiped", i)
			}
		}
	}
}

// TestKeysAreHidden: no way of printing a configuration shows a key.
func TestKeysAreHidden(t *testing.T) {
	c := loadMinimal(t, "")
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%d", "%q"} {
		for _, x := range []any{c, *c, c.Tunnels, c.Tunnels[0], *c.Tunnels[0], c.Tunnels[0].Out, &c.Tunnels[0].Out, c.Tunnels[0].OutParams()} {
			s := strings.ToLower(fmt.Sprintf(verb, x))
			if s == "" || strings.Contains(s, "5ec3e7") || strings.Contains(s, "94 195 231") || strings.Contains(s, "0x5e, 0xc3") {
				t.Errorf("%s of %T shows a key", verb, x)
			}
		}
	}
	if b, err := json.Marshal(c); err != nil || strings.Contains(strings.ToLower(string(b)), "5ec3e7") || strings.Contains(string(b), "XsPnX") {
		t.Errorf("JSON shows a key, or fails: %v", err)
	}
}

// TestWipesText: the text with the keys is overwritten once it is read, whether it was right or not, escapes included.
func TestWipesText(t *testing.T) {
	for _, text := range []string{fmt.Sprintf(minimal, ""), fmt.Sprintf(minimal, "spi = 1"), `enc_key = "\u0035ec3e75ec3e7"`, `enc_key = "5ec3`} {
		data := []byte(text)
		l := &loader{file: "test.toml"}
		l.run(data)
		for _, b := range append(l.doc.wipes, data) {
			for _, c := range b {
				if c != 0 {
					t.Fatalf("not wiped: %q", b)
				}
			}
		}
	}
	data := fmt.Appendf(nil, minimal, "")
	before := string(data)
	if _, err := LoadBytes("test.toml", data); err != nil || string(data) != before {
		t.Errorf("LoadBytes changed what belongs to its caller, or failed: %v", err)
	}
}

// TestFiles: what can be wrong with the file itself is told by its class, and with what to do.
func TestFiles(t *testing.T) {
	dir := t.TempDir()
	keys := fmt.Sprintf(minimal, "")
	write(t, filepath.Join(dir, "open.toml"), keys, 0o640)
	write(t, filepath.Join(dir, "it's open.toml"), keys, 0o604)
	write(t, filepath.Join(dir, "closed.toml"), keys, 0o400)
	write(t, filepath.Join(dir, "public.toml"), "workers = 1\n", 0o644)
	if err := os.Truncate(filepath.Join(dir, "public.toml"), 12); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "huge.toml"), "", 0o600)
	if err := os.Truncate(filepath.Join(dir, "huge.toml"), maxFile+1); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		class error
		text  string
	}{
		{"missing.toml", fs.ErrNotExist, `missing.toml: the configuration "DIR/missing.toml" does not exist; check the path, or create it`},
		{".", ErrRead, `DIR: the configuration "DIR" cannot be read: it is not a regular file; check the path`},
		{"huge.toml", ErrRead, `huge.toml: the configuration "DIR/huge.toml" cannot be read: it is too long to be one; check the path`},
		{"open.toml", ErrAccess, `open.toml:12:11: the file holds keys, and its mode 0640 lets others than its owner open it; run: chmod 600 DIR/open.toml`},
		{"it's open.toml", ErrAccess, `it's open.toml:12:11: the file holds keys, and its mode 0604 lets others than its owner open it; run: chmod 600 'DIR/it'\''s open.toml'`},
		{"closed.toml", nil, ""},
		{"public.toml", nil, ""},
	} {
		_, err := Load(filepath.Join(dir, c.name))
		if c.class == nil {
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		if !errors.Is(err, c.class) {
			t.Errorf("%s: %v is not %v", c.name, err, c.class)
			continue
		}
		if got := strings.ReplaceAll(strings.Replace(err.Error(), dir+"/", "", 1), dir, "DIR"); got != c.text {
			t.Errorf("got  %s\nwant %s", got, c.text)
		}
	}
}

// TestKeyFiles: a key file may have comments, line ends and blanks, and stands beside the configuration that names it.
func TestKeyFiles(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "enc.key"), "# 5ec3\r\n\r\n 0x5ec3e75e c3e75ec3\t# half\r\ne75ec3e75ec3e701", 0o400)
	text := strings.Replace(fmt.Sprintf(minimal, ""), `enc_key = "5ec3e75ec3e75ec3e75ec3e75ec3e701"`, `enc_key_file = "enc.key"`, 1)
	write(t, filepath.Join(dir, "culvert.toml"), text, 0o600)
	c, err := Load(filepath.Join(dir, "culvert.toml"))
	if err != nil {
		t.Fatal(err)
	}
	want := loadMinimal(t, "").Tunnels[0].Out
	if !c.Tunnels[0].Out.Keys.Enc.Equal(want.Keys.Enc) || c.Tunnels[0].Out.id != want.id {
		t.Error("the key of the file is not the key in the file")
	}
}

// TestWarnings: what works and is unwise is said once, with its place.
func TestWarnings(t *testing.T) {
	text := `
[tun]
mtu = 1450
[[tunnel]]
name = "old"
local = "192.0.2.1"
remote = "192.0.2.2"
transform = "authenc(hmac(md5),cbc(des3_ede))"
replay_check = false
outer_mtu = 1200
local_subnets = ["fd01::/64"]
remote_subnets = ["fd02::/64"]
out = {spi = 0x1001, enc_key = "0123456789abcdef23456789abcdef01456789abcdef0123", auth_key = "5ec3e75ec3e75ec3e75ec3e75ec3e701"}
in = {spi = 0x1002, enc_key = "0123456789abcdef23456789abcdef01456789abcdef0123", auth_key = "5ec3e75ec3e75ec3e75ec3e75ec3e702"}
[[tunnel]]
name = "null"
local = "192.0.2.1"
remote = "192.0.2.3"
transform = "authenc(hmac(sha1),cipher_null)"
out = {spi = 0x1001, auth_key = "5ec3e75ec3e75ec3e75ec3e75ec3e75e00000001"}
in = {spi = 0x1003, auth_key = "5ec3e75ec3e75ec3e75ec3e75ec3e75e00000001"}
`
	c, err := LoadBytes("w.toml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"w.toml:3:7: tun.mtu: 1450 is more than the 1142 bytes that fit through tunnel.old (outer_mtu at w.toml:10:1): larger packets are answered with packet too big",
		"w.toml:8:13: tunnel.old.transform: 3DES has blocks of 64 bits and should not be used any more (RFC 8221)",
		"w.toml:8:13: tunnel.old.transform: HMAC-MD5 must not be used any more (RFC 8221)",
		"w.toml:9:16: tunnel.old.replay_check: recorded packets can be sent again to this side, and it will believe them",
		"w.toml:10:1: tunnel.old.outer_mtu: inner packets of 1142 bytes fit, and IPv6 needs 1280: the outer packets of the larger ones are fragmented",
		"w.toml:14:31: tunnel.old.in.enc_key: the same key as tunnel.old.out at w.toml:13:32: give every SA a key of its own",
		"w.toml:16:8: tunnel.null: no subnets and no policy lead traffic through it",
		"w.toml:19:13: tunnel.null.transform: the null cipher encrypts nothing: everybody on the way can read the packets",
		"w.toml:21:32: tunnel.null.in.auth_key: the same key as tunnel.null.out at w.toml:20:33: give every SA a key of its own",
	}
	var got []string
	for _, w := range c.Warnings {
		got = append(got, w.String())
	}
	if g, w := strings.Join(got, "\n"), strings.Join(want, "\n"); g != w {
		t.Errorf("got\n%s\nwant\n%s", g, w)
	}
}

// TestPeerInside: a peer's outer address in its own tunnel is warned of, and the bypass that the warning names ends it. Not so
// with a tunnel for everything, or for the peer alone, which are meant like that.
func TestPeerInside(t *testing.T) {
	for _, c := range []struct{ subnet, more, want string }{
		{"192.0.2.0/24", "", `test.toml:8:19: tunnel.branch.remote_subnets: the peer's own address 192.0.2.2 is in 192.0.2.0/24: what this host sends to it, such as a ping, a login or IKE, goes into its tunnel, all but ESP; a [[policy]] with action = "bypass" and remote = "192.0.2.2/32" keeps it outside`},
		{"192.0.2.0/24", "[[policy]]\naction = \"bypass\"\nremote = \"192.0.2.2/32\"\n", ""},
		{"0.0.0.0/0", "", ""},
		{"192.0.2.2/32", "", ""},
		{"10.2.0.0/16", "", ""},
	} {
		c2, err := LoadBytes("test.toml", []byte(strings.Replace(fmt.Sprintf(minimal, ""), "10.2.0.0/16", c.subnet, 1)+c.more))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		c2.EachWarning(func(w string) { got = append(got, w) })
		if s := strings.Join(got, "\n"); s != c.want {
			t.Errorf("%s %s: got %s", c.subnet, c.more, s)
		}
	}
}

// TestPos: the gateway can put a place to what only it can find wrong.
func TestPos(t *testing.T) {
	c := loadMinimal(t, "")
	for key, want := range map[string]string{
		"engine": "test.toml", "tunnel.branch": "test.toml:2:3", "tunnel.branch.local": "test.toml:4:1",
		"tunnel.branch.out.spi": "test.toml:11:1", "tunnel.branch.out.keys": "test.toml:10:9", "tunnel.branch.df": "test.toml:2:3",
	} {
		if got := c.Pos(key).String(); got != want {
			t.Errorf("Pos(%q) is %s, want %s", key, got, want)
		}
	}
	err := c.Refuse("tunnel.branch.local", "192.0.2.1 is not an address of this host", "assign it", fs.ErrInvalid)
	if got, want := err.Error(), "test.toml:4:1: tunnel.branch.local: 192.0.2.1 is not an address of this host; assign it"; got != want || !errors.Is(err, ErrValue) || !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("got %s, want %s", got, want)
	}
}
