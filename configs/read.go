package configs

import (
	"fmt"
	"math"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"culvert/offload"
	"culvert/sa"
)

// Bounds and defaults that more than one place needs.
const (
	natPort        = 4500 // RFC 3948
	minWindow      = 32
	maxWindow      = 65536
	minMTU4        = 576
	minMTU6        = 1280 // RFC 8200 section 5
	maxMTU         = 65535
	minSPI         = 256 // RFC 4303 section 2.1 reserves 1 to 255
	tunnelPriority = 1000
	policyPriority = 100
	maxPriority    = math.MaxInt32
)

func defaults(file string) *Config {
	return &Config{
		File:     file,
		StateDir: "/var/lib/culvert",
		Control:  "/run/culvert/control.sock",
		Tun:      Tun{Name: "culvert0", GSO: true},
		Log:      Log{Level: LogInfo, Format: LogText},
		Metrics:  Metrics{Listen: "127.0.0.1:9750"},
		Guard:    Guard{Enabled: true},
		IKE: IKE{
			Socket: "/run/culvert/exec.sock", StateDir: "/run/culvert/ike", HoldFor: 165 * time.Second, Port: 500, PortNATT: natPort,
		},
	}
}

// root reads the whole file.
func (l *loader) root(r *reader, c *Config) {
	r.str("state_dir", &c.StateDir, `write an absolute path in quotes, such as "/var/lib/culvert", or "" for none`, absolute)
	r.boolean("state_dir_volatile", &c.StateDirVolatile)
	r.str("control", &c.Control, `write an absolute path of at most 107 bytes in quotes, such as "/run/culvert/control.sock", or "" for none`, socketPath)
	r.str("engine", &c.Engine, `write the name of one in quotes, such as "soft", or "" to have one chosen; `+"`culvert engines` lists them", nil)
	integer(r, "workers", &c.Workers, 0, 256, "workers")

	tun := r.sub("tun")
	tun.str("name", &c.Tun.Name, `write 1 to 15 characters without blanks, /, : and % in quotes, such as "culvert0"`, interfaceName)
	okMTU := integerMend(tun, "mtu", &c.Tun.MTU, math.MinInt32, math.MaxInt32, fmt.Sprintf("write 0 for the exact one, or %d to %d bytes", minMTU4, maxMTU)) // bounds: tunMTU
	c.Tun.Addresses = values(list(tun, "addresses", "10.255.0.1/32", interfaceAddress))
	tun.boolean("gso", &c.Tun.GSO)
	tun.done()

	log := r.sub("log")
	word(log, "level", &c.Log.Level, logLevels)
	word(log, "format", &c.Log.Format, logFormats)
	log.done()

	metrics := r.sub("metrics")
	metrics.str("listen", &c.Metrics.Listen, `write host:port in quotes, such as "127.0.0.1:9750" or "[::1]:9750", or "" to switch it off`, listenAddress)
	metrics.done()

	guard := r.sub("guard")
	guard.boolean("enabled", &c.Guard.Enabled)
	guard.boolean("local_by_default_route", &c.Guard.LocalByDefault)
	guard.done()

	l.ike(r.sub("ike"), c)

	p := &policies{l: l, c: c}
	names := make(map[string]int)
	spis := make(map[spiUse]int)
	for i, t := range r.each("tunnel") {
		l.tunnel(l.named(t, "tunnel", i), c, p, names, spis)
	}
	names = make(map[string]int)
	for i, t := range r.each("policy") {
		p.read(l.named(t, "policy", i), names)
	}
	r.done()
	p.finish()
	l.ikeClashes(c)
	if okMTU {
		l.tunMTU(tun, c)
	}
	l.mtus(tun, c)
}

