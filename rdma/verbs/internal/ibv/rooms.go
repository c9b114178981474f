package ibv

// queueEntries is the size of a completion queue where the device allows it.
const queueEntries = 4096

// rooms hands out the entries of completion queues of one kind. A queue is never destroyed before the device is closed: queue
// pairs come and go, and an empty queue costs a look into memory.
type rooms struct {
	entries int // a new queue's
	queues  []room
}

type room struct {
	index      int // among the device's queues
	size, used int
}

// take finds a queue with n free entries, or says that one of at least that size must be added.
func (r *rooms) take(n int) (index int, ok bool) {
	for i := range r.queues {
		if q := &r.queues[i]; q.size-q.used >= n {
			q.used += n
			return q.index, true
		}
	}
	return 0, false
}

func (r *rooms) add(index, size int) { r.queues = append(r.queues, room{index: index, size: size}) }

// give returns what take gave. The queue must hold no entry of its user any more.
func (r *rooms) give(index, n int) {
	for i := range r.queues {
		if r.queues[i].index == index {
			r.queues[i].used -= n
		}
	}
}
