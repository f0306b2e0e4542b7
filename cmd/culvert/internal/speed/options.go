package speed

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"culvert/cmd/culvert/internal/gateway"
	"culvert/configs"
	"culvert/offload"
)

// Limits of the flags.
const (
	minSize, maxSize       = 16, 65000
	maxBatch               = 1024
	maxThreads             = 256
	minTime, maxTime       = 10 * time.Millisecond, time.Hour
	maxRepeat              = 100
	defaultTransform       = "authenc(hmac(sha1),cbc(aes))"
	defaultSize, sweepName = 1024, "sweep"
)

// sweepSizes are the columns of `openssl speed`, and a packet of full size.
var sweepSizes = []int{16, 64, 256, 1024, 1400, 8192}

// directionNames are what --direction takes.
var directionNames = []string{"seal", "open", "both"}

// references are what --reference takes.
var references = []string{"c2558"}

// options are the flags.
type options struct {
	engineNames []string
	transforms  []string
	keyBits     []int
	direction   string
	sizes       []int
	batch       int
	threads     int
	time        time.Duration
	repeat      int
	levels      []string
	reference   string
	sweep       bool
	json        bool

	rows []target // what they amount to
}

// target is one line of the table but for the engine.
type target struct {
	t    *offload.Transform
	dir  offload.Direction
	size int
	ref  *published // what to set beside it
}

func (o *options) flags(f *pflag.FlagSet) {
	f.StringSliceVar(&o.engineNames, "engine", nil, "measure these engines, by `name` (default all that this machine runs)")
	f.StringArrayVar(&o.transforms, "transform", nil, "measure this transform, by the kernel's `name`, or all; may be repeated (default "+defaultTransform+")")
	f.IntSliceVar(&o.keyBits, "key-bits", nil, "lengths of the encryption key in `bits` (default the transform's usual one)")
	f.StringVar(&o.direction, "direction", "both", strings.Join(directionNames, ", "))
	f.IntSliceVar(&o.sizes, "size", nil, fmt.Sprintf("`bytes` of plaintext, %d to %d (default %d)", minSize, maxSize, defaultSize))
	f.IntVar(&o.batch, "batch", 32, fmt.Sprintf("packets per burst, 1 to %d", maxBatch))
	f.IntVar(&o.threads, "threads", 1, fmt.Sprintf("threads, each with an SA of its own, 1 to %d", maxThreads))
	f.DurationVar(&o.time, "time", 500*time.Millisecond, "length of a row, all repetitions together")
	f.IntVar(&o.repeat, "repeat", 10, fmt.Sprintf("repetitions of a row, of which the best is shown, 1 to %d", maxRepeat))
	f.StringSliceVar(&o.levels, "cpu", nil, "force an engine's `level`: "+strings.Join(levelNames, ", ")+", or all (default the best)")
	f.StringVar(&o.reference, "reference", "", "measure the rows of a published `report`, and set them beside it: "+strings.Join(references, ", "))
	f.BoolVar(&o.sweep, sweepName, false, "measure sizes "+joinInts(sweepSizes)+", and print them as columns")
	f.BoolVar(&o.json, "json", false, "print a line of JSON per row")
}

// check completes the options, or says which flag is wrong and what it may be.
func (o *options) check() error {
	if !slices.Contains(directionNames, o.direction) {
		return fmt.Errorf("--direction %q: write one of %s", o.direction, strings.Join(directionNames, ", "))
	}
	for _, n := range [...]struct {
		flag      string
		value, to int
	}{{"batch", o.batch, maxBatch}, {"threads", o.threads, maxThreads}, {"repeat", o.repeat, maxRepeat}} {
		if n.value < 1 || n.value > n.to {
			return fmt.Errorf("--%s %d: write 1 to %d", n.flag, n.value, n.to)
		}
	}
	if o.time < minTime || o.time > maxTime {
		return fmt.Errorf("--time %v: write %v to %v", o.time, minTime, maxTime)
	}
	for _, s := range o.sizes {
		if s < minSize || s > maxSize {
			return fmt.Errorf("--size %d: write %d to %d", s, minSize, maxSize)
		}
	}
	if o.reference != "" {
		return o.checkReference()
	}
	sizes := o.sizes
	if o.sweep {
		if len(sizes) > 0 {
			return fmt.Errorf("--sweep has its own sizes, %s: leave out --size or --sweep", joinInts(sweepSizes))
		}
		sizes = sweepSizes
	}
	if len(sizes) == 0 {
		sizes = []int{defaultSize}
	}
	transforms, err := o.lookup()
	if err != nil {
		return err
	}
	for _, t := range transforms {
		for _, dir := range o.directions() {
			for _, size := range sizes {
				o.rows = append(o.rows, target{t: t, dir: dir, size: size})
			}
		}
	}
	return nil
}

