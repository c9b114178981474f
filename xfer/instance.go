package xfer

import (
	"cmp"
	"context"
	"crypto/subtle"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/telemetry/attr"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/xfer/protocol"
)

const (
	// partTimeout bounds the wait for one rank's part, and again for the fences of what is taken back.
	partTimeout = 10 * time.Second
	// maxInstanceBlocks bounds an instance's lease: the list travels to every owner in one frame.
	maxInstanceBlocks = maxAskBytes / 4
)

// LeaseInstance grants one lease on the same blocks of every rank of an instance, on whichever nodes they are. Any client
// of the tenant that shows the instance's key may ask. answered is called with the answer before any event of the lease,
// and not at all where an error is returned: then no part is left, each is fenced.
//
// Errors: InvalidArgument; NotFound (a rank is not registered); PermissionDenied (the key); AlreadyExists (two caches are
// the same rank); NotSupported (more parts than a ticket holds); and what an owner refuses with, or PeerUnreachable,
// StaleEpoch, PeerLost, DeadlineExceeded of a node that could not be asked.
func (e *Engine) LeaseInstance(ctx context.Context, id ClientID, r wire.LeaseRequest, blocks []uint32, answered func(wire.LeaseInfo)) error {
	const op = "lease"
	e.mu.Lock()
	c, err := e.lookup(op, id)
	e.mu.Unlock()
	if err != nil {
		return err
	}
	if err := checkInstanceLease(op, &r, blocks); err != nil {
		return err
	}
	ranks, own, err := e.findRanks(op, c.info.Tenant, r.Instance, r.InstanceKey)
	if err != nil {
		return err
	}
	tctx := remoteContext(ctx, r.Traceparent)
	_, span := c.tracer.Start(tctx, attr.SpanLease, trace.WithAttributes(attr.KeyBlocks.Int(len(blocks))))
	defer span.End()

	deadline := e.millis(r.TTLMillis)
	w := newWhole(e, &r, ranks, blocks)
	w.ends = deadline
	w.mu.Lock()
	err = e.admitGrant(op, id, w)
	w.mu.Unlock()
	if err != nil {
		fail(span, err)
		return err
	}
	span.SetAttributes(attr.KeyLeaseID.String(hex16(w.grantID)))
	ask, cancel := context.WithTimeout(ctx, min(partTimeout, time.Duration(r.TTLMillis)*time.Millisecond))
	var wg sync.WaitGroup
	for i := range ranks {
		wg.Go(func() {
			var err error
			if ca := own[ranks[i].Rank]; ca != nil {
				err = w.makeOwn(i, ca, r, blocks)
			} else {
				err = w.makeFar(ask, i, r, blocks, deadline)
			}
			if err != nil {
				w.partEnded(i, wire.LeaseEvent{}, fault.From(op, err), nil)
			}
		})
	}
	wg.Wait()
	cancel()
	if err := w.finish(formatTraceparent(trace.SpanContextFromContext(tctx)), answered); err != nil {
		fail(span, err)
		fenced, stop := context.WithTimeout(ctx, partTimeout)
		defer stop()
		select {
		case <-w.over:
		case <-fenced.Done(): // a node that says nothing: its link's end is that of its part
		}
		return err
	}
	return nil
}

func checkInstanceLease(op string, r *wire.LeaseRequest, blocks []uint32) error {
	if err := r.Validate(); err != nil {
		return err
	}
	if r.Instance == "" {
		return fault.Invalid(op, "instance", "it is empty, allowed is the name of an engine")
	}
	if n := len(blocks); n < 1 || n > maxInstanceBlocks {
		return fault.Invalid(op, "blocks", "%d, allowed 1..%d in a lease of an instance", n, maxInstanceBlocks)
	}
	return nil
}

