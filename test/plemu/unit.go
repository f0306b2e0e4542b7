package plemu

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha1"
	"crypto/sha256"
	"encoding"
	"encoding/binary"
	"fmt"
	"hash"
)

// registers are those that the instructions use.
type registers struct{ ax, bx, cx, dx, si, di, ip uint64 }

// memory is the program's. Errors are accesses that the program's own would not survive either.
type memory interface {
	read(addr uint64, p []byte) error
	write(addr uint64, p []byte) error
}

// outcome is what becomes of the thread.
type outcome int

const (
	goesOn    outcome = iota // with the registers as they are now
	undefined                // there is no such instruction: SIGILL
	protected                // general protection: SIGSEGV without an address
	missing                  // page fault: SIGSEGV with one
)

// held is what the cipher unit keeps of a thread's last operation.
type held struct {
	word uint32
	key  [256]byte
}

// emulator is the units of one processor.
type emulator struct {
	m      Model
	addr   uint64 // the largest address
	ops    int
	report *Report
	keys   map[int]held // by thread
	halted map[int]bool // threads interrupted in xcryptcbc
}

func newEmulator(m Model, addr uint64, r *Report) *emulator {
	r.Ops = map[Op]int{}
	return &emulator{m: m, addr: addr, report: r, keys: map[int]held{}, halted: map[int]bool{}}
}

// fault notes why the program is punished.
func (e *emulator) fault(o outcome, format string, args ...any) outcome {
	e.report.Faults = append(e.report.Faults, fmt.Sprintf(format, args...))
	return o
}

// step executes the instruction at ip, and two bytes before it are read too, for a thread that was refused it. The address of a page fault is returned with it.
func (e *emulator) step(thread int, r *registers, m memory) (outcome, uint64) {
	var code [6]byte
	if m.read(r.ip-2, code[:]) != nil || code[2] != 0xf3 || code[3] != 0x0f {
		return undefined, 0
	}
	var o outcome
	var addr uint64
	switch [2]byte(code[4:]) {
	case [2]byte{0xa7, 0xd0}:
		o, addr = e.cbc(thread, r, m, [2]byte(code[:]) == reload)
	case [2]byte{0xa6, 0xc8}:
		o, addr = e.sha(r, m, sha1Unit)
	case [2]byte{0xa6, 0xd0}:
		o, addr = e.sha(r, m, sha256Unit)
	default:
		return undefined, 0
	}
	if o == goesOn && r.cx == 0 {
		r.ip += 4
	}
	return o, addr
}

// interrupt says how much of n units of work is done before an interrupt comes: all of it as a rule.
func (e *emulator) interrupt(n uint64) uint64 {
	e.ops++
	if e.m.InterruptEvery > 0 && e.ops%e.m.InterruptEvery == 0 && n > 1 {
		e.report.Interrupted++
		return n / 2
	}
	return n
}

// reload is PUSHF, POPF, which load EFLAGS.
var reload = [2]byte{0x9c, 0x9d}

// Fields of the control word.
const (
	fieldRounds  = 0xf
	fieldAlign   = 1 << 5
	fieldKeygen  = 1 << 7
	fieldDecrypt = 1 << 9
	fieldSize    = 3 << 10
)

