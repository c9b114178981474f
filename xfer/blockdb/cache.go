package blockdb

import (
	"maps"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// Cache is one attached cache. After Detach or Drop every method that can fails with Closed and nothing is served.
type Cache struct {
	db  *DB
	id  CacheID
	rec cacheRec

	attached bool
	records  bool // of version 1 are in the log

	// The mirror, one entry a block; guarded as DB says. See the package's doc for what it takes.
	state     []State
	gen       []uint64
	tag       []uint32 // of a COMMITTED block: the batch that says so; DB.tag: it is not written yet
	index     keyIndex
	dirty     []uint64 // by page: the log's page is not what the mirror has
	committed int
	leases    map[LeaseID]*lease
	byGen     map[uint64]*lease

	// stamp marks blocks during one step (wmu held), so that finding a repeated block allocates nothing.
	stamp  []uint32
	stampN uint32
}

type lease struct {
	leaseRec
	id     LeaseID
	cache  CacheID
	logged bool // its record is in the log or in the open batch
	at     int  // 1 + its place in DB.begun; 0: it is not in there
}

func newCache(d *DB, id CacheID, r cacheRec) *Cache {
	n := r.numBlocks
	return &Cache{db: d, id: id, rec: r, state: make([]State, n), gen: make([]uint64, n), tag: make([]uint32, n),
		dirty: make([]uint64, (pagesOf(n)+pageBlocks-1)/pageBlocks),
		stamp: make([]uint32, n), leases: map[LeaseID]*lease{}, byGen: map[uint64]*lease{}}
}

func (c *Cache) nextStamp() {
	c.stampN++
	if c.stampN == 0 {
		clear(c.stamp)
		c.stampN = 1
	}
}

func (c *Cache) stamped(block uint32) bool { return c.stamp[block] == c.stampN }

// The two changes of one block in the mirror.

func (c *Cache) enter(block uint32, gen uint64, tag uint32, key []byte) {
	if c.state[block] != Committed {
		c.committed++
	}
	c.state[block], c.gen[block], c.tag[block] = Committed, gen, tag
	c.soil(block)
	if len(key) > 0 || c.index.chunks != nil {
		c.index.set(block, key, c.rec.numBlocks)
	}
}

func (c *Cache) leave(block uint32, to State, gen uint64) {
	if c.state[block] == Committed {
		c.committed--
		c.soil(block)
		if c.index.chunks != nil {
			c.index.set(block, nil, c.rec.numBlocks)
		}
	}
	c.state[block], c.gen[block] = to, gen
}

// dropFrom adds to b the end of everything that the log holds of the cache.
func (c *Cache) dropFrom(b *pebble.Batch) error {
	lo, hi := span(tagPage, c.id)
	if err := b.DeleteRange(lo, hi, nil); err != nil {
		return err
	}
	return b.Delete(cacheKey(c.id), nil)
}

func (d *DB) checkAttach(s *AttachSpec, vouched []Vouch) error {
	if n := len(s.Name); n < 1 || n > MaxStringBytes {
		return fault.Invalid("attach", "name", "has %d bytes, allowed are 1 to %d", n, MaxStringBytes)
	}
	if n := len(s.Model); n > MaxStringBytes {
		return fault.Invalid("attach", "model", "has %d bytes, allowed are 0 to %d", n, MaxStringBytes)
	}
	if s.NumBlocks < 1 || s.NumBlocks > MaxBlocks {
		return fault.Invalid("attach", "num_blocks", "is %d, allowed are 1 to %d", s.NumBlocks, MaxBlocks)
	}
	if s.Binding.CacheID == (CacheID{}) {
		return fault.Invalid("attach", "cache_id", "is all zero, allowed are random ids")
	}
	if s.Binding.BootID != d.o.BootID {
		return fault.Invalid("attach", "boot_id", "is not this boot's")
	}
	for _, v := range vouched {
		if v.Block >= s.NumBlocks {
			return fault.Invalid("attach", "vouched", "names block %d, allowed are 0 to %d", v.Block, s.NumBlocks-1)
		}
	}
	return nil
}

// Attach makes a cache known and serves those blocks that its owner vouches for and the log has as COMMITTED with
// the same generation, of the same memory object, layout, model and number of blocks. Every other block of it is
// FREE, durably, before Attach returns. served lists the blocks served, ascending. A cache of another memory object
// inherits nothing, and what a detached cache of the same name left behind is dropped.
//
// Errors: InvalidArgument; AlreadyExists while a cache of this name or id is attached; StoreFailed (nothing is
// attached then).
func (d *DB) Attach(s AttachSpec, vouched []Vouch) (c *Cache, served []uint32, err error) {
	if err := d.checkAttach(&s, vouched); err != nil {
		return nil, nil, err
	}
	d.wmu.Lock()
	defer d.wmu.Unlock()
	if d.closed {
		return nil, nil, fault.New(fault.Closed, "attach", "the database is closed")
	}
	if err := d.grantable("attach"); err != nil {
		return nil, nil, err
	}
	id := s.Binding.CacheID
	for _, a := range d.attached {
		if a.id == id || a.rec.name == s.Name {
			return nil, nil, &fault.Error{Code: fault.AlreadyExists, Op: "attach", Region: s.Name,
				Detail: "a cache of this name or id is attached"}
		}
	}
	rec := cacheRec{dev: s.Binding.Dev, ino: s.Binding.Ino, numBlocks: s.NumBlocks, layout: s.LayoutDigest,
		name: s.Name, model: s.Model}
	// No step is left that speaks of a cache which this changes.
	if err := d.fold(); err != nil {
		return nil, nil, fault.Wrap(fault.StoreFailed, "attach", err)
	}
	b := d.batch()
	var gone []CacheID
	for _, o := range d.dormant {
		if o.id == id && o.inherits(&rec) {
			c = o
		} else if o.id == id || o.rec.name == s.Name {
			if err := o.dropFrom(b); err != nil {
				return nil, nil, fault.Wrap(fault.StoreFailed, "attach", err)
			}
			gone = append(gone, o.id)
		}
	}
	if c == nil {
		c = newCache(d, id, rec)
	}
	served = c.keepOnly(vouched)
	if err := c.putPages(b); err != nil {
		return nil, nil, fault.Wrap(fault.StoreFailed, "attach", err)
	}
	if err := b.Set(cacheKey(id), rec.encode(), nil); err != nil {
		return nil, nil, fault.Wrap(fault.StoreFailed, "attach", err)
	}
	if err := d.flush("attach", false); err != nil {
		return nil, nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, g := range gone {
		delete(d.dormant, g)
	}
	delete(d.dormant, id)
	c.rec, c.attached = rec, true
	d.attached[id] = c
	d.stats.Attaches++
	d.stats.Served += uint64(len(served))
	return c, served, nil
}

// inherits compares all but the name: the same memory may be registered under another.
func (c *Cache) inherits(r *cacheRec) bool {
	a, b := c.rec, *r
	a.name, b.name = "", ""
	return a == b
}

// keepOnly frees the blocks that are not vouched for and lists the others.
func (c *Cache) keepOnly(vouched []Vouch) (served []uint32) {
	if c.committed == 0 {
		return nil
	}
	c.nextStamp()
	for _, v := range vouched {
		if c.state[v.Block] == Committed && c.gen[v.Block] == v.Generation {
			c.stamp[v.Block] = c.stampN
		}
	}
	for n, s := range c.state {
		block := uint32(n)
		switch {
		case s != Committed:
		case c.stamped(block):
			served = append(served, block)
		default:
			c.leave(block, Free, 0)
		}
	}
	return served
}

// Detach ends the serving of a cache and keeps what the log has of it for a later Attach. BlocksBusy while a lease
// is open: it is to be ended, fenced and freed first.
func (c *Cache) Detach() error { return c.leaveDB("detach", false) }

// Drop is Detach, and forgets the cache durably.
func (c *Cache) Drop() error { return c.leaveDB("drop", true) }

func (c *Cache) leaveDB(op string, forget bool) error {
	d := c.db
	d.wmu.Lock()
	defer d.wmu.Unlock()
	if err := c.usable(op); err != nil {
		return err
	}
	if n := len(c.leases); n > 0 {
		return &fault.Error{Code: fault.BlocksBusy, Op: op, Region: c.rec.name, Detail: "a lease is open"}
	}
	if forget {
		if err := d.forget(op, c); err != nil {
			return err
		}
	}
	if !forget && d.unwritten() { // what is late speaks of c
		_ = d.flushOnce() // a failure is known to every step from here on
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	c.attached = false
	delete(d.attached, c.id)
	if !forget {
		left := *c
		d.dormant[c.id] = &left
	}
	c.state, c.gen, c.tag, c.dirty, c.stamp, c.committed, c.index = nil, nil, nil, nil, nil, 0, keyIndex{}
	return nil
}

// forget ends everything that the log holds of some caches. Where the log has failed its void marker does.
func (d *DB) forget(op string, cs ...*Cache) error {
	if d.failure() == nil {
		// No step is left that speaks of them.
		if err := d.fold(); err != nil {
			return fault.Wrap(fault.StoreFailed, op, err)
		}
		for _, c := range cs {
			if err := c.dropFrom(d.batch()); err != nil {
				return fault.Wrap(fault.StoreFailed, op, err)
			}
		}
	}
	return d.flush(op, true)
}

// DropDetached forgets every cache that is not attached, for a daemon whose clients have had their time to come
// back. It returns how many there were.
func (d *DB) DropDetached() (int, error) {
	d.wmu.Lock()
	defer d.wmu.Unlock()
	if d.closed {
		return 0, fault.New(fault.Closed, "drop_detached", "the database is closed")
	}
	n := len(d.dormant)
	if n == 0 {
		return 0, nil
	}
	if err := d.forget("drop_detached", slices.Collect(maps.Values(d.dormant))...); err != nil {
		return 0, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.dormant)
	return n, nil
}

// usable needs wmu or mu.
func (c *Cache) usable(op string) error {
	if c.db.closed || !c.attached {
		return &fault.Error{Code: fault.Closed, Op: op, Region: c.rec.name, Detail: "the cache is not attached"}
	}
	return nil
}

// ID returns the cache's id.
func (c *Cache) ID() CacheID { return c.id }

// Name returns the name it was attached with.
func (c *Cache) Name() string { return c.rec.name }

// NumBlocks returns the number of its blocks.
func (c *Cache) NumBlocks() uint32 { return c.rec.numBlocks }

// State returns one block. Errors: Closed, InvalidArgument.
func (c *Cache) State(block uint32) (Record, error) {
	c.db.mu.RLock()
	defer c.db.mu.RUnlock()
	if err := c.usable("state"); err != nil {
		return Record{}, err
	}
	if err := c.checkBlock("state", block); err != nil {
		return Record{}, err
	}
	r := c.record(block)
	r.Key = slices.Clone(r.Key)
	return r, nil
}

// Taken returns the first of the blocks that is neither FREE nor COMMITTED, if any. Errors: Closed, InvalidArgument.
func (c *Cache) Taken(blocks []uint32) (block uint32, s State, any bool, err error) {
	c.db.mu.RLock()
	defer c.db.mu.RUnlock()
	if err := c.usable("state"); err != nil {
		return 0, 0, false, err
	}
	for _, n := range blocks {
		if err := c.checkBlock("state", n); err != nil {
			return 0, 0, false, err
		}
		if s := c.state[n]; s != Free && s != Committed {
			return n, s, true, nil
		}
	}
	return 0, 0, false, nil
}

func (c *Cache) checkBlock(op string, block uint32) error {
	if block < c.rec.numBlocks {
		return nil
	}
	e := fault.Invalid(op, "blocks", "block %d is outside 0 to %d", block, c.rec.numBlocks-1)
	e.Region = c.rec.name
	return e
}

// record's key lies in the mirror.
func (c *Cache) record(block uint32) Record {
	r := Record{Block: block, State: c.state[block], Generation: c.gen[block], Key: c.index.key(block)}
	if r.State == Leased || r.State == Revoking {
		if l := c.byGen[r.Generation]; l != nil {
			r.Lease = l.id
		}
	}
	return r
}

// Blocks calls f for every block that is not FREE, ascending, until f returns false. f sees one moment's state, must not call
// the database and must not keep a key.
func (c *Cache) Blocks(f func(Record) bool) {
	c.db.mu.RLock()
	defer c.db.mu.RUnlock()
	for n, s := range c.state {
		if s != Free && !f(c.record(uint32(n))) {
			return
		}
	}
}

// Committed returns the number of COMMITTED blocks.
func (c *Cache) Committed() int {
	c.db.mu.RLock()
	defer c.db.mu.RUnlock()
	return c.committed
}

// Leases returns the open leases of all attached caches, in no order.
func (d *DB) Leases() []Lease {
	d.mu.RLock()
	defer d.mu.RUnlock()
	var out []Lease
	for _, c := range d.attached {
		for _, l := range c.leases {
			out = append(out, Lease{ID: l.id, Cache: c.id, Kind: l.kind, State: l.state, Generation: l.gen,
				Blocks: l.blocks, TransferID: l.transferID, Peer: l.peer, TraceID: l.traceID, GrantedUnixNano: l.grantedNS})
		}
	}
	return out
}

// Caches returns the attached caches, in no order.
func (d *DB) Caches() []*Cache {
	d.mu.RLock()
	defer d.mu.RUnlock()
	out := make([]*Cache, 0, len(d.attached))
	for _, c := range d.attached {
		out = append(out, c)
	}
	return out
}
