package blockdb

import (
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// claim checks the blocks that a step wants to take: inside the cache, distinct, none of them leased.
func (c *Cache) claim(op string, blocks []uint32) error {
	if len(blocks) == 0 {
		return fault.Invalid(op, "blocks", "is empty, allowed are 1 to %d blocks", c.rec.numBlocks)
	}
	c.nextStamp()
	for _, n := range blocks {
		if err := c.checkBlock(op, n); err != nil {
			return err
		}
		if c.stamped(n) {
			return fault.Invalid(op, "blocks", "names block %d twice, allowed are distinct blocks", n)
		}
		c.stamp[n] = c.stampN
		if s := c.state[n]; s != Free && s != Committed {
			e := fault.New(fault.BlocksBusy, op, "block %d is %s", n, s)
			e.Region = c.rec.name
			return e
		}
	}
	return nil
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

// Grant takes blocks out of FREE or COMMITTED into LEASED under a generation of their own. That is in the log when
// it returns: only then may a byte land in them. All or none of the blocks are taken.
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
	l := &lease{id: r.LeaseID, leaseRec: leaseRec{state: Leased, kind: r.Kind, grantedNS: time.Now().UnixNano(),
		traceID: r.TraceID, transferID: r.TransferID, peer: r.Peer, blocks: append([]uint32(nil), r.Blocks...)}}
	d := c.db
	d.wmu.Lock()
	defer d.wmu.Unlock()
	if err := c.usable(op); err != nil {
		return 0, err
	}
	if c.leases[r.LeaseID] != nil {
		return 0, &fault.Error{Code: fault.AlreadyExists, Op: op, Region: c.rec.name, Detail: "the lease is open"}
	}
	if err := c.claim(op, l.blocks); err != nil {
		return 0, err
	}
	if err := d.grantable(op); err != nil {
		return 0, err
	}
	if l.gen, err = d.nextGeneration(); err != nil {
		return 0, fault.Wrap(fault.StoreFailed, op, err)
	}
	b := d.p.NewBatchWithSize(l.encodedLen() + 128)
	if err := c.putLease(b, l); err != nil {
		return 0, fault.Wrap(fault.StoreFailed, op, err)
	}
	if err := d.log(op, b, false); err != nil {
		return 0, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, n := range l.blocks {
		c.leave(n, Leased, l.gen)
	}
	c.leases[l.id] = l
	c.byGen[l.gen] = l
	d.stats.Grants++
	d.stats.BlocksGranted += uint64(len(l.blocks))
	return l.gen, nil
}

func (c *Cache) putLease(b *pebble.Batch, l *lease) error {
	op := b.SetDeferred(leaseKeyLen, l.encodedLen())
	putLeaseKey(op.Key, c.id, l.id)
	l.append(op.Value[:0])
	return op.Finish()
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

// Revoke turns a lease's blocks REVOKING: it can no longer be committed. The blocks stay taken until Free. It
// succeeds on a full disk and after the log failed; repeated, it changes nothing. Errors: NotFound, Closed,
// StoreFailed where not even the void marker can be written.
func (c *Cache) Revoke(id LeaseID) error {
	const op = "revoke"
	d := c.db
	d.wmu.Lock()
	defer d.wmu.Unlock()
	l, err := c.open(op, id)
	if err != nil || l.state == Revoking {
		return err
	}
	next := *l
	next.state = Revoking
	b := d.p.NewBatchWithSize(l.encodedLen() + 128)
	if err := c.putLease(b, &next); err != nil {
		return fault.Wrap(fault.StoreFailed, op, err)
	}
	if err := d.log(op, b, true); err != nil {
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

// Free ends a lease, revoked or not, whose fence is done: its blocks are FREE. It succeeds on a full disk and after
// the log failed. Errors: NotFound, Closed, StoreFailed where not even the void marker can be written.
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
	b := d.p.NewBatch()
	t, err := c.endLease(b, l, how, Transfer{EndedUnixNano: time.Now().UnixNano()})
	if err != nil {
		return fault.Wrap(fault.StoreFailed, op, err)
	}
	if err := d.log(op, b, true); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, n := range l.blocks {
		c.release(n)
	}
	c.forget(l, t)
	d.stats.Frees++
	return nil
}

// forget needs wmu and mu.
func (c *Cache) forget(l *lease, t Transfer) {
	delete(c.leases, l.id)
	delete(c.byGen, l.gen)
	c.db.note(t)
}

// Commit ends a lease whose blocks are complete: they are COMMITTED under the lease's generation. After the log
// failed it succeeds in memory alone: those blocks are served until the process ends, which the rule for steps into
// COMMITTED allows. Errors: InvalidArgument; LeaseRevoked; NotFound; Closed.
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
	b := d.p.NewBatchWithSize(len(l.blocks)*(blockKeyLen+16) + 256)
	t, err := c.endLease(b, l, OutcomeCommitted, Transfer{TransferID: r.TransferID, Peer: r.Peer, Bytes: r.Bytes,
		TraceID: r.TraceID, EndedUnixNano: time.Now().UnixNano()})
	if err != nil {
		return fault.Wrap(fault.StoreFailed, op, err)
	}
	if err := c.putBlocks(b, l.blocks, l.gen, r.Keys); err != nil {
		return fault.Wrap(fault.StoreFailed, op, err)
	}
	if d.logOnce(b) == nil {
		d.stats.LogWrites++
	} else {
		d.stats.Unlogged++
	}
	keys := copyKeys(r.Keys)
	d.mu.Lock()
	defer d.mu.Unlock()
	c.commitAll(l.blocks, l.gen, keys)
	c.forget(l, t)
	d.stats.Commits++
	d.stats.BlocksCommitted += uint64(len(l.blocks))
	return nil
}

// Publish makes FREE or COMMITTED blocks COMMITTED that the owner's engine has filled itself, under a generation of
// their own. keys is nil or has one key a block; they take the place of those that the blocks had. Errors:
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
	if err := c.claim(op, blocks); err != nil {
		return 0, err
	}
	if err := d.grantable(op); err != nil {
		return 0, err
	}
	gen, err := d.nextGeneration()
	if err != nil {
		return 0, fault.Wrap(fault.StoreFailed, op, err)
	}
	b := d.p.NewBatchWithSize(len(blocks)*(blockKeyLen+16) + 128)
	if err := c.putBlocks(b, blocks, gen, keys); err != nil {
		return 0, fault.Wrap(fault.StoreFailed, op, err)
	}
	if err := d.log(op, b, false); err != nil {
		return 0, err
	}
	kept := copyKeys(keys)
	d.mu.Lock()
	defer d.mu.Unlock()
	c.commitAll(blocks, gen, kept)
	d.stats.Publishes++
	return gen, nil
}

func (c *Cache) putBlocks(b *pebble.Batch, blocks []uint32, gen uint64, keys [][]byte) error {
	for _, x := range c.db.ascending(blocks) {
		n, key := x.block(), []byte(nil)
		if keys != nil {
			key = keys[x.index()]
		}
		op := b.SetDeferred(blockKeyLen, blockRecLen(key))
		putBlockKey(op.Key, c.id, n)
		putBlockRec(op.Value, gen, key)
		if err := op.Finish(); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cache) commitAll(blocks []uint32, gen uint64, keys []string) {
	for i, n := range blocks {
		key := ""
		if keys != nil {
			key = keys[i]
		}
		c.setCommitted(n, gen, key)
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
	if err := c.claim(op, blocks); err != nil {
		return err
	}
	b := d.p.NewBatchWithSize(len(blocks)*(blockKeyLen+4) + 128)
	for _, x := range d.ascending(blocks) {
		if n := x.block(); c.logged[n] {
			if err := c.deleteBlock(b, n); err != nil {
				return fault.Wrap(fault.StoreFailed, op, err)
			}
		}
	}
	if b.Empty() {
		return b.Close()
	}
	if err := d.log(op, b, true); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, n := range blocks {
		c.release(n)
	}
	d.stats.Evictions += uint64(len(blocks))
	return nil
}
