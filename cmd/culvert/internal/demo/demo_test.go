package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"culvert/configs"
	"culvert/dataplane"
	"culvert/offload"
	"culvert/test/lab"
	"culvert/test/lab/traffic"
)

var update = flag.Bool("update", false, "write the golden files")

// is is a figure that was measured.
func is(x float64) figure { return &x }

// sample is a whole result; tests change what they are about.
func sample() *result {
	row := func(n int, gbps, perGB float64) tcpRow {
		return tcpRow{n, is(gbps), is(perGB), is(perGB * gbps / 2), 4.001}
	}
	udp := udpRow{Offered: 312.4, Delivered: 311.9, Loss: 0.0016, Within: true, Limit: limitTunnel, Reordered: 3, CPUPer: is(3.21), OneWay: quantile{is(101.5), is(480.2), is(1200.9)}}
	udp.Sent, udp.Received, udp.Wall = 1249600, 1247600, 4
	udp.LostAt = []lost{{"gateway A", "tun_queue", 1500}, {"gateway B", dataplane.CauseNoPolicy.String(), 300}, {"host B", "socket", 10}}
	for _, x := range []struct{ kpps, loss float64 }{{20, 0}, {40, 0}, {80, 0}, {160, 0.00012}, {320, 0.0431}, {240, 0}, {280, 0.0031}, {300, 0.001}, {310, 0.0048}, {315, 0.0051}, {312.4, 0.0016}} {
		udp.Tried = append(udp.Tried, tried{Asked: x.kpps, Offered: x.kpps, Delivered: round(x.kpps*(1-x.loss), 1), Loss: x.loss, Wall: 0.3, Early: x.loss > maxLoss})
	}
	r := &result{
		Version: "devel 0123456789ab", Transform: "authenc(hmac(sha1),cbc(aes))", KeyBits: 128, ICVBits: 96, Link: "udp", Outer: 4, Inner: 4, Seconds: 4,
		TCP: []tcpRow{row(1, 4.31, 1.24), row(4, 6.8, 1.02)}, UDP: udp,
		Latency: latencyRow{quantile{is(112.3), is(240.1), is(512.9)}, is(800.1), 3512, 0},
		Gateways: []gatewayRow{
			{Name: "A", In: 12345678, Out: 12345676, Drops: map[string]uint64{dataplane.CauseNoPolicy.String(): 2}, Balanced: true, Kernel: kernelDrops{TUN: 4711}},
			{Name: "B", In: 12340967, Out: 12340967, Drops: map[string]uint64{}, Balanced: true},
		},
		Machine: machine{"Intel(R) Atom(TM) CPU C2558 @ 2.40GHz", 4, "6.12.0", "go1.26.0", 0},
		Total:   24.3,
		addrs:   addresses{"10.1.0.2", "10.1.0.1", "192.0.2.1", "192.0.2.2", "10.2.0.1", "10.2.0.2"},
		setting: setting{"soft", 0, 1422},
	}
	return r
}

// The report as a person reads it, in the cases in which it says something else.
func TestReport(t *testing.T) {
	quiet := sample()
	quiet.UDP.Received, quiet.UDP.Loss, quiet.UDP.LostAt = quiet.UDP.Sent, 0, nil
	quiet.Gateways[0].Drops, quiet.Gateways[0].Kernel = map[string]uint64{}, kernelDrops{}

	wire := sample()
	wire.Link, wire.Outer, wire.Inner, wire.Wire, wire.Transform, wire.KeyBits = "esp", 6, 6, true, "authenc(hmac(sha256),ecb(cipher_null))", 0
	wire.addrs = addresses{"fd00:1::2", "fd00:1::1", "2001:db8::1", "2001:db8::2", "fd00:2::1", "fd00:2::2"}
	wire.Workers = 2
	wire.UDP.Within = false
	wire.Gateways[1].Balanced, wire.Gateways[1].Kernel.Socket = false, 9
	wire.Machine.Others = 1.36

	besides := sample()
	wg := besideRow{Name: besideWireGuard, TCP: []tcpRow{{1, is(1.22), is(8.2), is(5), 4}, {4, is(1.7), is(8.1), is(6.9), 4}}, UDP: udpRow{Delivered: 30.1, Within: true, Limit: limitTunnel}, Latency: latencyRow{quantile: quantile{P50: is(190)}, Samples: 3}}
	plain := besideRow{Name: besidePlain, TCP: []tcpRow{{1, is(11), nil, nil, 4}, {4, is(10.5), nil, nil, 4}}, UDP: udpRow{Delivered: 700.5, Within: true, Limit: limitGenerator}, Latency: latencyRow{quantile: quantile{P50: is(20)}, Samples: 3}}
	for _, b := range []besideRow{wg, plain} {
		b.Ratio = newRatio(besides, &b)
		besides.Beside = append(besides.Beside, b)
	}

	// A machine that stalls: no rate, and no echo that came back.
	stalled := sample()
	stalled.UDP.Within, stalled.UDP.Offered, stalled.UDP.CPUPer, stalled.UDP.OneWay = false, 0.5, nil, quantile{}
	stalled.Latency = latencyRow{Lost: 40}
	stalled.Beside = []besideRow{plain}
	stalled.Beside[0].Ratio = newRatio(stalled, &plain)

	for name, r := range map[string]*result{"udp4": sample(), "quiet": quiet, "wire-esp6": wire, "beside": besides, "stalled": stalled} {
		t.Run(name, func(t *testing.T) { golden(t, name+".txt", report(r)) })
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s (-want +got; go test -update writes it):\n%s", path, d)
	}
}