func (e *emulator) cbc(thread int, r *registers, m memory, reloads bool) (outcome, uint64) {
	const align = 15
	if r.cx == 0 {
		return goesOn, 0
	}
	// When the instruction goes on after an interrupt, rAX is the unit's own doing.
	own := e.halted[thread]
	delete(e.halted, thread)
	if (r.dx|r.bx)&align != 0 || r.ax&align != 0 && !own {
		return e.fault(protected, "xcryptcbc: control word %#x, key %#x or IV %#x is not at a multiple of 16", r.dx, r.bx, r.ax), 0
	}
	var k held
	var word [16]byte
	if err := m.read(r.dx, word[:]); err != nil {
		return e.fault(missing, "xcryptcbc: control word: %v", err), r.dx
	}
	k.word = binary.LittleEndian.Uint32(word[:])
	known := uint32(fieldRounds | fieldKeygen | fieldDecrypt | fieldSize)
	if e.m.Unaligned {
		known |= fieldAlign
	}
	bits := 128 + 64*int(k.word>>10&3)
	switch {
	case k.word&^known != 0 || !bytes.Equal(word[4:], make([]byte, 12)):
		return e.fault(protected, "xcryptcbc: reserved bits in the control word %x", word), 0
	case bits > 256 || int(k.word&fieldRounds) != bits/32+6:
		return e.fault(protected, "xcryptcbc: control word with %d rounds for a key of %d bits", k.word&fieldRounds, bits), 0
	case k.word&fieldKeygen == 0 && bits != 128:
		return e.fault(protected, "xcryptcbc: the unit does not expand keys of %d bits", bits), 0
	}
	if k.word&fieldAlign == 0 && (r.si|r.di)&align != 0 {
		return e.fault(protected, "xcryptcbc: data from %#x to %#x is not at multiples of 16", r.si, r.di), 0
	}
	readable := len(k.key)
	if k.word&fieldKeygen == 0 {
		readable = 16
	}
	if err := m.read(r.bx, k.key[:readable]); err != nil {
		return e.fault(missing, "xcryptcbc: key: %v", err), r.bx
	}
	if old, ok := e.keys[thread]; ok && !reloads {
		if old != k {
			e.report.Stale++
		}
		k = old
	}
	e.keys[thread] = k

	n := e.interrupt(r.cx)
	if n < r.cx {
		delete(e.keys, thread)
		e.halted[thread] = true
	}
	var iv [16]byte
	if err := m.read(r.ax, iv[:]); err != nil {
		return e.fault(missing, "xcryptcbc: IV: %v", err), r.ax
	}
	data := make([]byte, 16*n)
	if err := m.read(r.si, data); err != nil {
		return e.fault(missing, "xcryptcbc: source: %v", err), r.si
	}
	const page = 4096
	if end := r.si + 16*r.cx; e.m.Prefetch > 0 && (end-1)/page != (end+uint64(e.m.Prefetch)-1)/page {
		e.report.Bounds++
		next := (end + page - 1) &^ (page - 1)
		if err := m.read(next, make([]byte, 1)); err != nil {
			return e.fault(missing, "xcryptcbc: prefetch beyond %#x: %v", end, err), next
		}
	}
	bits = 128 + 64*int(k.word>>10&3)
	decrypt := k.word&fieldDecrypt != 0
	next := k.cbc(&iv, data, decrypt)
	if bits == e.m.WrongKeyBits {
		data[len(data)-1] ^= 1
	}
	if err := m.write(r.di, data); err != nil {
		return e.fault(missing, "xcryptcbc: destination: %v", err), r.di
	}
	// The next IV is the last block of ciphertext: rAX points to it where it was written, or it is stored.
	if decrypt {
		if err := m.write(r.ax, next[:]); err != nil {
			return e.fault(missing, "xcryptcbc: IV: %v", err), r.ax
		}
	} else {
		r.ax = r.di + uint64(len(data)) - 16
	}
	r.si += uint64(len(data))
	r.di += uint64(len(data))
	r.cx -= n
	if r.cx == 0 {
		e.report.Ops[Op{Name: "xcryptcbc", KeyBits: bits, Decrypt: decrypt}]++
	}
	return goesOn, 0
}

// cbc works on data in place and gives the next IV.
func (k *held) cbc(iv *[16]byte, data []byte, decrypt bool) [16]byte {
	if k.word&fieldKeygen == 0 {
		block, err := aes.NewCipher(k.key[:16])
		if err != nil {
			panic(err) // only for other lengths
		}
		next := [16]byte(data[len(data)-16:])
		if decrypt {
			cipher.NewCBCDecrypter(block, iv[:]).CryptBlocks(data, data)
			return next
		}
		cipher.NewCBCEncrypter(block, iv[:]).CryptBlocks(data, data)
		return [16]byte(data[len(data)-16:])
	}
	chain, rounds := *iv, int(k.word&fieldRounds)
	for ; len(data) > 0; data = data[16:] {
		in := [16]byte(data)
		b := in
		if !decrypt {
			for i := range b {
				b[i] ^= chain[i]
			}
			cipherBlock(&b, k.key[:], rounds, false)
			chain = b
		} else {
			cipherBlock(&b, k.key[:], rounds, true)
			for i := range b {
				b[i] ^= chain[i]
			}
			chain = in
		}
		copy(data, b[:])
	}
	return chain
}

