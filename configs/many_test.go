package configs

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"
)

// manyTunnels is a configuration of n tunnels, each with a comment, and a bypass for each.
func manyTunnels(n int) []byte {
	var b strings.Builder
	key := func(i int) []byte {
		h := sha256.Sum256([]byte(fmt.Sprint(i)))
		return h[:20]
	}
	b.WriteString("state_dir = \"/var/lib/culvert\"\n")
	for i := range n {
		fmt.Fprintf(&b, `
# The branch office %d: whom to ask, and when.
[[tunnel]]
name = "t%d"
local = "192.0.2.1"
remote = "198.51.%d.%d"
link = "udp"
transform = "rfc4106(gcm(aes))"
key_bits = 128
local_subnets = ["10.0.0.0/16"]
remote_subnets = ["10.%d.%d.0/24"]
out = { spi = 0x%x, enc_key = "%x" }
in = { spi = 0x%x, enc_key = "%x" }

[[policy]]
remote = "10.%d.%d.7/32"
action = "bypass"
`, i, i, i>>8, i&255, 1+i>>8, i&255, 0x100000+i, key(2*i), 0x900000+i, key(2*i+1), 1+i>>8, i&255)
	}
	return []byte(b.String())
}

// Ten thousand tunnels are one file that is taken.
func TestManyTunnels(t *testing.T) {
	doc := manyTunnels(10_000)
	if len(doc) > maxFile {
		t.Errorf("they need %d bytes, and a file can have %d", len(doc), maxFile)
	}
	c, err := LoadBytes("many.toml", doc)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Wipe()
	if len(c.Tunnels) != 10_000 || len(c.Policies) != 40_000 || len(c.Warnings) > 0 {
		t.Errorf("%v, warnings: %v", c, c.Warnings)
	}
	if tn := c.Tunnel("t9999"); tn == nil || tn.Out.SPI != 0x100000+9999 || c.Tunnel("t10000") != nil {
		t.Errorf("the last tunnel is %v", tn)
	}
}

// The time for a tunnel does not grow with their number.
func BenchmarkLoadTunnels(b *testing.B) {
	for _, n := range []int{100, 1000, 10_000} {
		b.Run(fmt.Sprintf("%dtunnels", n), func(b *testing.B) {
			doc := manyTunnels(n)
			b.ReportAllocs()
			for b.Loop() {
				c, err := LoadBytes("many.toml", doc)
				if err != nil {
					b.Fatal(err)
				}
				c.Wipe()
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/float64(n), "µs/tunnel")
		})
	}
}
