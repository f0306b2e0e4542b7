package server

// list is what a dump walks: newest first, as the kernel lists, and with places in it that stay valid whatever comes and goes.
// It is a ring of nodes.
type list[T any] struct {
	root node[T]
	n    int
}

// node is an entry or, without one, the place of a dump.
type node[T any] struct {
	entry      *T
	prev, next *node[T]
}

func (l *list[T]) init() { l.root.prev, l.root.next = &l.root, &l.root }

// push puts a node in front.
func (l *list[T]) push(n *node[T]) {
	l.insert(n, &l.root)
	l.n++
}

func (l *list[T]) insert(n, after *node[T]) {
	n.prev, n.next = after, after.next
	n.prev.next, n.next.prev = n, n
}

// remove takes an entry out.
func (l *list[T]) remove(n *node[T]) {
	n.unlink()
	l.n--
}

func (n *node[T]) unlink() {
	n.prev.next, n.next.prev = n.next, n.prev
	n.prev, n.next = nil, nil
}

// all yields the entries; the one that is yielded may be removed meanwhile.
func (l *list[T]) all(yield func(*T) bool) {
	for n := l.root.next; n != &l.root; {
		next := n.next
		if n.entry != nil && !yield(n.entry) {
			return
		}
		n = next
	}
}

// cursor is the place of a dump: in front of the next entry that it gives.
type cursor[T any] struct {
	l *list[T]
	n node[T]
}

func (l *list[T]) start() *cursor[T] {
	c := &cursor[T]{l: l}
	l.insert(&c.n, &l.root)
	return c
}

// next gives entries until yield refuses one, which comes again. It reports whether that was all of them.
func (c *cursor[T]) next(yield func(*T) bool) bool {
	n := c.n.next
	for n != &c.l.root {
		if n.entry != nil && !yield(n.entry) {
			before := n.prev
			if before != &c.n {
				c.n.unlink()
				c.l.insert(&c.n, before)
			}
			return false
		}
		n = n.next
	}
	return true
}

// close gives the place up.
func (c *cursor[T]) close() {
	if c.n.next != nil {
		c.n.unlink()
	}
}
