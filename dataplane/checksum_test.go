package dataplane

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// wireFold is a running sum as it reads in network order.
func wireFold(sum uint64) uint16 {
	var b [2]byte
	binary.LittleEndian.PutUint16(b[:], checksumFold(sum))
	return binary.BigEndian.Uint16(b[:])
}

// Every length up to a few rounds of the loop, at every alignment, in both variants, agrees with the reference.
func TestChecksumAddLengths(t *testing.T) {
	data := fill(700, 3)
	for n := 0; n <= 600; n++ {
		for at := range 8 {
			b := data[at : at+n]
			want := refSum(b)
			if got := wireFold(checksumAdd(0, b)); got != want {
				t.Fatalf("%d bytes at %d: %#04x, want %#04x", n, at, got, want)
			}
			if got := wireFold(checksumAdd32(0, b)); got != want {
				t.Fatalf("32-bit variant, %d bytes at %d: %#04x, want %#04x", n, at, got, want)
			}
		}
	}
}

// Carries are where such code goes wrong: long runs of all ones, from every start that could overflow.
func TestChecksumAddCarries(t *testing.T) {
	ones := bytes.Repeat([]byte{0xff}, 65536)
	for _, start := range []uint64{0, 1, 0xfffe, 0xffff, 0xffffffff, 1<<63 - 1, 1 << 63, 1<<64 - 2, 1<<64 - 1} {
		for _, n := range []int{0, 1, 2, 7, 8, 31, 32, 63, 64, 65, 127, 128, 1400, 65535, 65536} {
			var s [8]byte
			binary.LittleEndian.PutUint64(s[:], start)
			want := refSum(s[:], ones[:n])
			if got := wireFold(checksumAdd(start, ones[:n])); got != want {
				t.Errorf("from %#x, %d bytes of ones: %#04x, want %#04x", start, n, got, want)
			}
			if got := wireFold(checksumAdd32(start, ones[:n])); got != want {
				t.Errorf("32-bit variant, from %#x, %d bytes of ones: %#04x, want %#04x", start, n, got, want)
			}
		}
	}
}

// A sum may be taken in pieces of even length, in any order, and with words and long words beside.
func TestChecksumPieces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var whole []byte
		var sum uint64
		for range rapid.IntRange(1, 8).Draw(t, "pieces") {
			var piece []byte
			switch rapid.IntRange(0, 3).Draw(t, "kind") {
			case 0:
				v := rapid.Uint16().Draw(t, "word")
				piece = binary.BigEndian.AppendUint16(nil, v)
				sum = checksumWord(sum, v)
			case 1:
				v := rapid.Uint32().Draw(t, "long")
				piece = binary.BigEndian.AppendUint32(nil, v)
				sum = checksumLong(sum, v)
			case 2:
				piece = fill(2*rapid.IntRange(0, 200).Draw(t, "n"), rapid.Byte().Draw(t, "seed"))
				sum = checksumJoin(checksumAdd(0, piece), sum)
			case 3:
				piece = bytes.Repeat([]byte{0xff}, 2*rapid.IntRange(0, 200).Draw(t, "n"))
				sum = checksumAdd(sum, piece)
			}
			whole = append(whole, piece...)
		}
		if got, want := wireFold(sum), refSum(whole); got != want {
			t.Fatalf("%#04x, want %#04x", got, want)
		}
	})
}

// The pseudo headers of both families, for any protocol and length.
func TestChecksumPseudo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		proto, n := rapid.Byte().Draw(t, "proto"), rapid.IntRange(0, 65535).Draw(t, "n")
		w := wirePacket{v6: rapid.Bool().Draw(t, "v6"), host: rapid.Byte().Draw(t, "host")}
		ip := w.build(false)
		if got, want := wireFold(checksumPseudo(ip, proto, n)), refSum(refPseudo(w.src(), w.dst(), proto, n)); got != want {
			t.Fatalf("%#04x, want %#04x", got, want)
		}
	})
}

// An update gives what summing afresh gives, up to the two representations of zero; and never the wrong one, which RFC
// 1624 4 shows RFC 1141 to produce: a checksum of 0xffff would mean that everything was zero.
func TestChecksumUpdate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.OneOf(rapid.Uint16(), rapid.SampledFrom([]uint16{0, 1, 0xfffe, 0xffff}))
		data := fill(2*rapid.IntRange(1, 20).Draw(t, "words"), rapid.Byte().Draw(t, "seed"))
		data[0] |= 1 // never all zero, as no IP header is
		data = append(data, 0, 0)
		at := 2 * rapid.IntRange(1, len(data)/2-1).Draw(t, "at")
		binary.BigEndian.PutUint16(data[at:], word.Draw(t, "old"))
		sum := make([]byte, 2)
		checksumStore(sum, checksumAdd(0, data))
		old, v := binary.BigEndian.Uint16(data[at:]), word.Draw(t, "new")
		binary.BigEndian.PutUint16(data[at:], v)
		checksumUpdate(sum, old, v)
		if got, want := binary.BigEndian.Uint16(sum), ^refSum(data); got != want {
			t.Fatalf("%#04x, want %#04x", got, want)
		}
	})
	// The example of RFC 1624 4.
	field := []byte{0xdd, 0x2f}
	checksumUpdate(field, 0x5555, 0x3285)
	if !bytes.Equal(field, []byte{0, 0}) {
		t.Errorf("RFC 1624 4: % x, want 00 00", field)
	}
}

// UDP's zero becomes ones, and nothing else changes.
func TestChecksumStoreNonZero(t *testing.T) {
	var a, b [2]byte
	for v := range 0x10000 {
		checksumStore(a[:], uint64(v))
		checksumStoreNonZero(b[:], uint64(v))
		if a == [2]byte{} {
			a = [2]byte{0xff, 0xff}
		}
		if a != b {
			t.Fatalf("sum %#04x: % x, want % x", v, b, a)
		}
	}
}

var sinkSum uint64

func BenchmarkChecksum(b *testing.B) {
	for _, n := range []int{20, 40, 64, 256, 1400, 9000} {
		b.Run(sizeName(n), func(b *testing.B) {
			data := make([]byte, n)
			for i := range data {
				data[i] = byte(rand.Uint32())
			}
			for b.Loop() {
				sinkSum = checksumAdd(1, data)
			}
			reportPackets(b, 1, n)
		})
	}
}

func BenchmarkChecksum32(b *testing.B) {
	data := make([]byte, 1400)
	for b.Loop() {
		sinkSum = checksumAdd32(1, data)
	}
	reportPackets(b, 1, len(data))
}