// The document has the keys that programs read, with the types they expect.
func TestJSON(t *testing.T) {
	r := sample()
	plain := besideRow{Name: besidePlain, TCP: []tcpRow{{Streams: 1, Gbps: is(8.62)}}, UDP: udpRow{Delivered: 311.9, Within: true}, Latency: latencyRow{quantile: quantile{P50: is(112.3)}}}
	plain.Ratio = newRatio(r, &plain)
	r.Beside = []besideRow{plain}
	indented, err := document(r)
	if err != nil || !bytes.HasSuffix(indented, []byte("\n}\n")) {
		t.Fatalf("%v\n%s", err, indented)
	}
	b, err := json.Marshal(json.RawMessage(indented))
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Culvert   string
		Engine    string
		Workers   *int
		InnerMTU  int `json:"inner_mtu"`
		Machine   struct{ Kernel, Go string }
		Beside    []map[string]json.RawMessage
		Transform string  `json:"transform"`
		KeyBits   int     `json:"key_bits"`
		Link      string  `json:"link"`
		Wire      *bool   `json:"wire"`
		Seconds   float64 `json:"seconds"`
		TCP       []struct {
			Streams int     `json:"streams"`
			Gbps    float64 `json:"gbps"`
			CPU     float64 `json:"gateway_cpu_s_per_gb"`
		} `json:"tcp"`
		UDP struct {
			Offered   float64 `json:"offered_kpps"`
			Delivered float64 `json:"delivered_kpps"`
			Loss      float64 `json:"loss"`
			Sent      uint64  `json:"sent"`
			LostAt    []struct {
				Where, Cause string
				Packets      uint64
			} `json:"lost_at"`
			Tried []struct {
				Loss  float64 `json:"loss"`
				Early bool    `json:"ended_early"`
			} `json:"tried"`
		} `json:"udp64"`
		Latency  struct{ P50, P99, P999 float64 } `json:"latency_us"`
		Gateways []struct {
			Name     string
			In, Out  uint64
			Drops    map[string]uint64
			Balanced bool
		}
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	if doc.Culvert != "devel 0123456789ab" || doc.Engine != "soft" || doc.Workers == nil || *doc.Workers != 0 || doc.InnerMTU != 1422 || doc.Machine.Kernel != "6.12.0" || doc.Machine.Go != "go1.26.0" {
		t.Errorf("%+v", doc)
	}
	if got, want := string(doc.Beside[0]["culvert_ratio"]), `{"tcp":[{"streams":1,"gbps":0.5,"gateway_cpu_s_per_gb":null}],"udp64":{"delivered_kpps":1,"gateway_cpu_us_per_packet":null},"latency_us":{"p50":1}}`; got != want {
		t.Errorf("culvert_ratio is\n%s, want\n%s", got, want)
	}
	if got, want := string(doc.Beside[0]["tcp"]), `[{"streams":1,"gbps":8.62,"gateway_cpu_s_per_gb":null,"gateway_cpu_s":null,"wall_s":0}]`; got != want {
		t.Errorf("without gateways:\n%s, want\n%s", got, want)
	}
	if doc.Transform != r.Transform || doc.KeyBits != 128 || doc.Link != "udp" || doc.Wire == nil || *doc.Wire || doc.Seconds != 4 {
		t.Errorf("%+v", doc)
	}
	if len(doc.TCP) != 2 || doc.TCP[1].Streams != 4 || doc.TCP[1].Gbps != 6.8 || doc.TCP[1].CPU != 1.02 {
		t.Errorf("%+v", doc.TCP)
	}
	if doc.UDP.Offered != 312.4 || doc.UDP.Delivered != 311.9 || doc.UDP.Loss != 0.0016 {
		t.Errorf("%+v", doc.UDP)
	}
	if doc.Latency.P50 != 112.3 || doc.Latency.P99 != 240.1 || doc.Latency.P999 != 512.9 {
		t.Errorf("%+v", doc.Latency)
	}
	if len(doc.Gateways) != 2 || doc.Gateways[0].Name != "A" || doc.Gateways[0].In != 12345678 || doc.Gateways[0].Out != 12345676 || doc.Gateways[0].Drops["no-policy"] != 2 || !doc.Gateways[0].Balanced {
		t.Errorf("%+v", doc.Gateways)
	}
	if len(doc.UDP.Tried) != 11 || doc.UDP.Tried[4].Loss != 0.0431 || !doc.UDP.Tried[4].Early || doc.UDP.Sent != 1249600 || len(doc.UDP.LostAt) != 3 || doc.UDP.LostAt[0].Cause != "tun_queue" {
		t.Errorf("%+v", doc.UDP)
	}
	if !bytes.Contains(b, []byte(`"drops":{}`)) {
		t.Error("a gateway without drops has no object for them")
	}
}

