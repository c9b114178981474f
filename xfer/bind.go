package xfer

import (
	"crypto/subtle"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/xfer/blockdb"
	"github.com/kvxfer/kvxfer/xfer/layout"
)

// onBind answers BIND. Everything that can be wrong with it is looked at before the lease is claimed, so that a
// mistaken source does not use the ticket up.
func (e *Engine) onBind(ls *linkState, request uint64, b wire.Bind) {
	g, err := e.checkBind(ls, b)
	if err != nil {
		fe := fault.From("bind", err)
		fe.Peer = e.o.Node
		ls.refuse(request, fe)
		return
	}
	req, deadline := &bindRequest{ls: ls, request: request, transfer: b.Transfer, attempt: b.Attempt, parent: b.Traceparent}, e.millis(b.RemainingMillis)
	if pt := g.terms().part; pt != nil {
		pt.bind(req, deadline)
		return
	}
	g.bind(req, deadline)
}

// attempt names a BIND's transfer.
func (p *permit) attempt(b *bindRequest) attemptKey {
	return attemptKey{p.client.info.Tenant, b.transfer}
}

// wholeID is the same for all parts of an instance's lease.
func (p *permit) wholeID() [16]byte {
	if p.part != nil {
		return p.part.whole
	}
	return p.grantID
}

func (e *Engine) checkBind(ls *linkState, b wire.Bind) (grant, error) {
	if err := b.Validate(); err != nil {
		return nil, err
	}
	id, _ := parseHex16(b.Lease)
	e.mu.Lock()
	draining := e.draining
	g := e.grants[id]
	past, known := e.past.find(id, b.Secret)
	e.mu.Unlock()
	if g == nil && known {
		return nil, fault.New(past, "bind", "the lease has ended")
	}
	if g == nil || !g.terms().opens(b.Secret) {
		return nil, fault.New(fault.TicketInvalid, "bind", "no such lease, or the secret is wrong")
	}
	p := g.terms()
	if ls.link.Peer().Tenant != p.client.info.Tenant {
		return nil, fault.New(fault.PermissionDenied, "bind", "the lease belongs to another tenant")
	}
	if draining {
		return nil, fault.New(fault.Draining, "bind", "node %s is draining", e.o.Node)
	}
	if err := p.region.unregistered("bind", p.name(), ls.provider); err != nil { // the source may come back over another
		return nil, err
	}
	if err := p.fits(b); err != nil || p.mode != wire.ModeWrite || p.cache == nil {
		return g, err
	}
	// Before a part's asker is asked: a refusal here must not give the lease to this transfer.
	e.mu.Lock()
	defer e.mu.Unlock()
	return g, e.attempts.check(attemptKey{p.client.info.Tenant, b.Transfer}, p.wholeID(), b.Attempt)
}

// opens compares the secret of a ticket, in constant time.
func (p *permit) opens(secret []byte) bool {
	return subtle.ConstantTimeCompare(p.secret[:], secret) == 1
}

// fits compares what a BIND says of its transfer with the permission.
func (p *permit) fits(b wire.Bind) error {
	mode := b.Mode
	if mode == "" {
		mode = wire.ModeWrite
	}
	switch {
	case b.Raw != (p.cache == nil):
		return fault.Invalid("bind", "raw", "%t, the lease is of the other kind", b.Raw)
	case mode != p.mode:
		return fault.Invalid("bind", "mode", "%s, the lease permits to %s", mode, p.mode)
	case b.Raw:
		return nil
	}
	src := layout.Identity{Model: b.Model, Revision: b.Revision, Compat: b.Compat}
	if err := layout.Compare(b.Layout, p.cache.spec.Layout, src, p.cache.identity()); err != nil {
		return err
	}
	if int(b.Blocks) != len(p.blocks) {
		return fault.Invalid("bind", "blocks", "the transfer has %d blocks, the lease %d", b.Blocks, len(p.blocks))
	}
	return nil
}

// pastLeases remembers how the last leases ended, so that a late BIND gets the reason and not "no such lease".
type pastLeases struct {
	ring [1024]struct {
		id     blockdb.LeaseID
		secret [16]byte
		code   fault.Code
	}
	next int
	at   map[blockdb.LeaseID]int
}

func (p *pastLeases) add(id blockdb.LeaseID, code fault.Code, secret [16]byte) {
	if p.at == nil {
		p.at = map[blockdb.LeaseID]int{}
	}
	slot := &p.ring[p.next]
	delete(p.at, slot.id)
	slot.id, slot.secret, slot.code = id, secret, code
	p.at[id] = p.next
	p.next = (p.next + 1) % len(p.ring)
}

func (p *pastLeases) find(id blockdb.LeaseID, secret []byte) (fault.Code, bool) {
	i, ok := p.at[id]
	if !ok || subtle.ConstantTimeCompare(p.ring[i].secret[:], secret) != 1 {
		return 0, false
	}
	return p.ring[i].code, true
}
