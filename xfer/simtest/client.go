package simtest

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/xfer"
	"github.com/kvxfer/kvxfer/xfer/layout"
)

// Small is a layout of 3 layers whose piece is 512 bytes, four packets of the default size.
var Small = layout.Layout{Layers: 3, KVHeads: 2, HeadDim: 8, DType: "float32", BlockTokens: 4, Order: layout.HND, TPSize: 1}

// Client is an attached process with one cache. It implements xfer.Sink.
type Client struct {
	Node    *Node
	ID      xfer.ClientID
	Cache   uint64
	Spec    wire.RegisterCache
	w       *World
	mem     *memory
	geo     layout.Geometry
	dropped bool // of the goroutine that calls

	mu          sync.Mutex
	rng         *rand.Rand // of patterns
	leases      map[uint64]*Lease
	pushes      map[uint64]*Push
	images      map[uint32][]byte // what blocks must hold until they are leased again
	generations map[uint32]uint64 // of committed blocks as they are
	gone        bool              // the engine has given the memory up
	lost        bool              // its daemon died
	heir        bool              // the memory is that of a lost client
}

// Lease is a lease and what its owner heard of it. Read it when it has ended, or with Client.Locked.
type Lease struct {
	Client   *Client
	ID       uint64
	Ticket   string
	Blocks   []uint32
	Deadline time.Time // on the bubble's clock

	Layers  []uint32
	Ends    int // events that ended it
	End     wire.LeaseEvent
	Note    []byte
	EndedAt time.Time
	Brought [][]byte // the blocks' bytes at that moment, of a commit
	expect  [][]byte // the source's, as far as it is known
}

// Push is a transfer and what its source heard of it.
type Push struct {
	Client   *Client
	ID       uint64
	Blocks   []uint32
	Deadline time.Time
	Source   [][]byte // the blocks' bytes when it began

	Ends       int
	End        wire.TransferEvent
	EndedAt    time.Time
	Released   int // times that its blocks were given back
	ReleasedAt time.Time
}

// Client attaches a process whose cache, named after it, has so many blocks of a layout, filled at random from the seed.
func (n *Node) Client(name string, l layout.Layout, blocks uint32, seed uint64) *Client {
	c := n.newClient(l, blocks, seed)
	mem, err := newMemory(c.geo.Bytes(), n.w.regions.Add(1), c.unmapped)
	if err != nil {
		n.w.T.Fatal(err)
	}
	c.mem = mem
	for b := range blocks {
		c.scribble(b, 0)
	}
	c.attach(name, nil)
	return c
}

func (n *Node) newClient(l layout.Layout, blocks uint32, seed uint64) *Client {
	return &Client{Node: n, w: n.w, geo: layout.Geometry{Layout: l, NumBlocks: blocks}, rng: rand.New(rand.NewPCG(seed, 2)),
		leases: map[uint64]*Lease{}, pushes: map[uint64]*Push{}, images: map[uint32][]byte{}, generations: map[uint32]uint64{}}
}

// attach registers client, region and cache; it returns the blocks that are served of those vouched for.
func (c *Client) attach(name string, vouched []wire.Vouch) (served []uint32) {
	e, t := c.Node.Engine, c.w.T
	t.Helper()
	var err error
	if c.ID, err = e.AddClient(xfer.ClientInfo{Tenant: "default", Process: name}, c); err != nil {
		t.Fatal(err)
	}
	c.w.mu.Lock()
	c.w.clients = append(c.w.clients, c)
	c.w.mu.Unlock()
	region, err := e.RegisterRegion(context.Background(), c.ID, wire.RegisterRegion{Name: name, ID: fmt.Sprintf("%032x", c.mem.ino), Kind: "memfd", Size: c.geo.Bytes()}, c.mem)
	if err != nil {
		t.Fatal(err)
	}
	c.Spec = wire.RegisterCache{Name: name, Region: region.Region, Model: "m", Revision: "1", Layout: c.geo.Layout, NumBlocks: c.geo.NumBlocks}
	info, served, err := e.RegisterCache(context.Background(), c.ID, c.Spec, vouched)
	if err != nil {
		t.Fatal(err)
	}
	c.Cache = info.Cache
	return served
}

