package gateway

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"culvert/cmd/culvert/internal/control"
	"culvert/configs"
	"culvert/dataplane"
	"culvert/dataplane/link"
	"culvert/sa"
)

// Why no traffic passes is seldom in one packet, and never worth a line of the log for each. The lanes count, and remember the last
// packet of each kind that they refused; a goroutine compares once a second what has come since, and says it: at once what is new, then
// at most every sayEvery how often it came again.

const (
	diagnoseEvery = time.Second
	// sayEvery is how often the log repeats a hint that goes on.
	sayEvery = 30 * time.Second
	// A tunnel that has sent for silentFor, and has never received anything, is one that does not work, or one that is only for sending.
	// So the log says it seldom.
	silentFor, silentPackets, saySilentEvery = 15 * time.Second, 5, 10 * time.Minute
	// hintLasts is how long the status shows a hint after the last packet that gave reason for it.
	hintLasts = 2 * time.Minute
	// addressesEvery is how often it is looked whether the tunnels' own addresses are there, though nothing failed.
	addressesEvery = 5 * time.Second
	// wrongICVs in a row, without a right one, are no forgeries among others any more.
	wrongICVs = 3
	// maxStrangers bounds what those who are nobody's peer can make the gateway remember and show.
	maxStrangers = 16
	// namedAtMost is how many tunnels or SPIs one line names.
	namedAtMost = 8
)

// What a hint is about.
const (
	hintRefused     = "peer-refuses"
	hintUnreachable = "peer-unreachable"
	hintForbidden   = "forbidden"
	hintNoAnswer    = "no-answer"
	hintUnsent      = "not-sent"
	hintAddress     = "local-address"
	hintSPI         = "unknown-spi"
	hintEncap       = "other-encapsulation"
	hintIKE         = "ike"
	hintICV         = "wrong-icv"
	hintContent     = "wrong-content"
	hintLength      = "wrong-length"
	hintPolicy      = "policy-mismatch"
	hintClear       = "came-in-clear"
	hintNoPolicy    = "no-policy"
)

// hintKey tells hints apart. Those of no tunnel have an empty one, and whom they are about instead.
type hintKey struct {
	tunnel, kind string
	peer         netip.Addr
}

// hint is one reason why traffic of a tunnel may not pass, with the last example of it.
type hint struct {
	text, mend  string
	count       uint64
	since, last time.Time
	over        bool // traffic passes again: it is not shown, but remembered for how often the log says it
	said        time.Time
	saidCount   uint64
}

// sightKey tells sightings of one lane and cause apart, as the lane itself does.
type sightKey struct {
	lane  string
	cause dataplane.Cause
	spi   uint32
	peer  netip.AddrPort
	dst   netip.Addr
}

// icvStreak is where an inbound SA's counters stood when a packet of it was right last.
type icvStreak struct{ packets, bad, seen uint64 }

// diagnosis is what the gateway has found out. g.mu guards it.
type diagnosis struct {
	hints  map[hintKey]*hint
	sights map[sightKey]uint64
	icv    map[*sa.Inbound]icvStreak
	said   time.Time // when the log last named a stranger
	failed bool      // to send, since the addresses were looked at
	looked time.Time

	store storeState
}

// storeState is what was said of the store.
type storeState struct {
	problem error
	since   time.Time
	said    time.Time
	mended  uint64
}

func newDiagnosis() diagnosis {
	return diagnosis{hints: map[hintKey]*hint{}, sights: map[sightKey]uint64{}, icv: map[*sa.Inbound]icvStreak{}}
}

// diagnose looks and says until the gateway stops.
func (g *Gateway) diagnose() {
	defer g.wg.Done()
	t := time.NewTicker(diagnoseEvery)
	defer t.Stop()
	for {
		select {
		case <-g.stop:
			return
		case now := <-t.C:
			g.diagnoseNow(now)
		}
	}
}

func (g *Gateway) diagnoseNow(now time.Time) {
	sights := g.plane.Sightings()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.diagnoseStore(now)
	for _, w := range g.diag.news(sights) {
		g.explain(w, now)
	}
	g.diagnoseICVs(now)
	g.diagnoseAddresses(now)
	g.diagnoseSilence(now)
	g.diag.forget(now, g.tunnels)
	g.diag.say(now, func(tunnel, text string, args ...any) {
		if tunnel != "" {
			args = append([]any{"tunnel", tunnel}, args...)
		}
		g.log.Warn(text, args...)
	})
}

