package judge

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
)

// linkTypeRaw is LINKTYPE_RAW: packets begin with the IP header.
const linkTypeRaw = layers.LinkType(101)

// WritePcap writes IP packets into a capture file of the test, and returns its name.
func WritePcap(tb testing.TB, packets [][]byte) string {
	tb.Helper()
	name := filepath.Join(tb.TempDir(), "packets.pcap")
	f, err := os.Create(name)
	if err != nil {
		tb.Fatal(err)
	}
	w := pcapgo.NewWriter(f)
	err = w.WriteFileHeader(1<<16, linkTypeRaw)
	for i, p := range packets {
		if err == nil {
			err = w.WritePacket(gopacket.CaptureInfo{Timestamp: time.Unix(int64(i), 0), CaptureLength: len(p), Length: len(p)}, p)
		}
	}
	if err := errors.Join(err, f.Close()); err != nil {
		tb.Fatal(err)
	}
	return name
}

// ReadPcap reads the packets of a capture file from their IP header on: raw, Ethernet, and "any" captures made with
// tcpdump -y LINUX_SLL. A file whose last packet
// is cut off, because the capture was killed, gives all before it.
func ReadPcap(name string) ([][]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r, err := pcapgo.NewReader(f)
	if err != nil {
		return nil, fmt.Errorf("judge: %s: %w", name, err)
	}
	skip := 0
	switch r.LinkType() {
	case linkTypeRaw:
	case layers.LinkTypeEthernet:
		skip = 14
	case layers.LinkTypeLinuxSLL:
		skip = 16
	default:
		return nil, fmt.Errorf("judge: %s has link type %s", name, r.LinkType())
	}
	var out [][]byte
	for {
		p, _, err := r.ReadPacketData()
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return out, nil
		}
		if err != nil {
			return out, fmt.Errorf("judge: %s: %w", name, err)
		}
		if len(p) > skip {
			out = append(out, p[skip:])
		}
	}
}
