//go:build linux

package link

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// relay carries everything from one TUN device to another as it came, in a gather list of uneven parts, and counts.
type relay struct {
	packets [gsoTypes]atomic.Int64
	failed  atomic.Int64
	csum    atomic.Int64 // with a checksum left undone
	largest atomic.Int64
}

func (r *relay) run(from, to Inner) {
	rd, w := from.NewReader(), to.NewWriter()
	parts := make([][]byte, 0, 64)
	for {
		p, h, err := rd.Next(true)
		if err != nil {
			return
		}
		r.packets[h.GSO].Add(1)
		if h.NeedsCsum {
			r.csum.Add(1)
		}
		r.largest.Store(max(r.largest.Load(), int64(len(p))))
		parts = parts[:0]
		for n := 20; len(p) > 0; n = n*2 + 1 {
			n = min(n, len(p))
			parts = append(parts, p[:n])
			p = p[n:]
		}
		if w.Queue(h, parts) != nil {
			r.failed.Add(1)
		}
		if n, _ := w.Flush(); n > 0 {
			r.failed.Add(int64(n))
		}
	}
}

// tunPair is two hosts whose TUN devices are joined by relays.
func tunPair(t testing.TB, opts TUNOptions) (a, b *space, ab *relay) {
	t.Helper()
	a, b = newSpace(t), newSpace(t)
	ta, tb := a.tun("tun0", 1400, opts), b.tun("tun0", 1400, opts)
	a.up("tun0")
	b.up("tun0")
	a.addr("tun0", "192.0.2.1/24", "2001:db8::1/64")
	b.addr("tun0", "192.0.2.2/24", "2001:db8::2/64")
	ab = new(relay)
	done := make(chan struct{}, 2)
	go func() { ab.run(ta, tb); done <- struct{}{} }()
	go func() { new(relay).run(tb, ta); done <- struct{}{} }()
	t.Cleanup(func() {
		ta.Close()
		tb.Close()
		<-done
		<-done
	})
	return a, b, ab
}

// transfer sends n bytes over TCP and checks that they arrive.
func transfer(t *testing.T, a, b *space, addr string, n int) {
	t.Helper()
	data := make([]byte, n)
	rand.NewChaCha8([32]byte{}).Read(data)
	var l net.Listener
	var err error
	b.do(func() { l, err = net.Listen("tcp", addr) })
	must(t, err)
	defer l.Close()
	sum := make(chan [32]byte, 1)
	go func() {
		h := sha256.New()
		if c, err := l.Accept(); err == nil {
			io.Copy(h, c)
			c.Close()
		}
		sum <- [32]byte(h.Sum(nil))
	}()
	var c net.Conn
	a.do(func() { c, err = net.DialTimeout("tcp", l.Addr().String(), 10*time.Second) })
	must(t, err)
	c.SetDeadline(time.Now().Add(30 * time.Second))
	_, err = c.Write(data)
	must(t, err)
	must(t, c.Close())
	if <-sum != sha256.Sum256(data) {
		t.Error("what arrived is not what was sent")
	}
}

// TCP crosses two TUN devices in super-packets both ways, UDP too; switched off, in packets of the MTU with whole checksums.
func TestTUN(t *testing.T) {
	for _, c := range []struct {
		name     string
		opts     TUNOptions
		tcp, udp bool
		says     string
	}{
		{"all", TUNOptions{}, true, true, "csum tso4 tso6 uso"},
		{"no USO", TUNOptions{NoUSO: true}, true, false, "csum tso4 tso6; no uso (switched off)"},
		{"no TSO", TUNOptions{NoTSO: true}, false, false, "none (switched off)"},
	} {
		for _, family := range []string{"4", "6"} {
			t.Run(c.name+"/"+family, func(t *testing.T) {
				a, b, ab := tunPair(t, c.opts)
				from, to, gso := "192.0.2.1", "192.0.2.2", GSOTCP4
				if family == "6" {
					from, to, gso = "2001:db8::1", "2001:db8::2", GSOTCP6
				}
				transfer(t, a, b, net.JoinHostPort(to, "5001"), 4<<20)
				if got := ab.packets[gso].Load() > 0; got != c.tcp {
					t.Errorf("%d TCP super-packets", ab.packets[gso].Load())
				}
				oa, ob := a.udp(net.JoinHostPort(from, "4500"), OuterOptions{}), b.udp(net.JoinHostPort(to, "4500"), OuterOptions{})
				rx := newReceiver(t, ob)
				want := bytes.Repeat(espPacket(1, 1, 1000), 40)
				send(t, oa.NewWriter(), TxMsg{To: ob.Local(), Buf: want, SegSize: 1000})
				for _, m := range rx.take(40) {
					if !bytes.Equal(m.Buf, want[:1000]) {
						t.Fatal("datagram changed")
					}
				}
				if got := ab.packets[GSOUDPL4].Load() > 0; got != c.udp {
					t.Errorf("%d UDP super-packets", ab.packets[GSOUDPL4].Load())
				}
				if n := ab.failed.Load(); n > 0 {
					t.Errorf("%d writes failed", n)
				}
				if n := ab.largest.Load(); n > 1400 != c.tcp {
					t.Errorf("largest packet %d bytes", n)
				}
				if n := ab.csum.Load(); n > 0 != c.tcp {
					t.Errorf("%d packets with a checksum left undone", n)
				}
				s := newSpace(t)
				if got := s.tun("other", 1400, c.opts).Offloads(); got != c.says {
					t.Errorf("offloads: %q, want %q", got, c.says)
				}
			})
		}
	}
}

