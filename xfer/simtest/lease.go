package simtest

import (
	"bytes"
	"context"
	"slices"
	"testing"
	"time"

	"github.com/kvxfer/kvxfer/internal/wire"
)

// Lease is a lease, for one writer or for readers, and what its owner heard of it. Read it when it has ended, or with
// Client.Locked.
type Lease struct {
	Client   *Client
	ID       uint64
	Ticket   string
	Blocks   []uint32
	Deadline time.Time // on the bubble's clock; Renew moves it
	Held     [][]byte  // of a read lease: the blocks' bytes, which stay as they are until it ends

	Layers  []uint32
	Holders []Holder // of a read lease
	Ends    int      // events that ended it
	End     wire.LeaseEvent
	Note    []byte
	EndedAt time.Time
	Brought [][]byte // the blocks' bytes at that moment, of a commit
	expect  [][]byte // the source's, as far as it is known
}

// Holder is the end of one transfer under a read lease or an advertisement, as its owner heard of it.
type Holder struct {
	Event wire.HolderEvent
	Note  []byte
}

// addHolder notes a holder's end; ends is how often its permission has ended already.
func addHolder(t testing.TB, list []Holder, ends int, ev wire.HolderEvent, note []byte) []Holder {
	if ends > 0 {
		t.Errorf("a holder of permission %d ended after it", ev.Lease)
	}
	if slices.ContainsFunc(list, func(h Holder) bool { return h.Event.TransferID == ev.TransferID }) {
		t.Errorf("transfer %s ended twice as a holder of permission %d", ev.TransferID, ev.Lease)
	}
	if ev.Error != nil && note != nil {
		t.Errorf("transfer %s failed and has a notification", ev.TransferID)
	}
	return append(list, Holder{ev, note})
}

// Lease takes a write lease on blocks, whose images end here.
func (c *Client) Lease(ttl time.Duration, blocks ...uint32) (*Lease, error) {
	c.Locked(func() { c.giveAway(blocks) })
	return c.grant(wire.LeaseRequest{Mode: wire.ModeWrite}, ttl, blocks, nil)
}

// Offer takes a read lease for so many readers. Nobody changes the blocks until it ends; at its end, which its last
// instant is too, the owner writes bytes into them that no reader may ever get. No other lease or transfer may name them.
func (c *Client) Offer(ttl time.Duration, readers uint32, blocks ...uint32) (*Lease, error) {
	var held [][]byte
	c.Locked(func() { held = c.copies(blocks) })
	return c.grant(wire.LeaseRequest{Mode: wire.ModeRead, Readers: readers}, ttl, blocks, held)
}

// giveAway ends the images of blocks that a peer may write from here on. The caller holds c.mu.
func (c *Client) giveAway(blocks []uint32) {
	for _, b := range blocks {
		c.check(b)
		c.fresh(b)
		delete(c.images, b)
		delete(c.generations, b)
	}
}

// copies returns the bytes of blocks that a peer may get. The caller holds c.mu.
func (c *Client) copies(blocks []uint32) [][]byte {
	out := make([][]byte, len(blocks))
	for i, b := range blocks {
		c.check(b)
		c.fresh(b)
		out[i] = c.Block(b)
	}
	return out
}

func (c *Client) grant(r wire.LeaseRequest, ttl time.Duration, blocks []uint32, held [][]byte) (*Lease, error) {
	r.Cache, r.TTLMillis = c.Cache, ttl.Milliseconds()
	deadline := time.Now().Add(ttl)
	info, err := c.Node.Engine.Lease(context.Background(), c.ID, r, blocks)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.lease(info.Lease)
	l.Ticket, l.Blocks, l.Held = info.Ticket, blocks, held
	c.w.mu.Lock()
	c.w.tickets[l.Ticket] = l
	c.w.mu.Unlock()
	c.until(l, deadline)
	if l.Ends > 0 { // its end came first
		c.takeBack(l)
	}
	return l, nil
}

// until sets a lease's last instant. The caller holds c.mu.
func (c *Client) until(l *Lease, deadline time.Time) {
	l.Deadline = deadline
	time.AfterFunc(time.Until(deadline), func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if l.Deadline.Equal(deadline) { // it was not renewed since
			c.over(l)
		}
	})
}

