package offload

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Errors of Select.
var (
	ErrEngine      = errors.New("no such engine")
	ErrNotAdmitted = errors.New("the engine is not admitted")
)

// Result is one transform's admission to one engine.
type Result struct {
	Transform *Transform
	Answers   int   // known answers that were right
	Err       error // nil: admitted
}

// Report is what became of one engine.
type Report struct {
	Engine  string
	Caps    Caps
	Err     error    // why the whole engine is out: what Probe said, or that it stalled or panicked
	Results []Result // one per transform of Caps
	Took    time.Duration
}

// Admitted lists the transforms that the engine is offered for.
func (r Report) Admitted() []*Transform {
	var ts []*Transform
	for _, res := range r.Results {
		if res.Err == nil {
			ts = append(ts, res.Transform)
		}
	}
	return ts
}

// Registry holds the engines of this machine, in order of preference. It does not change once made.
type Registry struct {
	engines []Engine
	reports []Report
}

// NewRegistry probes the engines and runs the known answers of every transform they claim. Only what passed is offered. It
// never fails: each engine has a Report, good or bad. An engine with the name of an earlier one is reported and left out.
func NewRegistry(engines ...Engine) *Registry { return newRegistry(admitLimit, engines...) }

func newRegistry(limit time.Duration, engines ...Engine) *Registry {
	r := &Registry{engines: slices.Clone(engines)}
	seen := map[string]bool{}
	for _, e := range engines {
		rep := Report{Engine: e.Name(), Err: ErrDuplicate}
		if !seen[e.Name()] {
			rep = admitAll(e, limit)
		}
		seen[e.Name()] = true
		r.reports = append(r.reports, rep)
	}
	return r
}

// Reports has one entry per engine, in the order of registration.
func (r *Registry) Reports() []Report { return slices.Clone(r.reports) }

// Select finds an engine for a transform: the preferred one by name, or with "" the first that was admitted. An unknown
// name gives ErrEngine; a known one that was not admitted gives ErrNotAdmitted with the reason.
func (r *Registry) Select(t *Transform, preferred string) (Engine, error) {
	if t == nil {
		return nil, fmt.Errorf("offload: %w: nil", ErrTransform)
	}
	var why, names []string
	for i, e := range r.engines {
		rep := &r.reports[i]
		names = append(names, rep.Engine)
		if preferred != "" && rep.Engine != preferred || errors.Is(rep.Err, ErrDuplicate) {
			continue
		}
		reason := rep.refuses(t)
		if reason == nil {
			return e, nil
		}
		if preferred != "" {
			return nil, fmt.Errorf("offload: %w: %s for %s: %w", ErrNotAdmitted, preferred, t, reason)
		}
		why = append(why, rep.Engine+": "+reason.Error())
	}
	if preferred != "" {
		return nil, fmt.Errorf("offload: %w: %q; there are %s", ErrEngine, preferred, strings.Join(names, ", "))
	}
	return nil, fmt.Errorf("offload: %w: none for %s (%s)", ErrNotAdmitted, t, strings.Join(why, "; "))
}

// refuses says why the engine is not offered for t, and nil if it is.
func (r *Report) refuses(t *Transform) error {
	if r.Err != nil {
		return r.Err
	}
	for _, res := range r.Results {
		if res.Transform == t {
			return res.Err
		}
	}
	return ErrUnsupported
}
