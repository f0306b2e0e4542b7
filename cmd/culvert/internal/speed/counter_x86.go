//go:build amd64 || 386

package speed

// readCounter is RDTSC.
func readCounter() uint64

// cpuid runs the instruction.
func cpuid(leaf, subleaf uint32) (eax, ebx, ecx, edx uint32)

// counterSteady reports whether the counter runs at one rate, whatever the core's clock does (CPUID 0x80000007, EDX bit 8).
func counterSteady() bool {
	if top, _, _, _ := cpuid(0x80000000, 0); top < 0x80000007 {
		return false
	}
	_, _, _, edx := cpuid(0x80000007, 0)
	return edx&(1<<8) != 0
}

// declaredHz is the counter's frequency as the processor gives it, and the CPUID leaf that says so; 0 if none does.
func declaredHz() (hz float64, leaf string) {
	top, _, _, _ := cpuid(0, 0)
	if top >= 0x15 {
		if den, num, crystal, _ := cpuid(0x15, 0); den != 0 && num != 0 && crystal != 0 {
			return float64(crystal) * float64(num) / float64(den), "0x15"
		}
	}
	if top >= 0x16 {
		if mhz, _, _, _ := cpuid(0x16, 0); mhz&0xffff != 0 {
			return float64(mhz&0xffff) * 1e6, "0x16"
		}
	}
	return 0, ""
}