// finish answers LEASE, or says why not and takes back what there is.
func (w *whole) finish(traceparent string, answered func(wire.LeaseInfo)) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	t := wire.Ticket{Traceparent: traceparent}
	for i := range w.parts {
		p := &w.parts[i]
		if p.layers != w.parts[0].layers && !w.m.Failed() {
			w.cause = &fault.Error{Code: fault.LayoutMismatch, Op: "lease", Peer: p.rank.Peer.Node, Region: p.rank.Cache, Field: "layout.layers",
				Detail: "the ranks differ in their number of layers"}
			w.step(protocol.WholeEvent{Kind: protocol.WholeRevoke, Code: fault.LayoutMismatch})
		}
		t.Grants = append(t.Grants, p.ticket)
	}
	ticket := t.Encode()
	if len(ticket) > wire.MaxTicket && !w.m.Failed() {
		w.cause = fault.New(fault.NotSupported, "lease", "a ticket of %d ranks has %d bytes, allowed %d", len(w.parts), len(ticket), wire.MaxTicket)
		w.step(protocol.WholeEvent{Kind: protocol.WholeRevoke, Code: fault.NotSupported})
	}
	if w.m.Failed() {
		return w.failure(w.m.Outcome())
	}
	w.live = true
	answered(wire.LeaseInfo{Lease: w.id, LeaseID: hex16(w.grantID), Ticket: ticket, Ranks: uint32(len(w.parts))})
	return nil
}

// findRanks lists the instance's ranks in their order, and the caches of those that are here. Of its own caches a node
// knows better than the directory.
func (e *Engine) findRanks(op, tenant, instance string, key []byte) ([]Rank, map[uint32]*cache, error) {
	own := map[uint32]*cache{}
	var all []Rank
	e.mu.Lock()
	for _, ca := range e.caches {
		if ca.client.info.Tenant != tenant || ca.spec.Instance != instance {
			continue
		}
		l := &ca.spec.Layout
		own[l.TPRank] = ca
		all = append(all, Rank{Peer: PeerRef{Node: e.o.Node, Epoch: e.o.Epoch, Addr: e.o.Addr, Tenant: tenant}, Cache: ca.name, Rank: l.TPRank, Ranks: l.TPSize})
	}
	e.mu.Unlock()
	if e.o.Finder != nil {
		for _, r := range e.o.Finder.Ranks(tenant, instance) {
			if r.Peer.Node != e.o.Node {
				all = append(all, r)
			}
		}
	}
	if len(all) == 0 {
		return nil, nil, &fault.Error{Code: fault.NotFound, Op: op, Field: "instance", Detail: "no rank of it is registered", Retry: true}
	}
	slices.SortFunc(all, func(a, b Rank) int {
		return cmp.Or(cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.Peer.Node, b.Peer.Node), cmp.Compare(a.Cache, b.Cache))
	})
	for i, r := range all {
		switch {
		case r.Ranks != all[0].Ranks:
			return nil, nil, &fault.Error{Code: fault.LayoutMismatch, Op: op, Peer: r.Peer.Node, Region: r.Cache, Field: "layout.tp_size",
				Detail: "the instance's ranks differ in it"}
		case i > 0 && r.Rank == all[i-1].Rank:
			fe := fault.New(fault.AlreadyExists, op, "rank %d is cache %q of node %s and cache %q of node %s", r.Rank, all[i-1].Cache, all[i-1].Peer.Node, r.Cache, r.Peer.Node)
			fe.Field = "instance"
			return nil, nil, fe
		case int(r.Rank) != i:
			return nil, nil, missingRank(op, uint32(i), r.Ranks)
		}
	}
	if n := uint32(len(all)); n != all[0].Ranks {
		return nil, nil, missingRank(op, n, all[0].Ranks)
	}
	for _, ca := range own {
		if subtle.ConstantTimeCompare(ca.spec.InstanceKey, key) != 1 {
			return nil, nil, &fault.Error{Code: fault.PermissionDenied, Op: op, Region: ca.name, Field: "instance_key", Detail: "it is not the instance's"}
		}
	}
	return all, own, nil
}

// missingRank may be asked for again: while a rank's node restarts the directory does not have it.
func missingRank(op string, rank, ranks uint32) error {
	fe := fault.New(fault.NotFound, op, "rank %d of %d is not registered", rank, ranks)
	fe.Field, fe.Retry = "instance", true
	return fe
}

