//go:build linux

package dataplane

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"culvert/dataplane/link"
)

// The kernel as judge: TCP and UDP of its own go out of a TUN as super-packets, are split, turned round, merged, and must be
// understood by it again. Everything that it sends to the peer's address comes back from there.

const (
	mirrorMTU               = 1400
	mirrorOwn4, mirrorPeer4 = "10.9.0.1", "10.9.0.2"
	mirrorOwn6, mirrorPeer6 = "fd09::1", "fd09::2"
)

// mirrorBooks is what the mirror saw.
type mirrorBooks struct {
	packets           int
	superIn, superOut map[link.GSOType]int
	problems          []string
}

// mirror turns packets round until the link is closed.
func mirror(tun link.Inner, done chan<- mirrorBooks) {
	b := mirrorBooks{superIn: map[link.GSOType]int{}, superOut: map[link.GSOType]int{}}
	defer func() { done <- b }()
	problem := func(s string) {
		if len(b.problems) < 10 {
			b.problems = append(b.problems, s)
		}
	}
	r, w := tun.NewReader(), &countingWriter{InnerWriter: tun.NewWriter(), super: b.superOut}
	var c coalescer
	var s splitter
	arena := make([]byte, coalescerPackets*2048)
	flush := func() {
		if _, failed, _ := c.Flush(w); failed != 0 {
			problem("the TUN refused a packet")
		}
	}
	for {
		used := 0
		for wait := true; ; wait = false {
			p, h, err := r.Next(wait)
			if errors.Is(err, link.ErrAgain) {
				break
			}
			if err != nil {
				return
			}
			if h.GSO != link.GSONone {
				b.superIn[h.GSO]++
			}
			if err := s.Reset(p, h); err != nil {
				problem(err.Error())
				continue
			}
			for s.Count() > 0 {
				n, _ := s.Next(arena[used:])
				if n == 0 || n > mirrorMTU {
					problem("a segment larger than the MTU")
					break
				}
				q := arena[used : used+n : used+n]
				b.packets++
				// Exchanging the addresses changes no checksum.
				if q[0]>>4 == 4 {
					var a [4]byte
					copy(a[:], q[12:16])
					copy(q[12:16], q[16:20])
					copy(q[16:20], a[:])
				} else {
					var a [16]byte
					copy(a[:], q[8:24])
					copy(q[8:24], q[24:40])
					copy(q[24:40], a[:])
				}
				if q[0]>>4 == 6 && q[6] == protoICMPv6 {
					continue // neighbours and multicast listeners
				}
				if !c.Add(q) {
					problem("full")
				}
				if used += n; c.n == coalescerPackets {
					flush()
					used = 0
				}
			}
		}
		flush()
	}
}

// countingWriter counts the super-packets that the kernel took.
type countingWriter struct {
	link.InnerWriter
	super map[link.GSOType]int
}

func (w *countingWriter) Queue(h link.VNet, parts [][]byte) error {
	err := w.InnerWriter.Queue(h, parts)
	if err == nil && h.GSO != link.GSONone {
		w.super[h.GSO]++
	}
	return err
}

func (w *countingWriter) CanGSO(t link.GSOType) bool { return link.CanGSO(w.InnerWriter, t) }

