package padlock

import "unsafe"

// pageSize is x86's; prefetch is how far the unit may read beyond the data in CBC mode.
const pageSize, prefetch = 4096, 64

// scratch is the memory of a lane that the unit works on. It lies at the start of a page, so that each field is at a multiple
// of 16, and the end of none within the unit's prefetch of the page's.
type scratch struct {
	iv     [16]byte
	state  [128]byte
	block  [128]byte
	bounce [512]byte
}

// The rest of the page is longer than the prefetch.
const _ = uintptr(pageSize - prefetch - unsafe.Sizeof(scratch{}))

func newScratch() *scratch {
	return (*scratch)(aligned(pageSize, pageSize))
}

// aligned gives n zero bytes at a multiple of align, a power of two. They stay there: they are the heap's.
func aligned(n, align int) unsafe.Pointer {
	b := make([]byte, n+align-1)
	return unsafe.Pointer(&b[-int(uintptr(unsafe.Pointer(&b[0])))&(align-1)])
}

// crypt encrypts or decrypts whole blocks, at least one, in place.
func (l *lane) crypt(s *session, iv, data []byte) {
	copy(l.sc.iv[:], iv)
	word := &s.hard.word
	begin := uintptr(unsafe.Pointer(&data[0]))
	direct := len(data)
	if begin%16 != 0 {
		if word = &s.hard.wordAlign; !l.unit.unaligned {
			direct = 0
		}
	}
	// Near the end of a page the last blocks are kept back: before them the unit's prefetch ends within the data.
	if left := -(begin + uintptr(len(data))) % pageSize; left < prefetch {
		direct = max(0, min(direct, len(data)-prefetch))
	}
	if direct > 0 {
		xcryptCBC(&word[0], &s.hard.key[0], &l.sc.iv[0], &data[0], &data[0], uintptr(direct)/16)
	}
	for rest := data[direct:]; len(rest) > 0; {
		n := copy(l.sc.bounce[:], rest)
		xcryptCBC(&s.hard.word[0], &s.hard.key[0], &l.sc.iv[0], &l.sc.bounce[0], &l.sc.bounce[0], uintptr(n)/16)
		rest = rest[copy(rest, l.sc.bounce[:n]):]
	}
}
