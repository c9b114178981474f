package kvxfer

import (
	"context"
	"sync"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// maxKept bounds the leases that are remembered for those who ask later; the oldest go first. A lease itself lives on without.
const maxKept = 1024

// grantedLeases is the daemon's word about a lease and the call that asks for it, in whichever order they come.
type grantedLeases struct {
	mu      sync.Mutex
	there   map[string]grantHandle
	order   []string // of there, the oldest first
	waiting map[string][]chan grantHandle
	gone    chan struct{} // closed when the connection was lost, and made anew
	why     *fault.Error
}

func (g *grantedLeases) add(id string, h grantHandle) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.there == nil {
		g.there = map[string]grantHandle{}
	}
	if _, known := g.there[id]; !known {
		g.order = append(g.order, id)
	}
	g.there[id] = h
	if len(g.order) > maxKept {
		delete(g.there, g.order[0])
		g.order = g.order[1:]
	}
	for _, ch := range g.waiting[id] {
		ch <- h // has room
	}
	delete(g.waiting, id)
}

// lost: nothing more will be heard on that connection.
func (g *grantedLeases) lost(fe *fault.Error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.gone != nil {
		g.why = fe
		close(g.gone)
		g.gone = nil
	}
}

func (g *grantedLeases) wait(ctx context.Context, s *session, op, id string) (grantHandle, *fault.Error) {
	ch := make(chan grantHandle, 1)
	g.mu.Lock()
	if h := g.there[id]; h != nil {
		g.mu.Unlock()
		return h, nil
	}
	if g.waiting == nil {
		g.waiting = map[string][]chan grantHandle{}
	}
	g.waiting[id] = append(g.waiting[id], ch)
	if g.gone == nil {
		g.gone = make(chan struct{})
	}
	gone := g.gone
	g.mu.Unlock()
	defer g.leave(id, ch)
	if fe := s.conn.lostError(); fe != nil { // its end was told before this call waited
		return nil, again(fe, op)
	}
	select {
	case h := <-ch:
		return h, nil
	case <-gone:
		g.mu.Lock()
		defer g.mu.Unlock()
		return nil, again(g.why, op)
	case <-ctx.Done():
		return nil, contextEnded(ctx, op, "the daemon has not told of that lease")
	}
}

func (g *grantedLeases) leave(id string, ch chan grantHandle) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, c := range g.waiting[id] {
		if c == ch {
			g.waiting[id] = append(g.waiting[id][:i:i], g.waiting[id][i+1:]...)
			break
		}
	}
	if len(g.waiting[id]) == 0 {
		delete(g.waiting, id)
	}
}

// Granted is this rank's handle of a lease for writing that another process of the engine took by [Client.LeaseInstance]. It
// waits until the daemon has told of the lease, which may have been before the call: until ctx ends, 5 seconds where it has
// no deadline.
//
// A handle has no ticket and no time of its own; it tells of this rank's blocks alone. That they are COMMITTED is not yet
// said of the other ranks: where one of them fails, these blocks are evicted again, and the lease itself ends with the error.
// The newest 1,024 leases are remembered for those who ask later. leaseID is the lease's ID.
func (c *Cache) Granted(ctx context.Context, leaseID string) (*Lease, error) {
	h, err := c.waitGranted(ctx, leaseID)
	if err != nil {
		return nil, err
	}
	if l, ok := h.(*Lease); ok {
		return l, nil
	}
	return nil, invalid("granted", "mode", `the lease's is "read", allowed "write" here: see GrantedRead`)
}

// GrantedRead is Granted for a lease for reading.
func (c *Cache) GrantedRead(ctx context.Context, leaseID string) (*ReadLease, error) {
	h, err := c.waitGranted(ctx, leaseID)
	if err != nil {
		return nil, err
	}
	if l, ok := h.(*ReadLease); ok {
		return l, nil
	}
	return nil, invalid("granted", "mode", `the lease's is "write", allowed "read" here: see Granted`)
}

func (c *Cache) waitGranted(ctx context.Context, leaseID string) (grantHandle, error) {
	const op = "granted"
	at, err := c.use(op)
	if err != nil {
		return nil, err
	}
	if err := checkHex32(op, "lease_id", leaseID); err != nil {
		return nil, err
	}
	ctx, cancel := bounded(ctx, defaultTimeout)
	defer cancel()
	h, fe := c.granted.wait(ctx, at.session, op, leaseID)
	if fe != nil {
		return nil, newError(fe, true, nil)
	}
	return h, nil
}