func TestCoalesceKernel(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, for a network namespace and a TUN device")
	}
	ip, err := exec.LookPath("ip")
	if err != nil {
		t.Skip("needs ip of iproute2")
	}
	done := make(chan error)
	go func() { // a thread of its own, which ends with its namespace
		defer close(done)
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("cannot make a network namespace: %w", err)
			return
		}
		tun, err := link.OpenTUN("mirror0", mirrorMTU, link.TUNOptions{})
		if err != nil {
			done <- fmt.Errorf("cannot make a TUN device: %w", err)
			return
		}
		books := make(chan mirrorBooks, 1)
		for _, args := range []string{
			"link set mirror0 up", "addr add " + mirrorOwn4 + "/24 dev mirror0", "addr add " + mirrorOwn6 + "/64 dev mirror0 nodad",
		} {
			if out, err := exec.Command(ip, strings.Fields(args)...).CombinedOutput(); err != nil {
				t.Errorf("ip %s: %v: %s", args, err, out)
			}
		}
		go mirror(tun, books)
		ok := true
		for _, ends := range [][2]string{{mirrorOwn4, mirrorPeer4}, {mirrorOwn6, mirrorPeer6}} {
			own, peer := netip.MustParseAddr(ends[0]), netip.MustParseAddr(ends[1])
			for name, f := range map[string]func(own, peer netip.Addr) error{"TCP": kernelTCP, "UDP": kernelUDP} {
				if err := f(own, peer); err != nil {
					t.Errorf("%s to %v: %v", name, peer, err)
					ok = false
				}
			}
		}
		offloads := tun.Offloads()
		tun.Close()
		b := <-books
		for _, p := range b.problems {
			t.Error(p)
		}
		if !ok || len(b.problems) > 0 {
			return
		}
		t.Logf("%s: %d packets; super-packets read %v, written %v", offloads, b.packets, b.superIn, b.superOut)
		kinds := []link.GSOType{link.GSOTCP4, link.GSOTCP6}
		if link.CanGSO(tun.NewWriter(), link.GSOUDPL4) {
			kinds = append(kinds, link.GSOUDPL4)
		}
		for _, k := range kinds {
			if b.superIn[k] == 0 || b.superOut[k] == 0 {
				t.Errorf("%v: %d super-packets read and %d written, so nothing was shown", k, b.superIn[k], b.superOut[k])
			}
		}
	}()
	if err := <-done; err != nil {
		t.Skip(err)
	}
}

// kernelTCP sends 8 MB through the mirror, and reads them back.
func kernelTCP(own, peer netip.Addr) error {
	ln, err := net.ListenTCP("tcp", &net.TCPAddr{IP: own.AsSlice()})
	if err != nil {
		return err
	}
	defer ln.Close()
	port := ln.Addr().(*net.TCPAddr).Port
	out, err := net.DialTCP("tcp", &net.TCPAddr{IP: own.AsSlice()}, &net.TCPAddr{IP: peer.AsSlice(), Port: port})
	if err != nil {
		return err
	}
	defer out.Close()
	in, err := ln.AcceptTCP()
	if err != nil {
		return err
	}
	defer in.Close()
	deadline := time.Now().Add(time.Minute)
	out.SetDeadline(deadline)
	in.SetDeadline(deadline)
	want := fill(8<<20, 5)
	sent := make(chan error, 1)
	go func() {
		_, err := out.Write(want)
		sent <- errors.Join(err, out.CloseWrite())
	}()
	got, err := io.ReadAll(in)
	if err = errors.Join(err, <-sent); err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return errors.New("the data came back changed")
	}
	return nil
}

// kernelUDP sends bursts of datagrams in one GSO send each, and reads them back.
func kernelUDP(own, peer netip.Addr) error {
	const size, n = 1000, 40
	in, err := net.ListenUDP("udp", &net.UDPAddr{IP: own.AsSlice()})
	if err != nil {
		return err
	}
	defer in.Close()
	port := in.LocalAddr().(*net.UDPAddr).Port
	out, err := net.DialUDP("udp", &net.UDPAddr{IP: own.AsSlice()}, &net.UDPAddr{IP: peer.AsSlice(), Port: port})
	if err != nil {
		return err
	}
	defer out.Close()
	raw, err := out.SyscallConn()
	if err != nil {
		return err
	}
	gso := false
	raw.Control(func(fd uintptr) {
		gso = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_SEGMENT, size) == nil
	})
	in.SetReadDeadline(time.Now().Add(time.Minute))
	buf := make([]byte, 2*size)
	for burst := range 5 {
		data := fill(n*size-137, byte(burst))
		for i := range n {
			binary.BigEndian.PutUint16(data[i*size:], uint16(i))
		}
		for step, rest := len(data), data; len(rest) > 0; rest = rest[min(step, len(rest)):] {
			if !gso {
				step = size
			}
			if _, err := out.Write(rest[:min(step, len(rest))]); err != nil {
				return err
			}
		}
		for i := range n {
			m, err := in.Read(buf)
			if err != nil {
				return err
			}
			if want := data[i*size : min((i+1)*size, len(data))]; !bytes.Equal(buf[:m], want) {
				return errors.New("a datagram came back changed, or in another order")
			}
		}
	}
	return nil
}
