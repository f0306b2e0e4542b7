package e2e

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"culvert/test/judge"
	"culvert/test/lab"
)

// mark is in the payload of every ping, so that a packet in the clear is known wherever it turns up.
const mark = "\xc0\xff\xee\x5e\xed"

var (
	icmpSeq     = regexp.MustCompile(`icmp_seq=(\d+) `)
	transmitted = regexp.MustCompile(`(\d+) packets transmitted`)
)

// ping sends echo requests with the mark in them, and wants an answer to each of the first count. It goes on sending until there are
// that many, since ping would else give up on a late one after twice the time that the others took. It returns how many it sent.
func ping(t *testing.T, from *lab.Namespace, to netip.Addr, count int, more ...string) (sent int) {
	t.Helper()
	judge.Need(t, "ping")
	args := []string{"-n", "-c", strconv.Itoa(count), "-w", strconv.Itoa(int(patience.Seconds())), "-i", "0.01", "-p", fmt.Sprintf("%x", mark)}
	out := must(t, from, "ping", append(append(args, more...), to.String())...)
	answered(t, out, count)
	m := transmitted.FindStringSubmatch(out)
	if m == nil {
		t.Fatalf("ping does not say how many it sent: %s", tail([]byte(out), 500))
	}
	sent, _ = strconv.Atoi(m[1])
	return sent
}

// answered wants ping's output to show an answer to each of the first count requests.
func answered(t *testing.T, out string, count int) {
	t.Helper()
	var seqs []string
	for _, m := range icmpSeq.FindAllStringSubmatch(out, -1) {
		seqs = append(seqs, m[1])
	}
	for i := range count {
		if !slices.Contains(seqs, strconv.Itoa(i+1)) {
			t.Errorf("ping has no answer to request %d of %d: %s", i+1, count, tail([]byte(out), 500))
			return
		}
	}
}

// listening waits until the program whose output is in a file says so.
func listening(t *testing.T, file, says string) {
	t.Helper()
	until(t, fmt.Sprintf("the server says %q", says), func() bool {
		text, err := os.ReadFile(file)
		return err == nil && strings.Contains(string(text), says)
	})
}

// iperfEnd is what of iperf3's JSON the tests look at.
type iperfEnd struct {
	Error string
	End   struct {
		SumReceived struct {
			Bytes         uint64
			BitsPerSecond float64 `json:"bits_per_second"`
		} `json:"sum_received"`
		Sum struct {
			Packets     int
			LostPackets int     `json:"lost_packets"`
			LostPercent float64 `json:"lost_percent"`
		}
	}
}

// iperf runs one iperf3 test from one host to another.
func iperf(t *testing.T, from, to *lab.Namespace, addr netip.Addr, more ...string) iperfEnd {
	t.Helper()
	judge.Need(t, "iperf3")
	server, stdout, _ := background(t, to, "iperf3", "-s", "-1", "--forceflush", "-B", addr.String())
	listening(t, stdout, "Server listening")
	out, err := output(t, from, "iperf3", append([]string{"-c", addr.String(), "-J"}, more...)...)
	end := decode[iperfEnd](t, out)
	if err != nil || end.Error != "" {
		t.Fatalf("iperf3 to %s %v: %v: %s", addr, more, err, end.Error)
	}
	select {
	case <-server.Done():
	case <-time.After(patience):
		t.Errorf("the iperf3 server has not ended")
	}
	return end
}

// randomBytes is an endless file.
type randomBytes struct{ *rand.Rand }

func (r randomBytes) Read(p []byte) (int, error) {
	n := 0
	for ; n+8 <= len(p); n += 8 {
		binary.NativeEndian.PutUint64(p[n:], r.Uint64())
	}
	for ; n < len(p); n++ {
		p[n] = byte(r.Uint32())
	}
	return n, nil
}