// Figures that were measured become the rows they should.
func TestRows(t *testing.T) {
	measured := traffic.TCPResult{Streams: 4, Bytes: 2e9, Wall: 4 * time.Second, CPU: traffic.CPU{User: time.Second, Sys: 2 * time.Second}}
	if d := cmp.Diff(tcpRow{4, is(4), is(1.5), is(3), 4}, newTCPRow(measured, true)); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(tcpRow{4, is(4), nil, nil, 4}, newTCPRow(measured, false)); d != "" {
		t.Error("without gateways:", d)
	}
	measured.Bytes = 0
	if d := cmp.Diff(tcpRow{4, is(0), nil, is(3), 4}, newTCPRow(measured, true)); d != "" {
		t.Error("nothing received:", d)
	}
	s := traffic.SearchResult{Trial: traffic.Trial{Sent: 1000, Wall: time.Second, Received: traffic.Received{Unique: 998, Duplicates: 1, Reordered: 2}, CPU: traffic.CPU{User: 4990 * time.Microsecond}}}
	want := udpRow{Offered: 1, Delivered: 1, Loss: 0.002, Within: true, Limit: limitTime, Duplicates: 1, Reordered: 2, CPUPer: is(5),
		Sent: 1000, Received: 998, Wall: 1, LostAt: []lost{{"gateway A", "tun_queue", 2}}, Tried: []tried{{1.2, 1, 0.5, 0.5, 0.5, true}}}
	s.LostAt = []traffic.Lost{{Point: traffic.Point{Where: "gateway A", Cause: "tun_queue"}, Packets: 2}}
	s.Tried = []traffic.Trial{{Asked: 1200, Sent: 500, Wall: time.Second / 2, Received: traffic.Received{Unique: 250}, Aborted: true}}
	if d := cmp.Diff(want, newUDPRow(s, true, true)); d != "" {
		t.Error(d)
	}
	s.Bracketed = true
	if got := newUDPRow(s, true, true).Limit; got != limitTunnel {
		t.Error(got)
	}
	s.GeneratorLimited = true
	if got := newUDPRow(s, true, true).Limit; got != limitGenerator {
		t.Error(got)
	}
	// Nothing arrived: no division by zero, which JSON could not express.
	nothing := newUDPRow(traffic.SearchResult{Trial: traffic.Trial{Sent: 10, Wall: time.Second}}, false, true)
	if b, err := json.Marshal(nothing); err != nil || !bytes.Contains(b, []byte(`"gateway_cpu_us_per_packet":null,"one_way_us":{"p50":null,"p99":null,"p999":null}`)) {
		t.Errorf("%s %v", b, err)
	}
	if got := newUDPRow(s, true, false).CPUPer; got != nil {
		t.Errorf("without gateways they took %v", *got)
	}
	l := newLatencyRow(traffic.PingResult{Sent: 5, Received: 4, RTT: traffic.Latency{Samples: 4, P50: 1234567, P99: 2 * time.Millisecond, P999: 3 * time.Millisecond, Max: 4 * time.Millisecond}})
	if d := cmp.Diff(latencyRow{quantile{is(1234.6), is(2000), is(3000)}, is(4000), 4, 1}, l, cmp.AllowUnexported(latencyRow{})); d != "" {
		t.Error(d)
	}
	other := &besideRow{TCP: []tcpRow{{Streams: 1, Gbps: is(4), CPUPerGB: is(2.48)}, {Streams: 4, Gbps: is(0)}}, UDP: udpRow{Delivered: 100, Within: true, CPUPer: is(6.42)}, Latency: latencyRow{quantile: quantile{P50: is(56.15)}}}
	ratios := ratio{[]tcpRatio{{1, is(1.08), is(0.5)}, {4, nil, nil}}, udpRatio{is(3.12), is(0.5)}, latencyRatio{is(2)}}
	if d := cmp.Diff(ratios, newRatio(sample(), other)); d != "" {
		t.Error(d)
	}
	other.UDP.Within = false
	if got := newRatio(sample(), other).UDP; got != (udpRatio{}) {
		t.Errorf("a rate that is none was compared: %+v", got)
	}
}

