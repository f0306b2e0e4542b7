package server

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"culvert/xfrm"
)

// maxRequest is the longest datagram that a client can send, in bytes.
const maxRequest = 128 << 10

// Peer is who a client is, for logs and for its port.
type Peer struct {
	PID  int32
	Comm string // its program's name
}

// String is "charon[1234]".
func (p Peer) String() string { return fmt.Sprintf("%s[%d]", p.Comm, p.PID) }

// Client is one connection, which stands for one netlink socket. All methods may be called from any goroutine.
type Client struct {
	s     *Server
	conn  *net.UnixConn
	raw   syscall.RawConn
	peer  Peer
	port  atomic.Uint32 // its netlink port, unique among clients
	bound atomic.Bool   // it is the client's for good: by bind, or because it has been used or told

	groups atomic.Uint32 // bits, as xfrm.GroupBit has them
	capAck atomic.Bool
	extAck atomic.Bool

	mu       sync.Mutex
	queue    [][]byte
	queued   int // bytes
	writing  bool
	dump     *dump
	closed   bool
	overruns uint64
	wake     chan struct{} // capacity 1: there is something to write
	done     chan struct{} // closed when both goroutines have ended
}

// Attach takes a connection over and serves it until the client closes it, or Close. The connection is the server's from then on.
func (s *Server) Attach(conn *net.UnixConn, peer Peer) (*Client, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	c := &Client{s: s, conn: conn, raw: raw, peer: peer, wake: make(chan struct{}, 1), done: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	c.port.Store(s.newPort(peer.PID))
	s.adopt(c)
	s.clients[c] = struct{}{}
	s.ports[c.port.Load()] = c
	s.work.Add(2)
	read := make(chan struct{})
	go func() {
		defer s.work.Done()
		c.read()
		close(read)
	}()
	go func() {
		defer s.work.Done()
		c.write(read)
		<-read
		s.detach(c)
		close(c.done)
	}()
	return c, nil
}

// Serve is Attach, and waits until the connection ends.
func (s *Server) Serve(conn *net.UnixConn, peer Peer) error {
	c, err := s.Attach(conn, peer)
	if err != nil {
		return err
	}
	<-c.done
	return nil
}

// newPort is a port as the kernel gives them: the process's ID, or a high number if that is taken.
func (s *Server) newPort(pid int32) uint32 {
	if port := uint32(pid); port != 0 && s.ports[port] == nil {
		return port
	}
	for {
		s.lastPort--
		if s.lastPort < 1<<31 {
			s.lastPort = ^uint32(0) - 4096
		}
		if s.ports[s.lastPort] == nil {
			return s.lastPort
		}
	}
}

func (s *Server) detach(c *Client) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed { // the program is to notice, which it would not if there were copies of this end
		c.conn.CloseRead()
		c.conn.CloseWrite()
	}
	c.conn.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dump != nil {
		c.dump.close()
		c.dump = nil
	}
	c.queue, c.queued = nil, 0
	delete(s.clients, c)
	delete(s.ports, c.port.Load())
}

// Port is the client's netlink port: what getsockname gives as nl_pid.
func (c *Client) Port() uint32 { return c.port.Load() }

// SetPort is bind with an nl_pid: EADDRINUSE if another client is bound to that port. With 0 the client keeps the port that it has.
// As in the kernel, a socket that has neither been bound nor used has no port yet that another could not get.
func (c *Client) SetPort(port uint32) error {
	if port == 0 {
		c.bound.Store(true)
		return nil
	}
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if _, ok := c.s.clients[c]; !ok {
		return ErrClosed
	}
	other := c.s.ports[port]
	if other != nil && other != c && other.bound.Load() {
		return unix.EADDRINUSE
	}
	c.bound.Store(true)
	if other == c {
		return nil
	}
	if other != nil {
		free := c.s.newPort(0)
		other.port.Store(free)
		c.s.ports[free] = other
	}
	delete(c.s.ports, c.port.Load())
	c.port.Store(port)
	c.s.ports[port] = c
	return nil
}

// Peer is who the client is.
func (c *Client) Peer() Peer { return c.peer }

// Done is closed when the client has gone and nothing of it is left.
func (c *Client) Done() <-chan struct{} { return c.done }

// Close ends the connection.
func (c *Client) Close() error { return c.conn.Close() }

// Groups is the multicast groups, as bits.
func (c *Client) Groups() uint32 { return c.groups.Load() }

// Overruns is the number of messages that the client did not get because it did not read: where the kernel says ENOBUFS.
func (c *Client) Overruns() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.overruns
}

// SetGroups sets the multicast groups: what bind does with nl_groups.
func (c *Client) SetGroups(bits uint32) { c.groups.Store(bits & allGroups) }

// Join adds groups, as bits, and Leave removes some.
func (c *Client) Join(bits uint32) { c.groups.Or(bits & allGroups) }