// checkReference makes the rows of a report.
func (o *options) checkReference() error {
	if !slices.Contains(references, o.reference) {
		return fmt.Errorf("--reference %q: write one of %s", o.reference, strings.Join(references, ", "))
	}
	for name, given := range map[string]bool{"transform": len(o.transforms) > 0, "key-bits": len(o.keyBits) > 0, "size": len(o.sizes) > 0, sweepName: o.sweep} {
		if given {
			return fmt.Errorf("--reference %s has its own transforms and size: leave out --%s", o.reference, name)
		}
	}
	for i := range c2558 {
		p := &c2558[i]
		t, err := offload.Lookup(p.name, p.bits, 0)
		if err != nil {
			return err
		}
		if slices.Contains(o.directions(), p.dir) {
			o.rows = append(o.rows, target{t: t, dir: p.dir, size: c2558Size, ref: p})
		}
	}
	return nil
}

func (o *options) directions() []offload.Direction {
	switch o.direction {
	case "seal":
		return []offload.Direction{offload.Seal}
	case "open":
		return []offload.Direction{offload.Open}
	default:
		return []offload.Direction{offload.Seal, offload.Open}
	}
}

// lookup finds the transforms. Names may have the key and ICV lengths behind them, as in a transform's ID.
func (o *options) lookup() (found []*offload.Transform, err error) {
	names := o.transforms
	if len(names) == 0 {
		names = []string{defaultTransform}
	}
	add := func(t *offload.Transform) {
		if !slices.Contains(found, t) {
			found = append(found, t)
		}
	}
	for _, name := range names {
		if name == "all" {
			for _, t := range offload.Transforms() {
				if len(o.keyBits) == 0 || slices.Contains(o.keyBits, t.KeyBits) {
					add(t)
				}
			}
			continue
		}
		base, key, icv, err := cutID(name)
		if err != nil {
			return nil, err
		}
		keys := o.keyBits
		if key != 0 || len(keys) == 0 {
			keys = []int{key}
		}
		for _, k := range keys {
			if _, err := offload.Lookup(base, 0, 0); err != nil {
				return nil, fmt.Errorf("--transform %q: there is none of this name; %s; or write all", name, configs.TransformMend(base))
			}
			t, err := offload.Lookup(base, k, icv)
			if err != nil && len(o.keyBits) > 0 {
				return nil, fmt.Errorf("--transform %q with --key-bits %d: %w", name, k, gateway.Plainly(err))
			}
			if err != nil {
				return nil, fmt.Errorf("--transform %q: %w", name, gateway.Plainly(err))
			}
			add(t)
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("--key-bits %s: no transform has such keys", joinInts(o.keyBits))
	}
	return found, nil
}

// cutID splits "name/key bits/ICV bits".
func cutID(id string) (name string, keyBits, icvBits int, err error) {
	parts := strings.Split(id, "/")
	if len(parts) == 1 {
		return id, 0, 0, nil
	}
	if len(parts) == 3 {
		key, err1 := strconv.Atoi(parts[1])
		icv, err2 := strconv.Atoi(parts[2])
		if err1 == nil && err2 == nil {
			return parts[0], key, icv, nil
		}
	}
	return "", 0, 0, fmt.Errorf("--transform %q: write a name, or a name with the bits of key and ICV behind it, as in %s/128/96", id, defaultTransform)
}

func joinInts(n []int) string {
	s := make([]string, len(n))
	for i := range n {
		s[i] = strconv.Itoa(n[i])
	}
	return strings.Join(s, ", ")
}
