package main

import "culvert/offload/multibuf/gen/arm64"

// armDES gives the arm64 level's generator DES as all kernels with lookups have it.
func armDES() arm64.DES {
	t := arm64.DES{Sources: sources}
	for box := range wiring {
		copy(t.SBoxes[box][:], sBoxTable(box))
		for i, w := range wiring[box] {
			t.Colours[box][i] = w.colour
		}
	}
	return t
}
