package localapi

import (
	"sync"
	"sync/atomic"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/ring"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/xfer"
)

// ringFDs is how many descriptors come with RING: the memory, the doorbell, the client's bell.
const ringFDs = 3

// ringServer takes posts out of a client's ring, on a goroutine of its own. It sleeps when there is nothing to do.
type ringServer struct {
	mu   sync.Mutex
	d    *ring.Daemon
	stop atomic.Bool
	done sync.WaitGroup
}

// openRing takes a ring over; a client has one.
func (c *client) openRing(r *request) error {
	var q wire.Ring
	if err := decode(r, &q); err != nil {
		closeAll(r.fds)
		return err
	}
	s := &c.ring
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.d != nil {
		closeAll(r.fds)
		return fault.New(fault.AlreadyExists, "ring", "the client has a ring")
	}
	if !ring.Usable() {
		closeAll(r.fds)
		return fault.New(fault.NotSupported, "ring", "this hardware has no total store order: post over the socket")
	}
	d, err := ring.Open(r.fds[0], r.fds[1], r.fds[2], q.Entries)
	if err != nil {
		return err
	}
	s.d = d
	posting := c.s.o.Engine.NewPosting(c.id, func(x wire.Posted) { d.Complete(x) })
	s.done.Go(func() {
		if err := serveRing(d, posting, &s.stop); err != nil {
			c.end(ending{err: err, tell: true})
		}
	})
	return nil
}

const (
	// ringBatch is how many posts are copied out at a time.
	ringBatch = 64
	// ringRun is how many times in a row posts may be found before completions are looked for: a client that always has a next
	// post, which end at once, must not hold up those that run, nor others' operations on the sessions that are attached.
	ringRun = 8
)

// serveRing runs posts until stop, or until the client breaks the ring.
func serveRing(d *ring.Daemon, g xfer.Poster, stop *atomic.Bool) error {
	var spin ring.Spin
	posts := make([]wire.Post, ringBatch)
	found := func() bool { return d.Waiting() || stop.Load() }
	fetched := func() bool { return g.Progress() > 0 }
	defer g.Rest()
	for run := 0; !stop.Load(); {
		n, err := d.Take(posts)
		if err != nil {
			return err
		}
		for _, x := range posts[:n] {
			if stop.Load() { // nobody is there to hear of the others, and their memory is to be given back
				return nil
			}
			g.Post(x)
		}
		if n > 0 {
			if run++; run%ringRun == 0 {
				g.Progress()
			}
			continue
		}
		if spin.Until(found, fetched) {
			continue
		}
		g.Rest()
		d.Sleep(-1)
	}
	return nil
}

// close ends the ring; posts that run end with the client.
func (s *ringServer) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.d == nil {
		return
	}
	s.stop.Store(true)
	s.d.Ring()
	s.done.Wait()
	s.d.Close()
}

// post runs posts that came over the socket; what is wrong with one is told with its end.
func (c *client) post(array []byte) error {
	posts, err := wire.Posts(array)
	if err != nil {
		return err
	}
	if c.posting == nil {
		c.posting = c.s.o.Engine.NewPosting(c.id, func(x wire.Posted) { c.out.posted(x) })
	}
	for _, x := range posts {
		c.posting.Post(x)
	}
	c.posting.Rest() // the reader sleeps in the socket, not in Progress
	return nil
}

// posted queues the end of a post; it is packed in place.
func (q *outQueue) posted(x wire.Posted) {
	q.append(wire.HeaderSize+wire.PostedSize, func(b []byte) []byte {
		n := len(b)
		b = append(b, make([]byte, wire.HeaderSize)...)
		wire.PutHeader(b[n:], wire.Header{Kind: wire.KindEventPosted, Array: wire.PostedSize})
		return wire.AppendPosted(b, x)
	})
}
