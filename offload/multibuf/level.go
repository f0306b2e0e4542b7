package multibuf

import (
	"fmt"
	"strings"
)

// Level names an instruction set that there are kernels for.
type Level string

// The levels. Which of them there are depends on the architecture; Generic is everywhere.
const (
	AVX512  Level = "avx512"  // amd64: AVX-512 F, BW, VL, DQ, VBMI with VAES, VPCLMULQDQ, GFNI, and SHA-NI
	AVX2    Level = "avx2"    // amd64: AVX2, AES-NI
	SHANI   Level = "shani"   // amd64: SSE4.1, AES-NI, SHA-NI, no AVX
	SSE     Level = "sse"     // amd64: SSE4.1, AES-NI, no AVX
	SSE2    Level = "sse2"    // amd64: what all of them have
	ARM64   Level = "arm64"   // arm64: with the cryptography extension
	Generic Level = "generic" // no kernels: hashes by the standard library, ciphers by Options.Rest
)

// level is a row of an architecture's list: its kernels, and what they need.
type level struct {
	name    Level
	missing func() []string // what of it this machine lacks
	kernels kernels
}

// Levels lists the levels that this machine runs, the best first. The last is Generic.
func Levels() []Level {
	var names []Level
	for i := range levels {
		if len(levels[i].missing()) == 0 {
			names = append(names, levels[i].name)
		}
	}
	return append(names, Generic)
}

// choose makes the table of kernels for a level: its own, and for what it leaves nil the next lower one's. "" is the best.
func choose(want Level) (*kernels, error) {
	best := &kernels{}
	found := want == "" || want == Generic
	for i := range levels {
		l := &levels[i]
		lacks := l.missing()
		if l.name == want {
			if len(lacks) > 0 {
				return nil, fmt.Errorf("multibuf: level %s: this processor, or its kernel, lacks %s; there are %v", want, strings.Join(lacks, ", "), Levels())
			}
			found = true
		}
		if want != Generic && found && len(lacks) == 0 {
			best.inherit(&l.kernels, l.name)
		}
	}
	if !found {
		return nil, fmt.Errorf("multibuf: there is no level %q on this architecture; there are %v", want, Levels())
	}
	if best.name == "" {
		best.name = Generic
	}
	return best, nil
}

// need pairs a feature with its name.
type need struct {
	has  bool
	name string
}

func lacking(needs ...need) (names []string) {
	for _, n := range needs {
		if !n.has {
			names = append(names, n.name)
		}
	}
	return names
}
