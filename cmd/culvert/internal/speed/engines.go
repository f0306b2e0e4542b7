package speed

import (
	"fmt"
	"slices"
	"strings"

	"culvert/cmd/culvert/internal/gateway"
	"culvert/offload"
	"culvert/offload/ipsecmb"
	"culvert/offload/multibuf"
)

// leveled is an engine with several implementations, for several kinds of processor.
type leveled interface {
	offload.Engine
	Levels() []string // that this machine runs, the best first
	Level() string    // that this engine runs at
	WithLevel(string) (offload.Engine, error)
}

// engines are all that can be measured: the gateway's, and those that are there for measuring only.
func engines() []offload.Engine {
	all := gateway.Engines()
	for i, e := range all {
		if m, ok := e.(*multibuf.Engine); ok {
			all[i] = lanesOf(m)
		}
	}
	return append(all, ipsecmb.New(ipsecmb.Options{TripleDES: true}))
}

// levelNames are what --cpu takes besides "all", whether this machine has them or not.
var levelNames = []string{"avx512", "avx2", "avx", "shani", "sse-sha", "sse", "sse2", "arm64", "generic"}

// candidate is an engine to measure, at one level.
type candidate struct {
	engine offload.Engine
	name   string // of the engine without its level
	level  string // "": it has none
	caps   offload.Caps
}

// String is the name with the level.
func (c *candidate) String() string {
	if c.level == "" {
		return c.name
	}
	return c.name + " (" + c.level + ")"
}

// choose finds the engines by name, or with no names all that run here, each at its best level or at those asked for. What
// was left out, and why, is said in notes; with an engine that was named it is an error.
func choose(all []offload.Engine, names, levels []string) (chosen []*candidate, notes []string, err error) {
	var known []string
	for _, e := range all {
		known = append(known, e.Name())
	}
	everything := len(names) == 0 || slices.Contains(names, "all")
	for _, n := range names {
		if n != "all" && !slices.Contains(known, n) {
			return nil, nil, fmt.Errorf("--engine %q: write one or more of %s, or all", n, strings.Join(known, ", "))
		}
	}
	for _, l := range levels {
		if l != "all" && !slices.Contains(levelNames, l) {
			return nil, nil, fmt.Errorf("--cpu %q: write one or more of %s, or all", l, strings.Join(levelNames, ", "))
		}
	}
	for _, e := range all {
		if !everything && !slices.Contains(names, e.Name()) {
			continue
		}
		found, err := atLevels(e, levels)
		switch {
		case err == nil:
			chosen = append(chosen, found...)
		case everything:
			notes = append(notes, fmt.Sprintf("%s is left out: %s", e.Name(), gateway.Plain(err)))
		default:
			return nil, nil, fmt.Errorf("--engine %s: %w", e.Name(), gateway.Plainly(err))
		}
	}
	if len(chosen) == 0 {
		return nil, nil, fmt.Errorf("no engine is left to measure: %s", strings.Join(notes, "; "))
	}
	return chosen, notes, nil
}

// atLevels gives an engine at each of the levels asked for; with none, as it is.
func atLevels(e offload.Engine, levels []string) ([]*candidate, error) {
	caps, err := e.Probe()
	if err != nil {
		return nil, err
	}
	l, ok := e.(leveled)
	if len(levels) == 0 {
		c := &candidate{engine: e, name: e.Name(), caps: caps}
		if ok {
			c.level = l.Level()
		}
		return []*candidate{c}, nil
	}
	if !ok {
		return nil, fmt.Errorf("--cpu %s: the engine has no levels", strings.Join(levels, ","))
	}
	if slices.Contains(levels, "all") {
		levels = l.Levels()
	}
	var found []*candidate
	for _, name := range levels {
		if !slices.Contains(l.Levels(), name) {
			return nil, fmt.Errorf("--cpu %s: on this machine the engine has %s", name, strings.Join(l.Levels(), ", "))
		}
		at, err := l.WithLevel(name)
		if err != nil {
			return nil, err
		}
		if caps, err = at.Probe(); err != nil {
			return nil, err
		}
		found = append(found, &candidate{engine: at, name: e.Name(), level: name, caps: caps})
	}
	return found, nil
}
