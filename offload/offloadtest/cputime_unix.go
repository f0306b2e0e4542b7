//go:build unix

package offloadtest

import "syscall"

// cpuTime is the processor time of the whole process in ns: what a benchmark costs, whoever else uses the machine.
func cpuTime() int64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return u.Utime.Nano() + u.Stime.Nano()
}