// ike reads [ike].
func (l *loader) ike(r *reader, c *Config) {
	i := &c.IKE
	r.boolean("enabled", &i.Enabled)
	okSocket := r.str("socket", &i.Socket, `write an absolute path of at most 107 bytes in quotes, such as "/run/culvert/exec.sock"`, needed(socketPath)) || !r.has("socket")
	r.str("state_dir", &i.StateDir, `write an absolute path in quotes, such as "/run/culvert/ike"`, needed(absolute))
	r.duration("hold_for", &i.HoldFor, time.Second, time.Hour)
	integer(r, "port", &i.Port, 1, math.MaxUint16, "")
	integer(r, "port_nat_t", &i.PortNATT, 1, math.MaxUint16, "")
	word(r, "after_delete", &i.AfterDelete, afterDeleteWords)
	locals, remotes := list(r, "local_subnets", "10.1.0.0/16", subnet), list(r, "remote_subnets", "10.2.0.0/16", subnet)
	i.LocalSubnets, i.RemoteSubnets = values(locals), values(remotes)
	r.done()
	if okSocket && i.Enabled && i.Socket == c.Control {
		r.fail("socket", &problem{"it is the path of the control socket too", "give each a path of its own", ErrConflict})
	}
	if len(locals) > 0 && len(remotes) == 0 && !r.has("remote_subnets") {
		r.require("remote_subnets", "write the subnets of the other side: what is guarded are the pairs of both")
	}
	if len(remotes) > 0 && len(locals) == 0 && !r.has("local_subnets") {
		r.require("local_subnets", "write the subnets of this side: what is guarded are the pairs of both")
	}
	for _, side := range []struct {
		name, other string
		list, peers []placed[netip.Prefix]
	}{{"local_subnets", "remote_subnets", locals, remotes}, {"remote_subnets", "local_subnets", remotes, locals}} {
		for _, a := range side.list {
			if len(side.peers) > 0 && !slices.ContainsFunc(side.peers, func(b placed[netip.Prefix]) bool { return b.v.Addr().Is4() == a.v.Addr().Is4() }) {
				l.fail(a.off, join(r.path, side.name), &problem{
					fmt.Sprintf("%v is %s, and no prefix in %s is", a.v, family(a.v.Addr()), side.other),
					"give both sides subnets of the same families", ErrConflict,
				})
			}
		}
	}
}

// ikeClashes refuses what the daemon's sockets and policies would be in the way of.
func (l *loader) ikeClashes(c *Config) {
	if !c.IKE.Enabled {
		return
	}
	for _, t := range c.Tunnels {
		if t.Link != LinkUDP || t.LocalPort != c.IKE.Port && t.LocalPort != c.IKE.PortNATT {
			continue
		}
		key := "tunnel." + t.Name + ".local_port"
		l.errs = append(l.errs, c.refuse(key, fmt.Sprintf("UDP port %d is the IKE daemon's, since ike.enabled is true", t.LocalPort),
			"give the tunnel another local_port, and its peer the same as remote_port", ErrConflict))
	}
	told := ""
	for _, p := range c.Policies {
		if strings.HasPrefix(p.Name, "xfrm-") && p.key != told { // there may be one per direction
			told = p.key
			l.errs = append(l.errs, c.refuse(p.key, fmt.Sprintf("%q is a name as the IKE daemon's policies have them", p.Name),
				"give it another one, which does not begin with xfrm-", ErrConflict))
		}
	}
}

// needed is a check of a path that cannot be left empty.
func needed(check func(string) string) func(string) string {
	return func(s string) string {
		if s == "" {
			return "it is empty"
		}
		return check(s)
	}
}

// named returns the reader of one [[kind]], whose path has its name if it has one and else its number.
func (l *loader) named(t *table, kind string, i int) *reader {
	path := fmt.Sprintf("%s[%d]", kind, i+1)
	if e := t.get("name"); e != nil && e.val.kind == kindString && identifier(string(e.val.text)) == "" {
		path = kind + "." + string(e.val.text)
	}
	r := l.reader(t, path, kind)
	l.places[path] = l.doc.pos(t.off)
	return r
}

