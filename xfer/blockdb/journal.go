package blockdb

import (
	"slices"

	"github.com/cockroachdb/pebble/v2"
)

// endLease makes the journal's entry of a lease that ends, for note, and takes the lease's record out of the log if it is
// in there.
func (c *Cache) endLease(l *lease, how Outcome, t Transfer) (Transfer, error) {
	d := c.db
	switch {
	case l.logged && d.failure() == nil:
		op := d.batch().DeleteDeferred(leaseKeyLen)
		putLeaseKey(op.Key, c.id, l.id)
		if err := op.Finish(); err != nil {
			return t, err
		}
	case l.at > 0:
		d.begun[l.at-1] = nil
	}
	t.Ordinal, t.Cache, t.Lease, t.Kind, t.Outcome = d.ordinal, c.id, l.id, l.kind, how
	t.Generation, t.Blocks, t.GrantedUnixNano = l.gen, l.count, l.grantedNS
	if t.TransferID == "" {
		t.TransferID = l.transferID
	}
	if t.Peer == "" {
		t.Peer = l.peer
	}
	if t.TraceID == ([16]byte{}) {
		t.TraceID = l.traceID
	}
	d.ordinal++
	return t, nil
}

// putLeases adds to a batch the leases that were granted since the last one and are open still.
func (d *DB) putLeases(b *pebble.Batch) error {
	for _, l := range d.begun {
		if l == nil {
			continue
		}
		op := b.SetDeferred(leaseKeyLen, l.encodedLen())
		putLeaseKey(op.Key, l.cache, l.id)
		l.append(op.Value[:0])
		if err := op.Finish(); err != nil {
			return err
		}
		l.logged, l.at = true, 0
	}
	clear(d.begun)
	d.begun = d.begun[:0]
	return nil
}

// putJournal adds the entries that came since the last batch, as far as the ring still has them.
func (d *DB) putJournal(b *pebble.Batch) error {
	slots := uint64(len(d.journal))
	if d.ordinal > slots {
		d.noted = max(d.noted, d.ordinal-slots)
	}
	for ; d.noted < d.ordinal; d.noted++ {
		slot := d.noted % slots
		t := &d.journal[slot]
		op := b.SetDeferred(journalKeyLen, t.encodedLen())
		putJournalKey(op.Key, uint32(slot))
		t.append(op.Value[:0])
		if err := op.Finish(); err != nil {
			return err
		}
	}
	return nil
}

// note needs mu, or a database that nobody else has yet.
func (d *DB) note(t Transfer) { d.journal[t.Ordinal%uint64(len(d.journal))] = t }

// Journal returns the last ended leases, newest first, at most n of them.
func (d *DB) Journal(n int) []Transfer {
	d.mu.RLock()
	out := make([]Transfer, 0, len(d.journal))
	for _, t := range d.journal {
		if t.Kind != 0 {
			out = append(out, t)
		}
	}
	d.mu.RUnlock()
	slices.SortFunc(out, func(a, b Transfer) int {
		if a.Ordinal > b.Ordinal {
			return -1
		}
		return 1
	})
	return out[:min(max(n, 0), len(out))]
}
