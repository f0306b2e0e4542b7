package padlock

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
)

// Errors of Probe.
var (
	ErrAbsent   = errors.New("there is no PadLock here")
	ErrDisabled = errors.New("PadLock is switched off")
)

// CPUID executes the instruction of that name for a leaf. NewOn takes another one, for processors that are not the host's.
type CPUID func(leaf uint32) (eax, ebx, ecx, edx uint32)

// The leaves that only Centaur's processors and their heirs have.
const (
	leafCentaurMax      = 0xC0000000
	leafCentaurFeatures = 0xC0000001
)

// Bits of EDX of leafCentaurFeatures. Each unit has one that says that it exists, and one that it is enabled.
const (
	acePresent, aceEnabled   = 1 << 6, 1 << 7
	ace2Present, ace2Enabled = 1 << 8, 1 << 9
	phePresent, pheEnabled   = 1 << 10, 1 << 11
)

// vendors are the values of EBX, EDX and ECX of leaf 0 that come with PadLock.
var vendors = map[string]string{"CentaurHauls": "VIA", "  Shanghai  ": "Zhaoxin"}

// cores are the models of family 6 by name.
var cores = map[uint32]string{9: "C3 Nehemiah", 10: "C7", 13: "C7", 15: "Nano"}

// features is what CPUID says of the processor.
type features struct {
	name      string // "VIA C7 (family 6, model 10, stepping 9)"
	ace2      bool   // the cipher unit knows the control word's align bit
	phe       bool   // there is a hash engine
	multipart bool   // which hashes block by block too
}

// detect reads CPUID. The error says what is missing and how to mend it.
func detect(id CPUID) (features, error) {
	var f features
	_, b, c, d := id(0)
	var v [12]byte
	binary.LittleEndian.PutUint32(v[0:], b)
	binary.LittleEndian.PutUint32(v[4:], d)
	binary.LittleEndian.PutUint32(v[8:], c)
	maker, ok := vendors[string(v[:])]
	if !ok {
		if v == [12]byte{} {
			return f, fmt.Errorf("%w: not a VIA CPU but %s; choose another engine", ErrAbsent, runtime.GOARCH)
		}
		return f, fmt.Errorf("%w: not a VIA CPU but %q; choose another engine", ErrAbsent, v)
	}
	f.name, f.multipart = core(maker, id)
	if top, _, _, _ := id(leafCentaurMax); top < leafCentaurFeatures {
		return f, fmt.Errorf("%w: %s has no Centaur feature flags (CPUID 0xC0000001): it is older than the C3 Nehemiah, or a hypervisor "+
			"hides them; run on the bare machine, or choose another engine", ErrAbsent, f.name)
	}
	_, _, _, flags := id(leafCentaurFeatures)
	switch {
	case flags&acePresent == 0:
		return f, fmt.Errorf("%w: %s has no cipher unit (ACE, CPUID 0xC0000001 EDX bit 6 is 0): the C3 Nehemiah has it from stepping 8 on; "+
			"choose another engine", ErrAbsent, f.name)
	case flags&aceEnabled == 0:
		return f, fmt.Errorf("%w: %s has a cipher unit, but it is not enabled (ACE, CPUID 0xC0000001 EDX bit 7 is 0): enable it in the BIOS "+
			"setup, or boot a kernel with CONFIG_CPU_SUP_CENTAUR, or set bit 28 of MSR 0x1107 on every processor (modprobe msr; "+
			"wrmsr -a, with the other bits as rdmsr shows them)", ErrDisabled, f.name)
	}
	const ace2, phe = ace2Present | ace2Enabled, phePresent | pheEnabled
	f.ace2 = flags&ace2 == ace2
	f.phe = flags&phe == phe
	return f, nil
}

// core names the processor from the signature in leaf 1, and says whether it hashes in parts: the Nano does, and all after it.
func core(maker string, id CPUID) (name string, multipart bool) {
	sig, _, _, _ := id(1)
	family, model, stepping := sig>>8&15, sig>>4&15, sig&15
	if family == 6 || family == 15 {
		model |= sig >> 12 & 0xf0
	}
	if family == 15 {
		family += sig >> 20 & 0xff
	}
	name = maker
	if c, ok := cores[model]; ok && family == 6 {
		name += " " + c
	}
	return fmt.Sprintf("%s (family %d, model %d, stepping %d)", name, family, model, stepping), family > 6 || family == 6 && model >= 15
}