// name reads the name of a [[tunnel]] or [[policy]], which must be the only one of its kind.
func (r *reader) name(dst *string, names map[string]int) {
	if !r.str("name", dst, `write 1 to 63 letters, digits, - and _ in quotes, such as "branch"`, identifier) {
		return
	}
	if first, twice := names[*dst]; twice {
		r.fail("name", &problem{fmt.Sprintf("%q is the name of the one at %v too", *dst, r.l.doc.pos(first)), "give each a name of its own", ErrConflict})
		return
	}
	names[*dst] = r.at("name")
}

// spiUse is what must be unique: the SPI inside, where it alone selects the SA, and with the peer's address outside.
type spiUse struct {
	spi  uint32
	peer netip.Addr // zero for inbound SAs
}

// tunnel reads one [[tunnel]].
func (l *loader) tunnel(r *reader, c *Config, p *policies, names map[string]int, spis map[spiUse]int) {
	before := len(l.errs)
	t := &Tunnel{
		Link: LinkUDP, ReplayCheck: true, ReplayWindow: 1024, DF: sa.DFSet, ECN: true, MSSClamp: true,
		Priority: tunnelPriority,
	}
	r.name(&t.Name, names)
	r.require("name", `write name = "…": letters, digits, - and _`)
	t.Pos = l.doc.pos(r.at("name"))
	r.address("local", &t.Local)
	r.require("local", `write local = "…", the address of this side as the packets carry it`)
	r.address("remote", &t.Remote)
	r.require("remote", `write remote = "…", the address of the peer`)
	if t.Local.IsValid() && t.Remote.IsValid() {
		switch {
		case t.Local.Is4() != t.Remote.Is4():
			r.fail("remote", &problem{fmt.Sprintf("%v is %s, and local %v is %s", t.Remote, family(t.Remote), t.Local, family(t.Local)), "the two ends of a tunnel are of one family: write an address of the other family for one of them", ErrConflict})
		case t.Local == t.Remote:
			r.fail("remote", &problem{fmt.Sprintf("%v is the local address too", t.Remote), "write the address of the peer", ErrConflict})
		case t.Local.IsLoopback() != t.Remote.IsLoopback():
			r.fail("remote", &problem{fmt.Sprintf("between %v and %v no packet can go: one of them is the loopback, and the other is not", t.Local, t.Remote), "write the addresses that the packets carry between the two hosts", ErrConflict})
		}
	}
	l.link(r, t)
	l.transform(r, t)
	r.boolean("esn", &t.ESN)
	l.replay(r, t)
	l.outer(r, t)
	r.boolean("mss_clamp", &t.MSSClamp)
	integer(r, "priority", &t.Priority, 0, maxPriority, "")

	locals, remotes := list(r, "local_subnets", "10.1.0.0/16", subnet), list(r, "remote_subnets", "10.2.0.0/16", subnet)
	t.LocalSubnets, t.RemoteSubnets = values(locals), values(remotes)

	l.lifetime(r.sub("lifetime"), t)
	for _, d := range []struct {
		name string
		sa   *SA
		use  spiUse
	}{{"out", &t.Out, spiUse{peer: t.Remote}}, {"in", &t.In, spiUse{}}} {
		s := r.sub(d.name)
		l.sa(s, t, d.sa)
		if !r.has(d.name) {
			r.require(d.name, fmt.Sprintf("write [tunnel.%s] below the tunnel, with spi and keys", d.name))
		} else if d.sa.SPI != 0 && (d.name == "in" || t.Remote.IsValid()) {
			d.use.spi = d.sa.SPI
			if first, twice := spis[d.use]; twice {
				what := fmt.Sprintf("0x%x is the SPI of the inbound SA at %v too", d.sa.SPI, l.doc.pos(first))
				if d.name == "out" {
					what = fmt.Sprintf("0x%x to %v is the SPI of the SA at %v too", d.sa.SPI, t.Remote, l.doc.pos(first))
				}
				s.fail("spi", &problem{what, "give each SA an SPI of its own", ErrConflict})
			} else {
				spis[d.use] = s.at("spi")
			}
		}
	}
	r.done()

	if t.Transform != nil && t.Transform.AEAD && c.StateDir == "" {
		r.fail("transform", &problem{
			t.Transform.Name + " must never use a sequence number twice, and state_dir is empty, so that a restart would",
			`write state_dir = "/var/lib/culvert" at the top of the file, or use a transform with a random IV, such as authenc(hmac(sha256),cbc(aes))`, ErrConflict,
		})
	}
	weak(r, t)
	if t.LinkIndex = slices.Index(c.links, t.link()); t.LinkIndex < 0 {
		t.LinkIndex = len(c.links)
		c.links = append(c.links, t.link())
	}
	c.Tunnels = append(c.Tunnels, t)
	p.subnets(r, t, locals, remotes, len(l.errs) > before)
}

