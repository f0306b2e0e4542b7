package gateway

import (
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"culvert/dataplane"
	"culvert/dataplane/link"
)

// The log says a new hint at once, then at most every half minute how often it came again, and nothing if it did not.
func TestHintsAreSaidSeldom(t *testing.T) {
	d := newDiagnosis()
	start := time.Now()
	var lines []string
	second := func(n int) {
		now := start.Add(time.Duration(n) * time.Second)
		d.say(now, func(tunnel, text string, args ...any) {
			lines = append(lines, fmt.Sprint(n, " ", tunnel, " ", text, " ", args[3]))
		})
	}
	k := hintKey{tunnel: "office", kind: hintRefused}
	for n := range 100 {
		if n < 40 || n == 95 {
			d.note(k, 5, start.Add(time.Duration(n)*time.Second), "refused", "mend")
		}
		second(n)
	}
	if got, want := strings.Join(lines, "|"), "0 office refused 5|30 office refused 150|60 office refused 45|95 office refused 5"; got != want {
		t.Errorf("said %q, want %q", got, want)
	}
	// When traffic passes the status does not show it, but a peer that works now and then fills no log.
	lines = nil
	d.passed("office", start.Add(97*time.Second))
	if !d.hints[k].over {
		t.Error("it is still shown")
	}
	d.note(k, 1, start.Add(98*time.Second), "refused", "mend")
	if second(98); len(lines) != 0 || d.hints[k].over {
		t.Errorf("%q", lines)
	}
	// And in the end it is forgotten.
	d.forget(start.Add(98*time.Second+hintLasts), map[string]*tunnel{"office": {}})
	if len(d.hints) != 0 {
		t.Error("it is remembered for ever")
	}
}

// However many strangers send, few are remembered, those who send most among them, and the log has one line for all in half a minute.
func TestStrangersAreBounded(t *testing.T) {
	d := newDiagnosis()
	start := time.Now()
	lines := 0
	constant := hintKey{kind: hintSPI, peer: netip.MustParseAddr("203.0.113.1")}
	for n := range 60 {
		now := start.Add(time.Duration(n) * time.Second)
		d.note(constant, 10, now, "constant", "")
		for i := range 100 {
			d.note(hintKey{kind: hintSPI, peer: netip.AddrFrom4([4]byte{198, 51, byte(n), byte(i)})}, 1, now, "once", "")
		}
		d.say(now, func(string, string, ...any) { lines++ })
	}
	if h := d.hints[constant]; len(d.hints) > maxStrangers || h == nil || h.count != 600 {
		t.Errorf("%d strangers are remembered; the constant one: %+v", len(d.hints), h)
	}
	if lines != 2 {
		t.Errorf("%d lines in a minute", lines)
	}
}

// What each refusal means for a tunnel is said in words that name what to compare; what is about no tunnel is not said of one.
func TestExplanations(t *testing.T) {
	host(t)
	g, err := Start(load(t, document(t.TempDir(), false)), slog.New(slog.DiscardHandler), new(slog.LevelVar), "test")
	if err != nil {
		t.Fatal(err)
	}
	defer g.Stop()
	in, out, peer := g.tunnels["branch"].in.Params(), g.tunnels["branch"].out.Params(), g.tunnels["branch"].out.Peer()
	cfg := g.tunnels["branch"].cfg
	here, there, elsewhere := cfg.LocalSubnets[0].Addr().Next(), cfg.RemoteSubnets[0].Addr().Next(), netip.MustParseAddr("172.31.0.1")
	for _, c := range []struct {
		w    dataplane.Sighting
		kind string // "": nothing is said
		says string
	}{
		{dataplane.Sighting{Cause: dataplane.CauseShouldBeProtected, Src: there, Dst: here}, hintClear, "came in the clear"},
		{dataplane.Sighting{Cause: dataplane.CauseNoPolicy, Src: elsewhere, Dst: there}, hintNoPolicy, "local_subnets"},
		{dataplane.Sighting{Cause: dataplane.CauseNoPolicy, Src: here, Dst: elsewhere}, "", ""},
		{dataplane.Sighting{Cause: dataplane.CausePolicyMismatch, SPI: in.SPI, Src: elsewhere, Dst: here}, hintPolicy, "172.31.0.1"},
		{dataplane.Sighting{Cause: dataplane.CauseBadPad, SPI: in.SPI, Peer: peer}, hintContent, "transport mode"},
		{dataplane.Sighting{Cause: dataplane.CauseBadLength, SPI: in.SPI, Peer: peer}, hintLength, in.Transform.Name},
		{dataplane.Sighting{Cause: dataplane.CauseEncapMismatch, SPI: in.SPI, Peer: peer, Lane: "inbound esp4"}, hintEncap, "by esp4"},
		{dataplane.Sighting{Cause: dataplane.CauseIKE, Peer: peer}, hintIKE, "static keys"},
		{dataplane.Sighting{Cause: dataplane.CauseIKE, Peer: netip.AddrPortFrom(elsewhere, 4500)}, "", ""},
		{dataplane.Sighting{Cause: dataplane.CauseNoState, SPI: out.SPI, Peer: peer}, hintSPI, "exchange"},
		{dataplane.Sighting{Cause: dataplane.CauseUnreachable, SPI: out.SPI, Peer: peer, Err: link.ErrUnreachable}, hintUnsent, "no route to the destination"},
		{dataplane.Sighting{Cause: dataplane.CauseUnreachable, SPI: 1, Peer: peer, Err: link.ErrUnreachable}, "", ""},
		{dataplane.Sighting{Cause: dataplane.CauseIntegrityFailed, SPI: in.SPI, Peer: peer}, "", ""}, // one alone means nothing
	} {
		g.mu.Lock()
		g.diag.hints = map[hintKey]*hint{}
		c.w.Count = 3
		g.explain(c.w, time.Now())
		hints := g.hintStatus()
		g.mu.Unlock()
		switch {
		case c.kind == "" && len(hints) == 0:
		case len(hints) == 1 && c.kind == hints[0].Kind && hints[0].Tunnel == "branch" && hints[0].Packets == 3 && hints[0].Mend != "" &&
			strings.Contains(hints[0].Text+hints[0].Mend, c.says):
		default:
			t.Errorf("%v: %+v, want %q with %q", c.w.Cause, hints, c.kind, c.says)
		}
	}
}

// A sighting counts once, also when another has had its place in the lane meanwhile.
func TestSightingsAreNewsOnce(t *testing.T) {
	d := newDiagnosis()
	a := dataplane.Sighting{Lane: "inbound udp4", Cause: dataplane.CauseNoState, Peer: netip.MustParseAddrPort("192.0.2.9:1"), SPI: 1}
	b := a
	b.Peer = netip.MustParseAddrPort("192.0.2.10:1")
	for i, c := range []struct {
		w           *dataplane.Sighting
		count, news uint64
	}{{&a, 5, 5}, {&a, 5, 0}, {&a, 7, 2}, {&b, 1, 1}, {&a, 2, 2}, {&a, 3, 1}} {
		c.w.Count = c.count
		c.w.SPI++ // each packet may have another
		fresh := uint64(0)
		for _, w := range d.news([]dataplane.Sighting{*c.w}) {
			fresh += w.Count
		}
		if fresh != c.news {
			t.Errorf("%d: %d are new, want %d", i, fresh, c.news)
		}
	}
}
