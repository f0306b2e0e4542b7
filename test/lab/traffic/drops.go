package traffic

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"

	"culvert/test/lab"
)

// SocketDrops is how many packets found no room in the UDP and raw sockets that are open in the namespace.
func SocketDrops(ns *lab.Namespace) (drops uint64, err error) {
	err = ns.Do(func() error {
		for _, table := range [...]string{"udp", "udp6", "raw", "raw6"} {
			b, err := os.ReadFile("/proc/thread-self/net/" + table)
			if errors.Is(err, os.ErrNotExist) {
				continue // a kernel without IPv6
			}
			if err != nil {
				return err
			}
			n, err := parseDrops(b)
			if err != nil {
				return fmt.Errorf("/proc/net/%s: %w", table, err)
			}
			drops += n
		}
		return nil
	})
	return drops, err
}

// parseDrops adds the last column, "drops", of a table such as /proc/net/udp.
func parseDrops(b []byte) (sum uint64, err error) {
	head, rows, _ := bytes.Cut(b, []byte("\n"))
	if f := bytes.Fields(head); len(f) == 0 || string(f[len(f)-1]) != "drops" {
		return 0, errors.New("it has no last column called drops")
	}
	for line := range bytes.Lines(rows) {
		f := bytes.Fields(line)
		if len(f) == 0 {
			continue
		}
		n, err := strconv.ParseUint(string(f[len(f)-1]), 10, 64)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}