// link reads how the tunnel's ESP is carried.
func (l *loader) link(r *reader, t *Tunnel) {
	word(r, "link", &t.Link, linkKinds)
	if t.Link == LinkUDP {
		t.LocalPort, t.RemotePort = natPort, natPort
	}
	integer(r, "local_port", &t.LocalPort, 1, math.MaxUint16, "")
	integer(r, "remote_port", &t.RemotePort, 1, math.MaxUint16, "")
	r.boolean("follow_peer", &t.FollowPeer)
	r.duration("keepalive", &t.Keepalive, time.Second, time.Hour)
	if t.Link == LinkUDP {
		return
	}
	const mend = `remove it, or write link = "udp"`
	for _, port := range []string{"local_port", "remote_port"} {
		if r.has(port) {
			r.fail(port, &problem{`link = "esp" has no ports`, mend, ErrConflict})
		}
	}
	if t.FollowPeer {
		r.fail("follow_peer", &problem{`link = "esp" passes no NAT whose mapping could change`, mend, ErrConflict})
	}
	if t.Keepalive != 0 {
		r.fail("keepalive", &problem{`link = "esp" has no NAT mapping to keep alive`, mend, ErrConflict})
	}
	t.LocalPort, t.RemotePort = 0, 0
}

// transform reads the transform by its three keys.
func (l *loader) transform(r *reader, t *Tunnel) {
	var name string
	var keyBits, icvBits int
	okName := r.str("transform", &name, `write one in quotes, such as "rfc4106(gcm(aes))" or "authenc(hmac(sha256),cbc(aes))"`, nil)
	r.require("transform", `write transform = "…", such as "rfc4106(gcm(aes))" or "authenc(hmac(sha256),cbc(aes))"`)
	found, err := offload.Lookup(name, 0, 0)
	mendBits := func(of func(*offload.Transform) int) string {
		if err != nil {
			return "write 0 for the default of the transform"
		}
		return "write 0 for the default, or " + choices(name, of)
	}
	bitsOfKey := mendBits(func(o *offload.Transform) int { return o.KeyBits })
	bitsOfICV := mendBits(func(o *offload.Transform) int { return o.ICVLen * 8 })
	okKey := integerMend(r, "key_bits", &keyBits, 0, math.MaxInt32, bitsOfKey) || !r.has("key_bits")
	okICV := integerMend(r, "icv_bits", &icvBits, 0, math.MaxInt32, bitsOfICV) || !r.has("icv_bits")
	if !okName {
		return
	}
	if err != nil {
		r.fail("transform", bad("there is no transform "+show(name), TransformMend(name)))
		return
	}
	if okKey {
		if _, err := offload.Lookup(name, keyBits, 0); err != nil {
			r.fail("key_bits", bad(fmt.Sprintf("%s has no key of %d bits", found.Name, keyBits), bitsOfKey))
			okKey = false
		}
	}
	if okICV {
		if _, err := offload.Lookup(name, 0, icvBits); err != nil {
			r.fail("icv_bits", bad(fmt.Sprintf("%s has no ICV of %d bits", found.Name, icvBits), bitsOfICV))
			okICV = false
		}
	}
	if !okKey || !okICV {
		return
	}
	if t.Transform, err = offload.Lookup(name, keyBits, icvBits); err != nil {
		t.Transform = nil
		r.fail("icv_bits", bad(fmt.Sprintf("%s with a key of %d bits has no ICV of %d bits", found.Name, keyBits, icvBits), bitsOfICV))
	}
}

