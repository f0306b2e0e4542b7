package offload

import (
	"errors"
	"time"
)

// Admit runs the known answers.
func Admit(e Engine, t *Transform) (int, error) { return 0, errors.New("not yet") }

func admitAll(e Engine, dup bool) Report {
	start := time.Now()
	rep := Report{Engine: e.Name()}
	rep.Caps, rep.Err = e.Probe()
	rep.Took = time.Since(start)
	return rep
}
