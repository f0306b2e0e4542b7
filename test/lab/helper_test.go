package lab

import (
	"encoding/binary"
	"os/signal"

	"golang.org/x/sys/unix"
)

func ignoreTerm() { signal.Ignore(unix.SIGTERM) }

func htons(v uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], v)
	return binary.NativeEndian.Uint16(b[:])
}