// tcp4 is a super-packet of three segments, with the header to write it by.
func tcp4() ([]byte, VNet) {
	p := make([]byte, 40+3000)
	p[0], p[8], p[9] = 0x45, 64, 6
	binary.BigEndian.PutUint16(p[2:], uint16(len(p)))
	copy(p[12:], []byte{192, 0, 2, 2, 192, 0, 2, 1})
	sum := uint32(0)
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(p[i:]))
	}
	binary.BigEndian.PutUint16(p[10:], ^uint16(sum+sum>>16))
	p[32], p[33] = 5<<4, 0x10
	return p, VNet{NeedsCsum: true, GSO: GSOTCP4, HdrLen: 40, GSOSize: 1000, CsumStart: 20, CsumOffset: 16}
}

// One bad super-packet is refused by itself; several in a row end super-packets of that kind, and only of that.
func TestTUNRefusesGSO(t *testing.T) {
	s := newSpace(t)
	in := s.tun("tun0", 1400, TUNOptions{})
	s.up("tun0")
	w := in.NewWriter()
	p, good := tcp4()
	bad := good
	bad.CsumStart = 5000 // beyond the end
	queue := func(h VNet, want error) {
		t.Helper()
		if err := w.Queue(h, [][]byte{p[:40], p[40:]}); err != want {
			t.Fatalf("got %v, want %v", err, want)
		}
	}
	queue(good, nil)
	for range 3 {
		for range gsoPatience - 1 {
			queue(bad, ErrNoGSO)
		}
		queue(good, nil)
	}
	plain := bad
	plain.GSO, plain.GSOSize = GSONone, 0
	for range 2 * gsoPatience {
		queue(plain, ErrInvalid)
	}
	if !CanGSO(w, GSOTCP4) {
		t.Fatal("given up too early")
	}
	for range gsoPatience {
		queue(bad, ErrNoGSO)
	}
	if CanGSO(w, GSOTCP4) || !CanGSO(w, GSOTCP6) || !CanGSO(w, GSOUDPL4) || !CanGSO(w, GSONone) {
		t.Error("the wrong kinds are off")
	}
	queue(good, ErrNoGSO)
	if got := in.Offloads(); !strings.Contains(got, "; no tcp4 super-packets to the host (the kernel refuses them: invalid argument)") {
		t.Errorf("offloads: %q", got)
	}
	if err := w.Queue(VNet{}, nil); err != ErrInvalid {
		t.Error("no parts:", err)
	}
	if err := w.Queue(VNet{}, make([][]byte, MaxParts+1)); err != ErrInvalid {
		t.Error("too many parts:", err)
	}
	parts := make([][]byte, MaxParts)
	for i := range parts {
		parts[i] = p[i*3 : i*3+3]
	}
	parts[MaxParts-1] = p[MaxParts*3-3:]
	if err := w.Queue(VNet{}, parts); err != nil {
		t.Error("as many parts as may be:", err)
	}
}

// A device that is down says so for packets of every kind; that is no reason to give super-packets up.
func TestTUNDown(t *testing.T) {
	s := newSpace(t)
	in := s.tun("tun0", 1400, TUNOptions{})
	w := in.NewWriter()
	p, h := tcp4()
	for range 3 * gsoPatience {
		if err := w.Queue(h, [][]byte{p}); err != ErrDown {
			t.Fatal("super-packet:", err)
		}
		if err := w.Queue(VNet{}, [][]byte{p[:1040]}); err != ErrDown {
			t.Fatal("packet:", err)
		}
	}
	s.up("tun0")
	must(t, w.Queue(h, [][]byte{p}))
}

// A device that is deleted, or closed, wakes its reader; either is final, and they differ.
func TestTUNEnds(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(s *space, in Inner)
		want error
	}{
		{"deleted", func(s *space, _ Inner) {
			l, err := s.nl.LinkByName("tun0")
			must(t, err)
			must(t, s.nl.LinkDel(l))
		}, ErrGone},
		{"closed", func(_ *space, in Inner) { must(t, in.Close()) }, net.ErrClosed},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSpace(t)
			in := s.tun("tun0", 1400, TUNOptions{})
			s.up("tun0")
			done := make(chan error)
			r := in.NewReader()
			go func() {
				for {
					if _, _, err := r.Next(true); err != nil {
						done <- err
						return
					}
				}
			}()
			select {
			case err := <-done:
				t.Fatal("did not wait:", err)
			case <-time.After(50 * time.Millisecond):
			}
			c.end(s, in)
			select {
			case err := <-done:
				if !errors.Is(err, c.want) {
					t.Error("reader:", err)
				}
			case <-time.After(5 * time.Second):
				t.Fatal("the reader is not woken")
			}
			p, h := tcp4()
			if err := in.NewWriter().Queue(h, [][]byte{p}); !errors.Is(err, c.want) {
				t.Error("writer:", err)
			}
			if _, _, err := in.NewReader().Next(false); !errors.Is(err, c.want) {
				t.Error("reading afterwards:", err)
			}
			must(t, in.Close())
		})
	}
}

