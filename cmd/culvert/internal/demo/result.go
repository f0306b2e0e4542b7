package demo

import (
	"fmt"

	"culvert/test/lab/traffic"
)

// result is everything that a demo found out; its JSON is the document of `culvert demo --json`.
type result struct {
	Version   string  `json:"culvert"`
	Transform string  `json:"transform"` // kernel name
	KeyBits   int     `json:"key_bits"`
	ICVBits   int     `json:"icv_bits"`
	Link      string  `json:"link"` // "udp", "esp"
	Outer     int     `json:"outer"`
	Inner     int     `json:"inner"`
	Wire      bool    `json:"wire"` // the outer link carried frames of its MTU, not super-packets
	Seconds   float64 `json:"seconds"`
	setting
	TCP      []tcpRow     `json:"tcp"`
	UDP      udpRow       `json:"udp64"`
	Latency  latencyRow   `json:"latency_us"`
	Gateways []gatewayRow `json:"gateways"`
	Beside   []besideRow  `json:"beside,omitempty"`
	Machine  machine      `json:"machine"`
	Total    float64      `json:"total_s"`
	addrs    addresses    // for the drawing
}

// addresses of the six interfaces, in the order of the row.
type addresses struct{ ethA, lanA, wanA, wanB, lanB, ethB string }

// setting is what gateway A tells about how it works; B has the same configuration on the same machine.
type setting struct {
	Engine   string `json:"engine"`
	Workers  int    `json:"workers"`
	InnerMTU int    `json:"inner_mtu"`
}

// tcpRow is one TCP measurement. Goodput is counted at the receiver.
type tcpRow struct {
	Streams  int     `json:"streams"`
	Gbps     figure  `json:"gbps"`
	CPUPerGB figure  `json:"gateway_cpu_s_per_gb"` // user and system time of both gateways; none without gateways
	CPU      figure  `json:"gateway_cpu_s"`
	Wall     float64 `json:"wall_s"`
}

// udpRow is the highest rate of 64-byte IP packets found whose loss is within maxLoss; or, with Within false, the last rate tried.
type udpRow struct {
	Offered    float64  `json:"offered_kpps"`
	Delivered  float64  `json:"delivered_kpps"`
	Loss       float64  `json:"loss"` // a fraction
	Within     bool     `json:"within_max_loss"`
	Limit      string   `json:"limit"` // what ended the search
	Duplicates uint64   `json:"duplicates"`
	Reordered  uint64   `json:"reordered"`
	CPUPer     figure   `json:"gateway_cpu_us_per_packet"`
	OneWay     quantile `json:"one_way_us"` // under that load
	Sent       uint64   `json:"sent"`       // packets, as Received
	Received   uint64   `json:"received"`   // each once
	Wall       float64  `json:"wall_s"`     // of sending
	LostAt     []lost   `json:"lost_at"`    // what the counters on the way say of the packets lost
	Tried      []tried  `json:"tried"`      // all trials of the search in order, the last of which is this row
}

// lost is how many packets were lost at one place. The kernel counts a super-packet as one.
type lost struct {
	Where   string `json:"where"` // "host A", "gateway A", "gateway B", "host B"
	Cause   string `json:"cause"` // "eth0_tx", "tun_queue", "socket", or a gateway's own cause
	Packets uint64 `json:"packets"`
}

// tried is one trial of the search.
type tried struct {
	Asked     float64 `json:"asked_kpps"`
	Offered   float64 `json:"offered_kpps"`
	Delivered float64 `json:"delivered_kpps"`
	Loss      float64 `json:"loss"`
	Wall      float64 `json:"wall_s"`
	Early     bool    `json:"ended_early"` // since more was lost than may be
}

// What ended a search for the highest rate.
const (
	limitTunnel    = "tunnel"    // the next higher rate lost too much
	limitGenerator = "generator" // it could not send more
	limitTime      = "time"      // the search was not finished
)

// quantile is a distribution in µs.
type quantile struct {
	P50  figure `json:"p50"`
	P99  figure `json:"p99"`
	P999 figure `json:"p999"`
}

// latencyRow is the round trip of echoes through the idle tunnel, in µs.
type latencyRow struct {
	quantile
	Max     figure `json:"max"`
	Samples int64  `json:"samples"`
	Lost    uint64 `json:"lost"`
}

// gatewayRow is one gateway's books after everything, when idle.
type gatewayRow struct {
	Name     string            `json:"name"`
	In       uint64            `json:"in"`
	Out      uint64            `json:"out"`
	Drops    map[string]uint64 `json:"drops"`
	Balanced bool              `json:"balanced"`
	// Kernel is what the kernel dropped in front of the gateway, where the gateway cannot count it.
	Kernel kernelDrops `json:"kernel_drops"`
}

// kernelDrops are packets for which a queue in front of the gateway had no room.
type kernelDrops struct {
	TUN    uint64 `json:"tun_queue"`
	Socket uint64 `json:"outer_socket"`
}

// besideRow is another tunnel, measured in the same namespaces by the same generator in the same run.
type besideRow struct {
	Name    string     `json:"name"`
	TCP     []tcpRow   `json:"tcp"`
	UDP     udpRow     `json:"udp64"`
	Latency latencyRow `json:"latency_us"`
	// Ratio has culvert's figures divided by this row's, each under the names that both have in the document.
	Ratio ratio `json:"culvert_ratio"`
}