// Reattach brings a lost client's process back to its restarted daemon: with its memory, and vouching for the committed
// blocks that it has not written since. It returns the new client, what it vouched for and what is served of it.
func (c *Client) Reattach(n *Node, seed uint64) (heir *Client, vouched, served []uint32) {
	heir = n.newClient(c.geo.Layout, c.geo.NumBlocks, seed)
	heir.heir = true
	heir.mem = &memory{bytes: c.mem.bytes, ino: c.mem.ino, onClose: heir.unmapped}
	var list []wire.Vouch
	for b := range c.geo.NumBlocks {
		g, ok := c.generations[b]
		if !ok { // torn or its own: the daemon is gone, so nobody writes there any more
			heir.scribble(b, 0)
			continue
		}
		heir.images[b], heir.generations[b] = c.images[b], g
		list, vouched = append(list, wire.Vouch{Block: b, Generation: g}), append(vouched, b)
	}
	return heir, vouched, heir.attach(c.Spec.Name, list)
}

// lose makes the client deaf.
func (c *Client) lose() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for b := range c.geo.NumBlocks {
		c.check(b)
	}
	c.lost = true
}

// Lost says whether the client's daemon died; none of its leases and pushes will say more.
func (c *Client) Lost() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lost
}

// RegisterCache declares the cache again after it was dropped.
func (c *Client) RegisterCache() {
	c.w.T.Helper()
	info, _, err := c.Node.Engine.RegisterCache(context.Background(), c.ID, c.Spec, nil)
	if err != nil {
		c.w.T.Fatal(err)
	}
	c.Cache, c.dropped = info.Cache, false
}

// Drop ends the cache; its blocks keep their images, but the daemon forgets that they were committed.
func (c *Client) Drop() error {
	c.dropped = true
	err := c.Node.Engine.DropCache(context.Background(), c.ID, c.Cache)
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.generations)
	return err
}

// Dropped says whether the cache is gone and was not declared again.
func (c *Client) Dropped() bool { return c.dropped }

// Lease takes a write lease on blocks, whose images end here.
func (c *Client) Lease(ttl time.Duration, blocks ...uint32) (*Lease, error) {
	c.mu.Lock()
	for _, b := range blocks {
		c.check(b)
		c.fresh(b)
		delete(c.images, b)
		delete(c.generations, b)
	}
	c.mu.Unlock()
	deadline := time.Now().Add(ttl)
	info, err := c.Node.Engine.Lease(context.Background(), c.ID, wire.LeaseRequest{Cache: c.Cache, Mode: "write", TTLMillis: ttl.Milliseconds()}, blocks)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.lease(info.Lease)
	l.Ticket, l.Blocks, l.Deadline = info.Ticket, blocks, deadline
	c.w.mu.Lock()
	c.w.tickets[l.Ticket] = l
	c.w.mu.Unlock()
	time.AfterFunc(ttl, func() { c.over(l) })
	if l.Ends > 0 { // its end came first
		c.takeBack(l)
	}
	return l, nil
}

// over is a lease's last instant: from here on no byte lands, whether its end is known yet or not.
func (c *Client) over(l *Lease) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l.Ends > 0 || c.lost || c.gone {
		return
	}
	for _, b := range l.Blocks {
		c.images[b] = c.Block(b)
	}
}

// Push starts a transfer of blocks, layer by layer.
func (c *Client) Push(ticket string, timeout time.Duration, blocks ...uint32) (*Push, error) {
	src := make([][]byte, len(blocks))
	c.mu.Lock()
	for i, b := range blocks {
		c.fresh(b)
		src[i] = c.Block(b)
	}
	c.mu.Unlock()
	c.w.mu.Lock()
	l := c.w.tickets[ticket]
	c.w.mu.Unlock()
	if l != nil {
		l.Client.Locked(func() { l.expect = src })
	}
	deadline := time.Now().Add(timeout)
	info, err := c.Node.Engine.Push(c.ID, wire.PushRequest{Cache: c.Cache, Ticket: ticket, TimeoutMillis: timeout.Milliseconds(), Layerwise: true}, blocks)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.push(info.Transfer)
	p.Blocks, p.Deadline, p.Source = blocks, deadline, src
	if p.Released > 0 {
		c.reuse(p)
	}
	return p, nil
}

