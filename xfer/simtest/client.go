package simtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"

	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/xfer"
	"github.com/kvxfer/kvxfer/xfer/layout"
)

// Small is a layout of 3 layers whose piece is 512 bytes, four packets of the default size.
var Small = layout.Layout{Layers: 3, KVHeads: 2, HeadDim: 8, DType: "float32", BlockTokens: 4, Order: layout.HND, TPSize: 1}

// Client is an attached process with one cache. It implements xfer.Sink.
type Client struct {
	Node  *Node
	ID    xfer.ClientID
	Cache uint64
	Spec  wire.RegisterCache
	w     *World
	mem   *memory
	geo   layout.Geometry

	mu          sync.Mutex
	dropped     bool
	rng         *rand.Rand // of patterns
	leases      map[uint64]*Lease
	transfers   map[uint64]*Transfer
	images      map[uint32][]byte // what blocks must hold until they are leased again
	generations map[uint32]uint64 // of committed blocks as they are
	gone        bool              // the engine has given the memory up
	lost        bool              // its daemon died
	heir        bool              // the memory is that of a lost client
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
		leases: map[uint64]*Lease{}, transfers: map[uint64]*Transfer{}, images: map[uint32][]byte{}, generations: map[uint32]uint64{}}
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
	c.w.attached = append(c.w.attached, c)
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
	c.Locked(func() { c.Cache = info.Cache })
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

// Lost says whether the client's daemon died; none of its leases and transfers will say more.
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
	c.Locked(func() { c.Cache, c.dropped = info.Cache, false })
}

// Drop ends the cache; its blocks keep their images, but the daemon forgets that they were committed.
func (c *Client) Drop() error {
	c.Locked(func() { c.dropped = true })
	err := c.Node.Engine.DropCache(context.Background(), c.ID, c.Cache)
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.generations)
	return err
}

// Dropped says whether the cache is gone and was not declared again.
func (c *Client) Dropped() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dropped
}

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

// node, name and free implement attached.
func (c *Client) node() *Node  { return c.Node }
func (c *Client) name() string { return c.Spec.Name }
func (c *Client) free() {
	if !c.heir {
		c.mem.free()
	}
}

// Granted implements xfer.Sink; no cache of a world is an instance's rank.
func (c *Client) Granted(ev wire.GrantedEvent, _ []uint32) {
	c.w.T.Errorf("lease %s on %s, which is no instance's rank", ev.LeaseID, c.Spec.Name)
}
