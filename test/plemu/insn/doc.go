// Package insn executes single PadLock instructions, with registers as the caller wants them. It keeps to none of their rules.
package insn