// makeOwn grants the part of a rank on this node.
func (w *whole) makeOwn(i int, ca *cache, r wire.LeaseRequest, blocks []uint32) error {
	pt := &part{e: w.e, whole: w.grantID, asker: localAsker{w, i}}
	pt.made = func(p *permit, _ uint64) {
		w.mu.Lock()
		defer w.mu.Unlock()
		x := &w.parts[i]
		x.own, x.ticket, x.layers = pt, p.ticketGrant(), ca.spec.Layout.Layers
		if x.doomed != 0 {
			w.revokePart(x, x.doomed)
		}
	}
	return w.e.grantPart(ca, wire.LeaseRequest{Mode: r.Mode, Readers: r.Readers, TTLMillis: r.TTLMillis, Traceparent: r.Traceparent}, blocks, pt)
}

// makeFar asks another node for its rank's part. An answer that comes too late is met with GRANT_REVOKE.
func (w *whole) makeFar(ctx context.Context, i int, r wire.LeaseRequest, blocks []uint32, deadline rdma.Instant) error {
	e := w.e
	rank := w.parts[i].rank // set before anybody else knows the whole
	ls, err := e.reach(ctx, rank.Peer)
	if err != nil {
		return err
	}
	ttl := ceilMillis(deadline - e.o.Clock.Now())
	if ttl < 1 {
		return fault.New(fault.DeadlineExceeded, "lease", "the lease's time is over before it is granted")
	}
	e.mu.Lock()
	request := e.id()
	e.mu.Unlock()
	done := make(chan error, 1)
	ls.ask(request, wire.KindGrant, wire.Grant{Cache: rank.Cache, Instance: r.Instance, InstanceKey: r.InstanceKey, LeaseID: hex16(w.grantID),
		Mode: r.Mode, Readers: r.Readers, TTLMillis: ttl, Traceparent: r.Traceparent}, wire.AppendU32s(nil, blocks),
		func(f wire.Frame, err error) {
			if err == nil {
				err = w.taken(i, ls, &f)
			}
			done <- err
		})
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.parts[i].ls != nil { // the answer came in this moment
		return nil
	}
	w.parts[i].late = true
	ls.mu.Lock()
	if ls.asks[request] != nil {
		ls.owe(request)
	}
	ls.mu.Unlock()
	fe := fault.From("lease", ctx.Err())
	fe.Peer = rank.Peer.Node
	return fe
}

// taken takes a part that another node has granted. The link's next frames may be about it already.
func (w *whole) taken(i int, ls *linkState, f *wire.Frame) error {
	var g wire.Granted
	if err := f.Decode(&g); err != nil {
		return err
	}
	err := g.Validate()
	w.mu.Lock()
	defer w.mu.Unlock()
	p := &w.parts[i]
	switch {
	case err != nil:
	case g.Rank != p.rank.Rank:
		fe := fault.New(fault.NotFound, "lease", "cache %q is rank %d, the directory says %d", p.rank.Cache, g.Rank, p.rank.Rank)
		fe.Retry = true
		err = fe
	case p.late || w.gone:
		err = fault.New(fault.Cancelled, "lease", "nobody waits for the part any more")
	default:
		err = ls.addWhole(g.Handle, wholeRef{w, i})
	}
	if err != nil {
		ls.send(wire.KindGrantRevoke, wire.GrantRevoke{Handle: g.Handle, Error: fault.ToWire(&fault.Error{Code: fault.Cancelled, Op: "lease"})}, nil)
		return err
	}
	p.ls, p.handle, p.layers = ls, g.Handle, g.Layers
	ref := ls.link.Peer()
	p.ticket = wire.TicketGrant{Node: ref.Node, Epoch: ref.Epoch, Addr: p.rank.Peer.Addr, Lease: g.Lease, Secret: g.Secret,
		Blocks: uint32(len(w.blocks)), Rank: g.Rank}
	if w.mode == wire.ModeRead {
		p.ticket.Mode = wire.ModeRead
	}
	if p.doomed != 0 {
		w.revokePart(p, p.doomed)
	}
	return nil
}

// abandonWholes ends the instances' leases of a client that is gone.
func (e *Engine) abandonWholes(c *client) {
	for _, g := range e.allGrants() {
		if w, ok := g.(*whole); ok && w.client == c {
			w.abandon(fault.ClientGone)
		}
	}
}
