package configs

import (
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// offer is one thing that a hint says can be done: to write a value, or a setting beside this one or instead of it, or to
// remove the line.
type offer struct {
	value, setting string // as TOML has them; neither: the line goes
	instead        bool
}

var (
	quoted   = regexp.MustCompile(`\[?"[^"…]*"\]?`)
	aside    = regexp.MustCompile(`write (\w+) = ((?:"[^"]*"(?:, | or )?)+|\w+)( instead)?`)
	between  = regexp.MustCompile(`(0x[0-9a-f]+|\b\d+) to (0x[0-9a-f]+|\d+)( letters| characters)?`)
	single   = regexp.MustCompile(`(?:write|or|,|at most|=) (\d+)\b`)
	nearName = regexp.MustCompile(`perhaps ([^" ]+) is meant`)
)

// offers reads a hint as a person would.
func offers(mend string) (all []offer) {
	if strings.Contains(mend, "remove it") || strings.Contains(mend, "leave it out") {
		all = append(all, offer{})
	}
	for _, m := range aside.FindAllStringSubmatch(mend, -1) {
		values := quoted.FindAllString(m[2], -1)
		if len(values) == 0 {
			values = []string{m[2]}
		}
		for _, v := range values {
			all = append(all, offer{setting: m[1] + " = " + v, instead: m[3] != ""})
		}
	}
	if m := regexp.MustCompile(`(?:, or) (\w+ = \w+) (instead|in \[\[tunnel\]\])`).FindStringSubmatch(mend); m != nil {
		all = append(all, offer{setting: m[1], instead: m[2] == "instead"})
		mend = strings.Replace(mend, m[0], "", 1)
	}
	mend = aside.ReplaceAllString(mend, "")
	for _, m := range quoted.FindAllString(mend, -1) {
		all = append(all, offer{value: m})
	}
	for _, m := range between.FindAllStringSubmatch(mend, -1) {
		if m[3] == "" && !strings.Contains(mend, "from "+m[0]) || strings.Contains(mend, "number from "+m[0]) {
			all = append(all, offer{value: m[1]}, offer{value: m[2]})
		}
	}
	for _, m := range single.FindAllStringSubmatch(between.ReplaceAllString(mend, ""), -1) {
		if strings.Contains(mend, "in quotes") {
			continue
		}
		all = append(all, offer{value: m[1]})
	}
	if strings.Contains(mend, "true or false") {
		all = append(all, offer{value: "true"}, offer{value: "false"})
	}
	if m := nearName.FindStringSubmatch(mend); m != nil {
		all = append(all, offer{value: `"` + m[1] + `"`})
	}
	return all
}

// TestMendsMend: what a hint says is right. Every line below is put into a configuration that is right otherwise; then each of
// the values that the one message offers, and the removal of the line where it offers that, gives one that is taken.
func TestMendsMend(t *testing.T) {
	const frame = `
@root
[tun]
@tun
[log]
@log
[metrics]
@metrics
[guard]
@guard
[[tunnel]]
name = "branch"
local = "198.51.100.1"
remote = "192.0.2.2"
transform = "authenc(hmac(sha1),cbc(aes))"
local_subnets = ["10.1.0.0/16"]
remote_subnets = ["10.2.0.0/16"]
@tunnel
[tunnel.lifetime]
@lifetime
[tunnel.out]
spi = 0x1001
enc_key = "5ec3e75ec3e75ec3e75ec3e75ec3e701"
auth_key = "5ec3e75ec3e75ec3e75ec3e75ec3e75e00000001"
@out
[tunnel.in]
spi = 0x1002
enc_key = "5ec3e75ec3e75ec3e75ec3e75ec3e702"
auth_key = "5ec3e75ec3e75ec3e75ec3e75ec3e75e00000002"
[[policy]]
name = "more"
action = "discard"
@policy
`
	tried := 0
	for _, c := range []struct{ at, lines string }{
		{"root", `state_dir = 5`}, {"root", `state_dir = "x"`}, {"root", `state_dir = "/a\u0000b"`}, {"root", `state_dir_volatile = 1`},
		{"root", `control = true`}, {"root", `control = "run"`}, {"root", `control = "/run/"`}, {"root", `control = "/` + strings.Repeat("x", 120) + `"`},
		{"root", `engine = 1`}, {"root", `workers = 257`}, {"root", `workers = "two"`}, {"root", `workers = -1`},
		{"tun", `name = 1`}, {"tun", `name = "lo"`}, {"tun", `name = "a/b"`}, {"tun", `mtu = 575`}, {"tun", `mtu = 70000`}, {"tun", `mtu = "1500"`}, {"tun", `mtu = 9999999999`},
		{"tun", `addresses = "10.1.0.1/32"`}, {"tun", `addresses = ["10.1.0.1"]`}, {"tun", `addresses = [10]`}, {"tun", `addresses = ["10.1.0.0/16"]`},
		{"tun", `addresses = ["10.1.255.255/16"]`}, {"tun", `addresses = ["2001:db8::/64"]`}, {"tun", `addresses = ["0.0.0.0/0"]`}, {"tun", `gso = "yes"`},
		{"log", `level = 3`}, {"log", `level = "inf"`}, {"log", `format = "xml"`}, {"metrics", `listen = 9750`}, {"metrics", `listen = "9750"`}, {"guard", `enabled = 1`},
		{"tunnel", `link = "tcp"`}, {"tunnel", `link = 4500`}, {"tunnel", `local_port = 0`}, {"tunnel", `local_port = "4500"`}, {"tunnel", `remote_port = 65536`},
		{"tunnel", `keepalive = 20`}, {"tunnel", `keepalive = "20"`}, {"tunnel", `keepalive = "1ms"`}, {"tunnel", `keepalive = "2h"`}, {"tunnel", `follow_peer = "no"`},
		{"tunnel", `key_bits = 600`}, {"tunnel", `key_bits = -1`}, {"tunnel", `icv_bits = 128`}, {"tunnel", `icv_bits = "96"`}, {"tunnel", `esn = 1`},
		{"tunnel", `replay_window = 31`}, {"tunnel", `replay_window = 0`}, {"tunnel", `replay_window = 65537`}, {"tunnel", `replay_window = "64"`}, {"tunnel", "replay_check = 0"},
		{"tunnel", `outer_mtu = 100`}, {"tunnel", `outer_mtu = 70000`}, {"tunnel", `outer_mtu = "1500"`}, {"tunnel", `df = true`}, {"tunnel", `df = "no"`},
		{"tunnel", `dscp = 64`}, {"tunnel", `dscp = "ef"`}, {"tunnel", `dscp = true`}, {"tunnel", `dscp_in = 3`}, {"tunnel", `dscp_in = "set"`}, {"tunnel", `ecn = "on"`},
		{"tunnel", `tfc_pad = -1`}, {"tunnel", `tfc_pad = "x"`}, {"tunnel", "outer_mtu = 1400\ntfc_pad = 70000"}, {"tunnel", "outer_mtu = 1400\ntfc_pad = 1399"}, {"tunnel", `priority = -1`}, {"tunnel", `priority = "high"`},
		{"tunnel", "link = \"esp\"\nlocal_port = 4500"}, {"tunnel", "link = \"esp\"\nkeepalive = \"20s\""}, {"tunnel", "link = \"esp\"\nfollow_peer = true"},
		{"lifetime", `soft_bytes = -1`}, {"lifetime", `soft_time = "1ms"`}, {"lifetime", `hard_time = 8`}, {"lifetime", `hard_packets = 4294967296`},
		{"policy", `protocol = 256`}, {"policy", `protocol = "tcpp"`}, {"policy", `protocol = true`}, {"policy", "protocol = \"tcp\"\nremote_ports = \"http\""}, {"policy", "protocol = \"tcp\"\nremote_ports = 0"},
		{"policy", "protocol = \"tcp\"\nremote_ports = \"0-80\""}, {"policy", "protocol = \"tcp\"\nremote_ports = [80]"}, {"policy", "protocol = \"tcp\"\nlocal_ports = \"9-8\""}, {"policy", "remote_ports = 80"}, {"policy", "protocol = \"icmp\"\nicmp_type = 256"},
		{"policy", "protocol = \"tcp\"\nicmp_type = 8"}, {"policy", `remote = 10`}, {"policy", `remote = "10.1.0.0"`}, {"policy", `remote = "10.1.2.3/16"`}, {"policy", `remote = "x"`}, {"policy", `remote = "::ffff:10.4.0.0/112"`},
		{"policy", `direction = "inbound"`}, {"policy", `direction = 1`}, {"policy", `priority = 2147483648`}, {"policy", `priority = "x"`}, {"policy", `tunnel = "branch"`},
		{"branch", `name = "a b"`}, {"branch", `name = 5`}, {"198.51.100.1", `local = "fe80::1%eth0"`}, {"192.0.2.2", `remote = "::ffff:192.0.2.9"`}, {"192.0.2.2", `remote = "192.0.2.9/24"`}, {"192.0.2.2", `remote = 5`},
		{"0x1001", `spi = 255`}, {"0x1001", `spi = "0x1001"`}, {"0x1001", `spi = 0x1_0000_0000`}, {"0x1001", `spi = 0`},
		{`["10.2.0.0/16"]`, `remote_subnets = "10.2.0.0/16"`}, {`["10.2.0.0/16"]`, `remote_subnets = ["224.0.0.0/4"]`}, {`["10.2.0.0/16"]`, `remote_subnets = ["127.0.0.0/8"]`}, {`["10.1.0.0/16"]`, `local_subnets = ["10.1.0.0"]`},
		{`cbc(aes)`, `transform = "authenc(hmac(sha1),cbc(aess))"`},
	} {
		with := func(lines string) string {
			text := frame
			if strings.Contains(text, "@"+c.at+"\n") {
				text = strings.Replace(text, "@"+c.at+"\n", lines+"\n", 1)
			} else { // an existing line is replaced
				i := strings.Index(text, c.at)
				begin, end := strings.LastIndex(text[:i], "\n")+1, i+strings.Index(text[i:], "\n")
				text = text[:begin] + lines + text[end:]
			}
			return regexp.MustCompile(`(?m)^@.*\n`).ReplaceAllString(text, "")
		}
		text := with(c.lines)
		_, err := LoadBytes("m.toml", []byte(text))
		var all Errors
		if !errors.As(err, &all) || len(all) != 1 {
			t.Errorf("%s: not one mistake: %v", c.lines, err)
			continue
		}
		e := all[0]
		lines := strings.SplitAfter(text, "\n")
		line := lines[e.Pos.Line-1]
		what := offers(e.Mend)
		if len(what) == 0 {
			t.Errorf("%s: the hint offers nothing: %v", c.lines, e)
		}
		for _, o := range what {
			if strings.Contains(o.value, "::") && (strings.Contains(e.Key, "tunnel") || e.Key == "policy.more.remote") || strings.HasPrefix(line, "key_bits") && (o.value == "192" || o.value == "256") {
				continue // right for tunnels of the other family, and with other keys
			}
			tried++
			try := slices.Clone(lines)
			at, head := e.Pos.Line-1, line[:min(e.Pos.Column-1, len(line))]
			switch {
			case o.setting != "":
				name, _, _ := strings.Cut(o.setting, " ")
				if o.instead {
					try[at] = ""
				}
				i := slices.IndexFunc(try, func(s string) bool { return strings.HasPrefix(s, name+" = ") })
				if i < 0 && strings.Contains(e.Mend, "in [[tunnel]]") {
					i = slices.Index(try, "name = \"branch\"\n")
					try[i] += o.setting + "\n"
				} else if i < 0 {
					try[at] += o.setting + "\n"
				} else {
					try[i] = o.setting + "\n"
				}
			case o.value == "":
				try[at] = ""
			case strings.Contains(e.Key, "addresses[") || strings.Contains(e.Key, "subnets["):
				try[at] = head + o.value + "]\n"
			default:
				try[at] = head + o.value + "\n"
			}
			if _, err := LoadBytes("m.toml", []byte(strings.Join(try, ""))); err != nil {
				t.Errorf("%s\n%v\nby %+v gives\n%v", c.lines, e, o, err)
			}
		}
	}
	if tried < 250 {
		t.Errorf("only %d things tried", tried)
	}
}

// TestSyntaxMends: what is no TOML has a hint, and doing what it says makes it TOML.
func TestSyntaxMends(t *testing.T) {
	for _, c := range []struct{ broken, mend, mended string }{
		{`engine = soft`, "write quotes around it", `engine = "soft"`},
		{`control = /run/x`, "write quotes around it", `control = "/run/x"`},
		{`workers = 1 2`, "begin a new line", "workers = 1 # 2"},
		{`engine = "soft" "x"`, "begin a new line", `engine = "soft" # "x"`},
		{`engine = "soft`, "end the string", `engine = "soft"`},
		{"engine = \"soft\nworkers = 1", "end the string on its line", "engine = \"soft\"\nworkers = 1"},
		{`engine = 'soft`, "end the string", `engine = 'soft'`},
		{`engine = """soft`, "three double quotes", `engine = """soft"""`},
		{`engine = '''soft`, "three single quotes", `engine = '''soft'''`},
		{"engine = \"so\x01ft\"", "remove the character", `engine = "so\u0001ft"`},
		{"# \x01", "remove the character", "# "},
		{`state_dir = "C:\culvert"`, "write a backslash as", `state_dir = "/C:\\culvert"`},
		{`state_dir = "/\u12"`, "write a backslash as", `state_dir = "/\\u12"`},
		{`tun.addresses = ["10.0.0.1/32"`, "end the list with ]", `tun.addresses = ["10.0.0.1/32"]`},
		{`tun.addresses = ["10.0.0.1/32" "10.0.0.2/32"]`, "a comma between the elements", `tun.addresses = ["10.0.0.1/32", "10.0.0.2/32"]`},
		{`log = {level = "info" format = "text"}`, "a comma between the settings", `log = {level = "info", format = "text"}`},
		{`log = {level = "info",, format = "text"}`, "a comma between the settings", `log = {level = "info", format = "text"}`},
		{`log = {level = "info"`, "end the table with }", `log = {level = "info"}`},
		{`workers`, "key = value", `workers = 1`},
		{`workers: 1`, "key = value", `workers = 1`},
		{`workers =`, "write a value after the =", `workers = 1`},
		{`workers = `, "write a value after the =", `workers = 1`},
		{`= 1`, "key = value", `workers = 1`},
		{`// a comment`, "a comment begins with #", `# a comment`},
		{`; a comment`, "a comment begins with #", `# a comment`},
		{`[tun`, "write the name of a table as [name]", `[tun]`},
		{`[tun}`, "write the name of a table as [name]", `[tun]`},
		{`[]`, "key", `[tun]`},
		{`workers = 010`, "without zeros before it", `workers = 10`},
		{`workers = 0x`, "a whole number", `workers = 0x1`},
		{`workers = 1__0`, "a whole number", `workers = 1_0`},
		{`workers = +0x1`, "a whole number", `workers = 0x1`},
		{`tun.gso = tru`, "true or false", `tun.gso = true`},
		{`tun.gso = True`, "true, false", `tun.gso = true`},
		{"workers = 1\rengine = \"\"", "line feed", "workers = 1\r\nengine = \"\""},
		{"engine = \"\xff\"", "save the file as UTF-8", `engine = "ÿ"`},
		{"\xef\xbb\xbfworkers = 1", "without one", "workers = 1"},
		{"workers = 1\nworkers = 2", "keep one of the two", "workers = 1"},
		{"[tun]\nmtu = 0\n[log]\n[tun]\ngso = true", "all of it below one header", "[tun]\nmtu = 0\ngso = true\n[log]"},
	} {
		_, err := LoadBytes("s.toml", []byte(c.broken))
		var all Errors
		if !errors.As(err, &all) || !errors.Is(err, ErrSyntax) || len(all) != 1 {
			t.Errorf("%q: got %v", c.broken, err)
			continue
		}
		if !strings.Contains(all[0].Mend, c.mend) {
			t.Errorf("%q: the hint is not %q: %v", c.broken, c.mend, all[0])
		}
		if _, err := LoadBytes("s.toml", []byte(c.mended)); err != nil {
			t.Errorf("%q mended to %q: %v", c.broken, c.mended, err)
		}
	}
}