// shaUnit is one of the hashes.
type shaUnit struct {
	name  string
	words int
	magic string // of the standard library's marshalled states
	new   func() hash.Hash
}

var (
	sha1Unit   = shaUnit{"xsha1", 5, "sha\x01", sha1.New}
	sha256Unit = shaUnit{"xsha256", 8, "sha\x03", sha256.New}
)

// resume gives the hash with its state set, after done bytes.
func (s shaUnit) resume(state []byte, done uint64) hash.Hash {
	b := []byte(s.magic)
	for i := range s.words {
		b = binary.BigEndian.AppendUint32(b, binary.LittleEndian.Uint32(state[4*i:]))
	}
	b = append(b, make([]byte, 64)...)
	b = binary.BigEndian.AppendUint64(b, done)
	h := s.new()
	if err := h.(encoding.BinaryUnmarshaler).UnmarshalBinary(b); err != nil {
		panic("plemu: the standard library's hash states have changed: " + err.Error())
	}
	return h
}

// state stores words as the unit does, and spoils what is behind them.
func (s shaUnit) state(digest []byte) []byte {
	state := bytes.Repeat([]byte{0xdb}, 128)
	for i := range s.words {
		binary.LittleEndian.PutUint32(state[4*i:], binary.BigEndian.Uint32(digest[4*i:]))
	}
	return state
}

// after gives the state of a hash that has taken whole blocks only.
func (s shaUnit) after(h hash.Hash) []byte {
	b, err := h.(encoding.BinaryMarshaler).MarshalBinary()
	if err != nil {
		panic("plemu: " + err.Error())
	}
	return s.state(b[len(s.magic):])
}

const block = 64

func (e *emulator) sha(r *registers, m memory, s shaUnit) (outcome, uint64) {
	if !e.m.Hash {
		return e.fault(undefined, "%s: there is no hash engine", s.name), 0
	}
	if r.di&15 != 0 {
		return e.fault(protected, "%s: the state %#x is not at a multiple of 16", s.name, r.di), 0
	}
	state := make([]byte, 128)
	if err := m.read(r.di, state); err != nil {
		return e.fault(missing, "%s: state: %v", s.name, err), r.di
	}
	parts := r.ax == e.addr && e.m.Parts
	done, total, mode := r.ax, r.cx, "whole"
	switch {
	case parts:
		done, total, mode = 0, r.cx*block, "parts"
	case done == 0:
	case !e.m.Resume:
		done = 0
	case done%block != 0 || done > total:
		return e.fault(protected, "%s: %d of %d bytes are done", s.name, done, total), 0
	default:
		mode = "resumed"
	}
	todo := total - done
	if parts && todo == 0 {
		return goesOn, 0
	}
	msg := make([]byte, todo)
	if err := m.read(r.si, msg); err != nil {
		return e.fault(missing, "%s: source: %v", s.name, err), r.si
	}
	h := s.resume(state, done)
	if n := e.interrupt(todo / block); n < todo/block && (parts || e.m.Resume) {
		// Whole blocks are done, and the registers say so.
		h.Write(msg[:n*block])
		if err := m.write(r.di, s.after(h)); err != nil {
			return e.fault(missing, "%s: state: %v", s.name, err), r.di
		}
		r.si += n * block
		if parts {
			r.cx -= n
		} else {
			r.ax = done + n*block
		}
		return goesOn, 0
	}
	h.Write(msg)
	if parts {
		state = s.after(h)
	} else {
		state = s.state(h.Sum(nil))
	}
	if e.m.WrongHash == 32*s.words {
		state[0] ^= 1
	}
	if err := m.write(r.di, state); err != nil {
		return e.fault(missing, "%s: state: %v", s.name, err), r.di
	}
	e.report.Ops[Op{Name: s.name, Mode: mode}]++
	r.si += todo
	r.ax, r.cx = 0xdeadbeef, 0
	return goesOn, 0
}
