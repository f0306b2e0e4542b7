package gateway

import (
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"culvert/cmd/culvert/internal/control"
	"culvert/cmd/culvert/internal/ike"
	"culvert/dataplane"
	"culvert/dataplane/link"
	"culvert/sa"
)

// Status is the gateway at this moment.
func (g *Gateway) Status() control.Status {
	g.mu.Lock()
	s := control.Status{
		Version: g.version, PID: os.Getpid(), Started: g.started, Config: g.cfg.File, Loaded: g.loaded,
		Engine: g.engine.Name(), Workers: g.cfg.Workers, Tunnels: len(g.tunnels), Balanced: true,
		Refused: g.refused, Host: g.hostStatus(),
		State: g.storeStatus(), Hints: g.hintStatus(),
	}
	g.mu.Unlock()
	s.TUN = control.TUN{Name: g.inner.Name(), MTU: g.inner.MTU(), Offloads: g.inner.Offloads(), KernelDrops: kernelDrops(g.inner)}
	if g.ike != nil {
		s.IKE = g.ike.Status()
		snap := g.db.Acquire()
		static := 2 * s.Tunnels
		s.IKE.SAs = len(snap.Outbounds()) + len(snap.Inbounds()) - static
		for _, p := range snap.Policies() {
			if ike.IsPolicy(p.Name) {
				s.IKE.Policies++
			}
		}
		snap.Release()
	}
	for _, o := range g.allOuters() {
		s.Links = append(s.Links, control.Link{Name: o.Name(), Local: o.Local(), Offloads: o.Offloads(), KernelDrops: kernelDrops(o)})
	}
	for _, l := range g.plane.Stats() {
		s.Lanes = append(s.Lanes, lane(l))
		s.Balanced = s.Balanced && l.Balanced()
	}
	return s
}

// allOuters are the links of the configuration, and then those of an IKE daemon's ports.
func (g *Gateway) allOuters() []link.Outer {
	if g.ike == nil {
		return g.outers
	}
	return slices.Concat(g.outers, g.ike.Outers())
}

// kernelDrops are what the kernel dropped in front of a TUN or a link; nil where it does not count.
func kernelDrops(l any) *uint64 {
	if n, ok := link.KernelDrops(l); ok {
		return &n
	}
	return nil
}

func lane(l dataplane.LaneStats) control.Lane {
	c := control.Lane{
		Name: l.Name, PacketsIn: l.PacketsIn, PacketsOut: l.PacketsOut, BytesIn: l.BytesIn, BytesOut: l.BytesOut,
		InFlight: l.InFlight, Held: l.Held, Bursts: l.Bursts, Spilled: l.Spilled, PTBSent: l.PTBSent,
		Drops: map[string]uint64{}, Balanced: l.Balanced(),
	}
	for cause, n := range l.Drops {
		if n > 0 {
			c.Drops[dataplane.Cause(cause).String()] = n
		}
	}
	return c
}

// logBooks writes the final books, when every lane has stopped.
func (g *Gateway) logBooks(stats []dataplane.LaneStats) {
	for _, l := range stats {
		g.log.Info("books", "lane", l.Name, "in", l.PacketsIn, "out", l.PacketsOut, "dropped", l.Dropped(), "balanced", l.Balanced())
	}
}

// SAs is the SAD: each tunnel's outbound SA, then its inbound one.
func (g *Gateway) SAs() []control.SA {
	snap := g.db.Acquire()
	defer snap.Release()
	list := []control.SA{}
	static := g.staticSAs()
	for _, o := range snap.Outbounds() {
		s := g.sa(o.Params(), "out", o.Stats())
		s.Origin = origin(static[o.Params().Name])
		s.Dst, s.MaxInner, s.Expired = endpoint(o.Peer()), o.MaxInner(), o.Expired()
		s.MTUIgnored = o.Stats().MTUIgnored
		list = append(list, s)
	}
	for _, i := range snap.Inbounds() {
		s := g.sa(i.Params(), "in", i.Stats())
		s.Origin = origin(static[i.Params().Name])
		s.ReplayWindow, s.Expired = i.Params().ReplayWindow, i.Expired()
		list = append(list, s)
	}
	return list
}

func (g *Gateway) sa(p *sa.Params, dir string, st sa.Stats) control.SA {
	s := control.SA{
		Name: p.Name, Direction: dir, SPI: spiString(p.SPI),
		Src: endpoint(netip.AddrPortFrom(p.Src, p.SrcPort)), Dst: endpoint(netip.AddrPortFrom(p.Dst, p.DstPort)),
		Link: g.linkName(p.Link), Reqid: p.Reqid, Transform: p.Transform.Name, KeyBits: p.Transform.KeyBits, ICVBits: 8 * p.Transform.ICVLen,
		ESN: p.Keys.ESN, Sequence: st.Seq, Packets: st.Packets, Bytes: st.Bytes,
		Duplicates: st.Drops.Duplicate, TooOld: st.Drops.TooOld, BadICV: st.Drops.BadICV, Added: st.Added,
	}
	if !st.LastUse.IsZero() {
		used := st.LastUse.Round(time.Millisecond)
		s.LastUsed = &used
	}
	return s
}

