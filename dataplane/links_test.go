package dataplane

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"culvert/dataplane/link"
	"culvert/dataplane/link/memlink"
	"culvert/offload"
	"culvert/offload/offloadtest"
	"culvert/offload/soft"
	"culvert/sa"
)

// lay gives both sites an end of a new wire, which they must come to call index.
func (w *world) lay(index int) {
	w.Helper()
	a, b := memlink.NewOuterPair(
		memlink.OuterOptions{Name: wires[udp4].name, Local: wires[udp4].end[siteA], Depth: 4096},
		memlink.OuterOptions{Name: wires[udp4].name, Local: wires[udp4].end[siteB], Depth: 4096})
	for s, o := range []link.Outer{a, b} {
		if i, err := w.site[s].plane.AddOuter(o); err != nil || i != index {
			w.Fatalf("site %c: link %d, %v; want %d", 'A'+s, i, err, index)
		}
	}
}

// cut removes a link at both sites.
func (w *world) cut(index int) {
	w.Helper()
	for s := range w.site {
		if err := w.site[s].plane.RemoveOuter(index); err != nil {
			w.Fatal(err)
		}
	}
}

// move has both sites' SAs of a tunnel use another link.
func (w *world) move(tn *tunnel, link int) {
	w.Helper()
	for s := range w.site {
		w.update(s, func(tx *sa.Tx) error {
			out, in := tn.out[s].Params().Endpoint(), tn.in[s].Params().Endpoint()
			out.Link, in.Link = link, link
			return errors.Join(tx.MoveOutbound(tn.out[s], out), tx.MoveInbound(tn.in[s], in))
		})
	}
}

// passes checks that a tunnel carries packets from either side. While an SA changes hands some may be lost, so it may take a few.
func (w *world) passes(n int) {
	w.Helper()
	for s, st := range w.site {
		p := probe(n)
		packet := from(s, p.build(false))
		there := w.site[1-s]
		for tries := 0; ; tries++ {
			st.send(packet)
			for give := time.Now().Add(50 * time.Millisecond); time.Now().Before(give); time.Sleep(50 * time.Microsecond) {
				if got, _, err := there.read.Next(false); err == nil {
					sameFlows(w, [][]byte{got}, [][]byte{packet})
					goto came
				}
			}
			if tries == 100 {
				w.Fatalf("nothing comes from site %c: %s", 'A'+s, w.summary())
			}
		}
	came:
	}
}

// summary is all books.
func (w *world) summary() (all string) {
	for s, st := range w.site {
		for _, l := range st.plane.Stats() {
			all += fmt.Sprintf("\nsite %c, %s: %s", 'A'+s, l.Name, l.summary())
		}
	}
	return all
}

// without is a plan whose sites begin without outer links.
func without(set func(c *Config)) plan {
	bare := func(c *Config) {
		c.Outers = nil
		if set != nil {
			set(c)
		}
	}
	return plan{config: [2]func(*Config){bare, bare}}
}