// news is what came since the last time: each sighting with the number that is new in it.
func (d *diagnosis) news(sights []dataplane.Sighting) []dataplane.Sighting {
	was := d.sights
	d.sights = make(map[sightKey]uint64, len(sights))
	var fresh []dataplane.Sighting
	for _, w := range sights {
		k := sightKey{lane: w.Lane, cause: w.Cause, dst: w.Dst}
		switch w.Cause {
		case dataplane.CauseNoState, dataplane.CauseEncapMismatch, dataplane.CauseBadLength, dataplane.CauseRunt, dataplane.CauseIKE:
			k.peer = netip.AddrPortFrom(w.Peer.Addr(), 0)
		case dataplane.CauseUnreachable, dataplane.CauseSendFailed:
			k.spi, k.peer = w.SPI, w.Peer
		case dataplane.CausePolicyMismatch:
			k.spi, k.dst = w.SPI, netip.Addr{}
		default:
			k.spi = w.SPI
		}
		d.sights[k] = w.Count
		if n := was[k]; n <= w.Count {
			w.Count -= n // if it is smaller another had the place meanwhile, and this one began anew
		}
		if w.Count > 0 {
			fresh = append(fresh, w)
		}
	}
	return fresh
}

// note adds n to a hint. An example that is newer takes the place of the one before.
func (d *diagnosis) note(k hintKey, n uint64, now time.Time, text, mend string) {
	h := d.hints[k]
	if h == nil {
		if k.tunnel == "" {
			d.makeRoom()
		}
		h = &hint{over: true}
		d.hints[k] = h
	}
	if h.over {
		h.since, h.over = now, false
	}
	h.text, h.mend, h.last = text, mend, now
	h.count += n
}

// makeRoom forgets the stranger who has sent least, where there are too many. One who goes on is soon not among those.
func (d *diagnosis) makeRoom() {
	var least hintKey
	n := 0
	for k, h := range d.hints {
		if k.tunnel != "" {
			continue
		}
		if n++; n == 1 || h.count < d.hints[least].count {
			least = k
		}
	}
	if n >= maxStrangers {
		delete(d.hints, least)
	}
}

// passed notes that packets of a tunnel come in and are right, so that what was found out before the last moments is over.
func (d *diagnosis) passed(tunnel string, now time.Time) {
	for _, kind := range []string{hintICV, hintNoAnswer, hintRefused, hintUnreachable, hintForbidden, hintUnsent} {
		if h := d.hints[hintKey{tunnel: tunnel, kind: kind}]; h != nil && (kind == hintICV || kind == hintNoAnswer || now.Sub(h.last) >= 2*diagnoseEvery) {
			h.over = true
		}
	}
}

// forget drops hints that are old, and those of tunnels that are gone.
func (d *diagnosis) forget(now time.Time, tunnels map[string]*tunnel) {
	for k, h := range d.hints {
		if gone := k.tunnel != "" && tunnels[k.tunnel] == nil; gone || now.Sub(h.last) >= hintLasts {
			delete(d.hints, k)
		}
	}
}

// say logs what is new, and what went on, at most every sayEvery for each hint. Those of no tunnel share one line in that time, so
// that no number of strangers fills the log.
func (d *diagnosis) say(now time.Time, log func(tunnel, text string, args ...any)) {
	for _, k := range d.keys() {
		h := d.hints[k]
		said, every := h.said, sayEvery
		switch {
		case k.tunnel == "":
			said = d.said
		case k.kind == hintNoAnswer:
			every = saySilentEvery
		}
		if h.count == h.saidCount || !said.IsZero() && now.Sub(said) < every {
			continue
		}
		log(k.tunnel, h.text, "hint", k.kind, "packets", h.count-h.saidCount, "mend", h.mend)
		h.said, h.saidCount = now, h.count
		if k.tunnel == "" {
			d.said = now
		}
	}
}

// keys are the hints in the order in which they are shown.
func (d *diagnosis) keys() []hintKey {
	return slices.SortedFunc(maps.Keys(d.hints), func(a, b hintKey) int {
		return cmp.Or(cmp.Compare(a.tunnel, b.tunnel), cmp.Compare(a.kind, b.kind), a.peer.Compare(b.peer))
	})
}

