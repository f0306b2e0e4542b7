package plemu

import (
	"encoding/binary"
	"fmt"
)

// Model is a processor.
type Model struct {
	Name      string
	Vendor    string // 12 bytes
	Signature uint32 // EAX of CPUID leaf 1
	Flags     uint32 // EDX of CPUID leaf 0xC0000001; 0: there is no such leaf

	Unaligned bool // the cipher unit obeys the control word's align bit; otherwise it is a fault
	Hash      bool // there is a hash engine
	Parts     bool // which takes rAX = -1
	Resume    bool // and goes on where rAX says
	Prefetch  int  // bytes that the cipher unit reads beyond the data in CBC mode

	WrongKeyBits int // operations with keys of that length give wrong results
	WrongHash    int // so do those of the hash with as many bits (160, 256)

	InterruptEvery int // every so many operations one is interrupted half way; 0: none. At least 2
}

// Flags of models.
const (
	flagsACE  = 3<<2 | 3<<6       // random numbers, cipher unit
	flagsACE2 = flagsACE | 3<<8   // the second generation of the latter
	flagsPHE  = flagsACE2 | 3<<10 // hash engine
	flagsPMM  = flagsPHE | 3<<12  // multiplier
)

// Models are the processors as they are.
func Models() []Model {
	return []Model{
		{Name: "c3", Vendor: "CentaurHauls", Signature: 0x698, Flags: flagsACE, Prefetch: 64},
		{Name: "c7", Vendor: "CentaurHauls", Signature: 0x6a9, Flags: flagsPMM, Unaligned: true, Hash: true, Resume: true, Prefetch: 64},
		{Name: "nano", Vendor: "CentaurHauls", Signature: 0x6f2, Flags: flagsPMM, Unaligned: true, Hash: true, Parts: true, Resume: true, Prefetch: 64},
	}
}

// Find gives the model of that name, and panics if there is none.
func Find(name string) Model {
	for _, m := range Models() {
		if m.Name == name {
			return m
		}
	}
	panic(fmt.Sprintf("plemu: no model %q", name))
}

// CPUID is what the instruction of that name gives on the processor.
func (m Model) CPUID(leaf uint32) (eax, ebx, ecx, edx uint32) {
	switch {
	case leaf == 0:
		v := []byte(m.Vendor)
		return 1, binary.LittleEndian.Uint32(v), binary.LittleEndian.Uint32(v[8:]), binary.LittleEndian.Uint32(v[4:])
	case leaf == 1:
		return m.Signature, 0, 0, 0
	case leaf == 0xC0000000 && m.Flags != 0:
		return 0xC0000001, 0, 0, 0
	case leaf == 0xC0000001:
		return 0, 0, 0, m.Flags
	}
	return 0, 0, 0, 0
}

// Report is what a program did.
type Report struct {
	Exit   int    // its exit status; 128 and the number of the signal that ended it
	Output []byte // what it wrote, to standard output and standard error

	Ops         map[Op]int
	Bounds      int // prefetches that went over the end of a page
	Stale       int // operations with a key that was in memory no more, or not yet
	Interrupted int
	Faults      []string // what the program was punished for, in its order
}

// Op is a kind of operation.
type Op struct {
	Name    string // "xcryptcbc", "xsha1", "xsha256"
	KeyBits int    // of xcryptcbc
	Decrypt bool   // of xcryptcbc
	Mode    string // of the hashes: "parts", "resumed", "whole"
}