// choices lists a property of all transforms of a name.
func choices(name string, of func(*offload.Transform) int) string {
	var ns []int
	for _, o := range offload.Transforms() {
		if o.Name == name {
			ns = append(ns, of(o))
		}
	}
	slices.Sort(ns)
	var words []string
	for _, n := range slices.Compact(ns) {
		words = append(words, strconv.Itoa(n))
	}
	return strings.ReplaceAll(orList(words), `"`, "")
}

// replay reads the anti-replay settings (RFC 4303 section 3.4.3).
func (l *loader) replay(r *reader, t *Tunnel) {
	r.boolean("replay_check", &t.ReplayCheck)
	mend := bounds(minWindow, maxWindow, "packets")
	given := get(r, "replay_window", &t.ReplayWindow, mend, kindInteger, func(v *value) (int, *problem) {
		n, p := number(v, minWindow, maxWindow, mend)
		if p != nil && string(v.text) == "0" {
			p.what = "a window of 0 would switch the replay check off"
			if !t.ESN {
				p.mend += ", or replay_check = false instead if you mean it"
			}
		}
		return int(n), p
	})
	if t.ReplayCheck {
		return
	}
	t.ReplayWindow = 0
	if given {
		r.fail("replay_window", &problem{"replay_check = false uses no window", "remove one of the two", ErrConflict})
	}
	if t.ESN {
		r.fail("replay_check", &problem{"with esn = true the window is what tells the high half of a number", "remove it, or write esn = false", ErrConflict})
	} else {
		r.warn("replay_check", "recorded packets can be sent again to this side, and it will believe them")
	}
}

// outer reads what the outer header looks like and how long its packets may be.
func (l *loader) outer(r *reader, t *Tunnel) {
	lowest := minMTU4
	if t.Local.IsValid() && !t.Local.Is4() {
		lowest = minMTU6
	}
	mend := fmt.Sprintf("write 0 for that of the interface, or %d to %d bytes", lowest, maxMTU)
	get(r, "outer_mtu", &t.OuterMTU, mend, kindInteger, func(v *value) (int, *problem) {
		n, p := number(v, 0, maxMTU, mend)
		if p == nil && n != 0 && n < int64(lowest) {
			p = bad(fmt.Sprintf("%d is out of range", n), mend)
		}
		return int(n), p
	})
	word(r, "df", &t.DF, dfWords)
	if r.has("df") && t.Local.IsValid() && !t.Local.Is4() && t.DF != sa.DFSet {
		r.fail("df", &problem{"IPv6 routers never fragment", "remove it: the outer header is IPv6", ErrConflict})
	}
	mend = `write "copy" for that of the inner packet, or 0 to 63 without quotes`
	if v := r.take("dscp", mend, kindString, kindInteger); v != nil {
		if v.kind == kindInteger {
			if n, p := number(v, 0, 63, mend); p != nil {
				r.fail("dscp", p)
			} else {
				t.DSCP = sa.SetDSCP(uint8(n))
			}
		} else if string(v.text) != "copy" {
			r.fail("dscp", bad(show(string(v.text))+" is not known here", mend))
		}
	}
	word(r, "dscp_in", &t.DSCPIn, dscpInWords)
	r.boolean("ecn", &t.ECN)
	most := maxMTU
	if t.OuterMTU > 0 && t.Transform != nil && t.Local.IsValid() {
		most = max(t.InnerMTU(0), 0)
	}
	mend = bounds(0, int64(most), "bytes")
	if most < maxMTU {
		mend += fmt.Sprintf(", which is what fits an outer MTU of %d", t.OuterMTU)
	}
	integerMend(r, "tfc_pad", &t.TFCPad, 0, int64(most), mend)
}

