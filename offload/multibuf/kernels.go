package multibuf

import (
	"culvert/offload"
)

// kernels is a level's table. Nil, or an empty list, means that the level has none of that kind; see inherit.
//
// What holds for every kernel: it keeps no pointer after it returns; it reads and writes the bytes named in its contract and
// no others; buffers of packets have any alignment, all else that it is given is aligned to 64 bytes; blocks is at least 1;
// no branch or address depends on the content of keys, chaining values or packets. Arrays of packets' addresses hold
// uintptr, as an address at the end of a packet must not be in Go's pointers; the lane's burst keeps the memory alive.
type kernels struct {
	name   Level
	detail string // of the parts, for people

	aesEnc []cbcKernel // by lanes, ascending
	// aesDec decrypts one packet in place, AES-CBC, as wide as it can: blocks 16-byte blocks at p, with the IV in the 16
	// bytes before p, which are not changed. The schedule is aesSchedule.dec.
	aesDec func(schedule *byte, rounds int, p *byte, blocks int)

	des *desKernel
	gcm *gcmKernel

	// Kernels for each hash, by lanes, ascending: hash32 for MD5, SHA-1 and SHA-256, hash64 for SHA-384 and SHA-512, which
	// share one. single is what a block costs the standard library on such a machine, in the unit of cost.
	hash32 [offload.HMACSHA512 + 1][]hashKernel[uint32]
	hash64 []hashKernel[uint64]
	single [offload.HMACSHA512 + 1]int

	// forget clears the registers that kernels leave keys in; it is called after every window.
	forget func()
}

// cbcKernel encrypts several packets with AES-CBC, in place.
type cbcKernel struct {
	lanes int // at most maxCBCLanes
	cost  int // cycles that one block of every lane takes, about; decides between kernels
	// Both encrypt blocks 16-byte blocks of every lane, in place; rounds is 10, 12 or 14. ptrs has an address for each lane:
	// of its first block, with the chaining value (the IV, or the block before, encrypted) in the 16 bytes before that.
	// They move the addresses past what they did. Several lanes may have the same address, if nobody wants what is there.
	// shared has one key for all lanes: schedule is 15 round keys of 16 bytes, of which rounds+1 count. nil: use mixed.
	shared func(schedule *byte, rounds int, ptrs *uintptr, blocks int)
	// mixed has a key for each lane: table holds round keys as [round][lane][16]byte.
	mixed func(table *byte, rounds int, ptrs *uintptr, blocks int)
}

// hashKernel compresses blocks of several messages.
type hashKernel[T uint32 | uint64] struct {
	lanes int // at most maxHashLanes
	cost  int // cycles that one block of every lane takes, about
	// run compresses blocks blocks of every lane (64 bytes for T uint32, else 128). state holds the chaining values as
	// [word][lane]T: 4, 5 or 8 words in the hash's order, each in the machine's byte order. ptrs has the address of each
	// lane's first block; run moves it past what it did. Several lanes may have the same address.
	//
	// With words, if the kernel takesWords, it compresses one block of every lane that is there as [word][lane]T, in the
	// machine's byte order, and may overwrite it; ptrs is nil, and blocks does not matter. Otherwise words is nil.
	run        func(state *T, ptrs *uintptr, blocks int, words *T)
	takesWords bool
}

// desKernel runs 3DES-CBC over many lanes, in place. Its schedules have a layout of its own.
type desKernel struct {
	lanes int // at most maxDESLanes
	size  int // bytes of a schedule
	table int // bytes of a table of all lanes' keys
	// What a block of every lane costs in cycles, and what one block costs the standard library.
	cost, single int
	// expand writes the schedule of a 24-byte key, to encrypt or to decrypt.
	expand func(schedule []byte, key []byte, decrypt bool)
	// put writes some lanes' key into a table.
	put func(table []byte, lanes []uint8, schedule []byte)
	// The four work on blocks 8-byte blocks of every lane. ptrs has the address of each lane's first block, chain its
	// chaining value; both are moved on. Several lanes may have the same address, if nobody wants what is there. The mixed
	// ones take a table instead of one schedule.
	encShared, decShared, encMixed, decMixed func(keys *byte, chain *uint64, ptrs *uintptr, blocks int)
	// fewer has fewer lanes, takes less time, and only encrypts; the schedules are the same. nil: there is none.
	fewer *desKernel
}

// gcmKernel runs AES-GCM over one packet.
type gcmKernel struct {
	size int // bytes of a key
	// expand writes the key: the AES schedule (15 round keys of 16 bytes) first, then what the kernel needs of the hash key.
	expand func(key *byte, rounds int)
	// seal encrypts n bytes at p in place, open decrypts them; n may be any number. Both write the tag of the ciphertext to
	// the 16 bytes at tag. The nonce is the first 12 bytes of iv0 and iv1, the additional data the first aadLen of aad0 and
	// aad1, 8 or 12, both as the machine has them in memory, with zeros after them. In registers, because what was just
	// written piece by piece would be waited for.
	seal, open func(key *byte, rounds int, p *byte, n int, iv0, iv1, aad0, aad1 uint64, aadLen int, tag *byte)
}

// Limits on lanes, which size a lane's scratch.
const (
	maxCBCLanes  = 32
	maxHashLanes = 32
	maxDESLanes  = 256
)

// inherit fills what is missing from the next lower level.
func (k *kernels) inherit(from *kernels, name Level) {
	if k.name == "" {
		k.name, k.detail = name, from.detail
	}
	if k.aesEnc == nil {
		k.aesEnc = from.aesEnc
	}
	if k.aesDec == nil {
		k.aesDec = from.aesDec
	}
	if k.des == nil {
		k.des = from.des
	}
	if k.gcm == nil {
		k.gcm = from.gcm
	}
	for a := range k.hash32 {
		if k.hash32[a] == nil {
			k.hash32[a] = from.hash32[a]
		}
		if k.single[a] == 0 {
			k.single[a] = from.single[a]
		}
	}
	if k.forget == nil {
		k.forget = from.forget
	}
	if k.hash64 == nil {
		k.hash64 = from.hash64
	}
}

// hashesOne reports whether a kernel computes the HMAC of one packet sooner than the standard library.
func (k *kernels) hashesOne(auth offload.Auth) bool {
	least, single := 0, k.single[auth] // costs ascend with the lanes
	switch {
	case !hmacHashes[auth].wide && len(k.hash32[auth]) > 0:
		least = k.hash32[auth][0].cost
	case hmacHashes[auth].wide && len(k.hash64) > 0:
		least = k.hash64[0].cost
	}
	return least != 0 && (single == 0 || least <= single)
}

// runs reports whether the level has what a transform's cipher needs; hashes can always be done.
func (k *kernels) runs(t *offload.Transform) bool {
	switch t.Cipher {
	case offload.CipherNull:
		return true
	case offload.AESCBC:
		return k.aesEnc != nil && k.aesDec != nil
	case offload.TripleDESCBC:
		return k.des != nil
	case offload.AESGCM:
		return k.gcm != nil
	default:
		return false
	}
}