// hintStatus is for Status. The caller holds g.mu.
func (g *Gateway) hintStatus() []control.Hint {
	list := []control.Hint{}
	for _, k := range g.diag.keys() {
		h := g.diag.hints[k]
		if h.over {
			continue
		}
		list = append(list, control.Hint{Tunnel: k.tunnel, Kind: k.kind, Text: h.text, Mend: h.mend, Packets: h.count, Since: h.since, Last: h.last})
	}
	return list
}

// noticeHint takes what the network answers to a tunnel's packets. It may be forged, so nothing follows from it but a hint.
// The caller holds g.mu.
func (g *Gateway) noticeHint(name string, t *tunnel, n link.Notice) {
	peer := t.out.Peer()
	k := hintKey{tunnel: name}
	says := ""
	if n.From.IsValid() && n.From != peer.Addr() {
		says = fmt.Sprintf(" (says %v)", n.From)
	}
	var text, mend string
	switch n.Kind {
	case link.NoticeRefused:
		k.kind = hintRefused
		text = fmt.Sprintf("peer %v refuses protocol 50 (ESP): no gateway is there%s", peer.Addr(), says)
		mend = "start the peer's gateway, or let `remote` name it"
		if peer.Port() != 0 {
			text = fmt.Sprintf("peer %v refuses UDP port %d: no gateway listens there%s", peer.Addr(), peer.Port(), says)
			mend = "start the peer's gateway, or let `remote` and `remote_port` name where it listens; a firewall there may also answer so"
		}
	case link.NoticeUnreachable:
		k.kind = hintUnreachable
		text = fmt.Sprintf("peer %v cannot be reached%s", peer.Addr(), says)
		mend = fmt.Sprintf("see whether the peer's host is up, and the way there: ip route get %v", peer.Addr())
		if n.Local || n.From == t.cfg.Local {
			text = fmt.Sprintf("peer %v cannot be reached: this host has no route to it, or nobody answers on the link", peer.Addr())
		}
	case link.NoticeForbidden:
		k.kind = hintForbidden
		text = fmt.Sprintf("what is sent to peer %v is forbidden by a firewall%s", peer.Addr(), says)
		mend = "let that firewall pass " + passes(peer) + " in both directions"
	default:
		return
	}
	g.diag.note(k, 1, time.Now(), text, mend)
}

// passes is what a firewall has to let through.
func passes(peer netip.AddrPort) string {
	if peer.Port() == 0 {
		return "protocol 50 (ESP)"
	}
	return fmt.Sprintf("UDP port %d", peer.Port())
}

