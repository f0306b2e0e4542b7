// Package plemu lets a program run the PadLock instructions on a machine that has none. The program is not changed: each
// instruction raises the illegal-instruction signal, and a supervisor does in the program's memory and registers what the
// hardware would have done.
//
//	model.go   Model: the processors that are emulated, and what is wrong with them
//	unit.go    the instructions: their rules, their faults, what they leave behind
//	aes.go     AES over a key schedule as it lies in memory
//	ptrace.go  Run: a supervisor for programs of this machine (Linux, amd64)
//	gdb.go     RunQEMU: a supervisor for 386 programs that QEMU runs, over its debugger port
//	rerun.go   Rerun: a test, once more as the emulated program
//	insn/      the bare instructions, for programs that break the rules on purpose
//
// CPUID cannot be emulated so. A program takes the model's: Model.CPUID.
//
// The emulation is strict where the hardware is lenient by luck. It keeps the key of a thread's last operation whatever
// interrupts the thread, until EFLAGS is loaded; that the program did so cannot be seen (the bit that the unit clears does not
// exist here), so it looks for PUSHF, POPF right before the instruction. It writes over all 128 bytes of a hash's state, and over
// the registers that the hardware gives no meaning to. It ends instructions early, as interrupts do, if asked to.
package plemu
