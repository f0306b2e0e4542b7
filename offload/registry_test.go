package offload_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"culvert/offload"
	"culvert/offload/pool"
	"culvert/offload/soft"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// double is software with faults.
type double struct {
	offload.Engine
	name    string
	absent  error
	corrupt func(j *offload.Job, dir offload.Direction) // after the job is done
	stall   chan struct{}                               // Submit waits for it
	shed    bool                                        // NewLane fails
}

func (d *double) Name() string { return d.name }

func (d *double) Probe() (offload.Caps, error) {
	if d.absent != nil {
		return offload.Caps{}, d.absent
	}
	return d.Engine.Probe()
}

var errShed = errors.New("no lane left")

func (d *double) NewLane(id int) (offload.Lane, error) {
	if d.shed {
		return nil, errShed
	}
	l, err := d.Engine.NewLane(id)
	return &doubleLane{l, d}, err
}

type doubleLane struct {
	offload.Lane
	d *double
}

func (l *doubleLane) Submit(b *offload.Burst) error {
	if l.d.stall != nil {
		<-l.d.stall
		return offload.ErrClosed // quickly to the end
	}
	err := l.Lane.Submit(b)
	for i := range b.Jobs {
		if l.d.corrupt != nil {
			l.d.corrupt(&b.Jobs[i], b.Dir)
		}
	}
	return err
}

func newDouble(name string) *double { return &double{Engine: soft.New(), name: name} }

// Software passes all answers of all transforms, and is what Select gives.
func TestRegistryAdmits(t *testing.T) {
	for _, e := range []offload.Engine{soft.New(), pool.New(soft.New(), pool.Options{Workers: 2})} {
		r := offload.NewRegistry(e)
		rep := r.Reports()[0]
		if rep.Engine != e.Name() || rep.Err != nil || len(rep.Admitted()) != len(offload.Transforms()) || rep.Took <= 0 {
			t.Errorf("%s: %v, %d transforms admitted, %v", rep.Engine, rep.Err, len(rep.Admitted()), rep.Took)
		}
		for _, res := range rep.Results {
			if res.Err != nil || res.Answers < 5 {
				t.Errorf("%s, %s: %d answers, %v", rep.Engine, res.Transform, res.Answers, res.Err)
			}
			for _, preferred := range []string{"", e.Name()} {
				if got, err := r.Select(res.Transform, preferred); got != e || err != nil {
					t.Errorf("Select(%s, %q) gives %v, %v", res.Transform, preferred, got, err)
				}
			}
		}
	}
}

// Every transform has published answers, and those with and without ESN, short and long.
func TestAnswersCover(t *testing.T) {
	for _, tr := range offload.Transforms() {
		answers, err := offload.Answers(tr)
		if err != nil {
			t.Fatal(err)
		}
		has := map[string]bool{}
		for _, a := range answers {
			has["published"] = has["published"] || !strings.HasPrefix(a.Source, "computed")
			has["esn"] = has["esn"] || a.Keys.ESN
			has["no esn"] = has["no esn"] || !a.Keys.ESN
			has["shortest"] = has["shortest"] || a.Len() == tr.MinLen()
			has["long"] = has["long"] || a.Len() > 1400
		}
		for _, want := range []string{"published", "esn", "no esn", "shortest", "long"} {
			if !has[want] {
				t.Errorf("%s: there is no answer that is %s", tr, want)
			}
		}
	}
}

