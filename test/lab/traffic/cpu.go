package traffic

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"
)

// userHZ is the unit of CPU times in /proc: 100 per second on every architecture that Go compiles for (USER_HZ, proc(5)).
const userHZ = 100

// CPU is processor time.
type CPU struct{ User, Sys time.Duration }

// Total is user and system time together.
func (c CPU) Total() time.Duration { return c.User + c.Sys }

// Sub is the time from d to c.
func (c CPU) Sub(d CPU) CPU { return CPU{c.User - d.User, c.Sys - d.Sys} }

// ProcessCPU is what the processes have used so far, all their threads together, to a hundredth of a second.
func ProcessCPU(pids ...int) (CPU, error) {
	var sum CPU
	for _, pid := range pids {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return CPU{}, err
		}
		c, err := parseStat(b)
		if err != nil {
			return CPU{}, fmt.Errorf("/proc/%d/stat: %w", pid, err)
		}
		sum.User += c.User
		sum.Sys += c.Sys
	}
	return sum, nil
}

var errStat = errors.New("not in the form of proc(5)")

// parseStat takes utime and stime, fields 14 and 15, from a line of /proc/PID/stat. Field 2 is the program's name in parentheses
// and may itself hold spaces and parentheses: what follows its last one is regular.
func parseStat(b []byte) (CPU, error) {
	end := bytes.LastIndexByte(b, ')')
	if end < 0 {
		return CPU{}, errStat
	}
	f := bytes.Fields(b[end+1:]) // f[0] is field 3
	if len(f) < 13 {
		return CPU{}, errStat
	}
	utime, err1 := strconv.ParseUint(string(f[11]), 10, 63)
	stime, err2 := strconv.ParseUint(string(f[12]), 10, 63)
	if err1 != nil || err2 != nil {
		return CPU{}, errStat
	}
	return CPU{ticks(utime), ticks(stime)}, nil
}

// MachineCPU is how long the processors of the machine have been busy so far, for whatever purpose.
func MachineCPU() (time.Duration, error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	busy, err := parseMachineStat(b)
	if err != nil {
		return 0, fmt.Errorf("/proc/stat: %w", err)
	}
	return busy, nil
}

// parseMachineStat adds user, nice, system, irq and softirq of the first line of /proc/stat; idle, iowait and steal are not busy,
// and guest time is within user's.
func parseMachineStat(b []byte) (time.Duration, error) {
	line, _, _ := bytes.Cut(b, []byte("\n"))
	f := bytes.Fields(line)
	if len(f) < 8 || string(f[0]) != "cpu" {
		return 0, errStat
	}
	var busy time.Duration
	for _, i := range [...]int{1, 2, 3, 6, 7} {
		n, err := strconv.ParseUint(string(f[i]), 10, 63)
		if err != nil {
			return 0, errStat
		}
		busy += ticks(n)
	}
	return busy, nil
}

func ticks(n uint64) time.Duration { return time.Duration(n) * (time.Second / userHZ) }
