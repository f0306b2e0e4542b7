package dataplane

import (
	"encoding/binary"
	"fmt"
	"sync"
	"testing"

	"culvert/dataplane/link"
	"culvert/dataplane/link/memlink"
	"culvert/offload"
	"culvert/offload/offloadtest"
	"culvert/offload/soft"
	"culvert/sa"
)

// numbers is a hook that checks that no SPI, each of which has a key of its own, has a number twice.
type numbers struct {
	testing.TB
	mu   sync.Mutex
	seen map[uint64]bool
}

func (o *numbers) hook(int, int) func(memlink.Datagram, func(memlink.Datagram)) {
	return func(d memlink.Datagram, emit func(memlink.Datagram)) {
		o.mu.Lock()
		id := binary.BigEndian.Uint64(d.Buf)
		if o.seen[id] {
			o.Errorf("SPI %#x: number %d twice", id>>32, uint32(id))
		}
		o.seen[id] = true
		o.mu.Unlock()
		emit(d)
	}
}

// Tunnels that are rekeyed under full load, time and again, and at last removed, never use a session that has been closed, nor a
// number twice. What the policy has an SA for gets through; what comes late for an SA that has gone is counted as that.
func TestRetirement(t *testing.T) {
	for _, a := range arrangements {
		if a.chaos != nil && a.chaos.Errors > 0 {
			continue // a closed session shows as an engine error
		}
		t.Run(a.name, func(t *testing.T) {
			once := &numbers{TB: t, seen: map[uint64]bool{}}
			p := plan{depth: 128, hook: once.hook}
			for s := range p.config {
				e := offload.Engine(soft.New())
				if a.chaos != nil {
					e = offloadtest.NewChaos(e, *a.chaos)
				}
				p.config[s] = func(c *Config) { a.set(c, e) }
			}
			w := newWorld(t, p)
			now := w.tunnel(0, udp4, gcm, nil)
			w.start()
			packets := traffic(200, 1)
			stop := make(chan struct{})
			var load sync.WaitGroup
			for s, st := range w.site {
				load.Go(func() {
					for i := 0; ; i++ {
						select {
						case <-stop:
							return
						default:
							st.write.Queue(link.VNet{}, [][]byte{from(s, packets[i%len(packets)])})
						}
					}
				})
				load.Go(func() {
					for {
						if _, _, err := st.read.Next(true); err != nil {
							return
						}
					}
				})
			}
			var before *tunnel
			for n := 1; n <= 50; n++ {
				next := w.draft(n, udp4, gcm, func(_ int, out, in *sa.Params) { out.Name, in.Name = "tunnel 0", "tunnel 0" })
				for s := range w.site { // first whoever receives
					w.update(1-s, func(tx *sa.Tx) error { return tx.AddInbound(next.in[1-s]) })
				}
				for s := range w.site {
					w.update(s, func(tx *sa.Tx) error {
						if err := tx.AddOutbound(next.out[s]); err != nil {
							return err
						}
						if n, err := tx.Repoint(now.out[s], next.out[s]); err != nil || n != 2 {
							return fmt.Errorf("%d repointed: %w", n, err)
						}
						return tx.RemoveOutbound(now.out[s])
					})
					if before != nil {
						w.update(s, func(tx *sa.Tx) error { return tx.RemoveInbound(before.in[s]) })
					}
				}
				before, now = now, next
				used := func(i *sa.Inbound) func() bool { return func() bool { return i.Stats().Packets > 100 } }
				eventually(t, "the new SAs are used", used(now.in[siteA]))
				eventually(t, "the new SAs are used", used(now.in[siteB]))
			}
			close(stop)
			for _, st := range w.site {
				if err := st.cfg.DB.Update(func(tx *sa.Tx) error { return tx.Replace(nil, nil, nil) }); err != nil {
					t.Fatal(err)
				}
			}
			for _, st := range w.site {
				eventually(t, "every SA that has gone is wiped, though the lanes run on", func() bool { return st.cfg.DB.Retiring() == 0 })
			}
			w.end()
			load.Wait()
			for _, st := range w.site {
				for _, l := range st.plane.Stats() {
					for _, c := range Causes() {
						switch n := l.drops(c); c {
						case CauseNoState, CauseNoPolicy, CausePolicyMismatch: // after an SA, or all, had gone
						case CauseShouldBeProtected:
						default:
							if n > 0 {
								t.Errorf("%s: %s", l.Name, l.summary())
							}
						}
					}
				}
			}
		})
	}
}

// update changes a site's database.
func (w *world) update(s int, f func(tx *sa.Tx) error) {
	w.Helper()
	if err := w.site[s].cfg.DB.Update(f); err != nil {
		w.Fatal(err)
	}
}

// An idle gateway holds no snapshot: what is removed ends at once, also when the last packets were all dropped, or the burst that the
// SA was used in is long done.
func TestIdleHoldsNothing(t *testing.T) {
	for _, a := range arrangements {
		t.Run(a.name, func(t *testing.T) {
			var p plan
			for s := range p.config {
				e := offload.Engine(soft.New())
				if a.chaos != nil {
					e = offloadtest.NewChaos(e, *a.chaos)
				}
				p.config[s] = func(c *Config) { a.set(c, e) }
			}
			w := newWorld(t, p)
			w.tunnel(1, udp4, gcm, nil)
			w.start()
			good, stray := probe(1), probe(2)
			for range 5 * burstJobs {
				w.site[siteA].send(good.build(false))
			}
			for range 2 * maxReads {
				w.site[siteA].send(stray.build(false))
			}
			w.inject(udp4, siteB, wires[udp4].end[siteA], 0, []byte{0xff})
			eventually(t, "idle", func() bool {
				o, i := w.site[siteA].out(), w.site[siteB].in(udp4)
				return o.PacketsIn == 5*burstJobs+2*maxReads && o.InFlight == 0 && i.PacketsIn == o.PacketsOut+1 && i.InFlight == 0
			})
			for s, st := range w.site {
				w.update(s, func(tx *sa.Tx) error { return tx.Replace(nil, nil, nil) })
				eventually(t, "wiped", func() bool { return st.cfg.DB.Retiring() == 0 })
			}
		})
	}
}
