package divert

import (
	"time"

	"golang.org/x/sys/unix"
)

// How much a program's message may have: the longest datagram that there is, and the most pieces that the kernel takes.
const (
	maxDatagram = 1 << 20
	maxPieces   = 1024
)

// piece is a struct iovec.
type piece struct{ base, len uint64 }

// msghdr is what matters of a struct msghdr.
type msghdr struct {
	name    uint64
	nameLen uint32
	iov     uint64
	iovLen  uint64
}

// Where the fields of a struct msghdr are, in words of an architecture: namelen is an int with what follows it as padding.
func (a *arch) msghdrSize() int { return 7 * a.word }

func (a *arch) parseMsghdr(b []byte) (m msghdr, ok bool) {
	if len(b) < a.msghdrSize() {
		return m, false
	}
	w := a.word
	return msghdr{name: a.long(b), nameLen: a.order.Uint32(b[w:]), iov: a.long(b[2*w:]), iovLen: a.long(b[3*w:])}, true
}

func (a *arch) parsePieces(b []byte) []piece {
	p := make([]piece, len(b)/(2*a.word))
	for i := range p {
		p[i] = piece{a.long(b[2*i*a.word:]), a.long(b[(2*i+1)*a.word:])}
	}
	return p
}

// recvfrom answers the recvfrom of a program that wants to see AF_NETLINK in the sender's address.
func (s *Supervisor) recvfrom(r *request, c *client, fd int) verdict {
	return s.receive(r, c, fd, uint32(r.args[3]), func(b []byte, total int) (int, unix.Errno) {
		n := min(uint64(len(b)), r.args[2])
		if r.write(r.args[1], b[:n]) != nil {
			return 0, unix.EFAULT
		}
		if r.args[4] != 0 && r.args[5] != 0 {
			l, err := r.read(r.args[5], 4)
			if err != nil {
				return 0, unix.EFAULT
			}
			room := int32(r.a.order.Uint32(l))
			if room < 0 {
				return 0, unix.EINVAL
			}
			a := sockaddrNL{}.bytes(r.a.order)
			r.a.order.PutUint32(l, lenNetlink)
			if r.write(r.args[4], a[:min(int(room), len(a))]) != nil || r.write(r.args[5], l) != nil {
				return 0, unix.EFAULT
			}
		}
		return int(n), 0
	})
}

// recvmsg answers recvmsg alike.
func (s *Supervisor) recvmsg(r *request, c *client, fd int) verdict {
	return s.receive(r, c, fd, uint32(r.args[2]), func(b []byte, total int) (int, unix.Errno) {
		raw, err := r.read(r.args[1], r.a.msghdrSize())
		if err != nil {
			return 0, unix.EFAULT
		}
		m, _ := r.a.parseMsghdr(raw)
		if m.iovLen > maxPieces {
			return 0, unix.EMSGSIZE
		}
		if int32(m.nameLen) < 0 {
			return 0, unix.EINVAL
		}
		iov, err := r.read(m.iov, int(m.iovLen)*2*r.a.word)
		if err != nil {
			return 0, unix.EFAULT
		}
		n := 0
		for _, p := range r.a.parsePieces(iov) {
			k := min(uint64(len(b)-n), p.len)
			if r.write(p.base, b[n:n+int(k)]) != nil {
				return 0, unix.EFAULT
			}
			n += int(k)
		}
		w := r.a.word
		word := make([]byte, 4)
		if m.name != 0 {
			a := sockaddrNL{}.bytes(r.a.order)
			r.a.order.PutUint32(word, lenNetlink)
			if r.write(m.name, a[:min(int(m.nameLen), len(a))]) != nil || r.write(r.args[1]+uint64(w), word) != nil {
				return 0, unix.EFAULT
			}
		}
		var flags uint32
		if n < total {
			flags = unix.MSG_TRUNC
		}
		r.a.order.PutUint32(word, flags)
		if r.write(r.args[1]+uint64(5*w), make([]byte, w)) != nil || r.write(r.args[1]+uint64(6*w), word) != nil {
			return 0, unix.EFAULT
		}
		return n, 0
	})
}

// receive takes a datagram from the program's end and has it put into the program's memory.
func (s *Supervisor) receive(r *request, c *client, fd int, flags uint32, put func(b []byte, total int) (int, unix.Errno)) verdict {
	wait := flags&unix.MSG_DONTWAIT == 0
	if fl, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0); err == nil && fl&unix.O_NONBLOCK != 0 {
		wait = false
	}
	var until time.Time
	if tv, err := unix.GetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO); err == nil && tv.Nano() > 0 {
		until = time.Now().Add(time.Duration(tv.Nano()))
	}
	for {
		b, total, e := c.take(fd, flags&unix.MSG_PEEK != 0)
		if e == unix.EAGAIN && wait {
			if !until.IsZero() && time.Now().After(until) {
				return fails(unix.EAGAIN)
			}
			// The program may be killed meanwhile, or a signal may end its call; both are known by looking.
			p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			_, _ = unix.Poll(p, 50)
			select {
			case <-s.stop: // the program will ask the next gateway
				return fails(unix.EINTR)
			default:
			}
			if !r.l.valid(r.id) {
				return verdict{given: true}
			}
			continue
		}
		if e != 0 {
			return fails(e)
		}
		n, e := put(b, total)
		if e == 0 && flags&unix.MSG_TRUNC != 0 {
			n = total
		}
		v := verdict{given: true}
		if err := r.l.answer(r.id, int64(n), e); err != nil && flags&unix.MSG_PEEK == 0 {
			c.giveBack(b) // a signal came first, and the program will ask again
		} else {
			clear(b) // there may be keys in it
		}
		return v
	}
}

// take receives a datagram, without waiting.
func (c *client) take(fd int, peek bool) (b []byte, total int, e unix.Errno) {
	c.recv.Lock()
	defer c.recv.Unlock()
	if c.stash != nil {
		b = c.stash
		if !peek {
			c.stash = nil
		} else {
			b = append([]byte(nil), b...)
		}
		return b, len(b), 0
	}
	n, _, err := unix.Recvfrom(fd, nil, unix.MSG_PEEK|unix.MSG_TRUNC|unix.MSG_DONTWAIT)
	if err != nil {
		return nil, 0, errnoOf(err)
	}
	b = make([]byte, min(max(n, 1), maxDatagram))
	flags := unix.MSG_DONTWAIT
	if peek {
		flags |= unix.MSG_PEEK
	}
	if n, _, err = unix.Recvfrom(fd, b, flags); err != nil {
		return nil, 0, errnoOf(err)
	}
	return b[:n], n, 0
}

func (c *client) giveBack(b []byte) {
	c.recv.Lock()
	defer c.recv.Unlock()
	c.stash = append(b, c.stash...)
}