// sa reads one direction of a tunnel.
func (l *loader) sa(r *reader, t *Tunnel, s *SA) {
	mend := fmt.Sprintf("write 0x%x to 0xffffffff", minSPI)
	get(r, "spi", &s.SPI, mend, kindInteger, func(v *value) (uint32, *problem) {
		n, p := number(v, minSPI, math.MaxUint32, mend)
		if p != nil {
			if given, _ := number(v, 0, minSPI, mend); given > 0 && given < minSPI {
				p.what = fmt.Sprintf("%d is reserved (RFC 4303 section 2.1)", given)
			}
		}
		return uint32(n), p
	})
	s.Pos = l.doc.pos(r.at("spi"))
	transform := t.Transform
	if r.written {
		r.require("spi", "write spi = 0x…, the number that both sides have agreed on for this direction")
	} else {
		transform = nil // the whole table is missing, which is one mistake and not four
	}
	s.Keys = l.keys(r, transform, t.ESN)
	s.id = identify(s.Keys)
	r.done()
}

// lifetime reads [tunnel.lifetime].
func (l *loader) lifetime(r *reader, t *Tunnel) {
	s, h := &t.Lifetime.Soft, &t.Lifetime.Hard
	integer(r, "soft_bytes", &s.Bytes, 0, math.MaxInt64, "bytes")
	integer(r, "hard_bytes", &h.Bytes, 0, math.MaxInt64, "bytes")
	integer(r, "soft_packets", &s.Packets, 0, math.MaxInt64, "packets")
	integer(r, "hard_packets", &h.Packets, 0, math.MaxInt64, "packets")
	const forever = 100 * 365 * 24 * time.Hour
	r.duration("soft_time", &s.Add, time.Second, forever)
	r.duration("hard_time", &h.Add, time.Second, forever)
	r.done()
	ordered(r, "bytes", s.Bytes, h.Bytes)
	ordered(r, "packets", s.Packets, h.Packets)
	ordered(r, "time", s.Add, h.Add)
	if !t.ESN && h.Packets > math.MaxUint32 {
		r.fail("hard_packets", &problem{"without esn the sequence numbers end at 4294967295, before this", "write at most 4294967295, or esn = true in [[tunnel]], on both sides", ErrConflict})
	}
}

// ordered checks that a soft limit comes before its hard one.
func ordered[T uint64 | time.Duration](r *reader, what string, soft, hard T) {
	if soft != 0 && hard != 0 && soft > hard {
		r.fail("soft_"+what, &problem{
			fmt.Sprintf("%v is beyond hard_%s = %v at %v", soft, what, hard, r.l.doc.pos(r.at("hard_"+what))),
			"the soft limit warns before the hard one ends the SA: make it the smaller", ErrConflict,
		})
	}
}

// TransformMend says what to write instead of a name that no transform has, and what lists all that there are.
func TransformMend(name string) string {
	const list = "`culvert engines` lists all"
	var names []string
	for _, t := range offload.Transforms() {
		names = append(names, t.Name)
	}
	near := nearest(name, names)
	if i := slices.IndexFunc(names, func(n string) bool { return strings.Contains(n, strings.ToLower(name)) }); near == "" && len(name) > len("aes") && i >= 0 {
		near = names[i] // without the template around it
	}
	if near != "" {
		return "perhaps " + near + " is meant; " + list
	}
	return `write one such as "rfc4106(gcm(aes))" or "authenc(hmac(sha256),cbc(aes))"; ` + list
}

// weak warns of what RFC 8221 advises against.
func weak(r *reader, t *Tunnel) {
	if t.Transform == nil {
		return
	}
	switch t.Transform.Cipher {
	case offload.CipherNull:
		r.warn("transform", "the null cipher encrypts nothing: everybody on the way can read the packets")
	case offload.TripleDESCBC:
		r.warn("transform", "3DES has blocks of 64 bits and should not be used any more (RFC 8221)")
	}
	if t.Transform.Auth == offload.HMACMD5 {
		r.warn("transform", "HMAC-MD5 must not be used any more (RFC 8221)")
	}
}