// A search that finds nothing is made again, lower; what is found counts, the trials are all told, and other errors end it.
func TestSearchAgain(t *testing.T) {
	broken := errors.New("broken")
	for _, c := range []struct {
		carries float64 // packets/s
		err     error   // of the second search
		starts  []float64
		want    error
	}{
		{30e3, nil, []float64{20e3}, nil},
		{1000, nil, []float64{20e3, 2500}, nil},
		{1, nil, []float64{20e3, 2500, 312.5}, traffic.ErrSearch},
		{1, broken, []float64{20e3, 2500}, broken},
	} {
		var starts []float64
		r, err := search(t.Context(), func(_ context.Context, o traffic.SearchOptions) (traffic.SearchResult, error) {
			starts = append(starts, o.Start)
			if len(starts) == 2 && c.err != nil {
				return traffic.SearchResult{}, c.err
			}
			s := traffic.SearchResult{Trial: traffic.Trial{Asked: o.Start}}
			if o.Start <= c.carries || o.Lowest <= c.carries && len(starts) > 1 {
				s.Tried = []traffic.Trial{s.Trial}
				return s, nil
			}
			s.Tried = []traffic.Trial{s.Trial, {Asked: o.Start / 2}}
			return s, traffic.ErrSearch
		}, traffic.SearchOptions{Start: 20e3, Lowest: 500})
		if !slices.Equal(starts, c.starts) || !errors.Is(err, c.want) || err == nil && len(r.Tried) != 2*len(starts)-1 {
			t.Errorf("%+v: searches from %v, %d trials, %v", c, starts, len(r.Tried), err)
		}
	}
}

// What a demo promised and did not measure is said, one by one; a whole result lacks nothing.
func TestShortfalls(t *testing.T) {
	if got := sample().shortfalls(); got != nil {
		t.Errorf("a whole result lacks %q", got)
	}
	r := sample()
	r.TCP[1].Gbps, r.UDP.Within, r.Latency.Samples, r.Gateways[1].Balanced = is(0), false, 0, false
	r.Beside = []besideRow{{Name: besidePlain, TCP: []tcpRow{{Streams: 1}}, UDP: udpRow{Within: true}, Latency: latencyRow{Samples: 1}}}
	want := []string{"TCP, 4 streams: nothing came through", "UDP: there is no rate with at most 0.5 % lost", "latency: no echo was answered",
		"the books of gateway B do not balance, which is a mistake in culvert", "plain: TCP, 1 stream: nothing came through"}
	if d := cmp.Diff(want, r.shortfalls()); d != "" {
		t.Error(d)
	}
}

