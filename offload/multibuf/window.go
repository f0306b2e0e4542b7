package multibuf

import (
	"slices"

	"culvert/offload"
)

// window is how many jobs are worked on together. More find better company for odd lengths, but then packets leave the
// first-level cache between encryption and authentication.
const window = 128

// task is a job that passed the checks.
type task struct {
	s   *session
	job *offload.Job
	esp []byte
	end int // where the ICV begins
}

// workshop is a lane's scratch, and the kernels to work with.
type workshop struct {
	k     *kernels
	tasks []task   // those of this window, in the jobs' order
	order []uint64 // tasks in the order to work on them, see taskOf
	spare []uint64 // memory to sort in
	held  []*session
	cbc   *cbcLanes
	des   *desLanes
	mac32 *macLanes[uint32]
	mac64 *macLanes[uint64]
	one   oneMAC
	gcm   gcmScratch
	rest  elsewhere

	touched bool // a kernel was run since the registers were cleared
}

func newWorkshop(k *kernels) *workshop {
	w := &workshop{
		k:     k,
		tasks: make([]task, 0, window),
		order: make([]uint64, 0, window),
		spare: make([]uint64, 0, window),
		held:  make([]*session, 0, window),
		mac32: newMACLanes[uint32](),
		mac64: newMACLanes[uint64](),
	}
	if k.aesEnc != nil {
		w.cbc = newCBCLanes()
	}
	if k.des != nil {
		w.des = newDESLanes(k.des)
	}
	w.one.make()
	w.rest.jobs = make([]offload.Job, 0, window)
	w.rest.of = make([]*offload.Job, 0, window)
	return w
}

// run brings every one of up to window jobs to its final status.
func (w *workshop) run(dir offload.Direction, jobs []offload.Job) {
	w.admit(dir, jobs)
	if len(w.tasks) > 0 {
		if dir == offload.Seal {
			w.crypt(dir)
			w.authenticate(dir)
		} else {
			w.authenticate(dir)
			w.crypt(dir)
		}
		if w.k.forget != nil && w.touched {
			w.k.forget()
		}
		w.touched = false
	}
	w.rest.run(dir)
	for _, s := range w.held {
		s.letGo()
	}
	// Nothing of a burst is kept.
	clear(w.held)
	clear(w.tasks)
	w.held, w.tasks = w.held[:0], w.tasks[:0]
}

// admit checks the jobs and makes tasks of the good ones. A session is held once for all its jobs, as far as it is found
// quickly that it is held.
func (w *workshop) admit(dir offload.Direction, jobs []offload.Job) {
	var last *session
	for i := range jobs {
		j := &jobs[i]
		s, ok := j.Session.(*session)
		if !ok || s == nil || s.dir != dir || s.k != w.k {
			j.Status = offload.EngineError
			continue
		}
		if s.rest != nil { // which looks after its own session
			w.rest.add(j, s.rest)
			continue
		}
		if s != last && !slices.Contains(w.held[max(0, len(w.held)-8):], s) {
			if !s.hold() {
				j.Status = offload.EngineError
				continue
			}
			w.held = append(w.held, s)
		}
		last = s
		switch {
		case len(j.ESP) < s.least || (len(j.ESP)-s.least)&s.odd != 0:
			j.Status = offload.BadLength
		default:
			j.Status = offload.OK
			w.tasks = append(w.tasks, task{s, j, j.ESP, len(j.ESP) - s.icv})
		}
	}
}

// A key of order is a task's number, with its class above.
func taskOf(key uint64) int { return int(key & (window - 1)) }

const classShift = 32

// A task's number fits below the class, and taskOf's mask is one.
var _ [0]struct{} = [window & (window - 1)]struct{}{}

// sort puts the tasks that have a good status, and a class that is not 0, into order: by class, and in a class the longest
// first, but for differences of less than 64 bytes or beyond 16 KB, which would not pay.
func (w *workshop) sort(key func(*task) (class uint64, length int)) {
	if len(w.tasks) > 1 {
		w.sortMany(key)
		return
	}
	w.order = w.order[:0]
	if t := &w.tasks[0]; t.job.Status == offload.OK {
		if class, _ := key(t); class != 0 {
			w.order = append(w.order, class<<classShift)
		}
	}
}

func (w *workshop) sortMany(key func(*task) (class uint64, length int)) {
	var count [256]uint8 // of tasks, by length; window is less than 256
	order, last, sorted, mixed := w.order[:0], 0, true, false
	for i := range w.tasks {
		t := &w.tasks[i]
		class, length := key(t)
		if class == 0 || t.job.Status != offload.OK {
			continue
		}
		size := 255 - min(length>>6, 255)
		count[size]++
		sorted = sorted && size >= last
		last = size
		k := class<<classShift | uint64(size)<<8 | uint64(i)
		mixed = mixed || len(order) > 0 && (k^order[0])>>classShift != 0
		order = append(order, k)
	}
	w.order = order
	switch {
	case mixed:
		slices.Sort(order)
	case !sorted: // packets of one length are
		place := uint8(0)
		for size, n := range count {
			count[size] = place
			place += n
		}
		w.spare = w.spare[:len(order)]
		for _, k := range order {
			size := k >> 8 & 255
			w.spare[count[size]] = k
			count[size]++
		}
		w.order, w.spare = w.spare, order
	}
}

