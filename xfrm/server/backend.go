package server

import (
	"errors"
	"time"

	"culvert/sa"
	"culvert/xfrm"
)

// Backend is the data plane as the server sees it. The server calls it one at a time.
type Backend interface {
	// Update makes the changes that f asks for take effect at once or, with an error, not at all. The error is the client's
	// answer: an *xfrm.Error, or one with an errno in its chain.
	Update(f func(tx Tx) error) error
	// Inbound says which side an SA is for that says so neither itself nor by having been larval: whether its destination is
	// this host's.
	Inbound(i *xfrm.SAInfo) bool
	// Expiries gives the SAs that have reached a limit in bytes, packets or sequence numbers, each limit once. The server
	// calls it after Wake.
	Expiries() []Expiry
	// Wake receives when Expiries has something to tell.
	Wake() <-chan struct{}
}

// Tx is the set of changes of one message.
type Tx interface {
	// AddSA makes an SA. Carry, if there is any, is what its key has done before.
	AddSA(s *SASpec) (SAHandle, error)
	// RemoveSA ends an SA. Policies that point to it must have been changed before.
	RemoveSA(h SAHandle) error
	// ChangeSA gives an SA other addresses, ports or limits; its numbers, window and counters go on.
	ChangeSA(h SAHandle, s *SASpec) error
	// SetPolicy adds a policy or replaces the one of its index.
	SetPolicy(p *PolicySpec) error
	// RemovePolicy removes the policy of an index.
	RemovePolicy(index uint32) error
}

// SASpec is an SA as a client wants it: resolved algorithms, and no counters.
type SASpec struct {
	Info    *xfrm.SAInfo
	Attrs   *xfrm.Attrs
	Inbound bool
	Carry   *Carry
}

// Carry is what an SA brings along from an earlier life, as the message that makes it says.
type Carry struct {
	Oseq   uint64    // the last number sent
	Replay sa.Replay // what was received
	Cur    *xfrm.Lifetime
	// Replaced is the SA of the same key that was removed by the same message, which may be in use until that has taken effect.
	Replaced SAHandle
}

// PolicySpec is a policy as a client wants it, with the SA that it uses.
type PolicySpec struct {
	Info  *xfrm.PolicyInfo
	Attrs *xfrm.Attrs
	Out   SAHandle // of an outbound policy to protect; nil while there is none
}

// SAHandle is an SA in the data plane.
type SAHandle interface {
	// Usage is what the SA has done so far, all of one moment.
	Usage() Usage
}

// Usage is what an SA has done.
type Usage struct {
	Packets, Bytes    uint64
	FirstUse, LastUse time.Time // zero: never
	Oseq              uint64    // the last number sent
	Replay            sa.Replay // what was received
	Drops             sa.Drops
}

// Expiry is an SA that has reached a limit.
type Expiry struct {
	SA   SAHandle
	Hard bool
}

// directory is the Backend of a server without a data plane: it answers and remembers, and no packet is touched.
type directory struct{}

func (directory) Update(f func(tx Tx) error) error     { return f(directory{}) }
func (directory) Inbound(*xfrm.SAInfo) bool            { return false }
func (directory) Expiries() []Expiry                   { return nil }
func (directory) Wake() <-chan struct{}                { return nil }
func (directory) AddSA(s *SASpec) (SAHandle, error)    { return &remembered{carried(s.Carry)}, nil }
func (directory) RemoveSA(SAHandle) error              { return nil }
func (directory) ChangeSA(h SAHandle, s *SASpec) error { return nil }
func (directory) SetPolicy(*PolicySpec) error          { return nil }
func (directory) RemovePolicy(uint32) error            { return nil }

// remembered is an SA that carries nothing.
type remembered struct{ u Usage }

func (r *remembered) Usage() Usage { return r.u }

// carried is the usage that an SA begins with.
func carried(c *Carry) Usage {
	var u Usage
	if c == nil {
		return u
	}
	u.Oseq, u.Replay = c.Oseq, c.Replay
	if c.Cur != nil {
		u.Packets, u.Bytes = c.Cur.Packets, c.Cur.Bytes
		if t := c.Cur.UseTime; t != 0 {
			u.FirstUse = time.Unix(int64(min(t, 1<<40)), 0)
		}
	}
	return u
}

// refusal is the answer to a client for an error of the data plane.
func refusal(err error) *xfrm.Error {
	if err == nil {
		return nil
	}
	if e := (*xfrm.Error)(nil); errors.As(err, &e) {
		return e
	}
	return xfrm.AsError(err)
}
