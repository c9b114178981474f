package blockdb

import (
	"slices"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// claimed says what a step has taken.
type claimed int

const (
	claimedFree      claimed = iota // no block was COMMITTED
	claimedLate                     // some were, and nothing of that is in the log
	claimedCommitted                // some were, and the log says so
)

// claim checks the blocks that a step wants to take: inside the cache, distinct, none of them leased.
func (c *Cache) claim(op string, blocks []uint32) (got claimed, err error) {
	if len(blocks) == 0 {
		return 0, fault.Invalid(op, "blocks", "is empty, allowed are 1 to %d blocks", c.rec.numBlocks)
	}
	c.nextStamp()
	for _, n := range blocks {
		if n >= c.rec.numBlocks {
			return 0, c.checkBlock(op, n)
		}
		if c.stamp[n] == c.stampN {
			return 0, fault.Invalid(op, "blocks", "names block %d twice, allowed are distinct blocks", n)
		}
		c.stamp[n] = c.stampN
		switch s := c.state[n]; {
		case s == Free:
		case s != Committed:
			e := fault.New(fault.BlocksBusy, op, "block %d is %s", n, s)
			e.Region = c.rec.name
			return 0, e
		case c.tag[n] != c.db.tag && !c.db.o.trapLate:
			got = claimedCommitted
		default:
			got = max(got, claimedLate)
		}
	}
	if got == claimedLate && c.db.failure() != nil { // what became of the batch is not known
		got = claimedCommitted
	}
	return got, nil
}

func checkString(op, field, s string) error {
	if len(s) > MaxStringBytes {
		return fault.Invalid(op, field, "has %d bytes, allowed are 0 to %d", len(s), MaxStringBytes)
	}
	return nil
}

func checkKeys(op string, keys [][]byte, blocks int) error {
	if keys != nil && len(keys) != blocks {
		return fault.Invalid(op, "keys", "has %d entries, allowed are 0 or one a block (%d)", len(keys), blocks)
	}
	for _, k := range keys {
		if len(k) > MaxKeyBytes {
			return fault.Invalid(op, "keys", "holds a key of %d bytes, allowed are 0 to %d", len(k), MaxKeyBytes)
		}
	}
	return nil
}

// Grant takes blocks out of FREE or COMMITTED into LEASED under a generation of their own. When it returns the log has none
// of them as COMMITTED, and will have none before the lease's Commit: only then may a byte land in them. All or none of the
// blocks are taken.
//
// Errors: InvalidArgument; BlocksBusy; AlreadyExists for a lease id in use; Closed; StoreFailed while the disk is
// full or after the log failed.
func (c *Cache) Grant(r LeaseRecord) (generation uint64, err error) {
	const op = "grant"
	if r.Kind != KindWrite {
		return 0, fault.Invalid(op, "kind", "is %d, allowed is %d", r.Kind, KindWrite)
	}
	if err := checkString(op, "transfer_id", r.TransferID); err != nil {
		return 0, err
	}
	if err := checkString(op, "peer", r.Peer); err != nil {
		return 0, err
	}
	l := &lease{id: r.LeaseID, cache: c.id, leaseRec: leaseRec{state: Leased, kind: r.Kind, grantedNS: time.Now().UnixNano(),
		traceID: r.TraceID, transferID: r.TransferID, peer: r.Peer,
		count: uint32(len(r.Blocks)), blocks: append([]uint32(nil), r.Blocks...)}}
	d := c.db
	d.wmu.Lock()
	defer d.wmu.Unlock()
	if err := c.usable(op); err != nil {
		return 0, err
	}
	if c.leases[r.LeaseID] != nil {
		return 0, &fault.Error{Code: fault.AlreadyExists, Op: op, Region: c.rec.name, Detail: "the lease is open"}
	}
	if err := d.provide(op); err != nil {
		return 0, err
	}
	got, err := c.claim(op, l.blocks)
	if err != nil {
		return 0, err
	}
	if err := d.grantable(op); err != nil {
		return 0, err
	}
	d.gen++
	l.gen = d.gen
	if err := c.takeOut(op, got, l.blocks, false); err != nil {
		return 0, err
	}
	d.begun = append(d.begun, l)
	l.at = len(d.begun)
	d.mu.Lock()
	for _, n := range l.blocks {
		c.leave(n, Leased, l.gen)
	}
	c.leases[l.id] = l
	c.byGen[l.gen] = l
	d.mu.Unlock()
	d.stats.Grants++
	d.stats.BlocksGranted += uint64(len(l.blocks))
	d.late()
	return l.gen, nil
}

// takeOut does what the log needs before blocks that were claimed leave COMMITTED: where it has them as that, the step is in
// the log when this returns.
func (c *Cache) takeOut(op string, got claimed, blocks []uint32, must bool) error {
	if got != claimedCommitted {
		return nil
	}
	d := c.db
	if err := d.before(op); err != nil {
		return err
	}
	if err := d.addTake(c, blocks); err != nil {
		return fault.Wrap(fault.StoreFailed, op, err)
	}
	return d.flush(op, must)
}

func (c *Cache) open(op string, id LeaseID) (*lease, error) {
	if err := c.usable(op); err != nil {
		return nil, err
	}
	l := c.leases[id]
	if l == nil {
		return nil, &fault.Error{Code: fault.NotFound, Op: op, Region: c.rec.name, Detail: "no such lease is open"}
	}
	return l, nil
}

// Revoke turns a lease's blocks REVOKING: it can no longer be committed. The blocks stay taken until Free. It needs no log,
// which has not had them as COMMITTED since the Grant; repeated, it changes nothing. Errors: NotFound, Closed.
func (c *Cache) Revoke(id LeaseID) error {
	const op = "revoke"
	d := c.db
	d.wmu.Lock()
	defer d.wmu.Unlock()
	l, err := c.open(op, id)
	if err != nil || l.state == Revoking {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	l.state = Revoking
	for _, n := range l.blocks {
		c.state[n] = Revoking
	}
	d.stats.Revokes++
	return nil
}

// Free ends a lease, revoked or not, whose fence is done: its blocks are FREE, which needs no log either. Errors: NotFound,
// Closed.
func (c *Cache) Free(id LeaseID) error {
	const op = "free"
	d := c.db
	d.wmu.Lock()
	defer d.wmu.Unlock()
	l, err := c.open(op, id)
	if err != nil {
		return err
	}
	how := OutcomeFreed
	if l.state == Revoking {
		how = OutcomeRevoked
	}
	t, err := c.endLease(l, how, Transfer{EndedUnixNano: time.Now().UnixNano()})
	if err != nil {
		return fault.Wrap(fault.StoreFailed, op, err)
	}
	d.mu.Lock()
	for _, n := range l.blocks {
		c.leave(n, Free, 0)
	}
	c.forget(l, t)
	d.mu.Unlock()
	d.stats.Frees++
	d.late()
	return nil
}

// forget needs wmu and mu.
func (c *Cache) forget(l *lease, t Transfer) {
	delete(c.leases, l.id)
	delete(c.byGen, l.gen)
	c.db.note(t)
}

// Commit ends a lease whose blocks are complete: they are COMMITTED under the lease's generation. That comes into the log
// some milliseconds later, at the latest with Close; a daemon that is killed before does not serve them after its restart.
// After the log failed it succeeds in memory alone: those blocks are served until the process ends. The rule for steps into
// COMMITTED allows both. Errors: InvalidArgument; LeaseRevoked; NotFound; Closed.
func (c *Cache) Commit(id LeaseID, r CommitRecord) error {
	const op = "commit"
	if err := checkString(op, "transfer_id", r.TransferID); err != nil {
		return err
	}
	if err := checkString(op, "peer", r.Peer); err != nil {
		return err
	}
	d := c.db
	d.wmu.Lock()
	defer d.wmu.Unlock()
	l, err := c.open(op, id)
	if err != nil {
		return err
	}
	if l.state == Revoking {
		return &fault.Error{Code: fault.LeaseRevoked, Op: op, Region: c.rec.name, Peer: l.peer}
	}
	if err := checkKeys(op, r.Keys, len(l.blocks)); err != nil {
		return err
	}
	t, err := c.endLease(l, OutcomeCommitted, Transfer{TransferID: r.TransferID, Peer: r.Peer, Bytes: r.Bytes,
		TraceID: r.TraceID, EndedUnixNano: time.Now().UnixNano()})
	if err != nil {
		return fault.Wrap(fault.StoreFailed, op, err)
	}
	d.mu.Lock()
	c.commitAll(l.blocks, l.gen, d.tag, r.Keys)
	c.forget(l, t)
	d.mu.Unlock()
	d.addLate(c, l.gen, l.blocks, r.Keys)
	d.stats.Commits++
	d.stats.BlocksCommitted += uint64(len(l.blocks))
	d.late()
	return nil
}

// Publish makes FREE or COMMITTED blocks COMMITTED that the owner's engine has filled itself, under a generation of
// their own, which comes into the log as late as a Commit; that they left their former one is in the log when it returns. keys
// is nil or has one key a block; they take the place of those that the blocks had. Errors:
// InvalidArgument; BlocksBusy for a leased block; Closed; StoreFailed.
func (c *Cache) Publish(blocks []uint32, keys [][]byte) (generation uint64, err error) {
	const op = "publish"
	if err := checkKeys(op, keys, len(blocks)); err != nil {
		return 0, err
	}
	d := c.db
	d.wmu.Lock()
	defer d.wmu.Unlock()
	if err := c.usable(op); err != nil {
		return 0, err
	}
	if err := d.provide(op); err != nil {
		return 0, err
	}
	got, err := c.claim(op, blocks)
	if err != nil {
		return 0, err
	}
	if err := d.grantable(op); err != nil {
		return 0, err
	}
	d.gen++
	gen := d.gen
	if err := c.takeOut(op, got, blocks, false); err != nil {
		return 0, err
	}
	d.mu.Lock()
	c.commitAll(blocks, gen, d.tag, keys)
	d.mu.Unlock()
	d.addLate(c, gen, slices.Clone(blocks), keys)
	d.stats.Publishes++
	d.late()
	return gen, nil
}

func (c *Cache) commitAll(blocks []uint32, gen uint64, tag uint32, keys [][]byte) {
	if keys == nil {
		for _, n := range blocks {
			c.enter(n, gen, tag, nil)
		}
		return
	}
	for i, n := range blocks {
		c.enter(n, gen, tag, keys[i])
	}
}

// Evict takes COMMITTED blocks back: they are FREE, in the log, when it returns, and the owner may write into them.
// FREE blocks stay FREE. All or none are taken. It succeeds on a full disk and after the log failed. Errors:
// InvalidArgument; BlocksBusy for a leased block; Closed; StoreFailed where not even the void marker can be written.
func (c *Cache) Evict(blocks []uint32) error {
	const op = "evict"
	d := c.db
	d.wmu.Lock()
	defer d.wmu.Unlock()
	if err := c.usable(op); err != nil {
		return err
	}
	return c.evict(op, blocks)
}

// EvictGeneration evicts those of the blocks that are still COMMITTED under a generation: what has become of the others
// since is not touched. Errors: Closed; StoreFailed as Evict.
func (c *Cache) EvictGeneration(blocks []uint32, generation uint64) error {
	const op = "evict"
	d := c.db
	d.wmu.Lock()
	defer d.wmu.Unlock()
	if err := c.usable(op); err != nil {
		return err
	}
	var still []uint32
	for _, n := range blocks {
		if n < c.rec.numBlocks && c.state[n] == Committed && c.gen[n] == generation {
			still = append(still, n)
		}
	}
	if len(still) == 0 {
		return nil
	}
	return c.evict(op, still)
}

// evict needs wmu.
func (c *Cache) evict(op string, blocks []uint32) error {
	d := c.db
	got, err := c.claim(op, blocks)
	if err != nil || got == claimedFree {
		return err
	}
	if err := c.takeOut(op, got, blocks, true); err != nil {
		return err
	}
	d.mu.Lock()
	for _, n := range blocks {
		c.leave(n, Free, 0)
	}
	d.mu.Unlock()
	d.stats.Evictions += uint64(len(blocks))
	d.late()
	return nil
}
