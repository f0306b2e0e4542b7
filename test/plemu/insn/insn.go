//go:build amd64 || 386

package insn

// Registers are those that the instructions use.
type Registers struct{ AX, BX, CX, DX, SI, DI uintptr }

// CBC executes rep xcryptcbc, with EFLAGS loaded right before it.
//
//go:noescape
func CBC(r *Registers)

// CBCHeldKey executes rep xcryptcbc, with the key that the unit may still have.
//
//go:noescape
func CBCHeldKey(r *Registers)

// SHA1 executes rep xsha1.
//
//go:noescape
func SHA1(r *Registers)

// SHA256 executes rep xsha256.
//
//go:noescape
func SHA256(r *Registers)
