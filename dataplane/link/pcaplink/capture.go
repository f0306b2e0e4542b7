package pcaplink

import (
	"bufio"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
)

// Capture is the IP packets of a capture file, in memory, so that replaying costs nothing and can be repeated.
type Capture struct {
	data  []byte
	spans []span

	NotIP     int // frames left out: ARP, unknown link types, ...
	Truncated int // packets left out: not captured whole
	Malformed int // packets left out: lengths that contradict each other
}

type span struct{ off, n int }

// Len is the number of packets.
func (c *Capture) Len() int { return len(c.spans) }

// Packet is the packet i. It must not be changed.
func (c *Capture) Packet(i int) []byte {
	s := c.spans[i]
	return c.data[s.off : s.off+s.n : s.off+s.n]
}

const (
	maxFrame   = 256 << 10 // as tcpdump and Wireshark have it
	maxCapture = 1 << 30   // bytes of a file, unpacked
)

// ErrFormat is what is wrong with a file that is not a capture, or a damaged one.
var ErrFormat = errors.New("not a capture, or damaged")

// LoadFile reads a capture file.
func LoadFile(path string) (*Capture, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("pcaplink: %w", err)
	}
	defer f.Close()
	c, err := Load(f)
	if err != nil {
		return nil, fmt.Errorf("%w in %s", err, path)
	}
	return c, nil
}

// Load reads a capture: pcap or pcapng, either byte order, also packed by gzip, of link types raw IP, Ethernet (with VLAN tags),
// BSD null and loop, and Linux cooked (as by tcpdump -i any). Files are read here rather than by pcapgo, which
// believes what a file says about lengths: a damaged one makes it panic or ask for gigabytes. A file may have 1 GiB, unpacked.
func Load(r io.Reader) (*Capture, error) { return load(r, maxCapture) }

func load(r io.Reader, most int64) (*Capture, error) {
	br := bufio.NewReaderSize(r, 64<<10)
	if b, _ := br.Peek(2); len(b) == 2 && b[0] == 0x1f && b[1] == 0x8b {
		z, err := gzip.NewReader(br)
		if err != nil {
			return nil, fmt.Errorf("pcaplink: unpack: %w", err)
		}
		br = bufio.NewReaderSize(z, 64<<10)
	}
	in := &input{r: io.LimitReader(br, most+1)}
	c := new(Capture)
	var err error
	switch magic, merr := in.take(4); {
	case merr != nil:
		err = fmt.Errorf("%w: shorter than a header", ErrFormat)
	case binary.BigEndian.Uint32(magic) == blockSection:
		err = c.loadNg(in)
	default:
		err = c.loadPcap(in, [4]byte(magic))
	}
	if err == nil && in.pos > most {
		err = fmt.Errorf("more than %d bytes; cut it with editcap", most)
	}
	if err != nil {
		return nil, fmt.Errorf("pcaplink: %w, %d bytes in", err, in.pos)
	}
	return c, nil
}

// input reads pieces of bounded length.
type input struct {
	r   io.Reader
	buf []byte
	pos int64
}

// take returns the next n bytes, valid until the next call. At the end of the file it is io.EOF, within a piece ErrUnexpectedEOF.
func (in *input) take(n int) ([]byte, error) {
	if cap(in.buf) < n {
		in.buf = make([]byte, n)
	}
	got, err := io.ReadFull(in.r, in.buf[:n])
	in.pos += int64(got)
	return in.buf[:n], err
}