// staticSAs are the names of the configured tunnels, which those of an IKE daemon's SAs never are.
func (g *Gateway) staticSAs() map[string]bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	names := map[string]bool{}
	for name := range g.tunnels {
		names[name] = true
	}
	return names
}

func origin(static bool) string {
	if static {
		return "static"
	}
	return "ike"
}

// linkName is the name of a link, "none" where an SA has lost its own.
func (g *Gateway) linkName(index int) string {
	if index < len(g.outers) {
		return g.outers[index].Name()
	}
	if g.ike != nil {
		if l := g.ike.Link(index); l != nil {
			return l.Name()
		}
	}
	return "none"
}

// endpoint is an outer address, with its port where there is UDP.
func endpoint(a netip.AddrPort) string {
	if a.Port() == 0 {
		return a.Addr().String()
	}
	return a.String()
}

func spiString(spi uint32) string { return fmt.Sprintf("0x%08x", spi) }

// Policies is the SPD in the order in which it is searched, outbound first.
func (g *Gateway) Policies() []control.Policy {
	snap := g.db.Acquire()
	defer snap.Release()
	list := []control.Policy{}
	for _, p := range snap.Policies() {
		c := control.Policy{Name: p.Name, Origin: origin(!ike.IsPolicy(p.Name)), Direction: p.Dir.String(), Priority: p.Priority, Selector: p.Sel.String(), Action: p.Action.String()}
		if p.Out != nil {
			c.SA = spiString(p.Out.Params().SPI)
		}
		list = append(list, c)
	}
	return list
}

// collector gives Prometheus the books as they are when it asks; nothing is counted twice.
type collector struct{ g *Gateway }

var (
	descPackets  = prometheus.NewDesc("culvert_lane_packets_total", "Wire packets that a lane took in or passed on.", []string{"lane", "flow"}, nil)
	descBytes    = prometheus.NewDesc("culvert_lane_bytes_total", "Bytes that a lane took in or passed on.", []string{"lane", "flow"}, nil)
	descDrops    = prometheus.NewDesc("culvert_lane_drops_total", "Packets dropped, by cause.", []string{"lane", "cause"}, nil)
	descInFlight = prometheus.NewDesc("culvert_lane_in_flight", "Packets taken in, and neither passed on nor dropped yet.", []string{"lane"}, nil)
	descKernel   = prometheus.NewDesc("culvert_kernel_drops_total", "What the kernel had no room for in front of the gateway: packets to the TUN's queue, datagrams to a link's socket.", []string{"at"}, nil)
	descBursts   = prometheus.NewDesc("culvert_lane_bursts_total", "Bursts given to the engine, by where they ran.", []string{"lane", "on"}, nil)
	descSA       = prometheus.NewDesc("culvert_sa_packets_total", "Packets of an SA.", []string{"tunnel", "direction", "spi"}, nil)
	descSABytes  = prometheus.NewDesc("culvert_sa_bytes_total", "ESP bytes of an SA.", []string{"tunnel", "direction", "spi"}, nil)
	descSASeq    = prometheus.NewDesc("culvert_sa_sequence", "Sequence number last sent, or highest received.", []string{"tunnel", "direction", "spi"}, nil)
)

func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descPackets, descBytes, descDrops, descInFlight, descKernel, descBursts, descSA, descSABytes, descSASeq} {
		ch <- d
	}
}

func (c collector) Collect(ch chan<- prometheus.Metric) {
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	for _, l := range c.g.plane.Stats() {
		counter(descPackets, l.PacketsIn, l.Name, "in")
		counter(descPackets, l.PacketsOut, l.Name, "out")
		counter(descBytes, l.BytesIn, l.Name, "in")
		counter(descBytes, l.BytesOut, l.Name, "out")
		for cause, n := range l.Drops {
			counter(descDrops, n, l.Name, dataplane.Cause(cause).String())
		}
		ch <- prometheus.MustNewConstMetric(descInFlight, prometheus.GaugeValue, float64(l.InFlight), l.Name)
		counter(descBursts, l.Bursts-l.Spilled, l.Name, "lane")
		counter(descBursts, l.Spilled, l.Name, "pool")
	}
	if n := kernelDrops(c.g.inner); n != nil {
		counter(descKernel, *n, "tun")
	}
	drops := map[string]uint64{}
	for _, o := range c.g.allOuters() { // an IKE daemon's ports can have one name
		if n := kernelDrops(o); n != nil {
			drops[o.Name()] += *n
		}
	}
	for name, n := range drops {
		counter(descKernel, n, name)
	}
	for _, s := range c.g.SAs() {
		counter(descSA, s.Packets, s.Name, s.Direction, s.SPI)
		counter(descSABytes, s.Bytes, s.Name, s.Direction, s.SPI)
		ch <- prometheus.MustNewConstMetric(descSASeq, prometheus.GaugeValue, float64(s.Sequence), s.Name, s.Direction, s.SPI)
	}
}

func (g *Gateway) metricsHandler() http.Handler {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collector{g}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	return mux
}