// explain turns what a lane has seen into a hint. The caller holds g.mu.
func (g *Gateway) explain(w dataplane.Sighting, now time.Time) {
	note := func(tunnel, kind, mend, text string, args ...any) {
		k := hintKey{tunnel: tunnel, kind: kind}
		if tunnel == "" {
			k.peer = w.Peer.Addr()
		}
		g.diag.note(k, w.Count, now, fmt.Sprintf(text, args...), mend)
	}
	name, t := g.tunnelBySPI(w.SPI)
	switch w.Cause {
	case dataplane.CauseNoState:
		g.explainSPI(w, note)
	case dataplane.CauseIKE:
		if of := g.tunnelsWith(w.Peer.Addr()); len(of) > 0 {
			note(of[0], hintIKE, "give the peer the same static SPIs and keys, and let no IKE daemon there use this port; or let one negotiate here too, instead of this tunnel (`culvert exec`)",
				"peer %v sends IKE messages: it wants to negotiate, and this gateway has static keys for it", w.Peer.Addr())
		}
	case dataplane.CauseUnreachable, dataplane.CauseSendFailed:
		g.diag.failed = true
		for name, t := range g.tunnels {
			if p := t.out.Params(); p.SPI == w.SPI && t.out.Peer() == w.Peer && g.diag.hints[hintKey{tunnel: name, kind: hintAddress}] == nil {
				note(name, hintUnsent, fmt.Sprintf("see the way there: ip route get %v from %v", w.Peer.Addr(), p.Src),
					"ESP packets to peer %v cannot be sent: %s", w.Peer.Addr(), Plain(w.Err))
			}
		}
	case dataplane.CauseNoPolicy:
		of := g.tunnelFor(func(p *configs.Policy) bool { return p.Dir == sa.Out && p.Sel.Dst.Contains(w.Dst) })
		if of == "" {
			return // nothing that a tunnel is for
		}
		note(of, hintNoPolicy, "add the source's network to `local_subnets` here and to `remote_subnets` on the peer, or do not route it here",
			"%v → %v is routed into the tunnel, but no policy selects it: its source is not in `local_subnets`", w.Src, w.Dst)
	case dataplane.CauseShouldBeProtected:
		f := sa.Flow{Src: w.Src, Dst: w.Dst}
		of := g.tunnelFor(func(p *configs.Policy) bool {
			return p.Dir == sa.In && p.Sel.Src.Contains(f.Src) && p.Sel.Dst.Contains(f.Dst)
		})
		note(of, hintClear, "let the peer send it through its tunnel: compare `local_subnets` there with `remote_subnets` here, and its routes",
			"%v → %v came in the clear, and a policy says that it must come through the tunnel", w.Src, w.Dst)
	case dataplane.CauseEncapMismatch:
		if t != nil {
			by, own := "by "+strings.TrimPrefix(w.Lane, "inbound "), g.outers[t.in.Params().Link]
			if by == "by "+own.Name() {
				by = "to another address or port of this host"
			}
			note(name, hintEncap, "let `link` be the same on both sides, and `remote` and `remote_port` of the peer what is `local` and `local_port` here",
				"packets with SPI %s from %v come %s, and this tunnel's link is %s on %s", spiString(w.SPI), w.Peer.Addr(), by, own.Name(), endpoint(own.Local()))
		}
	case dataplane.CauseBadLength, dataplane.CauseRunt:
		if t != nil {
			note(name, hintLength, "compare `transform`, `icv_bits` of both sides",
				"packets with SPI %s from %v have a length that the transform %s never makes", spiString(w.SPI), w.Peer.Addr(), t.cfg.Transform.Name)
		}
	case dataplane.CauseBadPad, dataplane.CauseBadNextHeader, dataplane.CauseDecapMalformed:
		if t != nil {
			note(name, hintContent, "compare `transform`, `key_bits` and `enc_key` of both sides, and let the peer use tunnel mode",
				"packets with SPI %s from %v have a right ICV, but hold no IP packet (%s): the key or cipher of the encryption differs, or the peer uses transport mode",
				spiString(w.SPI), w.Peer.Addr(), w.Cause)
		}
	case dataplane.CausePolicyMismatch:
		if t != nil {
			note(name, hintPolicy, "let `remote_subnets` here and `local_subnets` of the peer be the same, and the other way round",
				"%v → %v came through the tunnel, and no policy of its SA allows it", w.Src, w.Dst)
		}
	}
}

// explainSPI says of an SPI that is not known which ones are.
func (g *Gateway) explainSPI(w dataplane.Sighting, note func(tunnel, kind, mend, text string, args ...any)) {
	of := g.tunnelsWith(w.Peer.Addr())
	if len(of) == 0 {
		note("", hintSPI, "if this is a peer, let `remote` of its tunnel be that address",
			"packets with SPI %s come from %v, and no tunnel has that address as its peer", spiString(w.SPI), w.Peer)
		return
	}
	var have []string
	swapped := ""
	for _, name := range of {
		t := g.tunnels[name]
		have = append(have, fmt.Sprintf("%s (%s)", spiString(t.in.Params().SPI), name))
		if t.out.Params().SPI == w.SPI {
			swapped = name
		}
	}
	mend := "let `out.spi` of the peer be `in.spi` here"
	if swapped != "" {
		mend = fmt.Sprintf("this SPI is `out.spi` of %s here: exchange `out` and `in` on one side", swapped)
	}
	note(of[0], hintSPI, mend, "packets with SPI %s come from peer %v, and no SA has that SPI; for this peer there is %s",
		spiString(w.SPI), w.Peer, atMost(have))
}

// atMost joins what a line can hold.
func atMost(all []string) string {
	if n := len(all) - namedAtMost; n > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(all[:namedAtMost], ", "), n)
	}
	return strings.Join(all, ", ")
}

// tunnelBySPI finds the tunnel of an inbound SA.
func (g *Gateway) tunnelBySPI(spi uint32) (string, *tunnel) {
	for name, t := range g.tunnels {
		if t.in.Params().SPI == spi {
			return name, t
		}
	}
	return "", nil
}