// Every transform over every link and family gives two configurations that the gateway accepts, without a warning about anything but the
// transform, and whose two ends fit each other.
func TestConfigurations(t *testing.T) {
	for _, tr := range offload.Transforms() {
		for _, link := range linkKinds {
			for _, v6 := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%s/%v", tr.ID(), link, v6), func(t *testing.T) {
					aToB, err := newSA(tr)
					if err != nil {
						t.Fatal(err)
					}
					bToA, err := newSA(tr)
					if err != nil {
						t.Fatal(err)
					}
					wanA, wanB := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
					family := 0
					if v6 {
						wanA, wanB, family = netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2"), 1
					}
					base := gatewayConfig{StateDir: "/run/x.state", Socket: "/run/x.sock", Workers: 1, Link: link, Transform: tr}
					a, b := base, base
					a.Local, a.Remote, a.LocalNet, a.RemoteNet, a.Out, a.In = wanA, wanB, lab.LANA[family], lab.LANB[family], aToB, bToA
					b.Local, b.Remote, b.LocalNet, b.RemoteNet, b.Out, b.In = wanB, wanA, lab.LANB[family], lab.LANA[family], bToA, aToB
					ca, cb := load(t, &a), load(t, &b)
					ta, tb := ca.Tunnels[0], cb.Tunnels[0]
					if ta.Transform.Name != tr.Name || ta.Transform.KeyBits != tr.KeyBits || ta.Link.String() != link || ca.Workers != 1 || ca.Metrics.Listen != "" {
						t.Errorf("%+v", ta)
					}
					if ta.Out.SPI != tb.In.SPI || !ta.Out.Keys.Enc.Equal(tb.In.Keys.Enc) || !ta.Out.Keys.Auth.Equal(tb.In.Keys.Auth) || ta.Out.SPI == ta.In.SPI {
						t.Error("the two ends do not have the same SAs")
					}
					if ta.Local != tb.Remote || ta.LocalSubnets[0] != tb.RemoteSubnets[0] {
						t.Error("the two ends do not face each other")
					}
				})
			}
		}
	}
}

func load(t *testing.T, g *gatewayConfig) *configs.Config {
	t.Helper()
	var text bytes.Buffer
	if err := configTemplate.Execute(&text, g); err != nil {
		t.Fatal(err)
	}
	shown := text.String()
	c, err := configs.LoadBytes("demo.toml", text.Bytes())
	if err != nil {
		t.Fatalf("%v\n%s", err, shown)
	}
	for _, w := range c.Warnings {
		if w.Key != "tunnel.demo.transform" {
			t.Errorf("warning: %v", w)
		}
	}
	return c
}

// A wrong flag is named, and what it may be is listed.
func TestOptions(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"", ""},
		{"--transform rfc4106(gcm(aes)) --key-bits 256 --link esp --outer 6 --inner 6 --wire --seconds 0.5 --beside plain,wireguard-go --workers 2", ""},
		{"--transform rfc4106(gcm(aes) ", "perhaps rfc4106(gcm(aes)) is meant; `culvert engines` lists all"},
		{"--key-bits 100", "it has 128, 192, 256"},
		{"--link tcp", "udp, esp"},
		{"--outer 5", "--outer 5: write one of 4, 6"},
		{"--inner 0", "--inner 0: write one of 4, 6"},
		{"--seconds 0", "0.5 to 3600"},
		{"--seconds NaN", "0.5 to 3600"},
		{"--seconds Inf", "0.5 to 3600"},
		{"--beside plain,openvpn", "plain, wireguard-go"},
		{"--beside plain,plain", "--beside: plain is there twice"},
		{"--workers -1", "0 to 256"},
		{"--engine warp", `--engine "warp": write one of padlock, multibuf, soft`},
		{"--engine soft", ""},
		{"--key-bits -1", "with --key-bits -1: "},
		{"--transform rfc7539esp(chacha20,poly1305) --key-bits 128", "it has 256"},
		{"--transform authenc(hmac(sha1),ecb(cipher_null)) --key-bits 128", "with --key-bits 128: "},
	} {
		o := &options{}
		f := pflag.NewFlagSet("demo", pflag.ContinueOnError)
		o.flags(f)
		if err := f.Parse(strings.Fields(c.args)); err != nil {
			t.Fatal(err)
		}
		switch err := o.check(); {
		case c.want == "" && err != nil:
			t.Errorf("%q: %v", c.args, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%q: %v; it does not say %q", c.args, err, c.want)
		}
	}
}

