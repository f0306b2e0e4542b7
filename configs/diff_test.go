package configs

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

func mustNetwork(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// second is another tunnel for minimal, on a link of its own.
const second = `
[[tunnel]]
name = "second"
local = "192.0.2.1"
remote = "192.0.2.3"
local_port = 4501
transform = "authenc(hmac(sha1),ecb(cipher_null))"
local_subnets = ["10.1.0.0/16"]
remote_subnets = ["10.3.0.0/16"]
out = {spi = 0x2001, auth_key = "5ec3e75ec3e75ec3e75ec3e75ec3e75e00000011"}
in = {spi = 0x2002, auth_key = "5ec3e75ec3e75ec3e75ec3e75ec3e75e00000012"}
`

// TestDiff: every change is found as what it is, and nothing else is.
func TestDiff(t *testing.T) {
	base := fmt.Sprintf(minimal, "") + second
	for _, c := range []struct{ name, old, new, want string }{
		{"nothing", "", "", "empty"},
		{"a comment and the order of keys", `remote_subnets = ["10.3.0.0/16"]`, "# moved\nremote_subnets = [\"10.3.0.0/16\"]", "empty"},
		{"tunnel removed", second, "", "removed [second] policies -2"},
		{"a setting of the SA", `remote = "192.0.2.2"`, `remote = "192.0.2.22"`, "changed branch [remote]"},
		{"two of them", `local_port = 4501`, "local_port = 4501\nkeepalive = \"20s\"\nmss_clamp = false", "changed second [mss_clamp keepalive]"},
		{"outbound key", "5ec3e701\"", "5ec3e7ff\"", "changed branch [out.keys] new out"},
		{"inbound SPI", "0x1002", "0x1003", "changed branch [in.spi] new in"},
		{"ESN", `remote = "192.0.2.2"`, "remote = \"192.0.2.2\"\nesn = true", "changed branch [esn] new out new in"},
		{"transform", "authenc(hmac(sha1),cbc(aes))\"", "authenc(hmac(sha256),cbc(aes))\"\nicv_bits = 96", "error"},
		{"subnet", `"10.3.0.0/16"`, `"10.4.0.0/16"`, "policies +2 -2"},
		{"log level", "\n[[tunnel]]\nname = \"branch\"", "log.level = \"debug\"\n[[tunnel]]\nname = \"branch\"", "settings [log.level]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, err := LoadBytes("a.toml", []byte(base))
			if err != nil {
				t.Fatal(err)
			}
			b, err := LoadBytes("b.toml", []byte(strings.Replace(base, c.old, c.new, 1)))
			if err != nil {
				if c.want != "error" {
					t.Fatal(err)
				}
				return
			}
			a.Wipe() // as a gateway does when its SAs are made: keys are still told apart
			d, err := Diff(a, b)
			if err != nil {
				t.Fatal(err)
			}
			if got := summary(d); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
			if d.Empty() != (c.want == "empty") {
				t.Errorf("Empty is %v", d.Empty())
			}
		})
	}
}

func summary(d *Changes) string {
	var s []string
	add := func(format string, args ...any) { s = append(s, fmt.Sprintf(format, args...)) }
	names := func(ts []*Tunnel) (ns []string) {
		for _, t := range ts {
			ns = append(ns, t.Name)
		}
		return ns
	}
	if len(d.Settings) > 0 {
		add("settings %v", d.Settings)
	}
	if len(d.Added) > 0 {
		add("added %v", names(d.Added))
	}
	if len(d.Removed) > 0 {
		add("removed %v", names(d.Removed))
	}
	for _, c := range d.Changed {
		add("changed %s %v", c.New.Name, c.Keys)
		if c.NewOut {
			add("new out")
		}
		if c.NewIn {
			add("new in")
		}
	}
	if a, r := len(d.PoliciesAdded), len(d.PoliciesRemoved); a+r > 0 {
		p := "policies"
		if a > 0 {
			p += fmt.Sprintf(" +%d", a)
		}
		if r > 0 {
			p += fmt.Sprintf(" -%d", r)
		}
		add("%s", p)
	}
	if len(s) == 0 {
		return "empty"
	}
	return strings.Join(s, " ")
}

// TestDiffLinks: a tunnel that moves up in the file keeps the number of its socket, and one that needs a new socket needs a
// restart.
func TestDiffLinks(t *testing.T) {
	load := func(text string) *Config {
		c, err := LoadBytes("c.toml", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	both := load(fmt.Sprintf(minimal, "") + second)
	if got := fmt.Sprint(both.Links()); got != "[udp 192.0.2.1:4500 udp 192.0.2.1:4501]" {
		t.Errorf("links are %s", got)
	}
	one := load(second)
	if one.Tunnels[0].LinkIndex != 0 {
		t.Fatal("the only link is not the first")
	}
	if _, err := Diff(both, one); err != nil {
		t.Fatal(err)
	}
	if i := one.Tunnels[0].OutParams().Link; i != 1 || len(one.Links()) != 2 {
		t.Errorf("link %d of %v, want the 1 that is open", i, one.Links())
	}
	again := load(fmt.Sprintf(minimal, "") + second)
	if d, err := Diff(one, again); err != nil || summary(d) != "added [branch] policies +2" || again.Tunnels[0].LinkIndex != 0 {
		t.Errorf("back again: %v", err)
	}
	_, err := Diff(one, load(fmt.Sprintf(minimal, `local_port = 4600`)))
	want := "c.toml:4:1: tunnel.branch.local: it changed, and the sockets are opened at the start, and there is none for udp 192.0.2.1:4600; restart culvert, or undo the change"
	if err == nil || err.Error() != want || !errors.Is(err, ErrRestart) {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

// TestDiffRestart: every setting that a running gateway cannot take up is refused with its place, all together.
func TestDiffRestart(t *testing.T) {
	old, err := LoadBytes("old.toml", nil)
	if err != nil {
		t.Fatal(err)
	}
	fresh, err := LoadBytes("new.toml", []byte(`state_dir = "/x"
control = ""
engine = "soft"
workers = 2
tun = {name = "x", mtu = 1400, addresses = ["10.0.0.1/32"], gso = false}
log = {level = "warn", format = "json"}
metrics.listen = ""
[guard]
enabled = false
`))
	if err != nil {
		t.Fatal(err)
	}
	_, err = Diff(old, fresh)
	var errs Errors
	if !errors.As(err, &errs) {
		t.Fatal(err)
	}
	var got []string
	for _, e := range errs {
		got = append(got, fmt.Sprintf("%v %s", e.Pos, e.Key))
	}
	want := `new.toml:1:1 state_dir
new.toml:2:1 control
new.toml:3:1 engine
new.toml:4:1 workers
new.toml:5:8 tun.name
new.toml:5:20 tun.mtu
new.toml:5:32 tun.addresses
new.toml:5:61 tun.gso
new.toml:6:24 log.format
new.toml:7:9 metrics.listen
new.toml:9:1 guard.enabled`
	if s := strings.Join(got, "\n"); s != want {
		t.Errorf("got\n%s\nwant\n%s", s, want)
	}
}