// StopReading wakes the reader, and lets the writer go on.
func TestTUNStopReading(t *testing.T) {
	s := newSpace(t)
	in := s.tun("tun0", 1400, TUNOptions{})
	s.up("tun0")
	read := make(chan error)
	go func() {
		r := in.NewReader()
		for {
			if _, _, err := r.Next(true); err != nil {
				read <- err
				return
			}
		}
	}()
	select {
	case err := <-read:
		t.Fatal("did not wait:", err)
	case <-time.After(50 * time.Millisecond):
	}
	in.StopReading()
	select {
	case err := <-read:
		if !errors.Is(err, net.ErrClosed) {
			t.Error("reader:", err)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("the reader is not woken")
	}
	if _, _, err := in.NewReader().Next(false); !errors.Is(err, net.ErrClosed) {
		t.Error("reading afterwards:", err)
	}
	p, h := tcp4()
	must(t, in.NewWriter().Queue(h, [][]byte{p}))
}

// Wake ends one wait, of who waits or of who waits next, loses no packet, and does not stand in the way of StopReading.
func TestTUNWake(t *testing.T) {
	s := newSpace(t)
	in := s.tun("tun0", 1400, TUNOptions{})
	s.up("tun0")
	r := in.NewReader()
	for _, _, err := r.Next(false); err == nil; _, _, err = r.Next(false) {
	} // what the kernel says of itself
	next := make(chan error)
	wait := func() {
		go func() {
			for {
				_, _, err := r.Next(true)
				if err != nil {
					next <- err
					return
				}
			}
		}()
	}
	come := func(want error) {
		t.Helper()
		select {
		case err := <-next:
			if !errors.Is(err, want) {
				t.Fatal("reader:", err)
			}
		case <-time.After(5 * time.Second):
			t.Fatal("the reader is not woken")
		}
	}
	for range 3 {
		wait()
		select {
		case err := <-next:
			t.Fatal("did not wait:", err)
		case <-time.After(20 * time.Millisecond):
		}
		in.Wake()
		come(ErrAgain)
	}
	in.Wake()
	if _, _, err := r.Next(false); err != ErrAgain {
		t.Error("without waiting:", err)
	}
	wait()
	come(ErrAgain)
	// Whatever they race, the reader ends.
	for range 20 {
		wait()
		done := make(chan struct{})
		go func() { defer close(done); in.Wake() }()
		come(ErrAgain)
		<-done
	}
	wait()
	go in.Wake()
	in.StopReading()
	if err := <-next; err == ErrAgain {
		wait()
		come(net.ErrClosed)
	} else if err != net.ErrClosed {
		t.Fatal("reader:", err)
	}
}

// The MTU follows the device's; what the device's queue cannot hold is counted.
func TestTUNAttributes(t *testing.T) {
	s := newSpace(t)
	in := s.tun("culvert%d", 1400, TUNOptions{})
	if in.Name() != "culvert0" || in.MTU() != 1400 {
		t.Fatalf("%s has MTU %d", in.Name(), in.MTU())
	}
	s.up("culvert0")
	s.mtu("culvert0", 1321)
	for give := time.Now().Add(5 * time.Second); in.MTU() != 1321; time.Sleep(time.Millisecond) {
		if time.Now().After(give) {
			t.Fatalf("MTU is %d", in.MTU())
		}
	}
	s.addr("culvert0", "192.0.2.1/24")
	o := s.udp("192.0.2.1:4500", OuterOptions{})
	w := o.NewWriter()
	for i := range uint32(2000) {
		send(t, w, TxMsg{To: netip.MustParseAddrPort("192.0.2.2:4500"), Buf: espPacket(1, i, 100)})
		if n, ok := KernelDrops(in); ok && n > 0 {
			return
		}
	}
	t.Error("no drop counted")
}

// Errors of opening say what was wrong and what to do.
func TestTUNOpenErrors(t *testing.T) {
	s := newSpace(t)
	s.tun("tun0", 1400, TUNOptions{})
	for _, c := range []struct {
		name, text string
		mtu        int
		is         error
	}{
		{"tun0", "another process holds it", 1400, unix.EBUSY},
		{"lo", "another kind of device", 1400, unix.EINVAL},
		{"a-name-that-is-too-long", "at most 15 characters", 1400, unix.EINVAL},
		{"tun1", "MTU 67 is not within", 67, nil},
		{"tun1", "MTU 65536 is not within", 65536, nil},
	} {
		s.do(func() {
			in, err := OpenTUN(c.name, c.mtu, TUNOptions{})
			if err == nil {
				in.Close()
				t.Errorf("%s opened", c.name)
			} else if !strings.Contains(err.Error(), c.text) || c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("%s: %v", c.name, err)
			}
		})
	}
}
