//go:build linux

package link

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// sharedPort binds an address, with a socket that shares its port if that is asked for.
func sharedPort(t *testing.T, network, addr string, share bool) *net.UDPConn {
	t.Helper()
	l := net.ListenConfig{Control: func(_, _ string, rc syscall.RawConn) (err error) {
		return errors.Join(rc.Control(func(fd uintptr) {
			if share {
				err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
			}
		}), err)
	}}
	c, err := l.ListenPacket(context.Background(), network, addr)
	must(t, err)
	t.Cleanup(func() { c.Close() })
	return c.(*net.UDPConn)
}

// A link on a socket that somebody else has made carries ESP both ways, beside an IKE daemon's socket on the same port, and tells
// addresses and TOS; when it is closed the socket is not, and what comes then stays in it.
func TestForeignSocket(t *testing.T) {
	for _, c := range []struct{ network, any, here, peer string }{
		{"udp4", "0.0.0.0", "192.0.2.1", "192.0.2.2"}, {"udp6", "[::]", "2001:db8::1", "2001:db8::2"},
	} {
		t.Run(c.network, func(t *testing.T) {
			a, b := newSpace(t), newSpace(t)
			veth(a, b, "a0", "b0")
			a.addr("a0", "192.0.2.1/24", "2001:db8::1/64")
			b.addr("b0", "192.0.2.2/24", "2001:db8::2/64")
			var ike, conn *net.UDPConn
			a.do(func() {
				ike = sharedPort(t, c.network, c.any+":4500", true)
				conn = sharedPort(t, c.network, c.any+":4500", true)
			})
			// The kernel's own demultiplexing: the first socket gets what begins with the non-ESP marker (RFC 3948 2.2).
			rc, err := ike.SyscallConn()
			must(t, err)
			prog := []unix.SockFilter{
				{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS},
				{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1},
				{Code: unix.BPF_RET | unix.BPF_K, K: 0},
				{Code: unix.BPF_RET | unix.BPF_K, K: 1},
			}
			must(t, rc.Control(func(fd uintptr) {
				err = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF, &unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]})
			}))
			must(t, err)

			l, err := NewUDP(conn, OuterOptions{})
			must(t, err)
			if l.Name() != c.network || l.Local().Port() != 4500 || !strings.Contains(l.Offloads(), "no gro") {
				t.Errorf("%s at %v: %s", l.Name(), l.Local(), l.Offloads())
			}
			peer := b.udp(netip.AddrPortFrom(netip.MustParseAddr(c.peer), 4500).String(), OuterOptions{})
			here := netip.AddrPortFrom(netip.MustParseAddr(c.here), 4500)
			tx := peer.NewWriter()
			send(t, tx, TxMsg{To: here, Buf: espPacket(1, 0, 40)})
			rx := newReceiver(t, l)
			rx.take(1)
			// A super-packet is cut: what is merged could hold IKE too.
			const n = 20
			send(t, tx, TxMsg{To: here, Buf: make([]byte, 100)}) // IKE
			super := bytes.Repeat(espPacket(2, 1, 200), n)
			send(t, tx, TxMsg{To: here, Buf: super, SegSize: 200, TOS: 0xb9})
			for _, m := range rx.take(n) {
				if !bytes.Equal(m.Buf, super[:200]) || m.From.String() != peer.Local().String() || m.To != here.Addr() || m.TOS != 0xb9 {
					t.Fatalf("%d bytes from %v to %v, TOS %#x", len(m.Buf), m.From, m.To, m.TOS)
				}
			}
			buf := make([]byte, 500)
			ike.SetReadDeadline(time.Now().Add(5 * time.Second))
			if got, _, err := ike.ReadFromUDPAddrPort(buf); err != nil || got != 100 {
				t.Fatalf("the daemon got %d bytes: %v", got, err)
			}
			back := newReceiver(t, peer)
			send(t, l.NewWriter(), TxMsg{To: peer.Local(), From: here.Addr(), Buf: super, SegSize: 200})
			if m := back.take(n)[0]; m.From != here {
				t.Errorf("sent from %v", m.From)
			}

			// A reader that waits is woken; afterwards the socket is the owner's, with all that comes.
			read := make(chan error)
			go func() {
				r := l.NewReader()
				read <- r.Recv(r.NewBatch(), true)
			}()
			time.Sleep(20 * time.Millisecond)
			must(t, l.Close())
			if err := <-read; !errors.Is(err, net.ErrClosed) {
				t.Error("reader:", err)
			}
			for _, err := range []error{newReceiver(t, l).r.Recv(rx.b, false), l.NewWriter().Send([]TxMsg{{To: peer.Local(), Buf: super}})} {
				if !errors.Is(err, net.ErrClosed) {
					t.Error("after Close:", err)
				}
			}
			send(t, tx, TxMsg{To: here, Buf: espPacket(3, 1, 60)})
			conn.SetReadDeadline(time.Now().Add(5 * time.Second))
			if got, _, err := conn.ReadFromUDPAddrPort(buf); err != nil || !bytes.Equal(buf[:got], espPacket(3, 1, 60)) {
				t.Errorf("the owner got %d bytes: %v", got, err)
			}
			// Once more on the same socket.
			again, err := NewUDP(conn, OuterOptions{})
			must(t, err)
			send(t, tx, TxMsg{To: here, Buf: espPacket(4, 1, 60)})
			newReceiver(t, again).take(1)
			must(t, again.Close())
		})
	}
}

// A socket that cannot be a link is refused with a reason, and is as good as before.
func TestForeignSocketRefused(t *testing.T) {
	both, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv6unspecified}) // Go's "udp" is for both families
	must(t, err)
	defer both.Close()
	connected, err := net.Dial("udp4", "127.0.0.1:9")
	must(t, err)
	defer connected.Close()
	closed, err := net.ListenUDP("udp4", nil)
	must(t, err)
	closed.Close()
	for want, c := range map[string]*net.UDPConn{"IPV6_V6ONLY": both, "connected": connected.(*net.UDPConn), "closed": closed} {
		if l, err := NewUDP(c, OuterOptions{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v", want, l, err)
		}
	}
	if _, err := both.WriteToUDPAddrPort([]byte{1}, both.LocalAddr().(*net.UDPAddr).AddrPort()); err != nil {
		t.Error(err)
	}
}