// tunMTU checks the TUN's MTU, when all policies are known: an interface with less than IPv6 needs has no IPv6.
func (l *loader) tunMTU(tun *reader, c *Config) {
	lowest, what := minMTU4, fmt.Sprintf("%d is out of range", c.Tun.MTU)
	if i := slices.IndexFunc(c.Policies, func(p *Policy) bool {
		return p.Action == sa.Protect && p.Dir == sa.Out && p.Sel.Dst.Addr().Is6()
	}); i >= 0 {
		p := c.Policies[i]
		lowest = minMTU6
		if c.Tun.MTU > 0 && c.Tun.MTU < minMTU6 {
			what = fmt.Sprintf("on an interface with %d bytes there is no IPv6, which the policy %v at %v needs", c.Tun.MTU, p.Sel, p.Pos)
		}
	}
	if c.Tun.MTU != 0 && (c.Tun.MTU < lowest || c.Tun.MTU > maxMTU) {
		tun.fail("mtu", bad(what, fmt.Sprintf("write 0 for the exact one, or %d to %d bytes", lowest, maxMTU)))
	}
}

// mtus checks the MTUs against each other, when all tunnels are known.
func (l *loader) mtus(tun *reader, c *Config) {
	for _, t := range c.Tunnels {
		if t.Transform == nil || t.OuterMTU == 0 || !t.Local.IsValid() {
			continue
		}
		inner, path := t.InnerMTU(0), "tunnel."+t.Name
		if c.Tun.MTU > inner && tun.has("mtu") {
			tun.warn("mtu", "%d is more than the %d bytes that fit through %s (outer_mtu at %v): larger packets are answered with packet too big", c.Tun.MTU, inner, path, c.Pos(path+".outer_mtu"))
		}
		if inner < minMTU6 && slices.ContainsFunc(t.LocalSubnets, func(p netip.Prefix) bool { return p.Addr().Is6() }) {
			l.warnings = append(l.warnings, Warning{c.Pos(path + ".outer_mtu"), path + ".outer_mtu",
				fmt.Sprintf("inner packets of %d bytes fit, and IPv6 needs %d: the outer packets of the larger ones are fragmented", inner, minMTU6)})
		}
	}
}

// dscpInWords are what dscp_in can be.
var dscpInWords = []string{sa.KeepDSCP: "keep", sa.CopyDSCP: "copy"}

func family(a netip.Addr) string {
	if a.Is4() {
		return "IPv4"
	}
	return "IPv6"
}

func values[T any](ps []placed[T]) []T {
	var vs []T
	for _, p := range ps {
		vs = append(vs, p.v)
	}
	return vs
}

// absolute says what is wrong with a path that must not depend on where the gateway is started. Empty means none.
func absolute(s string) string {
	switch {
	case strings.ContainsRune(s, 0):
		return show(s) + " has a zero byte in it"
	case s != "" && !filepath.IsAbs(s):
		return show(s) + " is not an absolute path"
	}
	return ""
}

// socketPath says what is wrong with the path of a socket: it is absolute, and short enough for a socket's address, which has
// 108 bytes with the final zero.
func socketPath(s string) string {
	switch {
	case len(s) > 107:
		return fmt.Sprintf("the path has %d bytes", len(s))
	case strings.HasSuffix(s, "/"):
		return show(s) + " is the path of a directory"
	}
	return absolute(s)
}

// interfaceName says what is wrong with the name of an interface: what the kernel does not take, or has itself.
func interfaceName(s string) string {
	if s == "" || len(s) > 15 || s == "." || s == ".." || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune("/:%", r) }) {
		return show(s) + " cannot be the name of an interface"
	}
	if s == "lo" || s == "all" || s == "default" { // the latter two are directories beside those of the interfaces in /proc/sys
		return show(s) + " is a name that the kernel has for something else"
	}
	return ""
}

// identifier says what is wrong with the name of a tunnel or a policy, which stands in metrics and messages.
func identifier(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_'
	}
	if s == "" || len(s) > 63 || strings.TrimFunc(s, plain) != "" {
		return show(s) + " cannot be a name"
	}
	return ""
}

// listenAddress says what is wrong with host:port. Empty means not to listen.
func listenAddress(s string) string {
	if s == "" {
		return ""
	}
	_, port, err := net.SplitHostPort(s)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return show(s) + " is not host:port"
	}
	return ""
}
