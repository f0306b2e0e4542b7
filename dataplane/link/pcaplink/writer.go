package pcaplink

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
)

// Writer writes IP packets into a capture of link type raw IP that tcpdump and Wireshark read. It may be shared. A nil Writer
// takes everything and keeps nothing.
type Writer struct {
	// Clock gives the time stamps; time.Now unless set, before the first packet.
	Clock func() time.Time

	mu     sync.Mutex
	buf    *bufio.Writer
	pcap   *pcapgo.Writer
	file   io.Closer
	err    error // the first one
	n      uint64
	closed bool
}

// NewWriter begins a capture on w.
func NewWriter(w io.Writer) (*Writer, error) {
	buf := bufio.NewWriterSize(w, 64<<10)
	p := pcapgo.NewWriterNanos(buf)
	if err := p.WriteFileHeader(65535, layers.LinkTypeRaw); err != nil {
		return nil, fmt.Errorf("pcaplink: %w", err)
	}
	return &Writer{Clock: time.Now, buf: buf, pcap: p}, nil
}

// Create begins a capture in a new file, or in place of an old one.
func Create(path string) (*Writer, error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("pcaplink: %w", err)
	}
	w, err := NewWriter(f)
	if err != nil {
		f.Close()
		return nil, err
	}
	w.file = f
	return w, nil
}

// Write adds an IP packet. After an error, which Close repeats, nothing more is written.
func (w *Writer) Write(p []byte) error {
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return os.ErrClosed
	}
	if w.err == nil {
		w.err = w.pcap.WritePacket(gopacket.CaptureInfo{Timestamp: w.Clock(), CaptureLength: len(p), Length: len(p)}, p)
	}
	if w.err == nil {
		w.n++
	}
	return w.err
}

// Packets is how many have been written.
func (w *Writer) Packets() uint64 {
	if w == nil {
		return 0
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.n
}

// Close finishes the capture, and says the first error since it was begun.
func (w *Writer) Close() error {
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return w.err
	}
	w.closed = true
	if err := w.buf.Flush(); w.err == nil {
		w.err = err
	}
	if w.file != nil {
		if err := w.file.Close(); w.err == nil {
			w.err = err
		}
	}
	if w.err != nil {
		w.err = fmt.Errorf("pcaplink: %w", w.err)
	}
	return w.err
}