// Leave removes groups, as bits.
func (c *Client) Leave(bits uint32) { c.groups.And(^bits) }

const allGroups = 1<<xfrm.GroupMax - 1

// Option is setsockopt at SOL_NETLINK: memberships, NETLINK_CAP_ACK and NETLINK_EXT_ACK change something. The other options that
// netlink has are taken, and mean nothing for these messages, as in the kernel: NETLINK_GET_STRICT_CHK too, for dumps of XFRM
// check no header. An unknown option is ENOPROTOOPT, a group that does not exist EINVAL.
func (c *Client) Option(name int, value int32) error {
	switch name {
	case unix.NETLINK_ADD_MEMBERSHIP, unix.NETLINK_DROP_MEMBERSHIP:
		if value < 1 || value > 32 {
			return unix.EINVAL
		}
		bit := xfrm.GroupBit(uint32(value))
		if name == unix.NETLINK_ADD_MEMBERSHIP {
			c.Join(bit)
		} else {
			c.Leave(bit)
		}
	case unix.NETLINK_CAP_ACK:
		c.capAck.Store(value != 0)
	case unix.NETLINK_EXT_ACK:
		c.extAck.Store(value != 0)
	case unix.NETLINK_PKTINFO, unix.NETLINK_BROADCAST_ERROR, unix.NETLINK_NO_ENOBUFS, unix.NETLINK_LISTEN_ALL_NSID,
		unix.NETLINK_GET_STRICT_CHK:
	default:
		return unix.ENOPROTOOPT
	}
	return nil
}

func (c *Client) reply() xfrm.Reply {
	return xfrm.Reply{PID: c.Port(), CapAck: c.capAck.Load(), ExtAck: c.extAck.Load()}
}

// read takes datagrams one after another; the next one is taken when this one's requests have been answered.
func (c *Client) read() {
	b := make([]byte, maxRequest)
	defer c.hangup()
	for {
		n, _, flags, _, err := c.conn.ReadMsgUnix(b, nil)
		if err != nil || n == 0 {
			if err != nil && !errors.Is(err, net.ErrClosed) && !errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNRESET) {
				c.s.cfg.Log.Warn("XFRM client", "client", c.peer, "error", err)
			}
			return
		}
		if flags&unix.MSG_TRUNC != 0 {
			c.s.cfg.Log.Warn("XFRM client sent a longer datagram than netlink takes; its connection is closed", "client", c.peer, "limit", maxRequest)
			clear(b)
			return
		}
		c.s.datagram(c, b[:n])
		clear(b[:n]) // there are keys in it
	}
}

// hangup ends the writer.
func (c *Client) hangup() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.conn.Close()
	c.poke()
}

func (c *Client) poke() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// send gives the client a message. It never waits: what the socket does not take goes to the queue, and what that does not take is
// lost and counted. b must not change afterwards.
func (c *Client) send(b []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	if !c.writing && len(c.queue) == 0 {
		if err := c.try(b); err == nil {
			return
		}
	}
	if c.queued+len(b) > c.s.cfg.QueueBytes {
		c.overruns++
		c.s.stats.Overruns.Add(1)
		return
	}
	c.queue = append(c.queue, b)
	c.queued += len(b)
	c.poke()
}

// try writes without waiting.
func (c *Client) try(b []byte) error {
	var n error
	err := c.raw.Control(func(fd uintptr) {
		n = unix.Sendto(int(fd), b, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil)
	})
	if err == nil {
		err = n
	}
	return err
}

// write sends what waits, and dumps: a piece of a dump is made when the socket has taken the one before, so a dump takes no more
// memory than one piece however long it is and however slowly it is read.
func (c *Client) write(read <-chan struct{}) {
	for {
		b, ok := c.next()
		if !ok {
			select {
			case <-c.wake:
				continue
			case <-read:
				return
			}
		}
		if _, err := c.conn.Write(b); err != nil {
			c.hangup()
			return
		}
	}
}

// next is what is to be written next: answers and events first, then the dump.
func (c *Client) next() ([]byte, bool) {
	c.mu.Lock()
	c.writing = false
	switch {
	case c.closed:
		c.mu.Unlock()
		return nil, false
	case len(c.queue) > 0:
		b := c.queue[0]
		c.queue[0] = nil
		c.queue = c.queue[1:]
		c.queued -= len(b)
		c.writing = true
		c.mu.Unlock()
		return b, true
	case c.dump == nil:
		c.queue = nil
		c.mu.Unlock()
		return nil, false
	}
	d := c.dump
	c.mu.Unlock()

	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	b, last := d.piece()
	c.mu.Lock()
	defer c.mu.Unlock()
	if last {
		d.close()
		c.dump = nil
	}
	c.writing = true
	return b, true
}