// A plane that begins without outer links carries tunnels once it has some; when one is taken away what was counted stays, its
// index is used again, and SAs go on with their numbers and windows on whatever link they are put, or on the next one of that index.
func TestLinksComeAndGo(t *testing.T) {
	w := newWorld(t, without(nil)).start()
	tn := w.tunnel(1, udp4, gcm, nil)
	p := probe(1)
	w.site[siteA].send(p.build(false))
	eventually(t, "dropped", func() bool { b := w.site[siteA].out(); return b.drops(CauseNoLink) == 1 })
	w.lay(0)
	w.passes(1)
	w.lay(1)
	if n := w.site[siteA].plane.Stats(); len(n) != 3 || n[1].Name != "inbound udp4" || n[2].Name != "inbound udp4 (link 1)" {
		t.Errorf("lanes %v", n)
	}
	before := w.site[siteB].in(0).PacketsIn
	w.cut(0)
	for s := range w.site {
		for _, seen := range w.site[s].plane.Sightings() { // which knows that lanes have gone
			t.Errorf("sighted: %+v", seen)
		}
	}
	if n := w.site[siteB].plane.Stats(); len(n) != 3 || n[2].Name != "inbound removed" || n[2].PacketsIn != before || !n[2].Balanced() {
		t.Errorf("lanes %v", n)
	}
	seq := tn.out[siteA].Stats().Seq
	w.site[siteA].send(p.build(false))
	eventually(t, "dropped", func() bool { b := w.site[siteA].out(); return b.drops(CauseNoLink) == 2 })
	if now := tn.out[siteA].Stats().Seq; now != seq {
		t.Errorf("a packet without a link has taken number %d", now)
	}
	w.move(tn, 1) // it was served by the lane that has gone
	w.passes(1)
	w.move(tn, 1<<30)
	w.site[siteA].send(p.build(false))
	eventually(t, "dropped", func() bool { b := w.site[siteA].out(); return b.drops(CauseNoLink) == 3 })
	w.lay(0)
	w.move(tn, 0)
	w.passes(1)
	w.cut(0)
	w.lay(0) // the SAs still name it
	w.passes(1)
	w.move(tn, 1) // from one living lane to another
	w.passes(1)
	for s := range w.site {
		if err := w.site[s].plane.RemoveOuter(7); err == nil {
			t.Error("a link that was never there is removed")
		}
		if err := w.site[s].plane.RemoveOuter(-1); err == nil {
			t.Error("a link that was never there is removed")
		}
		if r := tn.in[s].Stats(); r.Drops != (sa.Drops{}) {
			t.Errorf("replays: %+v", r.Drops)
		}
	}
	w.cut(0)
	w.cut(1)
	if err := w.site[siteA].plane.RemoveOuter(1); err == nil {
		t.Error("a link is removed twice")
	}
	var in uint64
	for _, l := range w.site[siteB].plane.Stats()[1:] {
		in += l.PacketsIn
	}
	out := w.site[siteA].out()
	if in != out.PacketsOut {
		t.Errorf("%d packets left site A, site B counted %d in", out.PacketsOut, in)
	}
	w.end()
	a, _ := memlink.NewOuterPair(memlink.OuterOptions{}, memlink.OuterOptions{})
	defer a.Close()
	if _, err := w.site[siteA].plane.AddOuter(a); !errors.Is(err, ErrStopped) {
		t.Errorf("added to a plane that has stopped: %v", err)
	}
}

// A plane that was never started takes links and gives them up.
func TestLinksBeforeStart(t *testing.T) {
	w := newWorld(t, without(nil))
	w.lay(0)
	w.lay(1)
	w.cut(0)
	w.tunnel(1, udp4, gcm, func(_ int, out, in *sa.Params) { out.Link, in.Link = 1, 1 })
	w.start()
	w.passes(1)
}

// Links come and go, and tunnels are moved between them, under load and with every arrangement of engines; no number is used
// twice, nothing is replayed, and the books balance at the end.
func TestLinksUnderLoad(t *testing.T) {
	for _, a := range arrangements {
		if a.chaos != nil && a.chaos.Errors > 0 {
			continue
		}
		t.Run(a.name, func(t *testing.T) {
			w := newWorld(t, without(func(c *Config) {
				e := offload.Engine(soft.New())
				if a.chaos != nil {
					e = offloadtest.NewChaos(e, *a.chaos)
				}
				a.set(c, e)
			})).start()
			const links = 3
			for i := range links {
				w.lay(i)
			}
			var tns []*tunnel
			for n := range 4 {
				tns = append(tns, w.tunnel(n, udp4, gcm, func(_ int, out, in *sa.Params) { out.Link, in.Link = n%links, n%links }))
			}
			stop := make(chan struct{})
			var load sync.WaitGroup
			for s, st := range w.site {
				load.Go(func() {
					for i := 0; ; i++ {
						select {
						case <-stop:
							return
						default:
							p := probe(i % 4)
							st.write.Queue(link.VNet{}, [][]byte{from(s, p.build(false))})
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
			for i := range 60 {
				w.move(tns[i%4], (i+1)%links)
				if i%3 == 0 {
					w.cut(i % links)
					w.lay(i % links)
				}
				time.Sleep(time.Millisecond)
			}
			counted := func(s int) (n uint64) { return tns[0].in[s].Stats().Packets }
			was := [2]uint64{counted(0), counted(1)}
			eventually(t, "packets after all that", func() bool { return counted(0) > was[0] && counted(1) > was[1] })
			for _, tn := range tns {
				for s := range w.site {
					// A link that was replaced may hold nothing back, so nothing comes twice; what is late is only late.
					if d := tn.in[s].Stats().Drops; d.Duplicate > 0 || d.BadICV > 0 {
						t.Errorf("%+v", d)
					}
				}
			}
			close(stop)
			w.end()
			load.Wait()
		})
	}
}
