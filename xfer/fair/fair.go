package fair

// Source is who has operations to post.
type Source interface {
	// Next is the cost of the source's next operation, 0 while there is none.
	Next() uint64
	// Left is the cost of all that the source has to move yet, ready or not. It decides the class.
	Left() uint64
}

// Class is a size class.
type Class uint8

// The classes.
const (
	Small Class = iota
	Large
	classes
)

// Limits are costs, but where they count operations. All are at least 1.
type Limits struct {
	Quantum uint64 // what a client, and a source inside its class, gets in a turn
	Small   uint64 // a source with at most so much left is small
	Window  uint64 // in flight in all; an operation that is larger is taken when nothing is in flight
	Bulk    uint64 // in flight of large sources, above which none of theirs is picked
	Ops     int    // operations in flight
	BulkOps int    // of large sources
	Share   uint64 // what small sources of a client get for each 1 of a large one that waits
}

// Flight is an operation in flight.
type Flight struct {
	Cost  uint64
	Class Class
}

// Queue is the sources of a link. It is for one goroutine at a time.
type Queue[K comparable] struct {
	lim     Limits
	clients map[K]*client[K]
	turn    ring[*client[K]] // those with a source that is ready
	ready   [classes]int     // sources
	flying  [classes]uint64
	ops     [classes]int
}

// client is what is known of one while it has sources.
type client[K comparable] struct {
	key     K
	sources int
	deficit int64
	ahead   int64 // what small sources have had beyond their share while a large one waited
	node    node[*client[K]]
	turn    [classes]ring[*Flow[K]]
}

// Flow is a source's place in a queue. It must not be copied while it is joined.
type Flow[K comparable] struct {
	source  Source
	client  *client[K]
	class   Class
	deficit int64
	node    node[*Flow[K]]
}

// New makes a queue.
func New[K comparable](lim Limits) *Queue[K] {
	return &Queue[K]{lim: lim, clients: map[K]*client[K]{}}
}

// Join makes a source known; f is where it stands from then on. It is not ready before Update.
func (q *Queue[K]) Join(f *Flow[K], key K, s Source) {
	c := q.clients[key]
	if c == nil {
		c = &client[K]{key: key}
		c.node.v = c
		q.clients[key] = c
	}
	c.sources++
	*f = Flow[K]{source: s, client: c}
	f.node.v = f
}

// Joined says whether the source is known.
func (f *Flow[K]) Joined() bool { return f.client != nil }

// Source is who joined with the flow.
func (f *Flow[K]) Source() Source { return f.source }

// Leave forgets a source. What it has in flight stays counted until Done.
func (q *Queue[K]) Leave(f *Flow[K]) {
	c := f.client
	q.unready(f)
	f.client = nil
	if c.sources--; c.sources == 0 {
		delete(q.clients, c.key)
	}
}

// Update looks at a source again: its Next or Left has changed.
func (q *Queue[K]) Update(f *Flow[K]) {
	class := Large
	if f.source.Left() <= q.lim.Small {
		class = Small
	}
	c, on := f.client, f.source.Next() > 0
	switch {
	case f.node.in && !on:
		q.unready(f)
	case f.node.in && class != f.class: // its client stays where it is
		c.turn[f.class].remove(&f.node)
		q.ready[f.class]--
		q.ready[class]++
		f.class = class
		c.turn[class].push(&f.node)
		c.settle()
	case !f.node.in && on:
		f.class, f.deficit = class, entering(f.deficit, q.lim.Quantum)
		c.turn[class].push(&f.node)
		q.ready[class]++
		if !c.node.in {
			c.deficit = entering(c.deficit, q.lim.Quantum)
			q.turn.push(&c.node)
		}
	}
}

// entering is the deficit of one that becomes ready: a quantum, as those have who wait for their turn, less what it owes.
func entering(deficit int64, quantum uint64) int64 {
	return min(deficit+int64(quantum), int64(quantum))
}

func (q *Queue[K]) unready(f *Flow[K]) {
	if !f.node.in {
		return
	}
	c := f.client
	c.turn[f.class].remove(&f.node)
	q.ready[f.class]--
	if c.turn[Small].n+c.turn[Large].n == 0 {
		q.turn.remove(&c.node)
	}
	c.settle()
}

// settle forgets what small sources owe large ones where there are none.
func (c *client[K]) settle() {
	if c.turn[Large].n == 0 {
		c.ahead = 0
	}
}

// Pick chooses whose next operation is to be posted and counts it as in flight; nil: none is ready, or none fits. The caller takes
// the operation from the source and calls Update, and Done when the operation has ended.
func (q *Queue[K]) Pick() (*Flow[K], Flight) {
	flying, ops := q.flying[Small]+q.flying[Large], q.ops[Small]+q.ops[Large]
	bulk := q.ops[Large] == 0 || q.flying[Large] < q.lim.Bulk && q.ops[Large] < q.lim.BulkOps
	if q.ready[Small] == 0 && (q.ready[Large] == 0 || !bulk) || ops > 0 && ops >= q.lim.Ops {
		return nil, Flight{}
	}
	c := q.chooseClient(bulk)
	class := c.choose(bulk, q.lim.Quantum)
	f := chooseFlow(&c.turn[class], q.lim.Quantum)
	cost := f.source.Next()
	if ops > 0 && flying+cost > q.lim.Window { // nobody goes before: else what is small enough would pass it for ever
		return nil, Flight{}
	}
	c.deficit -= int64(cost)
	f.deficit -= int64(cost)
	switch {
	case class == Large:
		give := int64(q.lim.Share * cost)
		c.ahead = max(c.ahead-give, -give)
	case bulk && c.turn[Large].n > 0:
		c.ahead += int64(cost)
	}
	q.flying[class] += cost
	q.ops[class]++
	return f, Flight{cost, class}
}

// Done says that an operation is in flight no more.
func (q *Queue[K]) Done(f Flight) {
	q.flying[f.Class] -= f.Cost
	q.ops[f.Class]--
}

// Undo takes back a Pick whose operation was not posted after all.
func (q *Queue[K]) Undo(f *Flow[K], fl Flight) {
	f.deficit += int64(fl.Cost)
	f.client.deficit += int64(fl.Cost)
	q.Done(fl)
}

// Flying is how many operations are in flight, and their cost, of both classes.
func (q *Queue[K]) Flying() (ops int, cost uint64) {
	return q.ops[Small] + q.ops[Large], q.flying[Small] + q.flying[Large]
}

// chooseClient finds the client whose turn it is. Those that have only large sources are passed over, and keep their turn, while
// these may not post. One that may is there.
func (q *Queue[K]) chooseClient(bulk bool) *client[K] {
	for n := q.turn.first; ; {
		c := n.v
		next := q.turn.after(n)
		switch {
		case !bulk && c.turn[Small].n == 0:
		case c.deficit > 0:
			return c
		default:
			c.deficit += int64(q.lim.Quantum)
			q.turn.toBack(n)
		}
		n = next
	}
}

// choose says which class of a client posts.
func (c *client[K]) choose(bulk bool, burst uint64) Class {
	switch {
	case c.turn[Small].n == 0:
		return Large
	case c.turn[Large].n == 0 || !bulk || c.ahead < int64(burst):
		return Small
	}
	return Large
}

func chooseFlow[K comparable](turn *ring[*Flow[K]], quantum uint64) *Flow[K] {
	for {
		f := turn.first.v
		if f.deficit > 0 {
			return f
		}
		f.deficit += int64(quantum)
		turn.toBack(&f.node)
	}
}
