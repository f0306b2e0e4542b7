// Package padlock proves the padlock engine under plemu, which emulates the processors.
//
//	padlock_test.go    every model: known answers, the engine's own conformance tests, the rules of the hardware
//	softfloat_test.go  the same compiled for a 386 without SSE2, under QEMU
package padlock