// An engine that is wrong about one thing is out for the transforms concerned, and its neighbours are not.
func TestRegistryRefuses(t *testing.T) {
	sha1 := lookup(t, "authenc(hmac(sha1),cbc(aes))", 192, 0)
	gone := errors.New("there is no such device; load its module")
	faults := map[string]func(j *offload.Job, dir offload.Direction){
		"seals wrongly": func(j *offload.Job, dir offload.Direction) {
			if dir == offload.Seal {
				j.ESP[len(j.ESP)-1] ^= 1
			}
		},
		"seals long packets wrongly": func(j *offload.Job, dir offload.Direction) {
			if dir == offload.Seal && len(j.ESP) > 1024 {
				j.ESP[1000] ^= 1
			}
		},
		"opens wrongly": func(j *offload.Job, dir offload.Direction) {
			if dir == offload.Open && j.Status == offload.OK {
				j.ESP[j.Session.Transform().HeaderLen()] ^= 1
			}
		},
		"takes everything": func(j *offload.Job, dir offload.Direction) {
			if j.Status == offload.BadICV {
				j.Status = offload.OK
			}
		},
		"takes nothing": func(j *offload.Job, dir offload.Direction) { j.Status = offload.EngineError },
		"takes any length": func(j *offload.Job, dir offload.Direction) {
			if j.Status == offload.BadLength {
				j.Status = offload.BadICV
			}
		},
		"writes past the packet": func(j *offload.Job, dir offload.Direction) { j.ESP[:len(j.ESP)+1][len(j.ESP)] ^= 1 },
		"does not finish":        func(j *offload.Job, dir offload.Direction) { j.Status = offload.Pending },
	}
	for name, fault := range faults {
		d := newDouble(name)
		d.corrupt = func(j *offload.Job, dir offload.Direction) {
			if j.Session.Transform() == sha1 {
				fault(j, dir)
			}
		}
		r := offload.NewRegistry(d)
		if _, err := r.Select(sha1, name); !errors.Is(err, offload.ErrNotAdmitted) || !errors.Is(err, offload.ErrWrongAnswer) {
			t.Errorf("an engine that %s is selected: %v", name, err)
		}
		if got := len(r.Reports()[0].Admitted()); got != len(offload.Transforms())-1 {
			t.Errorf("an engine that %s with one transform is admitted for %d", name, got)
		}
	}

	absent, bare := newDouble("absent"), newDouble("bare")
	absent.absent, bare.shed = gone, true
	for e, want := range map[offload.Engine]error{absent: gone, bare: errShed} {
		r := offload.NewRegistry(e)
		if _, err := r.Select(sha1, e.Name()); !errors.Is(err, want) || !errors.Is(err, offload.ErrNotAdmitted) {
			t.Errorf("an engine that is %s: %v; want the reason", e.Name(), err)
		}
		if rep := r.Reports()[0]; !errors.Is(rep.Err, want) || len(rep.Admitted()) != 0 {
			t.Errorf("an engine that is %s: %+v", e.Name(), rep)
		}
	}
}

// An engine that panics or never answers is reported, with the transform, and does not keep the program from starting.
func TestRegistrySurvives(t *testing.T) {
	wild := newDouble("wild")
	wild.corrupt = func(*offload.Job, offload.Direction) { panic("illegal instruction") }
	stuck := newDouble("stuck")
	stuck.stall = make(chan struct{})
	first := offload.Transforms()[0]
	// Only the stuck one gets little time: it uses up any.
	for e, c := range map[*double]struct {
		limit time.Duration
		want  error
	}{wild: {time.Hour, offload.ErrPanicked}, stuck: {20 * time.Millisecond, offload.ErrStalled}} {
		r := offload.NewRegistryWithin(c.limit, e)
		if rep := r.Reports()[0]; !errors.Is(rep.Err, c.want) || len(rep.Admitted()) != 0 {
			t.Errorf("%s: %v; want %v", rep.Engine, rep.Err, c.want)
		}
		if _, err := r.Select(first, e.name); !errors.Is(err, c.want) {
			t.Errorf("%s is selected: %v", e.name, err)
		}
	}
	if rep := offload.NewRegistry(wild).Reports()[0]; !strings.Contains(rep.Err.Error(), first.Name) {
		t.Errorf("%v does not say with which transform", rep.Err)
	}
	close(stuck.stall) // the goroutine that is stuck in it ends now
}

// Select goes by the order of registration, a name comes first, and the errors say what there is.
func TestSelect(t *testing.T) {
	tr := offload.Transforms()[0]
	absent, a, b := newDouble("absent"), newDouble("a"), newDouble("b")
	absent.absent = errors.New("out of order")
	second := newDouble("a")
	r := offload.NewRegistry(absent, a, b, second)
	for preferred, want := range map[string]offload.Engine{"": a, "a": a, "b": b} {
		if got, err := r.Select(tr, preferred); got != want || err != nil {
			t.Errorf("Select(%q) gives %v, %v", preferred, got, err)
		}
	}
	if _, err := r.Select(tr, "c"); !errors.Is(err, offload.ErrEngine) || !strings.Contains(err.Error(), "absent, a, b") {
		t.Errorf("Select of an unknown name: %v", err)
	}
	if _, err := r.Select(nil, ""); !errors.Is(err, offload.ErrTransform) {
		t.Errorf("Select of no transform: %v", err)
	}
	if err := r.Reports()[3].Err; !errors.Is(err, offload.ErrDuplicate) {
		t.Errorf("the second engine of a name: %v", err)
	}
	r = offload.NewRegistry(absent)
	if _, err := r.Select(tr, ""); !errors.Is(err, offload.ErrNotAdmitted) || !strings.Contains(err.Error(), "absent: out of order") {
		t.Errorf("Select with nothing admitted: %v", err)
	}
	if _, err := offload.NewRegistry().Select(tr, ""); !errors.Is(err, offload.ErrNotAdmitted) {
		t.Errorf("Select from nothing: %v", err)
	}
}

// BenchmarkAdmission is what a start of the program pays for all answers of the software.
func BenchmarkAdmission(b *testing.B) {
	for b.Loop() {
		if rep := offload.NewRegistry(soft.New()).Reports()[0]; len(rep.Admitted()) != len(offload.Transforms()) {
			b.Fatal(rep.Err)
		}
	}
}
