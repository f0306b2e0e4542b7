package server

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"culvert/offload"
	"culvert/offload/soft"
	"culvert/sa"
	"culvert/xfrm"
)

// tester is a client of a server, or of the kernel.
type tester struct {
	tb  testing.TB
	fd  int
	seq uint32
	buf []byte
	c   *Client
}

// pair is a connection's two ends.
func pair(tb testing.TB) (server *net.UnixConn, client int) {
	tb.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		tb.Fatal(err)
	}
	f := os.NewFile(uintptr(fds[0]), "xfrm")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		tb.Fatal(err)
	}
	return c.(*net.UnixConn), fds[1]
}

func connect(tb testing.TB, s *Server) *tester {
	tb.Helper()
	conn, fd := pair(tb)
	c, err := s.Attach(conn, Peer{PID: int32(os.Getpid()), Comm: "test"})
	if err != nil {
		tb.Fatal(err)
	}
	if err := c.Option(unix.NETLINK_EXT_ACK, 1); err != nil {
		tb.Fatal(err)
	}
	t := &tester{tb: tb, fd: fd, buf: make([]byte, 256<<10), c: c}
	tb.Cleanup(t.close)
	return t
}

func (t *tester) close() {
	if t.fd >= 0 {
		unix.Close(t.fd)
		t.fd = -1
	}
}

func newServer(tb testing.TB, cfg Config) *Server {
	tb.Helper()
	s := New(cfg)
	tb.Cleanup(s.Close)
	return s
}

// msg is one message that came back.
type msg struct {
	xfrm.Message
}

func (t *tester) send(b []byte) {
	t.tb.Helper()
	if err := unix.Sendto(t.fd, b, 0, nil); err != nil {
		t.tb.Fatalf("send: %v", err)
	}
}

// recv reads a datagram, nil if none comes in time.
func (t *tester) recv(wait time.Duration) []msg {
	t.tb.Helper()
	p := []unix.PollFd{{Fd: int32(t.fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(p, int(wait/time.Millisecond))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			t.tb.Fatal(err)
		}
		if n == 0 {
			return nil
		}
		break
	}
	n, _, err := unix.Recvfrom(t.fd, t.buf, 0)
	if err != nil {
		t.tb.Fatalf("receive: %v", err)
	}
	var all []msg
	for m, err := range xfrm.Messages(bytes.Clone(t.buf[:n])) {
		if err != nil {
			t.tb.Fatal(err)
		}
		all = append(all, msg{m})
	}
	return all
}

const ack = unix.NLM_F_REQUEST | unix.NLM_F_ACK

// body is a request's body and type.
type body interface {
	Append(dst []byte, typ, flags uint16, seq, pid uint32) []byte
}

// do sends a request and gives what comes back up to the acknowledgement, and that.
func (t *tester) do(b body, typ, flags uint16) ([]msg, error) {
	t.tb.Helper()
	t.seq++
	return t.raw(b.Append(nil, typ, flags, t.seq, 0))
}

func (t *tester) raw(req []byte) ([]msg, error) {
	t.tb.Helper()
	seq := binary.NativeEndian.Uint32(req[8:])
	t.send(req)
	var got []msg
	for {
		ms := t.recv(5 * time.Second)
		if ms == nil {
			t.tb.Fatal("no answer within 5 s")
		}
		for _, m := range ms {
			if m.Seq != seq {
				continue // an event
			}
			if m.Type == unix.NLMSG_ERROR || m.Type == unix.NLMSG_DONE {
				return got, xfrm.DecodeReply(m.Message)
			}
			got = append(got, m)
		}
	}
}

// must is do for what must succeed.
func (t *tester) must(b body, typ uint16) []msg {
	t.tb.Helper()
	got, err := t.do(b, typ, ack)
	if err != nil {
		t.tb.Fatalf("%s: %v (%v)", xfrm.TypeName(typ), err, xfrm.AsError(err).Errno)
	}
	return got
}

// fails is do for what must be refused.
func (t *tester) fails(b body, typ uint16, want unix.Errno) {
	t.tb.Helper()
	_, err := t.do(b, typ, ack)
	if got := errnoOf(err); got != want {
		t.tb.Fatalf("%s: %v, want %v", xfrm.TypeName(typ), err, want)
	}
}

func errnoOf(err error) unix.Errno {
	if err == nil {
		return 0
	}
	return xfrm.AsError(err).Errno
}

// event waits for a message of a type.
func (t *tester) event(typ uint16) msg {
	t.tb.Helper()
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); {
		for _, m := range t.recv(time.Second) {
			if m.Type == typ {
				return m
			}
		}
	}
	t.tb.Fatalf("no %s within 5 s", xfrm.TypeName(typ))
	return msg{}
}

// quiet makes sure that nothing comes.
func (t *tester) quiet(wait time.Duration) {
	t.tb.Helper()
	if ms := t.recv(wait); ms != nil {
		t.tb.Fatalf("unexpected %s", xfrm.TypeName(ms[0].Type))
	}
}

func decode[T any](tb testing.TB, m msg, f func([]byte) (T, error)) T {
	tb.Helper()
	v, err := f(m.Body)
	if err != nil {
		tb.Fatal(err)
	}
	return v
}

