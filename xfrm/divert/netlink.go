package divert

import (
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"
)

// sockaddrNL is struct sockaddr_nl.
type sockaddrNL struct{ pid, groups uint32 }

// parseNL decodes an address that a program gave.
func parseNL(order binary.ByteOrder, b []byte) (sockaddrNL, unix.Errno) {
	if len(b) < lenNetlink || order.Uint16(b) != unix.AF_NETLINK {
		return sockaddrNL{}, unix.EINVAL
	}
	return sockaddrNL{order.Uint32(b[4:]), order.Uint32(b[8:])}, 0
}

func (a sockaddrNL) bytes(order binary.ByteOrder) []byte {
	b := make([]byte, lenNetlink)
	order.PutUint16(b, unix.AF_NETLINK)
	order.PutUint32(b[4:], a.pid)
	order.PutUint32(b[8:], a.groups)
	return b
}

// The options that getsockopt gives as 0 or 1.
const booleans = 1<<unix.NETLINK_PKTINFO | 1<<unix.NETLINK_BROADCAST_ERROR | 1<<unix.NETLINK_NO_ENOBUFS | 1<<unix.NETLINK_LISTEN_ALL_NSID |
	1<<unix.NETLINK_CAP_ACK | 1<<unix.NETLINK_EXT_ACK | 1<<unix.NETLINK_GET_STRICT_CHK

// netlink answers a call on a diverted netlink socket. What it does not know is the kernel's to do, with the Unix socket.
func (s *Supervisor) netlink(r *request, c *client, fd int) verdict {
	order := r.a.order
	switch r.call {
	case callBind, callConnect:
		if uint32(r.args[2]) < lenNetlink {
			return fails(unix.EINVAL)
		}
		b, err := r.read(r.args[1], lenNetlink)
		if err != nil {
			return fails(unix.EFAULT)
		}
		if r.call == callConnect && order.Uint16(b) == unix.AF_UNSPEC {
			return done
		}
		a, e := parseNL(order, b)
		if e != 0 {
			return fails(e)
		}
		if r.call == callConnect {
			return done // there is one to talk to, and no other
		}
		if err := c.SetPort(a.pid); err != nil {
			return fails(errnoOf(err))
		}
		c.SetGroups(a.groups)
		if a.groups != 0 {
			s.silence(r, c)
		}
		s.changed(c)
		return done
	case callGetsockname:
		b, err := r.read(r.args[2], 4)
		if err != nil {
			return fails(unix.EFAULT)
		}
		room := int32(order.Uint32(b))
		if room < 0 {
			return fails(unix.EINVAL)
		}
		if err := c.SetPort(0); err != nil { // it is not given away any more, now that it is known
			return fails(errnoOf(err))
		}
		a := sockaddrNL{c.Port(), c.Groups()}.bytes(order)
		order.PutUint32(b, lenNetlink)
		if r.write(r.args[1], a[:min(int(room), len(a))]) != nil || r.write(r.args[2], b) != nil {
			return fails(unix.EFAULT)
		}
		return done
	case callSetsockopt:
		if uint32(r.args[1]) != solNetlink {
			return goesOn
		}
		if int32(r.args[4]) < 4 {
			return fails(unix.EINVAL)
		}
		b, err := r.read(r.args[3], 4)
		if err != nil {
			return fails(unix.EFAULT)
		}
		name, value := int(int32(r.args[2])), int32(order.Uint32(b))
		if err := c.Option(name, value); err != nil {
			return fails(errnoOf(err))
		}
		if name >= 0 && name < 32 && booleans>>name&1 != 0 {
			if value != 0 {
				c.options.Or(1 << name)
			} else {
				c.options.And(^(uint32(1) << name))
			}
		}
		if c.Groups() != 0 {
			s.silence(r, c)
		}
		s.changed(c)
		return done
	case callGetsockopt:
		if uint32(r.args[1]) != solNetlink {
			return goesOn
		}
		return s.netlinkOption(r, c)
	case callRecvfrom:
		return s.recvfrom(r, c, fd)
	case callRecvmsg:
		return s.recvmsg(r, c, fd)
	}
	return goesOn
}

// netlinkOption is getsockopt at SOL_NETLINK.
func (s *Supervisor) netlinkOption(r *request, c *client) verdict {
	order, name := r.a.order, int32(r.args[2])
	b, err := r.read(r.args[4], 4)
	if err != nil {
		return fails(unix.EFAULT)
	}
	room := int32(order.Uint32(b))
	if room < 0 {
		return fails(unix.EINVAL)
	}
	var value uint32
	switch {
	case name == unix.NETLINK_LIST_MEMBERSHIPS:
		value = c.Groups()
	case name < 0 || name >= 32 || booleans>>name&1 == 0:
		return fails(unix.ENOPROTOOPT)
	case room < 4:
		return fails(unix.EINVAL)
	default:
		value = c.options.Load() >> name & 1
	}
	v := make([]byte, 4)
	order.PutUint32(v, value)
	order.PutUint32(b, 4)
	if room < 4 { // a word does not fit, and what is needed is told
		v = nil
	}
	if r.write(r.args[3], v) != nil || r.write(r.args[4], b) != nil {
		return fails(unix.EFAULT)
	}
	return done
}

// errnoOf is a sink's error as the program sees it.
func errnoOf(err error) unix.Errno {
	var e unix.Errno
	if errors.As(err, &e) && e != 0 {
		return e
	}
	return unix.EINVAL
}
