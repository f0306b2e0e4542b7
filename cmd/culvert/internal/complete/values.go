package complete

import (
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"culvert/cmd/culvert/internal/gateway"
	"culvert/offload"
)

// Transforms are the kernel's names of all transforms, each once, and whatever else the flag takes.
func Transforms(more ...string) Values {
	return func(*cobra.Command) []string {
		names := slices.Clone(more)
		for _, t := range offload.Transforms() {
			if !slices.Contains(names, t.Name) {
				names = append(names, t.Name)
			}
		}
		return names
	}
}

// KeyBits are the lengths of encryption keys, in bits, of the transforms that the command's flag --transform has; of all transforms
// if it has none that is known.
func KeyBits(c *cobra.Command) []string {
	given, err := c.Flags().GetStringArray("transform")
	if err != nil {
		name, _ := c.Flags().GetString("transform")
		given = []string{name}
	}
	var all, some []string
	for _, t := range offload.Transforms() {
		if t.KeyBits == 0 {
			continue // it has no key, and no length to choose
		}
		bits := strconv.Itoa(t.KeyBits)
		if !slices.Contains(all, bits) {
			all = append(all, bits)
		}
		if slices.Contains(given, t.Name) && !slices.Contains(some, bits) {
			some = append(some, bits)
		}
	}
	if some == nil {
		return all
	}
	return some
}

// Engines are the names of the gateway's engines, whether this machine can run them or not.
func Engines(*cobra.Command) (names []string) {
	for _, e := range gateway.Engines() {
		names = append(names, e.Name())
	}
	return names
}
