package xfer

import "github.com/kvxfer/kvxfer/internal/fault"

// keptAttempts is how many transfers without an open lease are remembered.
const keptAttempts = 4096

// attempts remembers which attempt of a transfer came last to this node's write leases, so that a late or repeated BIND of
// an older attempt is refused whatever ticket it shows. It is under Engine.mu.
type attempts struct {
	at   map[attemptKey]*attempt
	ring []attemptKey // of those without an open lease; the oldest are forgotten
	next int
}

// attemptKey names a transfer. The tenant belongs to it: another tenant's ids must not use up this one's.
type attemptKey struct{ tenant, transfer string }

type attempt struct {
	number uint32
	lease  [16]byte // an instance's lease has several parts on a node
	open   int      // leases that it has bound and that are not fenced
	slot   int      // in ring, -1: in none
}

// check says whether an attempt may bind a part of a lease. A retry needs a higher number (TicketBound) and the former
// attempt's fence (BlocksBusy, which says that waiting helps: the ticket is not used up).
func (a *attempts) check(k attemptKey, lease [16]byte, number uint32) error {
	x := a.at[k]
	switch {
	case x == nil || x.lease == lease && x.number == number:
		return nil
	case number <= x.number:
		return fault.New(fault.TicketBound, "bind", "attempt %d of this transfer was here before: a further one needs a higher number than %d", x.number, x.number)
	case x.open > 0:
		return fault.New(fault.BlocksBusy, "bind", "attempt %d of this transfer is not fenced yet", x.number)
	}
	return nil
}

// begin checks and notes a bind.
func (a *attempts) begin(k attemptKey, lease [16]byte, number uint32) error {
	if err := a.check(k, lease, number); err != nil {
		return err
	}
	if a.at == nil {
		a.at, a.ring = map[attemptKey]*attempt{}, make([]attemptKey, keptAttempts)
	}
	x := a.at[k]
	if x == nil {
		x = &attempt{}
		a.at[k] = x
	}
	x.number, x.lease, x.slot = number, lease, -1
	x.open++
	return nil
}

// end is begin's end: the lease is fenced.
func (a *attempts) end(k attemptKey) {
	x := a.at[k]
	if x == nil {
		return
	}
	if x.open--; x.open > 0 {
		return
	}
	if old := a.at[a.ring[a.next]]; old != nil && old.slot == a.next {
		delete(a.at, a.ring[a.next])
	}
	a.ring[a.next], x.slot = k, a.next
	a.next = (a.next + 1) % keptAttempts
}