// kernel is a client of this machine's kernel, in a network namespace of its own.
func kernel(tb testing.TB) *tester {
	tb.Helper()
	type result struct {
		fd  int
		err error
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread() // and the thread ends with the goroutine, and the namespace with its last socket
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- result{-1, err}
			return
		}
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_XFRM)
		if err == nil {
			err = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1)
		}
		done <- result{fd, err}
	}()
	r := <-done
	if r.err != nil {
		tb.Fatalf("a network namespace and a netlink socket in it: %v", r.err)
	}
	t := &tester{tb: tb, fd: r.fd, buf: make([]byte, 256<<10)}
	tb.Cleanup(t.close)
	return t
}

func addr(s string) xfrm.Address {
	a, _ := xfrm.AddressOf(netip.MustParseAddr(s))
	return a
}

func inf() xfrm.Limits {
	return xfrm.Limits{SoftBytes: xfrm.Inf, HardBytes: xfrm.Inf, SoftPackets: xfrm.Inf, HardPackets: xfrm.Inf}
}

const (
	here  = "192.0.2.1"
	there = "192.0.2.2"
)

// newSA is an SA between the two hosts.
func newSA(src, dst string, spi, reqid uint32, key byte) *xfrm.SA {
	m := &xfrm.SA{SAInfo: xfrm.SAInfo{
		Dst: addr(dst), Src: addr(src), SPI: spi, Proto: xfrm.ProtoESP, Family: xfrm.FamilyIPv4, Mode: xfrm.ModeTunnel, Reqid: reqid,
		Limits: inf(), Flags: xfrm.StateAFUnspec,
	}}
	k := bytes.Repeat([]byte{key}, 20)
	binary.BigEndian.PutUint32(k[1:], spi)
	m.Attrs.AEAD = xfrm.NewAlgo("rfc4106(gcm(aes))", 128, k)
	return m
}

// newPolicy is a policy between two networks, for SAs between the two hosts.
func newPolicy(dir uint8, n int, reqid, spi uint32) *xfrm.Policy {
	src, dst := netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix(fmt.Sprintf("10.%d.%d.0/24", 2+n>>8, n&255))
	t := xfrm.Tmpl{Dst: addr(there), Src: addr(here), SPI: spi, Proto: xfrm.ProtoESP, Family: xfrm.FamilyIPv4, Reqid: reqid,
		Mode: xfrm.ModeTunnel, AAlgos: ^uint32(0), EAlgos: ^uint32(0), CAlgos: ^uint32(0)}
	if dir != xfrm.DirOut {
		src, dst = dst, src
		t.Src, t.Dst = t.Dst, t.Src
	}
	return &xfrm.Policy{
		PolicyInfo: xfrm.PolicyInfo{Sel: xfrm.SelectorOf(src, dst), Limits: inf(), Priority: 1000, Dir: dir},
		Attrs:      xfrm.Attrs{Tmpls: []xfrm.Tmpl{t}},
	}
}

func policyID(p *xfrm.Policy) *xfrm.PolicyID {
	return &xfrm.PolicyID{Sel: p.Sel, Dir: p.Dir}
}

func said(m *xfrm.SA) *xfrm.SAID {
	return &xfrm.SAID{Dst: m.Dst, SPI: m.SPI, Family: m.Family, Proto: m.Proto}
}

// plane is a data plane without lanes, and a server in front.
type plane struct {
	db      *sa.DB
	backend *DB
	*Server
}

func newPlane(tb testing.TB, cfg Config, store *sa.Store) *plane {
	tb.Helper()
	p := &plane{db: sa.NewDB()}
	engine := soft.New()
	p.backend = NewDB(DBConfig{
		DB: p.db, Store: store,
		Engine: func(*offload.Transform) (offload.Engine, error) { return engine, nil },
		Local: func(a netip.Addr) bool {
			return a == netip.MustParseAddr(here) || a == netip.MustParseAddr("192.0.2.9")
		},
	})
	cfg.Backend = p.backend
	p.Server = newServer(tb, cfg)
	tb.Cleanup(func() {
		p.db.Close()
		if err := p.db.Wait(); err != nil {
			tb.Error(err)
		}
	})
	return p
}

// outFor is the SA that a packet to a network is sent with.
func (p *plane) outFor(tb testing.TB, dst string) *sa.Outbound {
	tb.Helper()
	pol := p.policyFor(tb, dst)
	return pol.Out
}

func (p *plane) policyFor(tb testing.TB, dst string) *sa.Policy {
	tb.Helper()
	snap := p.db.Acquire()
	defer snap.Release()
	f := flow(dst)
	pol, ok := snap.Outbound(&f)
	if !ok {
		tb.Fatalf("no policy for a packet to %s", dst)
	}
	return pol
}

func flow(dst string) sa.Flow {
	return sa.Flow{Src: netip.MustParseAddr("10.1.0.5"), Dst: netip.MustParseAddr(dst), Proto: 17, SrcPort: 1000, DstPort: 53, HasPorts: true}
}

func fileConn(tb testing.TB, f *os.File) *net.UnixConn {
	tb.Helper()
	c, err := net.FileConn(f)
	if err != nil {
		tb.Fatal(err)
	}
	return c.(*net.UnixConn)
}
