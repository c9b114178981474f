package fair

// ring is a list of those that take turns, linked through nodes that they bring.
type ring[T any] struct {
	first, last *node[T]
	n           int
}

type node[T any] struct {
	v          T
	prev, next *node[T]
	in         bool
}

func (r *ring[T]) push(n *node[T]) {
	n.prev, n.next, n.in = r.last, nil, true
	if r.last == nil {
		r.first = n
	} else {
		r.last.next = n
	}
	r.last = n
	r.n++
}

func (r *ring[T]) remove(n *node[T]) {
	if n.prev == nil {
		r.first = n.next
	} else {
		n.prev.next = n.next
	}
	if n.next == nil {
		r.last = n.prev
	} else {
		n.next.prev = n.prev
	}
	n.prev, n.next, n.in = nil, nil, false
	r.n--
}

func (r *ring[T]) toBack(n *node[T]) {
	if r.last != n {
		r.remove(n)
		r.push(n)
	}
}

// after is the next one in turn, around the end.
func (r *ring[T]) after(n *node[T]) *node[T] {
	if n.next == nil {
		return r.first
	}
	return n.next
}