// loadPcap reads the classic format: a header of 24 bytes, then records of 16 bytes and a frame.
func (c *Capture) loadPcap(in *input, magic [4]byte) error {
	var order binary.ByteOrder = binary.LittleEndian
	if magic[0] == 0xa1 {
		order = binary.BigEndian
	}
	switch order.Uint32(magic[:]) {
	case 0xa1b2c3d4, 0xa1b23c4d: // microseconds, nanoseconds: all the same here
	default:
		return fmt.Errorf("%w: magic %x", ErrFormat, magic)
	}
	h, err := in.take(20)
	if err != nil {
		return fmt.Errorf("%w: header: %w", ErrFormat, err)
	}
	link := order.Uint32(h[16:]) & 0xffff // the rest says how long the FCS is
	for {
		h, err := in.take(16)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return c.end(err)
		}
		captured, length := order.Uint32(h[8:]), order.Uint32(h[12:])
		if captured > maxFrame {
			return fmt.Errorf("%w: a frame of %d bytes", ErrFormat, captured)
		}
		frame, err := in.take(int(captured))
		if err != nil {
			return c.end(err)
		}
		c.add(link, frame, captured < length)
	}
}

// end is for a file that stops within a frame, as one does whose writer was killed: what came before counts.
func (c *Capture) end(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		c.Truncated++
		return nil
	}
	return err
}

// Block types of pcapng (draft-ietf-opsawg-pcapng, 4).
const (
	blockSection   = 0x0a0d0d0a // the same in either byte order
	blockInterface = 1
	blockPacket    = 2 // obsolete
	blockSimple    = 3
	blockEnhanced  = 6

	maxBlock = 16 << 20 // others, with comments or secrets
)

// loadNg reads pcapng; the type of its first block has been read.
func (c *Capture) loadNg(in *input) error {
	var order binary.ByteOrder = binary.LittleEndian
	type iface struct {
		link uint32
		snap uint32
	}
	var ifaces []iface
	kind := uint32(blockSection)
	for {
		h, err := in.take(4)
		if err != nil {
			return c.end(err)
		}
		raw := [4]byte(h)
		head := 0
		if kind == blockSection {
			magic, err := in.take(4)
			if err != nil {
				return c.end(err)
			}
			switch {
			case binary.LittleEndian.Uint32(magic) == 0x1a2b3c4d:
				order = binary.LittleEndian
			case binary.BigEndian.Uint32(magic) == 0x1a2b3c4d:
				order = binary.BigEndian
			default:
				return fmt.Errorf("%w: byte order %x", ErrFormat, magic)
			}
			head = 4
			ifaces = ifaces[:0]
		}
		size := order.Uint32(raw[:])
		if size < 12+uint32(head) || size%4 != 0 || size > maxBlock {
			return fmt.Errorf("%w: a block of %d bytes", ErrFormat, size)
		}
		b, err := in.take(int(size) - 8 - head)
		if err != nil {
			return c.end(err)
		}
		body := b[:len(b)-4] // the rest is the length again
		switch kind {
		case blockInterface:
			if len(body) < 8 || len(ifaces) >= 1<<16 {
				return fmt.Errorf("%w: interface description", ErrFormat)
			}
			ifaces = append(ifaces, iface{uint32(order.Uint16(body)), order.Uint32(body[4:])})
		case blockEnhanced, blockPacket:
			if len(body) < 20 {
				return fmt.Errorf("%w: packet block of %d bytes", ErrFormat, size)
			}
			id := order.Uint32(body)
			if kind == blockPacket {
				id = uint32(order.Uint16(body))
			}
			captured, length := order.Uint32(body[12:]), order.Uint32(body[16:])
			if uint64(id) >= uint64(len(ifaces)) || uint64(captured) > uint64(len(body)-20) {
				return fmt.Errorf("%w: packet of %d bytes on interface %d", ErrFormat, captured, id)
			}
			c.add(ifaces[id].link, body[20:20+captured], captured < length)
		case blockSimple:
			if len(body) < 4 || len(ifaces) == 0 {
				return fmt.Errorf("%w: simple packet", ErrFormat)
			}
			length := order.Uint32(body)
			captured := length
			if snap := ifaces[0].snap; snap > 0 {
				captured = min(captured, snap)
			}
			if uint64(captured) > uint64(len(body)-4) {
				return fmt.Errorf("%w: simple packet of %d bytes", ErrFormat, captured)
			}
			c.add(ifaces[0].link, body[4:4+captured], captured < length)
		}
		h, err = in.take(4)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return c.end(err)
		}
		kind = order.Uint32(h)
		if binary.BigEndian.Uint32(h) == blockSection {
			kind = blockSection
		}
	}
}