// tunnelsWith are the tunnels to a peer, by name.
func (g *Gateway) tunnelsWith(peer netip.Addr) (names []string) {
	for name, t := range g.tunnels {
		if t.cfg.Remote == peer || t.out.Peer().Addr() == peer {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// tunnelFor is the tunnel of the first protecting policy that is meant, "" if none is.
func (g *Gateway) tunnelFor(means func(*configs.Policy) bool) string {
	for _, p := range g.cfg.Policies {
		if p.Action == sa.Protect && means(p) {
			return p.Tunnel
		}
	}
	return ""
}

// diagnoseICVs finds inbound SAs whose packets are all wrong. The caller holds g.mu.
func (g *Gateway) diagnoseICVs(now time.Time) {
	was := g.diag.icv
	g.diag.icv = make(map[*sa.Inbound]icvStreak, len(g.tunnels))
	for name, t := range g.tunnels {
		st := t.in.Stats()
		s, known := was[t.in]
		if !known || st.Packets != s.packets {
			g.diag.icv[t.in] = icvStreak{packets: st.Packets, bad: st.Drops.BadICV, seen: st.Drops.BadICV}
			if known {
				g.diag.passed(name, now)
				continue
			}
			s = icvStreak{packets: st.Packets} // those before the first look count too
		}
		if st.Drops.BadICV-s.bad >= wrongICVs && st.Drops.BadICV > s.seen {
			n := st.Drops.BadICV - s.seen
			if s.seen == s.bad {
				n = st.Drops.BadICV - s.bad
			}
			none := "and none was ever right"
			if st.Packets > 0 {
				none = "and none since the last right one"
			}
			g.diag.note(hintKey{tunnel: name, kind: hintICV}, n, now,
				fmt.Sprintf("every packet with SPI %s from peer %v has a wrong ICV, %s: key, transform or ESN differ from the peer's",
					spiString(t.in.Params().SPI), t.out.Peer().Addr(), none),
				"compare the keys of `in` here and `out` on the peer, `transform`, `key_bits`, `icv_bits` and `esn`")
			s.seen = st.Drops.BadICV
		}
		g.diag.icv[t.in] = s
	}
}

// diagnoseSilence finds tunnels that have sent for some time, have never got anything, and of which nothing else is known. The caller
// holds g.mu.
func (g *Gateway) diagnoseSilence(now time.Time) {
	known := map[string]bool{}
	for k, h := range g.diag.hints {
		if k.kind != hintNoAnswer && !h.over {
			known[k.tunnel] = true
		}
	}
	for name, t := range g.tunnels {
		k := hintKey{tunnel: name, kind: hintNoAnswer}
		h := g.diag.hints[k]
		out, in := t.out.Stats(), t.in.Stats()
		if known[name] || in.Packets > 0 || in.Drops != (sa.Drops{}) {
			if h != nil {
				h.over, h.saidCount = true, h.count
			}
			continue
		}
		if out.Packets < silentPackets || now.Sub(out.FirstUse) < silentFor || now.Sub(out.LastUse) >= silentFor {
			continue
		}
		n := out.Packets
		if h != nil {
			n -= min(n, h.count)
		}
		peer := t.out.Peer()
		g.diag.note(k, n, now, fmt.Sprintf("packets are sent to peer %v, and none has come from it", peer.Addr()),
			fmt.Sprintf("see whether a firewall on the way drops %s, and what culvert status says on the peer", passes(peer)))
	}
}

// diagnoseAddresses finds tunnels whose own outer address the host does not have any more. The caller holds g.mu.
func (g *Gateway) diagnoseAddresses(now time.Time) {
	if !g.diag.failed && now.Sub(g.diag.looked) < addressesEvery {
		return
	}
	g.diag.failed, g.diag.looked = false, now
	have, err := g.net.Addresses()
	if err != nil {
		g.log.Debug("the host's addresses could not be listed", "reason", err)
		return
	}
	for name, t := range g.tunnels {
		k := hintKey{tunnel: name, kind: hintAddress}
		switch {
		case !have[t.cfg.Local] && !t.cfg.Local.IsUnspecified():
			g.diag.note(k, 1, now, fmt.Sprintf("no interface of this host has the tunnel's own address %v any more: nothing can be sent or received", t.cfg.Local),
				"give the host the address again; the tunnel then goes on by itself")
			if h := g.diag.hints[hintKey{tunnel: name, kind: hintUnsent}]; h != nil {
				h.over, h.saidCount = true, h.count // this says why
			}
		case g.diag.hints[k] != nil:
			delete(g.diag.hints, k)
			g.log.Info("the tunnel's own address is there again", "tunnel", name, "local", t.cfg.Local)
		}
	}
}

// diagnoseStore says when sequence numbers cannot be reserved, and when they can again. The caller holds g.mu.
func (g *Gateway) diagnoseStore(now time.Time) {
	if g.store == nil {
		return
	}
	d := &g.diag.store
	if m := g.store.Mended(); m.Times != d.mended {
		g.log.Warn("the sequence marks were taken away while in use; they are in place again, and nothing is lost",
			"file", g.store.File(), "what", m.Last, "times", m.Times-d.mended)
		d.mended = m.Times
	}
	err := g.store.Err()
	switch {
	case err == nil && d.problem == nil:
	case err == nil:
		g.log.Info("sequence numbers are reserved on disk again", "file", g.store.File(), "failed_for", now.Sub(d.since).Round(time.Second).String())
		d.problem, d.said = nil, time.Time{}
	default:
		if d.problem == nil {
			d.since = now
		}
		d.problem = err
		if !d.said.IsZero() && now.Sub(d.said) < sayEvery {
			return
		}
		d.said = now
		var left []string
		for _, l := range g.left() {
			left = append(left, fmt.Sprintf("%s %s: %d", l.Tunnel, l.SPI, l.Packets))
		}
		g.log.Error("no sequence numbers can be reserved on disk: when what is left is used up, packets are dropped (seq-not-reserved)",
			"file", g.store.File(), "reason", g.storeReason(err), "mend", reserveMend(err), "packets_left", atMost(left))
	}
}

// left is how many packets each tunnel can still send without the disk, the fewest first. The caller holds g.mu.
func (g *Gateway) left() []control.Left {
	list := []control.Left{}
	for name, t := range g.tunnels {
		q := t.out.Sequence()
		if q.Volatile() {
			continue
		}
		n := uint64(0)
		if end, last := q.Reserved(), t.out.Stats().Seq; end > last+1 {
			n = end - last - 1
		}
		list = append(list, control.Left{Tunnel: name, SPI: spiString(t.out.Params().SPI), Packets: n})
	}
	slices.SortFunc(list, func(a, b control.Left) int {
		return cmp.Or(cmp.Compare(a.Packets, b.Packets), cmp.Compare(a.Tunnel, b.Tunnel))
	})
	return list
}

// storeReason is an error of the store without the file that is named beside it.
func (g *Gateway) storeReason(err error) string {
	return strings.TrimPrefix(Plain(err), g.store.File()+": ")
}

// reserveMend is what to do about an error of a store that is open.
func reserveMend(err error) string {
	switch {
	case errors.Is(err, sa.ErrStoreBusy), errors.Is(err, sa.ErrStoreCorrupt), errors.Is(err, sa.ErrStoreMoved),
		errors.Is(err, sa.ErrStoreExposed), errors.Is(err, sa.ErrStoreForeign):
		return "see the reason; then culvert goes on by itself"
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return "make room on the file system of state_dir; culvert then goes on by itself"
	case errors.Is(err, unix.EROFS):
		return "mount the file system of state_dir for writing; culvert then goes on by itself"
	case errors.Is(err, fs.ErrPermission):
		return "let culvert write in state_dir; it then goes on by itself"
	case errors.Is(err, unix.EIO):
		return "the disk under state_dir errs: see dmesg; culvert tries again every second"
	}
	return "let state_dir be a directory that culvert can write; it then goes on by itself"
}

// storeStatus is for Status, nil without a state directory. The caller holds g.mu.
func (g *Gateway) storeStatus() *control.State {
	if g.store == nil {
		return nil
	}
	s := &control.State{File: g.store.File(), Mended: g.store.Mended().Times}
	if err := g.store.Err(); err != nil {
		s.Problem, s.Mend, s.Left = g.storeReason(err), reserveMend(err), g.left()
		if !g.diag.store.since.IsZero() && g.diag.store.problem != nil {
			since := g.diag.store.since
			s.Since = &since
		}
	}
	return s
}
