package e2e

import (
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"culvert/test/judge"
	"culvert/test/lab"
)

// A gateway is killed five times under load and started again each time. On the wire no SPI ever has the same sequence number twice, as
// tshark reads them, and the peer takes the packets after each start at once: the numbers go on above its window.
func TestSequenceNeverRepeats(t *testing.T) {
	for _, tc := range []struct {
		link string
		esn  bool
	}{{"udp", false}, {"esp", true}} {
		t.Run(fmt.Sprintf("%s/ESN=%v", tc.link, tc.esn), func(t *testing.T) {
			judge.Need(t, "ping", "tshark")
			w := newRow(t, lab.RowOptions{Outer: lab.V4, Inner: lab.V4, Wire: true})
			tn := ordinary("office", tc.link, false, gcm)
			tn.esn = tc.esn
			w.configure("", tn)
			w.start()
			c := startCapture(t, w.WanA.NS, lab.WANDevice, "-s", "128")
			to := w.EthB.Addr(false)
			// As fast as ping goes, in both directions: ping -f sends when an answer comes, and 100 a second at least.
			background(t, w.HostA, "ping", "-n", "-f", to.String())
			background(t, w.HostB, "ping", "-n", "-f", w.EthA.Addr(false).String())
			sent := uint64(0)
			for restart := range 5 {
				until(t, "some packets were sent", func() bool { return w.a.association("office", "out").Packets > 300 })
				before := w.a.association("office", "out").Sequence
				if before <= sent {
					t.Errorf("start %d: the sequence is at %d, after %d", restart, before, sent)
				}
				sent = before
				got := w.b.association("office", "in")
				w.a.kill()
				w.a.launch()
				w.a.ready()
				until(t, "the peer takes packets after the restart", func() bool {
					return w.b.association("office", "in").Packets > got.Packets+100
				})
			}
			in := w.b.association("office", "in")
			if in.Duplicates != 0 || in.TooOld != 0 || in.BadICV != 0 {
				t.Errorf("the peer refused packets: %+v", in)
			}
			packets := c.stop()
			onlyESP(t, packets, "")
			// While a gateway is down its kernel refuses packets with ICMP messages that quote them.
			packets = slices.DeleteFunc(packets, func(p []byte) bool { k, _, _ := outer(p); return k != esp })
			seen := map[[2]uint32]int{}
			n := 0
			for i, d := range judge.Tshark(t, judge.WritePcap(t, packets)) {
				if !d.ESP {
					continue
				}
				n++
				key := [2]uint32{d.SPI, d.Seq}
				if first, twice := seen[key]; twice {
					t.Errorf("SPI 0x%08x, sequence number %d is in packets %d and %d of the capture", d.SPI, d.Seq, first, i)
				}
				seen[key] = i
			}
			if n < 5*600 {
				t.Errorf("only %d ESP packets were captured", n)
			}
			w.balance()
		})
	}
}