// add keeps the IP packet in a frame.
func (c *Capture) add(link uint32, frame []byte, cut bool) {
	p, ok := network(link, frame)
	if !ok {
		c.NotIP++
		return
	}
	n, err := ipLength(p)
	switch {
	case err == errShort && !cut:
		c.Malformed++
	case err == errShort:
		c.Truncated++
	case err != nil:
		c.Malformed++
	default:
		c.spans = append(c.spans, span{len(c.data), n})
		c.data = append(c.data, p[:n]...)
		putLength(c.data[len(c.data)-n:])
	}
}

// Link types (tcpdump.org/linktypes.html). The first of each row is written into files, the others are also seen.
const (
	linkNull     = 0
	linkEthernet = 1
	linkRaw12    = 12
	linkRaw14    = 14
	linkRaw      = 101
	linkLoop     = 108
	linkSLL      = 113
	linkIPv4     = 228
	linkIPv6     = 229
	linkSLL2     = 276
)

// network takes off what lies before the IP packet.
func network(link uint32, b []byte) ([]byte, bool) {
	switch link {
	case linkRaw, linkRaw12, linkRaw14, linkIPv4, linkIPv6:
		return b, len(b) > 0 && (b[0]>>4 == 4 || b[0]>>4 == 6)
	case linkNull, linkLoop:
		if len(b) < 4 {
			return nil, false
		}
		family := binary.LittleEndian.Uint32(b) // null: of the host that captured; loop: big-endian
		if family > 0xffff {
			family = binary.BigEndian.Uint32(b)
		}
		switch family {
		case 2, 10, 24, 28, 30: // IPv4; IPv6 of Linux, NetBSD, FreeBSD, Darwin
			return b[4:], true
		}
		return nil, false
	case linkEthernet:
		for off := 12; off+2 <= len(b); off += 4 {
			switch binary.BigEndian.Uint16(b[off:]) {
			case 0x0800, 0x86dd:
				return b[off+2:], true
			case 0x8100, 0x88a8, 0x9100: // VLAN tags
			default:
				return nil, false
			}
		}
		return nil, false
	case linkSLL:
		return cooked(b, 14, 16)
	case linkSLL2:
		return cooked(b, 0, 20)
	}
	return nil, false
}

func cooked(b []byte, proto, header int) ([]byte, bool) {
	if len(b) < header {
		return nil, false
	}
	p := binary.BigEndian.Uint16(b[proto:])
	return b[header:], p == 0x0800 || p == 0x86dd
}

// putLength makes the length of a packet that came without one what it is.
func putLength(p []byte) {
	if p[0]>>4 == 4 {
		binary.BigEndian.PutUint16(p[2:], uint16(len(p)))
	} else {
		binary.BigEndian.PutUint16(p[4:], uint16(len(p)-40))
	}
}

var (
	errShort  = errors.New("shorter than its length")
	errHeader = errors.New("no IP header")
)

// ipLength is the packet's own length, without what a frame is padded with. One of length 0 was captured before the card cut it
// (TSO) and is as long as its frame.
func ipLength(p []byte) (n int, err error) {
	switch {
	case len(p) == 0:
		return 0, errShort
	case p[0]>>4 == 4:
		if len(p) < 20 {
			return 0, errShort
		}
		n = int(binary.BigEndian.Uint16(p[2:]))
		if n == 0 {
			n = len(p)
		}
		if hdr := int(p[0]&15) * 4; hdr < 20 || n < hdr || n > 65535 {
			return 0, errHeader
		}
	case p[0]>>4 == 6:
		if len(p) < 40 {
			return 0, errShort
		}
		n = 40 + int(binary.BigEndian.Uint16(p[4:]))
		if n == 40 && p[6] != 59 {
			n = len(p)
		}
		if n > 65535 {
			return 0, errHeader
		}
	default:
		return 0, errHeader
	}
	if n > len(p) {
		return 0, errShort
	}
	return n, nil
}
