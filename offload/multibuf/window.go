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
	order []uint64 // numbers of tasks to be sorted, see sortKey
	held  []*session
	cbc   *cbcLanes
	des   *desLanes
	mac32 *macLanes[uint32]
	mac64 *macLanes[uint64]
	one   oneMAC
	gcm   gcmScratch
	rest  elsewhere
}

func newWorkshop(k *kernels) *workshop {
	w := &workshop{
		k:     k,
		tasks: make([]task, 0, window),
		order: make([]uint64, 0, window),
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

// admit checks the jobs and makes tasks of the good ones. Jobs of one session usually follow each other, so it is held once
// for all of them.
func (w *workshop) admit(dir offload.Direction, jobs []offload.Job) {
	var last *session
	for i := range jobs {
		j := &jobs[i]
		s, ok := j.Session.(*session)
		if !ok || s == nil || s.dir != dir || s.k != w.k {
			j.Status = offload.EngineError
			continue
		}
		if s != last {
			if !s.hold() {
				j.Status = offload.EngineError
				continue
			}
			w.held = append(w.held, s)
			last = s
		}
		switch {
		case s.rest != nil:
			w.rest.add(j, s.rest)
		case len(j.ESP) < s.least || (len(j.ESP)-s.least)&s.odd != 0:
			j.Status = offload.BadLength
		default:
			j.Status = offload.OK
			w.tasks = append(w.tasks, task{s, j, j.ESP, len(j.ESP) - s.icv})
		}
	}
}

// sortKey puts tasks into the order in which they are worked on: by class, the longest first. The task's number is its
// lowest byte.
func sortKey(class uint64, length, task int) uint64 {
	return class<<40 | uint64(1<<31-1-length)<<8 | uint64(task)
}

func taskOf(key uint64) int { return int(key & 0xff) }

// A task's number fits into a byte.
var _ [0]struct{} = [(window - 1) >> 8]struct{}{}

// sort puts the tasks that have a good status, and a class that is not 0, into order.
func (w *workshop) sort(key func(*task) (class uint64, length int)) {
	order, last, sorted := w.order[:0], uint64(0), true
	for i := range w.tasks {
		t := &w.tasks[i]
		class, length := key(t)
		if class == 0 || t.job.Status != offload.OK {
			continue
		}
		k := sortKey(class, length, i)
		sorted = sorted && k > last
		last = k
		order = append(order, k)
	}
	if !sorted { // packets of one length are
		slices.Sort(order)
	}
	w.order = order
}

// nextClass cuts the first class off sorted keys.
func nextClass(order []uint64) (first, others []uint64) {
	n := 1
	for n < len(order) && order[n]>>40 == order[0]>>40 {
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
	if longest*w.k.des.cost < total*w.k.des.single {
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
	if e.lane.Submit(&e.burst) != nil || e.lane.Reap(e.done[:], true) != 1 {
		e.burst.Fail()
	}
	for i := range e.jobs {
		e.of[i].Status = e.jobs[i].Status
	}
	clear(e.jobs)
	clear(e.of)
	e.jobs, e.of = e.jobs[:0], e.of[:0]
	e.burst, e.done[0] = offload.Burst{}, nil
}

func (e *elsewhere) close() error {
	if e.lane == nil {
		return nil
	}
	return e.lane.Close()
}