// Layer hands a layer over.
func (p *Push) Layer(layer uint32) {
	p.Client.Node.Engine.PushLayer(p.Client.ID, wire.LayerPart{Transfer: p.ID, Layer: layer})
}

// All hands every layer over and finishes.
func (p *Push) All() {
	for layer := range p.Client.Spec.Layout.Layers {
		p.Layer(layer)
	}
	p.Finish(nil)
}

// Finish says that everything was handed over.
func (p *Push) Finish(note []byte) {
	p.Client.Node.Engine.PushFinish(p.Client.ID, p.ID, note)
}

// Cancel ends it early.
func (p *Push) Cancel() { p.Client.Node.Engine.CancelTransfer(p.Client.ID, p.ID) }

// Revoke takes the lease back.
func (l *Lease) Revoke() error { return l.Client.Node.Engine.Revoke(l.Client.ID, l.ID) }

// Kill ends the process. Its memory stays readable for the test, but counts as unmapped as soon as the engine says so.
func (c *Client) Kill() { c.Node.Engine.ClientGone(c.ID) }

// Unmapped says whether the engine has given the memory up.
func (c *Client) Unmapped() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.gone
}

// Locked runs f while no event is noted.
func (c *Client) Locked(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

// lease and push find a record or make it, since an event may come before the call that began it has returned.
func (c *Client) lease(id uint64) *Lease {
	if c.leases[id] == nil {
		c.leases[id] = &Lease{Client: c, ID: id}
	}
	return c.leases[id]
}

func (c *Client) push(id uint64) *Push {
	if c.pushes[id] == nil {
		c.pushes[id] = &Push{Client: c, ID: id}
	}
	return c.pushes[id]
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

// HolderEnded implements xfer.Sink; no client here gives read leases.
func (c *Client) HolderEnded(ev wire.HolderEvent, _ []byte) {
	c.w.T.Errorf("holder of lease %d of %s, which grants none", ev.Lease, c.Spec.Name)
}

// Granted implements xfer.Sink; no cache of a world is an instance's rank.
func (c *Client) Granted(ev wire.GrantedEvent, _ []uint32) {
	c.w.T.Errorf("lease %s on %s, which is no instance's rank", ev.LeaseID, c.Spec.Name)
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
		c.check(b) // of a lease whose time was over already
	}
	c.takeBack(l)
}

// TransferEnded implements xfer.Sink.
func (c *Client) TransferEnded(ev wire.TransferEvent) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost {
		return
	}
	p := c.push(ev.Transfer)
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
	c.released(c.push(r.Transfer))
}

func (c *Client) released(p *Push) {
	p.Released++
	p.ReleasedAt = time.Now()
	c.reuse(p)
}

// reuse writes other bytes into a source's blocks: what is sent from now on is not what was pushed.
func (c *Client) reuse(p *Push) {
	for _, b := range p.Blocks {
		c.scribble(b, givenBack)
	}
}

// takeBack gives the blocks of an ended lease their image.
func (c *Client) takeBack(l *Lease) {
	for _, b := range l.Blocks {
		if slices.ContainsFunc(c.Block(b), func(x byte) bool { return x&givenBack != 0 }) {
			c.w.T.Errorf("read too late: block %d of %s has bytes that its source's owner wrote after the source was released", b, c.Spec.Name)
		}
		if l.End.Error == nil {
			c.images[b], c.generations[b] = c.Block(b), l.End.Generation
			l.Brought = append(l.Brought, c.images[b])
		} else {
			c.scribble(b, 0)
		}
	}
}
