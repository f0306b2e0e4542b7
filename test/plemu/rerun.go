package plemu

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// ErrNotPermitted is the error of Run and RunQEMU where no program can be supervised.
var ErrNotPermitted = errors.New("no program can be supervised here")

// modelVar is the environment variable that tells a program what it runs on.
const modelVar = "PLEMU_MODEL"

// Inside gives the model that the program runs on, if it is one that Rerun has started.
func Inside() (m Model, ok bool) {
	v := os.Getenv(modelVar)
	if v == "" {
		return m, false
	}
	if err := json.Unmarshal([]byte(v), &m); err != nil {
		panic("plemu: " + modelVar + ": " + err.Error())
	}
	return m, true
}

// environment is this process's own, and the model.
func (m Model) environment() []string {
	v, err := json.Marshal(m)
	if err != nil {
		panic("plemu: " + err.Error()) // a Model has nothing that could not be marshalled
	}
	return append(os.Environ(), modelVar+"="+string(v))
}

// runLimit is how long a test may take on a model.
const runLimit = 4 * time.Minute

// Rerun runs one top-level test of this test program again, on a processor of the model. Whatever it reports there, it
// reports here. Where no program can be supervised the test is skipped, with the reason.
func Rerun(t *testing.T, m Model, test string) *Report {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return rerun(t, m, Run, self, test)
}

// RerunQEMU runs a top-level test of another program, the same tests compiled for 386, as Rerun does.
func RerunQEMU(t *testing.T, m Model, program, test string) *Report {
	t.Helper()
	return rerun(t, m, RunQEMU, program, test)
}

func rerun(t *testing.T, m Model, run func(context.Context, Model, []string, []string) (*Report, error), program, test string) *Report {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), runLimit)
	defer cancel()
	argv := []string{program, "-test.run=^" + test + "$", "-test.v"}
	if testing.Short() {
		argv = append(argv, "-test.short")
	}
	r, err := run(ctx, m, argv, m.environment())
	if errors.Is(err, ErrNotPermitted) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(r.Output), "\n")
	ran := slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, "--- PASS: "+test+" ") })
	if r.Exit != 0 || !ran {
		t.Errorf("on model %s it ends with status %d\n%s", m.Name, r.Exit, r.Output)
	}
	return r
}