// refuser is an engine that this machine cannot run, or that has no transform.
type refuser struct {
	offload.Engine
	err error
}

func (refuser) Name() string                   { return "refuser" }
func (r refuser) Probe() (offload.Caps, error) { return offload.Caps{}, r.err }

// An engine that this machine has not, or that does not do the transform, is refused with the reason, before anything is made.
func TestEngineRefused(t *testing.T) {
	transform, err := offload.Lookup("rfc4106(gcm(aes))", 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		engine string
		err    error
		want   string
	}{
		{"refuser", errors.New("padlock: there is no such unit"), "--engine refuser: there is no such unit; culvert engines lists what this machine has"},
		{"refuser", nil, "--engine refuser: the engine is not admitted: refuser for rfc4106(gcm(aes))"},
		{"", errors.New("there is no such unit"), `--transform "rfc4106(gcm(aes))": the engine is not admitted: none for rfc4106(gcm(aes))`},
		{"other", nil, `--engine "other": write one of refuser`},
	} {
		o := &options{engine: c.engine, transform: transform, transformName: transform.Name}
		if err := o.checkEngine([]offload.Engine{refuser{err: c.err}}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q, probe %v: %v; it does not say %q", c.engine, c.err, err, c.want)
		}
	}
}

// What a failed gateway last said is in the error.
func TestGatewayFailure(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	g := &gateway{name: "B", log: path}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := g.failure("it ended", nil); err.Error() != "gateway B: it ended; its log is empty" {
		t.Error(err)
	}
	var log strings.Builder
	for i := range 100 {
		fmt.Fprintf(&log, "line %d\n", i)
	}
	if err := os.WriteFile(path, []byte(log.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	err := g.failure("it ended", errors.New("badly"))
	if s := err.Error(); !strings.HasPrefix(s, "gateway B: it ended: badly; the end of its log:\n    line 75\n") || !strings.HasSuffix(s, "\n    line 99") {
		t.Error(s)
	}
}

// The environment of a gateway does not lead it to whatever manages the demo.
func TestWithout(t *testing.T) {
	got := without([]string{"PATH=/bin", "NOTIFY_SOCKET=/run/n", "NOTIFY_SOCKETS=2", "LISTEN_FDS=1"}, "NOTIFY_SOCKET", "LISTEN_FDS")
	if d := cmp.Diff([]string{"PATH=/bin", "NOTIFY_SOCKETS=2"}, got); d != "" {
		t.Error(d)
	}
}

// Progress that is cut off ends its line.
func TestProgress(t *testing.T) {
	var b strings.Builder
	p := newProgress(&b)
	p.step("one")
	p.done("well")
	p.step("two")
	p.step("three")
	p.end()
	p.end()
	var said []string
	for line := range strings.Lines(b.String()) {
		_, rest, _ := strings.Cut(line, "s  ")
		said = append(said, rest)
	}
	if d := cmp.Diff([]string{"one … well\n", "two … \n", "three … \n"}, said); d != "" {
		t.Error(d)
	}
}

// A demo that is cancelled before it began leaves nothing and says that it was interrupted.
func TestRunCancelled(t *testing.T) {
	if err := usable(); err != nil {
		t.Skip(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	o := &options{}
	f := pflag.NewFlagSet("demo", pflag.ContinueOnError)
	o.flags(f)
	if err := o.check(); err != nil {
		t.Fatal(err)
	}
	var out, status strings.Builder
	if err := run(ctx, o, &out, &status); err == nil || !strings.HasPrefix(err.Error(), "interrupted: ") || out.Len() > 0 {
		t.Errorf("%v\n%s%s", err, out.String(), status.String())
	}
	assertNothingLeft(t)
}

// assertNothingLeft checks that no lab of this process, or of the process given, is left.
func assertNothingLeft(t *testing.T, pids ...int) {
	t.Helper()
	for _, pid := range append(pids, os.Getpid()) {
		for _, pattern := range []string{"/run/netns/culvert-%d-*", "/run/culvert-lab/%d-*"} {
			if left, err := filepath.Glob(fmt.Sprintf(pattern, pid)); err != nil || len(left) > 0 {
				t.Errorf("left: %v %v", left, err)
			}
		}
	}
}
