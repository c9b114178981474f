package xfer

import (
	"context"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/xfer/blockdb"
	"github.com/kvxfer/kvxfer/xfer/layout"
)

// permit is what every permission has: a lease on blocks to write, and an offer.
type permit struct {
	e       *Engine
	id      uint64
	grantID blockdb.LeaseID
	secret  [16]byte
	client  *client
	region  *region
	cache   *cache   // nil: raw memory
	blocks  []uint32 // of the cache
	mode    string
	part    *part // of an instance's lease; nil: it is whole
	quota   *int  // under Engine.mu: counts it, where not the client's own leases do

	state   leaseState // as it is counted, under its own lock
	granted rdma.Instant
}

func (p *permit) terms() *permit { return p }

// name is what errors and logs call the memory.
func (p *permit) name() string {
	if p.cache != nil {
		return p.cache.name
	}
	return p.region.name
}

// grant is a permission that the engine has given: *lease or *offer.
type grant interface {
	terms() *permit
	// revoke decides its end; its event comes when it is fenced.
	revoke(fault.Code)
	// revokeUnbound does so unless a peer has bound it.
	revokeUnbound(fault.Code)
	// renew moves its end, or says why it has ended.
	renew(deadline rdma.Instant) error
	// bind answers a BIND that has been checked.
	bind(*bindRequest, rdma.Instant)
	// row describes it; what it can say without its lock where that is held for long.
	row(*look) wire.LeaseRow
}

// bindRequest is a BIND with what its answer needs.
type bindRequest struct {
	ls       *linkState
	request  uint64
	transfer string
	attempt  uint32
	parent   string // traceparent
	handle   uint64
	key      rdma.Key
}

// bindee is what a BIND made on a link: a bound lease, or one holder of an offer.
type bindee interface {
	arrived(*rdma.Event)
	fin(pieces uint64, note []byte)
	release(request, bytes uint64, note []byte)
	abort(fault.Code)
	peerLost()
}

// admitGrant counts one more permission of a client and makes it known; the caller holds its lock, so that events wait.
// Drain and endCache find it from here on: what begins beside them is either refused or ended by them.
func (e *Engine) admitGrant(op string, id ClientID, g grant) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := g.terms()
	held, limit := func(c *client) int { return c.leases }, e.o.Limits.Leases
	if p.quota != nil {
		held, limit = func(*client) int { return *p.quota }, maxOpens
	}
	c, err := e.admit(op, id, "leases", held, limit)
	if err != nil {
		return err
	}
	p.client = c
	if p.quota == nil {
		p.quota = &c.leases
	}
	*p.quota++
	p.id, p.granted = e.id(), e.o.Clock.Now()
	e.leases[p.id], e.grants[p.grantID] = g, g
	return nil
}

// dropGrant takes back what admitGrant did, for a permission that came to nothing.
func (e *Engine) dropGrant(p *permit) {
	e.mu.Lock()
	defer e.mu.Unlock()
	*p.quota--
	delete(e.leases, p.id)
	delete(e.grants, p.grantID)
	e.idle.Broadcast()
}

// ticket makes the capability of a permission.
func (p *permit) ticket(traceparent string) string {
	t := wire.Ticket{Traceparent: traceparent, Grants: []wire.TicketGrant{p.ticketGrant()}}
	return t.Encode()
}

func (p *permit) ticketGrant() wire.TicketGrant {
	g := wire.TicketGrant{Node: p.e.o.Node, Epoch: p.e.o.Epoch, Addr: p.e.o.Addr, Lease: hex16(p.grantID), Secret: p.secret[:], Blocks: uint32(len(p.blocks))}
	if p.mode == wire.ModeRead {
		g.Mode = wire.ModeRead
	}
	if g.Raw = p.cache == nil; !g.Raw {
		g.Rank = p.cache.spec.Layout.TPRank
	}
	return g
}

// Revoke takes a lease or an advertisement back. It returns at once; the event comes when it is fenced.
func (e *Engine) Revoke(id ClientID, leaseID uint64) error {
	e.mu.Lock()
	_, err := e.lookup("revoke", id)
	g := e.leases[leaseID]
	e.mu.Unlock()
	if err != nil {
		return err
	}
	if g == nil || g.terms().client.id != id {
		return nil // it has ended already, and its event says how
	}
	g.revoke(fault.LeaseRevoked)
	return nil
}

// Renew moves the end of a lease or an advertisement to ttlMillis from now. What has ended stays so: the error says how.
func (e *Engine) Renew(id ClientID, r wire.Renew) error {
	const op = "renew"
	if err := wire.CheckMillis(op, "ttl_ms", r.TTLMillis); err != nil {
		return err
	}
	e.mu.Lock()
	_, err := e.lookup(op, id)
	g := e.leases[r.Lease]
	e.mu.Unlock()
	if err != nil {
		return err
	}
	if g == nil || g.terms().client.id != id {
		return fault.New(fault.NotFound, op, "lease %d has ended, as its event says, or was never there", r.Lease)
	}
	return g.renew(e.millis(r.TTLMillis))
}

// touching lists the permissions on a cache that name one of the blocks.
func (e *Engine) touching(ca *cache, blocks []uint32) []grant {
	var named *layout.Set // not made where nothing is granted, as for most evictions
	var out []grant
	for _, g := range e.allGrants() {
		if p := g.terms(); p.cache == ca {
			if named == nil {
				named = layout.SetOf(ca.geometry.NumBlocks, blocks)
			}
			if _, ok := named.First(p.blocks); ok {
				out = append(out, g)
			}
		}
	}
	return out
}

// takeBack revokes permissions and returns when they are fenced.
func (e *Engine) takeBack(ctx context.Context, op string, all []grant) error {
	for _, g := range all {
		g.revoke(fault.LeaseRevoked)
	}
	gone := func() bool {
		for _, g := range all {
			if e.leases[g.terms().id] != nil {
				return false
			}
		}
		return true
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.awaitLocked(ctx, gone)
	if !gone() {
		return fault.From(op, ctx.Err())
	}
	return nil
}

func (e *Engine) allGrants() []grant {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := make([]grant, 0, len(e.leases))
	for _, g := range e.leases {
		out = append(out, g)
	}
	return out
}