// over is a lease's last instant: from here on no byte lands or is read, whether its end is known yet or not.
func (c *Client) over(l *Lease) {
	if l.Ends > 0 || c.lost || c.gone {
		return
	}
	for _, b := range l.Blocks {
		if l.Held != nil {
			c.check(b)
			c.scribble(b, givenBack)
			continue
		}
		c.images[b] = c.Block(b)
	}
}

// Renew moves the lease's end to ttl from now. What has ended, or whose time is over, must not come back to life.
func (l *Lease) Renew(ttl time.Duration) error {
	c := l.Client
	var dead bool
	c.Locked(func() { dead = l.Ends > 0 || !time.Now().Before(l.Deadline) })
	err := c.Node.Engine.Renew(c.ID, wire.Renew{Lease: l.ID, TTLMillis: ttl.Milliseconds()})
	if err != nil {
		return err
	}
	if dead {
		c.w.T.Errorf("a renewal revived lease %d of %s", l.ID, c.Spec.Name)
	}
	c.Locked(func() { c.until(l, time.Now().Add(ttl)) })
	return nil
}

// Revoke takes the lease back.
func (l *Lease) Revoke() error { return l.Client.Node.Engine.Revoke(l.Client.ID, l.ID) }

// Evict takes blocks back from every peer. The owner uses them as soon as it has returned.
func (c *Client) Evict(blocks ...uint32) error {
	if err := c.Node.Engine.Evict(context.Background(), c.ID, c.Cache, blocks); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range c.leases {
		if l.Ends == 0 && slices.ContainsFunc(l.Blocks, func(b uint32) bool { return slices.Contains(blocks, b) }) {
			c.w.T.Errorf("blocks of %s were evicted before the end of lease %d on them was told", c.Spec.Name, l.ID)
		}
	}
	for _, b := range blocks {
		c.check(b)
		c.scribble(b, givenBack)
	}
	return nil
}

// lease finds a record or makes it, since an event may come before the call that began it has returned.
func (c *Client) lease(id uint64) *Lease {
	if c.leases[id] == nil {
		c.leases[id] = &Lease{Client: c, ID: id}
	}
	return c.leases[id]
}

// LayersVisible implements xfer.Sink.
func (c *Client) LayersVisible(v wire.LayersVisible) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost {
		return
	}
	l := c.lease(v.Lease)
	l.Layers = append(l.Layers, v.Layers...)
	for i, want := range l.expect {
		for _, layer := range v.Layers {
			if !bytes.Equal(c.layerOf(want, layer), c.layerOf(c.Block(l.Blocks[i]), layer)) {
				c.w.T.Errorf("layer %d of %s was reported before its bytes were there", layer, c.Spec.Name)
			}
		}
	}
}

// HolderEnded implements xfer.Sink.
func (c *Client) HolderEnded(ev wire.HolderEvent, note []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost {
		return
	}
	l := c.lease(ev.Lease)
	l.Holders = addHolder(c.w.T, l.Holders, l.Ends, ev, note)
}

// LeaseEnded implements xfer.Sink. The owner uses its blocks at this very moment.
func (c *Client) LeaseEnded(ev wire.LeaseEvent, note []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost {
		return
	}
	l := c.lease(ev.Lease)
	l.End, l.Note, l.EndedAt = ev, note, time.Now()
	l.Ends++
	for _, b := range l.Blocks {
		c.check(b) // of a lease whose time was over already, and of a read lease
	}
	c.takeBack(l)
}

// takeBack gives the blocks of an ended lease their image.
func (c *Client) takeBack(l *Lease) {
	for _, b := range l.Blocks {
		if l.Held != nil {
			c.scribble(b, givenBack)
			continue
		}
		c.readLate(b)
		if l.End.Error == nil {
			c.images[b], c.generations[b] = c.Block(b), l.End.Generation
			l.Brought = append(l.Brought, c.images[b])
		} else {
			c.scribble(b, 0)
		}
	}
}
