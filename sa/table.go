package sa

// table is a hash table whose versions share what did not change: a copy of the struct is a version, and set and delete make
// a new one without touching the others. What an update copies is one page, and once per transaction the list of pages.
//
// The hash is the caller's, so that the packet path pays for no indirect call.
type table[K comparable, V any] struct {
	pages []*page[K, V] // a power of two of them, or none; nil: empty
	n     int
	owned bool // pages, the slice, belongs to this version alone
}

const pageLen = 64

// page is the heads of chains. Neither it nor they change once they are in a table.
type page[K comparable, V any] [pageLen]*link[K, V]

type link[K comparable, V any] struct {
	key  K
	hash uint32
	val  V
	next *link[K, V]
}

// at is where a hash belongs.
func (t *table[K, V]) at(hash uint32) (page, head int) {
	return int(hash/pageLen) & (len(t.pages) - 1), int(hash % pageLen)
}

func (t *table[K, V]) get(hash uint32, key K) (val V, ok bool) {
	if len(t.pages) == 0 {
		return val, false
	}
	p, i := t.at(hash)
	if t.pages[p] == nil {
		return val, false
	}
	for l := t.pages[p][i]; l != nil; l = l.next {
		if l.key == key {
			return l.val, true
		}
	}
	return val, false
}

// own makes the list of pages this version's, with room for one more entry: chains have two links on average, at most.
func (t *table[K, V]) own() {
	switch {
	case t.n >= 2*pageLen*len(t.pages):
		old := t.pages
		t.pages = make([]*page[K, V], max(1, 2*len(old)))
		for l := range links(old) {
			p, i := t.at(l.hash)
			if t.pages[p] == nil {
				t.pages[p] = new(page[K, V])
			}
			t.pages[p][i] = &link[K, V]{l.key, l.hash, l.val, t.pages[p][i]}
		}
	case !t.owned:
		t.pages = append([]*page[K, V](nil), t.pages...)
	}
	t.owned = true
}

// head gives the head of a chain in a page that no other version has.
func (t *table[K, V]) head(hash uint32) **link[K, V] {
	p, i := t.at(hash)
	copied := new(page[K, V])
	if t.pages[p] != nil {
		*copied = *t.pages[p]
	}
	t.pages[p] = copied
	return &copied[i]
}

// set adds or replaces.
func (t *table[K, V]) set(hash uint32, key K, val V) {
	t.delete(hash, key)
	t.own()
	head := t.head(hash)
	*head = &link[K, V]{key, hash, val, *head}
	t.n++
}

func (t *table[K, V]) delete(hash uint32, key K) {
	if _, ok := t.get(hash, key); !ok {
		return
	}
	t.own()
	head := t.head(hash)
	var kept *link[K, V]
	for l := *head; l != nil; l = l.next {
		if l.key != key {
			kept = &link[K, V]{l.key, l.hash, l.val, kept}
		}
	}
	*head = kept
	t.n--
}

// values are all of them, in no order.
func (t *table[K, V]) values() []V {
	vs := make([]V, 0, t.n)
	for l := range links(t.pages) {
		vs = append(vs, l.val)
	}
	return vs
}

func links[K comparable, V any](pages []*page[K, V]) func(func(*link[K, V]) bool) {
	return func(yield func(*link[K, V]) bool) {
		for _, p := range pages {
			if p == nil {
				continue
			}
			for _, l := range p {
				for ; l != nil; l = l.next {
					if !yield(l) {
						return
					}
				}
			}
		}
	}
}
