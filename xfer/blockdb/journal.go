package blockdb

import (
	"slices"

	"github.com/cockroachdb/pebble/v2"
)

// endLease adds to b what every end of a lease has in common: the lease's record and the stale records of its
// blocks go, the journal's entry comes. The entry is returned for note, once the batch is in the log.
func (c *Cache) endLease(b *pebble.Batch, l *lease, how Outcome, t Transfer) (Transfer, error) {
	d := c.db
	op := b.DeleteDeferred(leaseKeyLen)
	putLeaseKey(op.Key, c.id, l.id)
	if err := op.Finish(); err != nil {
		return t, err
	}
	for _, n := range l.blocks {
		if how != OutcomeCommitted && c.logged[n] {
			if err := c.deleteBlock(b, n); err != nil {
				return t, err
			}
		}
	}
	t.Ordinal, t.Cache, t.Lease, t.Kind, t.Outcome = d.ordinal, c.id, l.id, l.kind, how
	t.Generation, t.Blocks, t.GrantedUnixNano = l.gen, uint32(len(l.blocks)), l.grantedNS
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
	return t, b.Set(journalKey(uint32(t.Ordinal%uint64(len(d.journal)))), t.encode(), nil)
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
