package speed

import (
	"culvert/offload"
	"culvert/offload/multibuf"
	"culvert/offload/soft"
)

// lanes is package multibuf's engine with its levels by name.
type lanes struct {
	*multibuf.Engine
	level string
}

// lanesOf gives the engine its levels; it has been made for the best one.
func lanesOf(e *multibuf.Engine) lanes { return lanes{e, string(multibuf.Levels()[0])} }

// Levels lists the levels that this machine runs, the best first.
func (l lanes) Levels() (names []string) {
	for _, n := range multibuf.Levels() {
		names = append(names, string(n))
	}
	return names
}

// Level is the one that the engine runs at.
func (l lanes) Level() string { return l.level }

// WithLevel makes an engine that runs at a level, with package soft for what the level has no kernels for.
func (lanes) WithLevel(level string) (offload.Engine, error) {
	e := multibuf.New(multibuf.Options{Level: multibuf.Level(level), Rest: soft.New()})
	if _, err := e.Probe(); err != nil {
		return nil, err
	}
	return lanes{e, level}, nil
}
