package traffic

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"culvert/test/lab"
)

// Point is where packets are lost, and by what.
type Point struct {
	Where string // "host A", "gateway A", "gateway B", "host B"
	Cause string // what the counter is called: "eth0_tx", "lan0_rx", "tun_queue", "socket", or a gateway's own name for it
}

// Counters reads how many packets each point has lost so far.
type Counters func() (map[Point]uint64, error)

// Lost is how many packets a point has lost.
type Lost struct {
	Point
	Packets uint64
}

// KernelCounters counts what the kernel loses on the way of a row: on each interface, in front of each tunnel's device, and in front of
// each UDP and raw socket. Where the kernel holds a super-packet it counts it as one.
func KernelCounters(row *lab.Row) Counters {
	return func() (map[Point]uint64, error) {
		counts := map[Point]uint64{}
		for _, at := range [...]struct {
			ns    *lab.Namespace
			where string
		}{{row.HostA, "host A"}, {row.GatewayA, "gateway A"}, {row.GatewayB, "gateway B"}, {row.HostB, "host B"}} {
			links, err := at.ns.Netlink().LinkList()
			if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
				return nil, fmt.Errorf("interfaces of %s: %w", at.where, err)
			}
			for _, l := range links {
				s := l.Attrs().Statistics
				if s == nil {
					continue
				}
				tx, rx := l.Attrs().Name+"_tx", l.Attrs().Name+"_rx"
				if l.Type() == "tuntap" || l.Type() == "tun" {
					tx, rx = "tun_queue", "tun_rx"
				}
				counts[Point{at.where, tx}] += s.TxDropped
				counts[Point{at.where, rx}] += s.RxDropped
			}
			n, err := SocketDrops(at.ns)
			if err != nil {
				return nil, err
			}
			counts[Point{at.where, "socket"}] += n
		}
		return counts, nil
	}
}

// read adds up all counters.
func read(all []Counters) (map[Point]uint64, error) {
	sum := map[Point]uint64{}
	for _, c := range all {
		counts, err := c()
		if err != nil {
			return nil, err
		}
		for p, n := range counts {
			sum[p] += n
		}
	}
	return sum, nil
}

// lostBetween lists the points whose counts have grown, in the order of the row and then the most first.
func lostBetween(before, after map[Point]uint64) (lost []Lost) {
	for p := range maps.Keys(after) {
		if after[p] > before[p] {
			lost = append(lost, Lost{p, after[p] - before[p]})
		}
	}
	order := []string{"host A", "gateway A", "gateway B", "host B"}
	slices.SortFunc(lost, func(a, b Lost) int {
		if d := slices.Index(order, a.Where) - slices.Index(order, b.Where); d != 0 {
			return d
		}
		if a.Packets != b.Packets {
			if a.Packets > b.Packets {
				return -1
			}
			return 1
		}
		return strings.Compare(a.Cause, b.Cause)
	})
	return lost
}
