package speed

import (
	"encoding/json"
	"fmt"
	"io"

	"culvert/offload"
)

// row is one result. Its exported fields are a line of JSON.
//
// Size is the bytes of plaintext of a packet: payload, padding, pad length and next header; they alone are counted. WallS
// and CPUS are what sealing or opening took: where packets had to be laid before they were opened, what that takes was
// measured alone and is taken off (of an asynchronous engine's processor time only). CyclesPerByte is processor time in cycles of the counter, absent where its frequency is
// not known.
type row struct {
	Engine        string   `json:"engine"`
	CPULevel      string   `json:"cpu_level"`
	Transform     string   `json:"transform"` // the kernel's name; with "/key bits/ICV bits" behind it if the ICV is not the usual one
	KeyBits       int      `json:"key_bits"`
	Direction     string   `json:"direction"`
	Size          int      `json:"size"`
	Batch         int      `json:"batch"`
	Threads       int      `json:"threads"`
	Ops           int64    `json:"ops"` // packets
	WallS         float64  `json:"wall_s"`
	CPUS          float64  `json:"cpu_s"`
	Gbps          float64  `json:"gbps"`           // by wall time
	GbpsPerCPUS   float64  `json:"gbps_per_cpu_s"` // by processor time
	CyclesPerByte *float64 `json:"cycles_per_byte,omitempty"`
	Flags         []string `json:"flags"` // "code: reason"

	flags  []flag
	median float64 // Gbit/s of all repetitions
	copies float64 // of the loop's time, laying packets
	ref    *published
}

// newRow makes a row of one repetition, and checks it.
func newRow(m *machine, c *candidate, g target, s shape, whole, copying span) *row {
	r := &row{
		Engine: c.name, CPULevel: c.level, Transform: transformName(g.t), KeyBits: g.t.KeyBits, Direction: g.dir.String(),
		Size: g.size, Batch: s.batch, Threads: s.threads, Ops: whole.bursts * int64(s.batch), ref: g.ref, Flags: []string{},
	}
	wall, cpu := float64(whole.end-whole.start)/1e9, float64(whole.cpu)/1e9
	o := observation{
		bytes: float64(r.Ops) * float64(r.Size), wall: wall, cpu: cpu, threads: s.threads, elsewhere: c.caps.Async,
		waited: float64(whole.waited) / 1e9, cycles: float64(whole.cycles), hz: m.counter.hz,
	}
	r.WallS, r.CPUS = wall, cpu
	if copying.bursts > 0 && cpu > 0 {
		// Laying is the processor's work alone, and takes the same share of the wall time, however busy the machine is. Beside
		// an asynchronous engine it goes on meanwhile, and how much of it that is hidden is not known: the wall keeps it.
		r.copies = float64(copying.cpu) / 1e9 * float64(whole.bursts) / float64(copying.bursts) / cpu
		r.CPUS -= cpu * r.copies
		if !c.caps.Async {
			r.WallS -= wall * r.copies
		}
	}
	// What laying takes comes from another moment, and can be a little more than it was.
	if r.WallS <= 0 || r.CPUS <= 0 {
		r.flags = append(r.flags, flag{code: noTime, text: fmt.Sprintf("%.3f s by the wall and %.3f s of processor time, less what laying the packets takes, leave nothing", wall, cpu)})
		r.WallS, r.CPUS = wall, cpu
	} else {
		o.rate = o.bytes / r.WallS
		r.Gbps, r.GbpsPerCPUS = o.rate*8/1e9, o.bytes/r.CPUS*8/1e9
		if m.counter.hz > 0 {
			cpb := r.CPUS * m.counter.hz / o.bytes
			r.CyclesPerByte = &cpb
		}
	}
	r.flags = append(r.flags, o.check(m.most)...)
	if r.copies > enoughCopy {
		r.flags = append(r.flags, flag{code: mostlyCopying, text: fmt.Sprintf("%.0f %% of the loop was laying packets: what is left is a difference of two large figures", 100*r.copies)})
	}
	for _, f := range r.flags {
		r.Flags = append(r.Flags, f.String())
	}
	return r
}

// transformName is the kernel's name, and the ID where that alone would be the transform with another ICV.
func transformName(t *offload.Transform) string {
	if usual, err := offload.Lookup(t.Name, t.KeyBits, 0); err != nil || usual != t {
		return t.ID()
	}
	return t.Name
}

// writeJSON prints one line.
func (r *row) writeJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(r)
}
