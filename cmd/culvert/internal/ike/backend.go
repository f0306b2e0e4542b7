package ike

import (
	"culvert/sa"
	"culvert/xfrm"
	"culvert/xfrm/server"
)

// backend is the data plane as the server sees it, with the host's routes and the links that go with its SAs and policies.
type backend struct {
	*server.DB
	d *Daemon
}

// Update makes changes take effect at once or not at all: what the host needs for new policies stands before, and what it needs no more
// for old ones goes after.
func (b *backend) Update(f func(tx server.Tx) error) error {
	t := &change{d: b.d}
	err := b.DB.Update(func(tx server.Tx) error {
		t.Tx = tx
		if err := f(t); err != nil {
			return err
		}
		return b.d.prepare(t)
	})
	if err != nil {
		b.d.cancel(t)
		for _, u := range t.undo {
			u()
		}
		return err
	}
	for _, c := range t.commit {
		c()
	}
	b.d.finish(t)
	select {
	case b.d.changed <- struct{}{}:
	default:
	}
	return nil
}

// change is a transaction of the server's under way.
type change struct {
	server.Tx
	d            *Daemon
	commit, undo []func()
	policies     []policyChange
	before       []before // what prepare has changed, to be taken back
}

// policyChange is an outbound policy that comes, changes or goes.
type policyChange struct {
	index uint32
	p     *policy // nil: it goes
}

// AddSA makes an SA.
func (t *change) AddSA(s *server.SASpec) (server.SAHandle, error) {
	t.d.setPlaced(nil)
	h, err := t.Tx.AddSA(s)
	if on := t.d.takePlaced(); on != nil {
		t.undo = append(t.undo, func() { t.d.leave(on) })
		t.commit = append(t.commit, func() { t.d.on[h] = on })
	}
	return h, err
}

// RemoveSA ends an SA.
func (t *change) RemoveSA(h server.SAHandle) error {
	t.commit = append(t.commit, func() {
		if on := t.d.on[h]; on != nil {
			delete(t.d.on, h)
			t.d.leave(on)
		}
	})
	return t.Tx.RemoveSA(h)
}

// ChangeSA gives an SA other addresses, ports or limits.
func (t *change) ChangeSA(h server.SAHandle, s *server.SASpec) error {
	t.d.setPlaced(nil)
	err := t.Tx.ChangeSA(h, s)
	on := t.d.takePlaced()
	if on != nil {
		t.undo = append(t.undo, func() { t.d.leave(on) })
	}
	t.commit = append(t.commit, func() {
		if was := t.d.on[h]; was != nil {
			delete(t.d.on, h)
			t.d.leave(was)
		}
		if on != nil {
			t.d.on[h] = on
		}
	})
	return err
}

// SetPolicy adds a policy or replaces the one of its index.
func (t *change) SetPolicy(q *server.PolicySpec) error {
	var out *sa.Outbound
	if h, ok := q.Out.(interface{ Outbound() *sa.Outbound }); ok {
		out = h.Outbound()
	}
	if err := t.Tx.SetPolicy(q); err != nil {
		return err
	}
	if q.Info.Dir == xfrm.DirOut {
		t.policies = append(t.policies, policyChange{q.Info.Index, t.d.policyOf(q, out)})
	}
	return nil
}

// RemovePolicy removes the policy of an index.
func (t *change) RemovePolicy(index uint32) error {
	if err := t.Tx.RemovePolicy(index); err != nil {
		return err
	}
	if uint8(index&7) == xfrm.DirOut {
		t.policies = append(t.policies, policyChange{index, nil})
	}
	return nil
}
