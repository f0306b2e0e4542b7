package traffic

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"culvert/test/lab"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// plainRow is a row over which the hosts reach each other without a tunnel.
func plainRow(t *testing.T) *lab.Row {
	t.Helper()
	if err := lab.Usable(); errors.Is(err, lab.ErrNotPermitted) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	row, err := lab.NewRow(lab.RowOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := row.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := row.RoutePlainly(); err != nil {
		t.Fatal(err)
	}
	return row
}

func families(t *testing.T, f func(t *testing.T, v6 bool)) {
	for _, v6 := range []bool{false, true} {
		t.Run(map[bool]string{false: "IPv4", true: "IPv6"}[v6], func(t *testing.T) { f(t, v6) })
	}
}

// A slow flood arrives whole, each packet once and in order, and what the second trial counts is not what is left of the first.
func TestFlood(t *testing.T) {
	row := plainRow(t)
	families(t, func(t *testing.T, v6 bool) {
		f, err := NewFlood(t.Context(), row, v6, 64)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for range 2 {
			r, err := f.Trial(t.Context(), 2000, 200*time.Millisecond, 1)
			if err != nil {
				t.Fatal(err)
			}
			if r.Sent == 0 || r.Unique != r.Sent || r.Duplicates != 0 || r.Reordered != 0 || r.Loss() != 0 {
				t.Errorf("%+v", r)
			}
			if r.Sent > 400 {
				t.Errorf("%d packets sent, 400 are due", r.Sent)
			}
			if r.Latency.Samples == 0 || r.Latency.P50 <= 0 {
				t.Errorf("latency %+v", r.Latency)
			}
		}
	})
}

// A trial that has lost what it may ends early, and says so; one that may lose everything does not.
func TestTrialAborts(t *testing.T) {
	row := plainRow(t)
	if err := row.UnroutePlainly(); err != nil {
		t.Fatal(err)
	}
	f, err := NewFlood(t.Context(), row, false, 64)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := f.Trial(t.Context(), 1000, time.Minute, 0.005)
	if err != nil {
		t.Fatal(err)
	}
	if !r.Aborted || r.Wall > 30*time.Second || r.Loss() != 1 {
		t.Errorf("aborted %v after %v with a loss of %v", r.Aborted, r.Wall, r.Loss())
	}
	if r, err = f.Trial(t.Context(), 1000, 400*time.Millisecond, 1); err != nil || r.Aborted {
		t.Errorf("aborted %v, %v", r.Aborted, err)
	}
}

// What finds no room in a socket is found there, to the packet; other counters are added, and points that lost nothing are not told.
func TestLostAt(t *testing.T) {
	row := plainRow(t)
	full, err := row.HostB.ListenPacket(t.Context(), "udp", netip.AddrPortFrom(row.EthB.Addr(false), 0).String())
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	if err := full.(*net.UDPConn).SetReadBuffer(4096); err != nil {
		t.Fatal(err)
	}
	c, err := row.HostA.Dial(t.Context(), "udp", full.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	n := uint64(0)
	counters := []Counters{KernelCounters(row), func() (map[Point]uint64, error) {
		n += 3
		return map[Point]uint64{{"gateway A", "no-policy"}: n, {"gateway B", "quiet"}: 7}, nil
	}}
	before, err := read(counters)
	if err != nil {
		t.Fatal(err)
	}
	const sent = 200
	for range sent {
		if _, err := c.Write(make([]byte, 512)); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(100 * time.Millisecond) // on a veth they are there when Write returns, or soon after
	after, err := read(counters)
	if err != nil {
		t.Fatal(err)
	}
	got := uint64(0)
	full.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
	for b := make([]byte, 1024); ; got++ {
		if _, _, err := full.ReadFrom(b); err != nil {
			break
		}
	}
	want := []Lost{{Point{"gateway A", "no-policy"}, 3}, {Point{"host B", "socket"}, sent - got}}
	if lost := lostBetween(before, after); !slices.Equal(lost, want) || got == 0 || got == sent {
		t.Errorf("%d of %d received, lost at %v, want %v", got, sent, lost, want)
	}
}

// Cancelling ends a trial with the cause.
func TestTrialCancels(t *testing.T) {
	row := plainRow(t)
	f, err := NewFlood(t.Context(), row, false, 64)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cause := errors.New("no more")
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(20*time.Millisecond, func() { cancel(cause) })
	if _, err := f.Trial(ctx, 1000, time.Hour, 1); !errors.Is(err, cause) {
		t.Errorf("got %v", err)
	}
}

// A packet that cannot hold headers and stamp is refused.
func TestFloodTooSmall(t *testing.T) {
	row := plainRow(t)
	families(t, func(t *testing.T, v6 bool) {
		if f, err := NewFlood(t.Context(), row, v6, MinPacket(v6)-1); err == nil {
			t.Error("accepted", f.Close())
		}
	})
}

// Sending does not allocate.
func TestSenderDoesNotAllocate(t *testing.T) {
	row := plainRow(t)
	s, err := NewSender(row.EthA, row.LanA, netip.MustParseAddrPort("10.1.0.2:1"), netip.MustParseAddrPort("10.2.0.2:9"), 64)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx := t.Context()
	for _, rate := range []float64{0, 50e3} {
		if n := testing.AllocsPerRun(5, func() { s.Run(ctx, 1, rate, 2*time.Millisecond) }); n != 0 {
			t.Errorf("%v allocations in a run at rate %v", n, rate)
		}
	}
}

func TestTCP(t *testing.T) {
	row := plainRow(t)
	families(t, func(t *testing.T, v6 bool) {
		r, err := TCP(t.Context(), TCPOptions{From: row.HostA, To: row.HostB, Addr: row.EthB.Addr(v6), Streams: 3, Warmup: 10 * time.Millisecond, Measure: 200 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		if r.Streams != 3 || r.Bytes == 0 || r.Wall < 200*time.Millisecond || r.CPU != (CPU{}) || r.Gbps() <= 0 || r.CPUPerGB() != 0 {
			t.Errorf("%+v", r)
		}
	})
}

// A stream that cannot be made is an error, and so is an end before the time; in both cases nothing is left running (goleak).
func TestTCPFails(t *testing.T) {
	row := plainRow(t)
	o := TCPOptions{From: row.HostA, To: row.HostB, Addr: row.EthB.Addr(false), Streams: 2, Measure: time.Hour}
	cause := errors.New("no more")
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(50*time.Millisecond, func() { cancel(cause) })
	if _, err := TCP(ctx, o); err == nil {
		t.Error("no error after a cancellation")
	}
	if err := row.UnroutePlainly(); err != nil {
		t.Fatal(err)
	}
	if _, err := TCP(t.Context(), o); !errors.Is(err, unix.ENETUNREACH) && !errors.Is(err, unix.EHOSTUNREACH) {
		t.Errorf("without a route: %v", err)
	}
}

func TestPing(t *testing.T) {
	row := plainRow(t)
	families(t, func(t *testing.T, v6 bool) {
		o := PingOptions{From: row.HostA, Src: row.EthA.Addr(v6), Dst: row.EthB.Addr(v6), Interval: time.Millisecond, Duration: 50 * time.Millisecond, Payload: 56, Timeout: 5 * time.Second}
		r, err := Ping(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		if r.Received == 0 || r.Received != r.Sent || r.RTT.Samples != int64(r.Received) || r.RTT.P50 <= 0 || r.RTT.P50 > r.RTT.P99 || r.RTT.P999 > r.RTT.Max {
			t.Errorf("%+v", r)
		}
		if err := Reach(t.Context(), o); err != nil {
			t.Error(err)
		}
		// Nobody there: the host answers for itself alone.
		o.Dst, o.Timeout = o.Dst.Next(), 20*time.Millisecond
		if _, err := Ping(t.Context(), o); !errors.Is(err, ErrNoTraffic) && !errors.Is(err, unix.EHOSTUNREACH) {
			t.Errorf("ping to nobody: %v", err)
		}
		if err := Reach(t.Context(), o); !errors.Is(err, ErrNoTraffic) {
			t.Errorf("reach to nobody: %v", err)
		}
	})
}

// Counting at the receiver: duplicates, order, stragglers of another trial, numbers beyond the limit, and payloads without a stamp.
func TestReceiverCounts(t *testing.T) {
	r := &Receiver{latency: newHistogram()}
	r.Begin(7, 100)
	give := func(trial uint16, number uint64) {
		p := make([]byte, stampLen+3)
		binary.BigEndian.PutUint64(p, uint64(trial)<<numberBit|number)
		r.take(p, 5000)
	}
	for _, n := range []uint64{0, 1, 2, 5, 3, 4, 5, 0, 6} {
		give(7, n)
	}
	give(6, 50)
	give(7, 1<<40)
	r.take(make([]byte, stampLen-1), 0)
	if c := r.Count(); c.Unique != 7 || c.Duplicates != 2 || c.Reordered != 2 {
		t.Errorf("%+v", c)
	}
	for n := uint64(10); n < 100; n++ {
		give(7, n)
	}
	if c := r.Count(); c.Unique != 97 || c.Latency.Samples != 97/sampleOne || c.Latency.P50/100 != 50 {
		t.Errorf("%+v", c)
	}
	r.Begin(8, 10)
	give(7, 20)
	give(8, 0)
	if c := r.Count(); c.Unique != 1 || c.Duplicates != 0 || c.Latency.Samples != 0 {
		t.Errorf("after Begin: %+v", c)
	}
}

// The control message of UDP_GRO, and what may stand in its place.
func TestSegmentSize(t *testing.T) {
	ctl := make([]byte, unix.CmsgSpace(4))
	message := func(level, typ, value int) *unix.Msghdr {
		b := unix.UnixRights(value) // right in length and layout, on this architecture
		copy(ctl, b)
		var h unix.Cmsghdr
		off := unix.CmsgLen(0)
		binary.NativeEndian.PutUint32(ctl[off-8:], uint32(level))
		binary.NativeEndian.PutUint32(ctl[off-4:], uint32(typ))
		_ = h
		m := &unix.Msghdr{}
		m.SetControllen(len(ctl))
		return m
	}
	if n := segmentSize(message(unix.SOL_UDP, unix.UDP_GRO, 36), ctl); n != 36 {
		t.Errorf("36 is read as %d", n)
	}
	if n := segmentSize(message(unix.SOL_SOCKET, unix.UDP_GRO, 36), ctl); n != 0 {
		t.Errorf("another level is read as %d", n)
	}
	if n := segmentSize(&unix.Msghdr{}, ctl); n != 0 {
		t.Errorf("no message is read as %d", n)
	}
}

func TestHistogram(t *testing.T) {
	h := newHistogram()
	for i := range 100000 {
		h.record(time.Duration(i+1) * time.Microsecond)
	}
	h.record(-time.Second)
	h.record(time.Hour)
	l := h.summary()
	if l.Samples != 100002 {
		t.Errorf("%d samples", l.Samples)
	}
	for _, c := range []struct {
		got, want time.Duration
	}{{l.P50, 50 * time.Millisecond}, {l.P99, 99 * time.Millisecond}, {l.P999, 99900 * time.Microsecond}, {l.Max, 10 * time.Second}} {
		if off := float64(c.got-c.want) / float64(c.want); off < -0.001 || off > 0.001 {
			t.Errorf("%v, want %v", c.got, c.want)
		}
	}
	h.reset()
	if l := h.summary(); l.Samples != 0 {
		t.Errorf("after reset: %+v", l)
	}
}

// RFC 1071 section 3 adds up these eight bytes to ddf2.
func TestChecksum(t *testing.T) {
	if c := checksum([]byte{0, 1, 0xf2, 3, 0xf4, 0xf5, 0xf6, 0xf7}); c != ^uint16(0xddf2) {
		t.Errorf("%#x", c)
	}
	if c := checksum([]byte{1}); c != ^uint16(0x100) {
		t.Errorf("odd length: %#x", c)
	}
}

func TestParseStat(t *testing.T) {
	const rest = " S 1 42 42 0 -1 4194560 1 2 3 4 1234 567 8 9 20 0 5 0 100 200"
	for _, name := range []string{"culvert", "a b", "x) S 9 9 9 9 9 9 9 9 9 9 77 77 (y"} {
		c, err := parseStat(fmt.Appendf(nil, "42 (%s)%s\n", name, rest))
		if err != nil || c.User != 12340*time.Millisecond || c.Sys != 5670*time.Millisecond || c.Total() != 18010*time.Millisecond {
			t.Errorf("%q: %+v %v", name, c, err)
		}
	}
	for _, bad := range []string{"", "42 (culvert", "42 (culvert) S 1 2 3", "42 (culvert) S 1 42 42 0 -1 4194560 1 2 3 4 -1 x 8 9"} {
		if _, err := parseStat([]byte(bad)); !errors.Is(err, errStat) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestParseMachineStat(t *testing.T) {
	busy, err := parseMachineStat([]byte("cpu  100 20 3 10000 500 6 7 8 0 0\ncpu0 1 2 3 4 5 6 7 8 9 10\n"))
	if err != nil || busy != 1360*time.Millisecond {
		t.Errorf("%v %v", busy, err)
	}
	for _, bad := range []string{"", "cpu0 1 2 3 4 5 6 7 8\n", "cpu 1 2 3\n", "cpu a b c d e f g h\n"} {
		if _, err := parseMachineStat([]byte(bad)); !errors.Is(err, errStat) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// Both /proc files are there, and time goes on.
func TestCPU(t *testing.T) {
	before, err := ProcessCPU(unix.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for {
		after, err := ProcessCPU(unix.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		if d := after.Sub(before); d.Total() > 0 {
			break
		}
	}
	if busy, err := MachineCPU(); err != nil || busy <= 0 {
		t.Errorf("%v %v", busy, err)
	}
	if _, err := ProcessCPU(-1); err == nil {
		t.Error("there is a process -1")
	}
}

func TestParseDrops(t *testing.T) {
	const head = "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n"
	n, err := parseDrops([]byte(head + "  441: 00000000:1194 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 12345 2 0000000000000000 17\n" +
		"  442: 00000000:1195 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 12346 2 0000000000000000 3\n"))
	if err != nil || n != 20 {
		t.Errorf("%d %v", n, err)
	}
	if n, err := parseDrops([]byte(head)); err != nil || n != 0 {
		t.Errorf("empty table: %d %v", n, err)
	}
	for _, bad := range []string{"", "sl local_address\n", head + "  1: x\n"} {
		if _, err := parseDrops([]byte(bad)); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}
