package demo

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	gw "culvert/cmd/culvert/internal/gateway" // "gateway" is a process of the demo
	"culvert/configs"
	"culvert/offload"
)

// Names that flags allow.
var (
	linkKinds = []string{"udp", "esp"}
	besides   = []string{besidePlain, besideWireGuard}
)

const (
	besidePlain     = "plain"
	besideWireGuard = "wireguard-go"
)

const minSeconds, maxSeconds = 0.5, 3600

// options are the flags.
type options struct {
	transformName string
	keyBits       int
	link          string
	outer, inner  int
	wire          bool
	seconds       float64
	json          bool
	besideNames   []string
	engine        string
	workers       int

	transform *offload.Transform
	version   string // of culvert
}

func (o *options) flags(f *pflag.FlagSet) {
	f.StringVar(&o.transformName, "transform", "authenc(hmac(sha1),cbc(aes))", "what the tunnel is protected with, by the kernel's `name`")
	f.IntVar(&o.keyBits, "key-bits", 0, "length of the encryption key in `bits` (default the transform's usual one)")
	f.StringVar(&o.link, "link", "udp", "how ESP is carried: udp (RFC 3948) or esp (IP protocol 50)")
	f.IntVar(&o.outer, "outer", 4, "IP `version` between the gateways, 4 or 6")
	f.IntVar(&o.inner, "inner", 4, "IP `version` of the hosts, 4 or 6")
	f.BoolVar(&o.wire, "wire", false, "make the link between the gateways carry 1500-byte frames, as a cable does")
	f.Float64Var(&o.seconds, "seconds", 4, "length of each measurement")
	f.BoolVar(&o.json, "json", false, "print the result as JSON")
	f.StringSliceVar(&o.besideNames, "beside", nil, "measure another way as well, in the same namespaces: "+strings.Join(besides, ", "))
	f.StringVar(&o.engine, "engine", "", "the engine for both gateways, by `name`; culvert engines lists them (default they choose)")
	f.IntVar(&o.workers, "workers", 0, "crypto workers of each gateway, for lanes that cannot keep up")
}

// check completes the options, or says which flag is wrong and what it may be.
func (o *options) check() error {
	if _, err := offload.Lookup(o.transformName, 0, 0); err != nil {
		return fmt.Errorf("--transform %q: there is none of this name; %s", o.transformName, configs.TransformMend(o.transformName))
	}
	var err error
	if o.transform, err = offload.Lookup(o.transformName, o.keyBits, 0); err != nil {
		if o.keyBits == 0 {
			return fmt.Errorf("--transform %q: %s", o.transformName, gw.Plain(err))
		}
		return fmt.Errorf("--transform %q with --key-bits %d: %s", o.transformName, o.keyBits, gw.Plain(err))
	}
	if !slices.Contains(linkKinds, o.link) {
		return fmt.Errorf("--link %q: write one of %s", o.link, strings.Join(linkKinds, ", "))
	}
	for _, f := range [...]struct {
		name    string
		version int
	}{{"outer", o.outer}, {"inner", o.inner}} {
		if f.version != 4 && f.version != 6 {
			return fmt.Errorf("--%s %d: write one of 4, 6", f.name, f.version)
		}
	}
	if !(o.seconds >= minSeconds && o.seconds <= maxSeconds) {
		return fmt.Errorf("--seconds %v: write %v to %v", o.seconds, minSeconds, maxSeconds)
	}
	for i, b := range o.besideNames {
		if !slices.Contains(besides, b) {
			return fmt.Errorf("--beside %q: write one or more of %s", b, strings.Join(besides, ", "))
		}
		if slices.Contains(o.besideNames[:i], b) {
			return fmt.Errorf("--beside: %s is there twice", b)
		}
	}
	if o.workers < 0 || o.workers > 256 {
		return fmt.Errorf("--workers %d: write 0 to 256", o.workers)
	}
	return o.checkEngine(gw.Engines())
}

// checkEngine tries the engine that was named, or else whether there is one for the transform, before anything is made: it asks for
// the known answers, as the gateways will.
func (o *options) checkEngine(all []offload.Engine) error {
	var names []string
	for _, e := range all {
		names = append(names, e.Name())
		if e.Name() == o.engine {
			all = []offload.Engine{e}
			names = nil
			break
		}
	}
	if o.engine != "" && names != nil {
		return fmt.Errorf("--engine %q: write one of %s", o.engine, strings.Join(names, ", "))
	}
	registry := offload.NewRegistry(all...)
	if _, err := registry.Select(o.transform, o.engine); err != nil {
		if o.engine == "" {
			return fmt.Errorf("--transform %q: %s", o.transformName, gw.Plain(err))
		}
		// The reason alone: which engine and which transform the flags say.
		for _, r := range registry.Reports() {
			if r.Err != nil {
				return fmt.Errorf("--engine %s: %s; culvert engines lists what this machine has", o.engine, gw.Plain(r.Err))
			}
		}
		return fmt.Errorf("--engine %s: %s; culvert engines lists what it does", o.engine, gw.Plain(err))
	}
	return nil
}

func (o *options) inner6() bool            { return o.inner == 6 }
func (o *options) outer6() bool            { return o.outer == 6 }
func (o *options) duration() time.Duration { return time.Duration(o.seconds * float64(time.Second)) }