// sendFile carries n random bytes over TCP from one host to another, and compares their checksums. In the other direction goes nothing
// but the checksum that the receiver found.
func sendFile(t *testing.T, from, to *lab.Namespace, addr netip.Addr, n int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	l, err := to.Listen(ctx, "tcp", netip.AddrPortFrom(addr, 9999).String())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	received := make(chan error, 1)
	go func() {
		received <- func() error {
			c, err := l.Accept()
			if err != nil {
				return err
			}
			defer c.Close()
			c.SetDeadline(time.Now().Add(2 * patience))
			h := sha256.New()
			if _, err := io.CopyN(h, c, n); err != nil {
				return err
			}
			_, err = c.Write(h.Sum(nil))
			return err
		}()
	}()
	c, err := from.Dial(ctx, "tcp", netip.AddrPortFrom(addr, 9999).String())
	if err != nil {
		t.Fatalf("connecting to %s through the tunnel: %v", addr, err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(2 * patience))
	h := sha256.New()
	if _, err := io.CopyN(io.MultiWriter(c, h), randomBytes{judge.Rand("file to " + addr.String())}, n); err != nil {
		t.Fatalf("sending to %s: %v", addr, err)
	}
	theirs := make([]byte, sha256.Size)
	if _, err := io.ReadFull(c, theirs); err != nil {
		t.Fatalf("receiving the checksum from %s: %v", addr, errors.Join(err, <-received))
	}
	if got, want := fmt.Sprintf("%x", theirs), fmt.Sprintf("%x", h.Sum(nil)); got != want {
		t.Errorf("the file arrived at %s with SHA-256 %s, sent was %s", addr, got, want)
	}
}

// Every combination of families passes, in native ESP and in UDP: ping of many sizes, TCP and UDP of iperf3, and a file of 20 MB that
// arrives as it was sent. On the wire there is only ESP, which tshark finds authentic and decrypts to just what went in. The books of
// all lanes balance.
func TestTraffic(t *testing.T) {
	for _, link := range []string{"udp", "esp"} {
		for _, outerV6 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/outer IPv%d", link, version(outerV6)), func(t *testing.T) {
				families := lab.V4
				if outerV6 {
					families = lab.V6
				}
				w := newRow(t, lab.RowOptions{Outer: families, Wire: true})
				tn := ordinary("office", link, outerV6, cbcSHA256)
				w.configure("", tn)
				w.start()

				c := startCapture(t, w.GatewayB, lab.WANDevice)
				for _, innerV6 := range []bool{false, true} {
					a, b := w.EthA.Addr(innerV6), w.EthB.Addr(innerV6)
					for _, size := range []string{"0", "1", "13", "56", "1200"} {
						ping(t, w.HostA, b, 5, "-s", size)
					}
					ping(t, w.HostB, a, 5)
				}
				packets := c.stop()
				n := onlyESP(t, packets, mark)
				if want := 2 * 2 * (5*5 + 5); n < want {
					t.Errorf("%d ESP packets on the wire, want %d", n, want)
				}
				decryptsToPings(t, packets, tn.sas(w), n)

				for _, innerV6 := range []bool{false, true} {
					b := w.EthB.Addr(innerV6)
					tcp := iperf(t, w.HostA, w.HostB, b, "-t", "1")
					back := iperf(t, w.HostA, w.HostB, b, "-t", "1", "-R")
					udp := iperf(t, w.HostA, w.HostB, b, "-t", "1", "-u", "-b", "20M", "-l", "1200")
					t.Logf("IPv%d inside: TCP %.0f and back %.0f Mbit/s, UDP %d datagrams, %d lost", version(innerV6),
						tcp.End.SumReceived.BitsPerSecond/1e6, back.End.SumReceived.BitsPerSecond/1e6, udp.End.Sum.Packets, udp.End.Sum.LostPackets)
					for what, bytes := range map[string]uint64{"TCP": tcp.End.SumReceived.Bytes, "TCP back": back.End.SumReceived.Bytes} {
						if bytes < 1e6 {
							t.Errorf("%s carried %d bytes in a second", what, bytes)
						}
					}
					// A busy machine loses datagrams in its sockets' queues, so all that can be asked for is that most arrive.
					if udp.End.Sum.Packets < 1000 || udp.End.Sum.LostPercent > 50 {
						t.Errorf("UDP at 20 Mbit/s: %d datagrams, %.1f %% lost", udp.End.Sum.Packets, udp.End.Sum.LostPercent)
					}
					sendFile(t, w.HostA, w.HostB, b, 20<<20)
				}
				w.balance()
				// A host may well send more than the tunnel carries, and a receiver more than one window apart: nothing of that here.
				w.onlyDrops("queue-full", "too-big")
			})
		}
	}
}

func version(v6 bool) int {
	if v6 {
		return 6
	}
	return 4
}

// decryptsToPings has tshark decrypt a capture, and wants pings with the mark in every packet.
func decryptsToPings(t *testing.T, packets [][]byte, sas []judge.SA, n int) {
	t.Helper()
	good := 0
	for _, d := range judge.Tshark(t, judge.WritePcap(t, packets), sas...) {
		if !d.ESP {
			continue
		}
		switch {
		case !d.ICVGood:
			t.Errorf("tshark finds the ICV of SPI 0x%08x, sequence number %d, wrong", d.SPI, d.Seq)
		case !strings.Contains(d.Protocols, ":icmp") && !strings.Contains(d.Protocols, ":icmpv6"):
			t.Errorf("tshark decrypts SPI 0x%08x, sequence number %d, to %s", d.SPI, d.Seq, d.Protocols)
		default:
			good++
		}
	}
	if good != n {
		t.Errorf("tshark decrypts %d of %d packets to pings", good, n)
	}
}

// A gateway answers nobody on its outer side in the clear: a host that sends a packet of the protected networks to it, without ESP, is
// not served, and what was sent is not delivered inside.
func TestClearTrafficIsNotDelivered(t *testing.T) {
	w := newRow(t, lab.RowOptions{Outer: lab.V4, Inner: lab.V4})
	w.configure("", ordinary("office", "udp", false, cbcSHA256))
	w.start()
	// The left gateway is the attacker: it loses its tunnel, and routes plainly.
	w.a.stop()
	must(t, w.GatewayA, "ip", "rule", "add", "pref", "1", "lookup", "main")
	if err := w.RoutePlainly(); err != nil {
		t.Fatal(err)
	}
	inside := startCapture(t, w.HostB, lab.HostDevice)
	wire := startCapture(t, w.GatewayB, lab.WANDevice)
	if out, err := output(t, w.HostA, "ping", "-n", "-c", "5", "-i", "0.01", "-W", "1", "-p", fmt.Sprintf("%x", mark), w.EthB.Addr(false).String()); err == nil {
		t.Errorf("clear packets were answered: %s", out)
	}
	sent := 0
	for _, p := range wire.stop() {
		if strings.Contains(string(p), mark) {
			sent++
		}
	}
	if sent < 5 {
		t.Fatalf("%d clear packets were on the wire: the test did not try", sent)
	}
	for _, p := range inside.stop() {
		if strings.Contains(string(p), mark) {
			t.Errorf("a clear packet was delivered: %x", p)
		}
	}
}
