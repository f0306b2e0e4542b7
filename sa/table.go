package sa

import "math/bits"

// table is a hash table whose versions share what did not change: a copy of the struct is a version, and set and delete make
// a new one without touching the others. Chains are immutable, and the directory is copied once per transaction, by own.
//
// The hash is the caller's, so that the packet path pays for no indirect call.
type table[K comparable, V any] struct {
	dir   []*link[K, V] // a power of two of them, or none
	n     int
	owned bool // dir belongs to this version alone
}

type link[K comparable, V any] struct {
	key  K
	hash uint32
	val  V
	next *link[K, V]
}

func (t *table[K, V]) at(hash uint32) int { return int(hash) & (len(t.dir) - 1) }

func (t *table[K, V]) get(hash uint32, key K) (val V, ok bool) {
	if len(t.dir) == 0 {
		return val, false
	}
	for l := t.dir[t.at(hash)]; l != nil; l = l.next {
		if l.key == key {
			return l.val, true
		}
	}
	return val, false
}

// own makes the directory this version's, with room for one more.
func (t *table[K, V]) own() {
	size := max(16, 1<<bits.Len(uint(t.n/2)))
	switch {
	case size > len(t.dir):
		old := t.dir
		t.dir = make([]*link[K, V], size)
		for _, l := range old {
			for ; l != nil; l = l.next {
				i := t.at(l.hash)
				t.dir[i] = &link[K, V]{l.key, l.hash, l.val, t.dir[i]}
			}
		}
	case !t.owned:
		t.dir = append([]*link[K, V](nil), t.dir...)
	}
	t.owned = true
}

// set adds or replaces.
func (t *table[K, V]) set(hash uint32, key K, val V) {
	t.delete(hash, key)
	t.own()
	i := t.at(hash)
	t.dir[i] = &link[K, V]{key, hash, val, t.dir[i]}
	t.n++
}

func (t *table[K, V]) delete(hash uint32, key K) {
	if _, ok := t.get(hash, key); !ok {
		return
	}
	t.own()
	i := t.at(hash)
	var kept *link[K, V]
	for l := t.dir[i]; l != nil; l = l.next {
		if l.key != key {
			kept = &link[K, V]{l.key, l.hash, l.val, kept}
		}
	}
	t.dir[i] = kept
	t.n--
}

// values are all of them, in no order.
func (t *table[K, V]) values() []V {
	vs := make([]V, 0, t.n)
	for _, l := range t.dir {
		for ; l != nil; l = l.next {
			vs = append(vs, l.val)
		}
	}
	return vs
}
