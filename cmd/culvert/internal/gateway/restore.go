package gateway

import (
	"errors"
	"strings"
	"time"

	"culvert/cmd/culvert/internal/control"
	"culvert/cmd/culvert/internal/hostnet"
	"culvert/configs"
)

const (
	// restoreEvery bounds how often routes are laid again, so that another daemon which removes them keeps neither us nor
	// itself busy.
	restoreEvery = 200 * time.Millisecond
	// restoreShare is how many times longer than it took the next comparison waits: there may be thousands of routes, and changes of
	// our own among those that are told.
	restoreShare = 20
	// retryEvery is how often it is tried to lay what could not be, though nothing on the host has changed.
	retryEvery = 5 * time.Second
	// compareEvery is how often the host is compared with the plan though nothing has changed: the kernel does not tell everything.
	compareEvery = time.Minute
	// restoreSay bounds how often the log says so.
	restoreSay = time.Minute
)

// hostState is what the gateway knows of the host's routes.
type hostState struct {
	restored uint64    // times that something was missing and was laid again
	problem  error     // why it could not be, the last time
	said     time.Time // when the log last said what was missing
	silent   uint64    // restorations since
}

// restore lays again whatever others remove of the routes, rules and addresses, until the gateway stops.
func (g *Gateway) restore(w *hostnet.Watcher) {
	defer g.wg.Done()
	defer w.Close()
	again := time.NewTimer(compareEvery)
	defer again.Stop()
	for {
		select {
		case <-g.stop:
			return
		case <-w.Changed():
		case <-again.C:
		}
		began := time.Now()
		gone, failed := g.restoreNow(began)
		if gone {
			g.kill(g.noTUN())
			return
		}
		again.Reset(compareEvery)
		if failed {
			again.Reset(retryEvery)
		}
		select {
		case <-g.stop:
			return
		case <-time.After(max(restoreEvery, restoreShare*time.Since(began))):
		}
	}
}

// restoreNow compares, and lays what is missing. It reports whether the TUN is gone, which only a restart can mend, and whether
// something could not be laid.
func (g *Gateway) restoreNow(now time.Time) (gone, failed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := plan(g.cfg, g.innerNow())
	missing, err := g.net.Missing(p)
	if g.stopping() { // which takes the TUN away, and with it the routes
		return false, false
	}
	if errors.Is(err, hostnet.ErrNoTUN) {
		g.host.problem = errors.Join(err, g.net.Guard(p)) // which is to stand when the gateway has ended
		return true, true
	}
	if err == nil && len(missing) == 0 {
		g.host.problem = nil
		return false, false
	}
	if err == nil {
		err = g.net.Apply(p)
	}
	if err != nil && g.stopping() {
		return false, false
	}
	g.host.problem = err
	if err == nil {
		g.host.restored++
	}
	if !g.host.said.IsZero() && now.Sub(g.host.said) < restoreSay {
		g.host.silent++
		return false, err != nil
	}
	if err != nil {
		g.log.Error("what others removed of the host's routes and rules could not be laid again", "missing", strings.Join(missing, ", "), "reason", err)
	} else {
		g.log.Warn("others removed some of the host's routes and rules; they are in place again",
			"missing", strings.Join(missing, ", "), "times_since_last_said", g.host.silent)
	}
	g.host.said, g.host.silent = now, 0
	return false, err != nil
}

// stopping says whether Stop has begun.
func (g *Gateway) stopping() bool {
	select {
	case <-g.stop:
		return true
	default:
		return false
	}
}

// innerNow is each tunnel's largest inner packet as the path is now. The caller holds g.mu.
func (g *Gateway) innerNow() map[string]int {
	mtus := map[string]int{}
	for name, t := range g.tunnels {
		mtus[name] = t.out.MaxInner()
	}
	return mtus
}

// hostStatus is for Status. The caller holds g.mu.
func (g *Gateway) hostStatus() control.Host {
	h := control.Host{Guard: g.cfg.Guard.Enabled, Restored: g.host.restored}
	missing, err := g.net.Missing(plan(g.cfg, g.innerNow()))
	if err == nil {
		err = g.host.problem
	}
	h.Missing = missing
	if err != nil {
		h.Problem = err.Error()
	}
	h.InPlace = err == nil && len(missing) == 0
	return h
}

// GuardMissing is what this host does not have of the guard that a configuration asks for, whether a gateway runs or not.
func GuardMissing(h *hostnet.Host, cfg *configs.Config) ([]string, error) {
	return h.MissingGuard(plan(cfg, nil))
}
