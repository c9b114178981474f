package simtest

import (
	"bytes"
	"time"

	"github.com/kvxfer/kvxfer/internal/wire"
)

// Transfer is a push or a pull and what the client that began it heard of it.
type Transfer struct {
	Client   *Client
	ID       uint64
	Name     string // its transfer id, which the other side's events name
	Blocks   []uint32
	Deadline time.Time
	Source   [][]byte // of a push: the blocks' bytes when it began
	Offer    *Lease   // of a pull: what it reads under

	Ends       int
	End        wire.TransferEvent
	EndedAt    time.Time
	Released   int // times that its blocks were given back
	ReleasedAt time.Time
	cache      uint64
	begun      bool // the call that began it has returned
}

// Push starts a transfer of blocks, layer by layer.
func (c *Client) Push(ticket string, timeout time.Duration, blocks ...uint32) (*Transfer, error) {
	var src [][]byte
	c.Locked(func() { src = c.copies(blocks) })
	if l := c.w.lease(ticket); l != nil {
		l.Client.Locked(func() { l.expect = src })
	}
	deadline := time.Now().Add(timeout)
	info, err := c.Node.Engine.Push(c.ID, wire.PushRequest{Cache: c.Cache, Ticket: ticket, TimeoutMillis: timeout.Milliseconds(), Layerwise: true}, blocks)
	if err != nil {
		return nil, err
	}
	return c.began(info, Transfer{Blocks: blocks, Deadline: deadline, Source: src}), nil
}

// Pull starts a transfer of an offer's blocks to own ones, whose images end here and begin again when the engine gives
// them back: with what it brought, or with the owner's own bytes.
func (c *Client) Pull(ticket string, timeout time.Duration, note []byte, blocks ...uint32) (*Transfer, error) {
	c.Locked(func() { c.giveAway(blocks) })
	deadline := time.Now().Add(timeout)
	info, err := c.Node.Engine.Pull(c.ID, wire.PullRequest{Cache: c.Cache, Ticket: ticket, TimeoutMillis: timeout.Milliseconds(), Notification: note}, blocks)
	if err != nil {
		c.Locked(func() {
			for _, b := range blocks {
				c.images[b] = c.Block(b)
			}
		})
		return nil, err
	}
	return c.began(info, Transfer{Blocks: blocks, Deadline: deadline, Offer: c.w.lease(ticket)}), nil
}

// began completes the record of a transfer, some events of which may be noted already.
func (c *Client) began(info wire.PushInfo, x Transfer) *Transfer {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.transfer(info.Transfer)
	p.Name, p.Blocks, p.Deadline, p.Source, p.Offer, p.cache, p.begun = info.TransferID, x.Blocks, x.Deadline, x.Source, x.Offer, c.Cache, true
	if p.Released > 0 {
		c.reuse(p)
	}
	return p
}

// Layer hands a layer over.
func (p *Transfer) Layer(layer uint32) {
	p.Client.Node.Engine.PushLayer(p.Client.ID, wire.LayerPart{Transfer: p.ID, Layer: layer})
}

// All hands every layer over and finishes.
func (p *Transfer) All() {
	for layer := range p.Client.Spec.Layout.Layers {
		p.Layer(layer)
	}
	p.Finish(nil)
}

// Finish says that everything was handed over.
func (p *Transfer) Finish(note []byte) {
	p.Client.Node.Engine.PushFinish(p.Client.ID, p.ID, note)
}

// Cancel ends it early.
func (p *Transfer) Cancel() { p.Client.Node.Engine.CancelTransfer(p.Client.ID, p.ID) }

// transfer finds a record or makes it.
func (c *Client) transfer(id uint64) *Transfer {
	if c.transfers[id] == nil {
		c.transfers[id] = &Transfer{Client: c, ID: id}
	}
	return c.transfers[id]
}

// Prepared implements xfer.Sink.
func (c *Client) Prepared(wire.PreparedEvent) {}

// TransferEnded implements xfer.Sink.
func (c *Client) TransferEnded(ev wire.TransferEvent) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost {
		return
	}
	p := c.transfer(ev.Transfer)
	p.End, p.EndedAt = ev, time.Now()
	p.Ends++
	if ev.Released {
		c.released(p)
	}
}

// Released implements xfer.Sink.
func (c *Client) Released(r wire.Released) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost {
		return
	}
	c.released(c.transfer(r.Transfer))
}

func (c *Client) released(p *Transfer) {
	p.Released++
	p.ReleasedAt = time.Now()
	if p.begun {
		c.reuse(p)
	}
}

// reuse writes other bytes into the blocks of a transfer at the moment that they are the client's again: what is sent of
// a source from now on is not what was pushed, and what still lands of a pull that failed is seen. Of a pull that ended
// well the blocks must hold what its source held.
func (c *Client) reuse(p *Transfer) {
	if c.gone { // unmapped has given every block its image
		return
	}
	for i, b := range p.Blocks {
		if p.Offer == nil {
			c.scribble(b, givenBack)
			continue
		}
		c.readLate(b)
		if p.End.Error != nil {
			c.scribble(b, 0)
			continue
		}
		if !bytes.Equal(p.Offer.Held[i], c.Block(b)) {
			c.w.T.Errorf("a pull to block %d of %s ended well without what its source held", b, c.Spec.Name)
		}
		c.images[b] = c.Block(b)
		if p.cache == c.Cache && !c.dropped {
			c.generations[b] = p.End.Generation
		}
	}
}
