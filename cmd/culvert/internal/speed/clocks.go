package speed

import (
	"bytes"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// clock reads one of the kernel's clocks in ns.
func clock(id int32) int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(id, &t); err != nil {
		panic(fmt.Sprintf("speed: read clock %d: %v", id, err)) // Linux has had all of ours since 2.6.28
	}
	return t.Nano()
}

// rawTime is wall time that nobody steers: no NTP, no steps.
func rawTime() int64 { return clock(unix.CLOCK_MONOTONIC_RAW) }

// threadCPU is the processor time of the calling thread, its own and the kernel's for it.
func threadCPU() int64 { return clock(unix.CLOCK_THREAD_CPUTIME_ID) }

// processCPU is that of all threads.
func processCPU() int64 { return clock(unix.CLOCK_PROCESS_CPUTIME_ID) }

// threadWaited is how long the calling thread was ready to run and had no processor; false if the kernel does not say.
func threadWaited() (int64, bool) {
	text, err := os.ReadFile("/proc/self/task/" + strconv.Itoa(unix.Gettid()) + "/schedstat")
	if err != nil {
		return 0, false
	}
	f := bytes.Fields(text) // on the processor, waiting, turns
	if len(f) < 2 {
		return 0, false
	}
	ns, err := strconv.ParseInt(string(f[1]), 10, 64)
	return ns, err == nil
}
