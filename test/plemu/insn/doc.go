// Package insn executes single PadLock instructions, with registers as the caller wants them. It keeps to none of their rules.
//
//	insn.go    Registers, and a function for each kind of instruction
//	insn_*.s   the instructions
package insn