// nextClass cuts the first class off sorted keys.
func nextClass(order []uint64) (first, others []uint64) {
	n := 1
	for n < len(order) && order[n]>>classShift == order[0]>>classShift {
		n++
	}
	return order[:n], order[n:]
}

// crypt encrypts, or decrypts, the tasks that have a good status.
func (w *workshop) crypt(dir offload.Direction) {
	w.sort(func(t *task) (class uint64, length int) { return t.s.cipher, t.end - t.s.header })
	for rest := w.order; len(rest) > 0; {
		var class []uint64
		class, rest = nextClass(rest)
		w.touched = true
		switch w.tasks[taskOf(class[0])].s.t.Cipher {
		case offload.AESCBC:
			if dir == offload.Seal {
				w.cbc.encrypt(w.k.aesEnc, w.tasks, class)
			} else {
				decryptCBC(w.k.aesDec, w.tasks, class)
			}
		case offload.TripleDESCBC:
			if dir == offload.Seal && w.tooFew(class) {
				continue
			}
			w.des.crypt(dir, w.tasks, class)
		case offload.AESGCM:
			w.gcm.crypt(w.k.gcm, dir, w.tasks, class)
		}
	}
}

// tooFew passes tasks to encrypt with 3DES on to the other engine, if it takes less time one by one. A chain of blocks takes
// as long alone as with 63 others.
func (w *workshop) tooFew(class []uint64) bool {
	total, longest := 0, 0
	for _, key := range class {
		t := &w.tasks[taskOf(key)]
		n := (t.end - t.s.header) / 8
		total, longest = total+n, max(longest, n)
		if t.s.few == nil {
			return false
		}
	}
	k := w.k.des
	if k.fewer != nil {
		k = k.fewer
	}
	if longest*k.cost < total*k.single {
		return false
	}
	for _, key := range class {
		t := &w.tasks[taskOf(key)]
		t.job.Status = offload.Pending // and not authenticated here
		w.rest.add(t.job, t.s.few)
	}
	return true
}

// authenticate computes the tasks' HMACs, and stores them or compares them with what is there.
func (w *workshop) authenticate(dir offload.Direction) {
	w.sort(func(t *task) (class uint64, length int) { return t.s.auth, t.end })
	for rest := w.order; len(rest) > 0; {
		var class []uint64
		class, rest = nextClass(rest)
		auth := w.tasks[taskOf(class[0])].s.t.Auth
		a := &hmacHashes[auth]
		var done bool
		if a.wide {
			done = w.mac64.run(a, w.k.hash64, w.k.single[auth], dir, w.tasks, class)
		} else {
			done = w.mac32.run(a, w.k.hash32[auth], w.k.single[auth], dir, w.tasks, class)
		}
		w.touched = w.touched || done
		if !done {
			w.one.run(auth, dir, w.tasks, class)
		}
	}
}

// close wipes what is left of keys and of what was computed with them.
func (w *workshop) close() error {
	if w.cbc != nil {
		clear(w.cbc.table)
	}
	if w.des != nil {
		clear(w.des.table)
		clear(w.des.chain)
	}
	w.mac32.wipe()
	w.mac64.wipe()
	w.one.wipe()
	w.gcm = gcmScratch{}
	return w.rest.close()
}

// elsewhere is the part of a window that another engine works on.
type elsewhere struct {
	lane  offload.Lane
	jobs  []offload.Job
	of    []*offload.Job
	burst offload.Burst
	done  [1]*offload.Burst
}

// add puts a job on the other engine's list.
func (e *elsewhere) add(j *offload.Job, s offload.Session) {
	e.jobs = append(e.jobs, offload.Job{Session: s, ESP: j.ESP, SeqHi: j.SeqHi})
	e.of = append(e.of, j)
}

// run has the list worked on.
func (e *elsewhere) run(dir offload.Direction) {
	if len(e.jobs) == 0 {
		return
	}
	e.burst = offload.Burst{Dir: dir, Jobs: e.jobs}
	e.finish(&e.burst)
	for i := range e.jobs {
		e.of[i].Status = e.jobs[i].Status
	}
	clear(e.jobs)
	clear(e.of)
	e.jobs, e.of = e.jobs[:0], e.of[:0]
	e.burst = offload.Burst{}
}

// finish has the other engine finish a burst.
func (e *elsewhere) finish(b *offload.Burst) {
	if e.lane.Submit(b) != nil || e.lane.Reap(e.done[:], true) != 1 {
		b.Fail()
	}
	e.done[0] = nil
}

func (e *elsewhere) close() error {
	if e.lane == nil {
		return nil
	}
	return e.lane.Close()
}