// A gateway that is stopped, killed, or loses a tunnel by a reload and gets it again, goes on with the numbers where it was, under load:
// its peer finds every packet below its mark and drops none, and on the wire no number is missing but the few that a kill may cost.
func TestRestartLeapsOverNothing(t *testing.T) {
	for _, tc := range []struct {
		name  string
		again func(t *testing.T, w *row, office, other tunnel)
		lost  uint32 // numbers, at most, each time
	}{
		{"stopped", func(t *testing.T, w *row, _, _ tunnel) { w.a.stop(); w.a.launch(); w.a.ready() }, 0},
		{"killed", func(t *testing.T, w *row, _, _ tunnel) { w.a.kill(); w.a.launch(); w.a.ready() }, 64},
		{"reloaded", func(t *testing.T, w *row, office, other tunnel) {
			for _, tunnels := range [][]tunnel{{other}, {office, other}} {
				w.a.configure(w, "", tunnels...)
				had, marks := strings.Count(w.a.log(), "configuration loaded"), w.a.marks()
				w.a.signal(syscall.SIGHUP)
				until(t, "it has reloaded", func() bool { return strings.Count(w.a.log(), "configuration loaded") > had })
				// Numbers are given back when nobody can use the SA any more.
				until(t, "the marks on disk have changed", func() bool { return w.a.marks() != marks })
			}
		}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			judge.Need(t, "ping", "tshark")
			w := newRow(t, lab.RowOptions{Outer: lab.V4, Inner: lab.V4, Wire: true})
			office := ordinary("office", "udp", false, gcm)
			other := tunnel{name: "other", link: "udp", transform: gcm, spi: 0xc0003100, left: lab.LANA[:1], right: []netip.Prefix{netip.MustParsePrefix("10.9.0.0/16")}}
			w.configure("", office, other)
			w.start()
			c := startCapture(t, w.WanA.NS, lab.WANDevice, "-s", "128")
			background(t, w.HostA, "ping", "-n", "-f", w.EthB.Addr(false).String())
			const times = 3
			for range times {
				got := w.b.association("office", "in").Packets
				until(t, "the peer takes packets", func() bool { return w.b.association("office", "in").Packets > got+100 })
				tc.again(t, w, office, other)
			}
			got := w.b.association("office", "in").Packets
			until(t, "the peer takes packets at the end", func() bool { return w.b.association("office", "in").Packets > got+100 })
			if in := w.b.association("office", "in"); in.Duplicates+in.TooOld+in.BadICV != 0 {
				t.Errorf("the peer refused packets: %+v", in)
			}
			if n := w.b.status().drops()["seq-not-marked"]; n != 0 {
				t.Errorf("the peer dropped %d packets beyond its mark", n)
			}
			packets := slices.DeleteFunc(c.stop(), func(p []byte) bool { k, _, _ := outer(p); return k != esp })
			var last, gaps uint32
			for _, d := range judge.Tshark(t, judge.WritePcap(t, packets)) {
				if !d.ESP || d.SPI != office.spi {
					continue
				}
				if d.Seq <= last {
					t.Fatalf("%d is sent after %d", d.Seq, last)
				}
				if n := d.Seq - last - 1; n > 0 && last > 0 {
					gaps++
					if n > tc.lost {
						t.Errorf("%d is sent after %d", d.Seq, last)
					}
				}
				last = d.Seq
			}
			if last < 100*times || gaps > times {
				t.Errorf("%d numbers were sent, with %d gaps", last, gaps)
			}
		})
	}
}

// marks is the file of sequence marks.
func (g *gateway) marks() string {
	g.t.Helper()
	b, err := os.ReadFile(filepath.Join(g.dir, "state", "sequence-marks"))
	if err != nil {
		g.t.Fatal(err)
	}
	return string(b)
}

// A state directory that cannot be believed stops the gateway with the reason, instead of letting it begin at 1 again.
func TestDamagedStateIsRefused(t *testing.T) {
	w := newRow(t, lab.RowOptions{Outer: lab.V4, Inner: lab.V4})
	w.configure("", ordinary("office", "udp", false, gcm))
	w.start()
	ping(t, w.HostA, w.EthB.Addr(false), 3)
	w.a.stop()
	damage(t, w.a.dir+"/state")
	w.a.launch()
	w.a.wait()
	if exitCode(w.a.proc.Err()) != 1 {
		t.Errorf("the gateway ended with %v, want exit status 1", w.a.proc.Err())
	}
	for _, want := range []string{"damaged", filepath.Join(w.a.dir, "state")} {
		if !strings.Contains(w.a.log(), want) {
			t.Errorf("the gateway does not say %q: %s", want, w.a.log())
		}
	}
}

// damage overwrites the middle of every file below a directory.
func damage(t *testing.T, dir string) {
	t.Helper()
	n := 0
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err != nil || info.Size() == 0 {
			return err
		}
		f, err := os.OpenFile(name, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		n++
		_, err = f.WriteAt(make([]byte, info.Size()), 0)
		return err
	})
	if err != nil || n == 0 {
		t.Fatalf("%d files of state were damaged: %v", n, err)
	}
}
