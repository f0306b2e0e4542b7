package configs

import (
	"fmt"
	"io"
)

// Whatever holds keys prints itself, for every verb. offload.Key hides itself too, but package fmt does not ask it when it
// reports a verb that does not fit: Printf("%s") of a list of tunnels would print their keys as numbers.

// String names the configuration and counts what is in it.
func (c Config) String() string {
	return fmt.Sprintf("%s: tunnels %d, policies %d", c.File, len(c.Tunnels), len(c.Policies))
}

// Format writes String for every verb.
func (c Config) Format(f fmt.State, _ rune) { io.WriteString(f, c.String()) }

// String names the tunnel, its ends and how it protects.
func (t Tunnel) String() string {
	return fmt.Sprintf("tunnel %s %v>%v %v out %v in %v", t.Name, t.Local, t.Remote, t.Transform, t.Out, t.In)
}

// Format writes String for every verb.
func (t Tunnel) Format(f fmt.State, _ rune) { io.WriteString(f, t.String()) }

// String is the SPI.
func (s SA) String() string { return fmt.Sprintf("spi 0x%08x", s.SPI) }

// Format writes String for every verb.
func (s SA) Format(f fmt.State, _ rune) { io.WriteString(f, s.String()) }
