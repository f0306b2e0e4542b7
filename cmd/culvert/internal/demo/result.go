package demo

import (
	"math"
	"time"

	"culvert/test/lab/traffic"
)

// result is everything that a demo found out; its JSON is the document of `culvert demo --json`.
type result struct {
	Transform string        `json:"transform"` // kernel name
	KeyBits   int           `json:"key_bits"`
	ICVBits   int           `json:"icv_bits"`
	Link      string        `json:"link"` // "udp", "esp"
	Outer     int           `json:"outer"`
	Inner     int           `json:"inner"`
	Wire      bool          `json:"wire"` // the outer link carried frames of its MTU, not super-packets
	Seconds   float64       `json:"seconds"`
	TCP       []tcpRow      `json:"tcp"`
	UDP       udpRow        `json:"udp64"`
	Latency   latencyRow    `json:"latency_us"`
	Gateways  []gatewayRow  `json:"gateways"`
	Beside    []besideRow   `json:"beside,omitempty"`
	Machine   machine       `json:"machine"`
	Total     float64       `json:"total_s"`
	addrs     addresses     // for the drawing
	setting   gatewaySpoken // what the gateways said of themselves
}

// addresses of the six interfaces, in the order of the row.
type addresses struct{ ethA, lanA, wanA, wanB, lanB, ethB string }

// gatewaySpoken is what gateway A tells about how it works.
type gatewaySpoken struct {
	engine   string
	workers  int
	innerMTU int
}

// tcpRow is one TCP measurement. Goodput is counted at the receiver.
type tcpRow struct {
	Streams  int     `json:"streams"`
	Gbps     float64 `json:"gbps"`
	CPUPerGB float64 `json:"gateway_cpu_s_per_gb"` // user and system time of both gateways
	CPU      float64 `json:"gateway_cpu_s"`
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
	CPUPer     float64  `json:"gateway_cpu_us_per_packet"`
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
	P50  float64 `json:"p50"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p999"`
}

// latencyRow is the round trip of echoes through the idle tunnel, in µs.
type latencyRow struct {
	quantile
	Max     float64 `json:"max"`
	Samples int64   `json:"samples"`
	Lost    uint64  `json:"lost"`
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
	// Ratio is culvert's figure divided by the other's, for each TCP row and the UDP row.
	Ratio ratio `json:"culvert_ratio"`
}

type ratio struct {
	TCP []float64 `json:"tcp"`
	UDP float64   `json:"udp64"`
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

func newTCPRow(r traffic.TCPResult) tcpRow {
	return tcpRow{r.Streams, round(r.Gbps(), 3), round(r.CPUPerGB(), 3), round(r.CPU.Total().Seconds(), 2), round(r.Wall.Seconds(), 3)}
}

func newUDPRow(s traffic.SearchResult, within bool) udpRow {
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
	if s.Unique > 0 {
		u.CPUPer = round(s.CPU.Total().Seconds()*1e6/float64(s.Unique), 2)
	}
	return u
}

func newLatencyRow(p traffic.PingResult) latencyRow {
	return latencyRow{newQuantile(p.RTT), micros(p.RTT.Max), p.RTT.Samples, p.Sent - p.Received}
}

func newQuantile(l traffic.Latency) quantile {
	return quantile{micros(l.P50), micros(l.P99), micros(l.P999)}
}

func micros(d time.Duration) float64 { return round(float64(d)/1e3, 1) }

// round keeps so many digits behind the point.
func round(x float64, digits int) float64 {
	p := math.Pow10(digits)
	return math.Round(x*p) / p
}

// newRatio compares culvert's rows with another's.
func newRatio(tcp []tcpRow, udp udpRow, other besideRow) ratio {
	var r ratio
	for i := range min(len(tcp), len(other.TCP)) {
		r.TCP = append(r.TCP, quotient(tcp[i].Gbps, other.TCP[i].Gbps))
	}
	r.UDP = quotient(udp.Delivered, other.UDP.Delivered)
	return r
}

// quotient is 0 where there is none: JSON has no infinity.
func quotient(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return round(a/b, 2)
}
