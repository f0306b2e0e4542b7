// Command gen writes the assembly of package multibuf, and the Go declarations that go with it. It is a module of its own, so
// that the generator's dependencies are not those of the program. One run writes one level,
//
//	go run . -level avx512 -out ../avx512_amd64.s -stubs ../avx512_amd64.go -pkg multibuf
//
// and one more the table for DES's keys, which is for all architectures:
//
//	go run . -level deskeys -out ../deskeys.go
//
// A level is a function here that calls the generators of its kernels; every file holds kernels of one kind.
//
//	main.go           levels, flags
//	avx512*.go        the level avx512: aes, des, gcm, hash
//	narrow.go         instruction sets with sixteen registers; kernels below avx512 are written once for all of them
//	narrow_levels.go  the levels avx2, sse, sse2
//	narrow_*.go       their kernels: aes, des, hash
//	shani.go          the SHA instructions
//	cpuid.go          what the processor says of itself
//	des.go            DES as the kernels have it: tables, wiring, keys
//	circuit.go        DES's S-boxes as circuits, searched for
//	regs.go           registers and memory, by number
//	arm64_des.go      DES, handed to package arm64
//	arm64/            the level arm64, without avo
package main