type ratio struct {
	TCP     []tcpRatio   `json:"tcp"`
	UDP     udpRatio     `json:"udp64"`
	Latency latencyRatio `json:"latency_us"`
}

type tcpRatio struct {
	Streams  int    `json:"streams"`
	Gbps     figure `json:"gbps"`
	CPUPerGB figure `json:"gateway_cpu_s_per_gb"`
}

// udpRatio has none of rates that are not the highest within the loss allowed.
type udpRatio struct {
	Delivered figure `json:"delivered_kpps"`
	CPUPer    figure `json:"gateway_cpu_us_per_packet"`
}

type latencyRatio struct {
	P50 figure `json:"p50"`
}

// machine is where it ran: figures of different machines are not to be compared.
type machine struct {
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Kernel string `json:"kernel"`
	Go     string `json:"go"`
	// Others is how many processors other programs kept busy while the tunnel was idle: figures suffer from it.
	Others float64 `json:"other_programs_cores"`
}

// newTCPRow makes a row; gateways says whether there are processes whose CPU time was measured.
func newTCPRow(r traffic.TCPResult, gateways bool) tcpRow {
	row := tcpRow{Streams: r.Streams, Gbps: found(r.Gbps(), 3), Wall: round(r.Wall.Seconds(), 3)}
	if gateways {
		row.CPUPerGB, row.CPU = found(r.CPUPerGB(), 3), found(r.CPU.Total().Seconds(), 2)
	}
	if r.Bytes == 0 {
		row.CPUPerGB = nil
	}
	return row
}

func newUDPRow(s traffic.SearchResult, within, gateways bool) udpRow {
	u := udpRow{
		Offered: round(s.Offered()/1e3, 1), Delivered: round(s.Delivered()/1e3, 1), Loss: round(max(s.Loss(), 0), 5), Within: within, Limit: limitTime,
		Duplicates: s.Duplicates, Reordered: s.Reordered, OneWay: newQuantile(s.Latency),
		Sent: s.Sent, Received: s.Unique, Wall: round(s.Wall.Seconds(), 3), LostAt: []lost{}, Tried: []tried{},
	}
	for _, l := range s.LostAt {
		u.LostAt = append(u.LostAt, lost{l.Where, l.Cause, l.Packets})
	}
	for _, t := range s.Tried {
		u.Tried = append(u.Tried, tried{
			round(t.Asked/1e3, 1), round(t.Offered()/1e3, 1), round(t.Delivered()/1e3, 1), round(max(t.Loss(), 0), 5), round(t.Wall.Seconds(), 3), t.Aborted,
		})
	}
	switch {
	case s.GeneratorLimited:
		u.Limit = limitGenerator
	case s.Bracketed:
		u.Limit = limitTunnel
	}
	if s.Unique > 0 && gateways {
		u.CPUPer = found(s.CPU.Total().Seconds()*1e6/float64(s.Unique), 2)
	}
	return u
}

func newLatencyRow(p traffic.PingResult) latencyRow {
	return latencyRow{newQuantile(p.RTT), among(p.RTT.Samples, p.RTT.Max), p.RTT.Samples, p.Sent - p.Received}
}

func newQuantile(l traffic.Latency) quantile {
	return quantile{among(l.Samples, l.P50), among(l.Samples, l.P99), among(l.Samples, l.P999)}
}

// newRatio compares culvert's rows with another's.
func newRatio(r *result, other *besideRow) ratio {
	c := ratio{TCP: []tcpRatio{}}
	for i := range min(len(r.TCP), len(other.TCP)) {
		a, b := r.TCP[i], other.TCP[i]
		c.TCP = append(c.TCP, tcpRatio{a.Streams, quotient(a.Gbps, b.Gbps), quotient(a.CPUPerGB, b.CPUPerGB)})
	}
	if a, b := r.UDP, other.UDP; a.Within && b.Within {
		c.UDP = udpRatio{quotient(&a.Delivered, &b.Delivered), quotient(a.CPUPer, b.CPUPer)}
	}
	c.Latency.P50 = quotient(r.Latency.P50, other.Latency.P50)
	return c
}

// shortfalls says what a demo promises and this one could not measure.
func (r *result) shortfalls() (all []string) {
	check := func(of string, tcp []tcpRow, udp udpRow, latency latencyRow) {
		for _, row := range tcp {
			if row.Gbps == nil || *row.Gbps == 0 {
				all = append(all, fmt.Sprintf("%sTCP, %s: nothing came through", of, count(row.Streams, "stream")))
			}
		}
		if !udp.Within {
			all = append(all, fmt.Sprintf("%sUDP: there is no rate %s", of, mostLost))
		}
		if latency.Samples == 0 {
			all = append(all, of+"latency: no echo was answered")
		}
	}
	check("", r.TCP, r.UDP, r.Latency)
	for _, g := range r.Gateways {
		if !g.Balanced {
			all = append(all, fmt.Sprintf("the books of gateway %s do not balance, which is a mistake in culvert", g.Name))
		}
	}
	for _, b := range r.Beside {
		check(b.Name+": ", b.TCP, b.UDP, b.Latency)
	}
	return all
}
