package xfer

import (
	"context"
	"slices"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// maxOpens bounds the read leases that one link's peer, or one client of this node, has opened by keys. They do not count
// among those of the client whose blocks they are: a peer must not use these up.
const maxOpens = 4096

// Open asks a holder for a read lease, for one reader, on the blocks that have the keys (packed, r.KeyBytes each), and
// makes its ticket. Errors: InvalidArgument; NotFound (the cache, or as many of the keys as its detail says are there);
// LayoutMismatch with the field; ResourceExhausted; and why the holder's node could not be asked within r.TimeoutMillis.
func (e *Engine) Open(ctx context.Context, id ClientID, r wire.Open, keys []byte) (wire.OpenInfo, error) {
	const op = "open"
	e.mu.Lock()
	c, err := e.lookup(op, id)
	e.mu.Unlock()
	if err != nil {
		return wire.OpenInfo{}, err
	}
	if err := r.Validate(); err != nil {
		return wire.OpenInfo{}, err
	}
	if err := wire.CheckKeys(op, keys, r.KeyBytes); err != nil {
		return wire.OpenInfo{}, err
	}
	if len(keys) > maxAskBytes {
		return wire.OpenInfo{}, fault.Invalid(op, "keys", "%d, allowed 1..%d of this length", len(keys)/int(r.KeyBytes), maxAskBytes/r.KeyBytes)
	}
	q := wire.OpenBlocks{Find: wire.Find{Model: r.Model, Revision: r.Revision, Compat: r.Compat, Layout: r.Layout, KeyBytes: r.KeyBytes},
		Cache: r.Cache, TTLMillis: r.TTLMillis}
	var opened wire.OpenedBlocks
	switch {
	case r.Node == e.o.Node && r.Epoch != e.o.Epoch:
		err = &fault.Error{Code: fault.StaleEpoch, Op: op, Peer: r.Node, Detail: "this node has started again since"}
	case r.Node == e.o.Node:
		opened, err = e.openHere(op, c.info.Tenant, &q, keys, &c.opens)
	default:
		opened, err = e.openAt(ctx, PeerRef{Node: r.Node, Epoch: r.Epoch, Addr: r.Addr, Tenant: c.info.Tenant}, &q, keys, r.TimeoutMillis)
	}
	if err != nil {
		return wire.OpenInfo{}, err
	}
	t := wire.Ticket{Grants: []wire.TicketGrant{{Node: r.Node, Epoch: r.Epoch, Addr: r.Addr, Lease: opened.Lease, Secret: opened.Secret,
		Blocks: opened.Blocks, Mode: wire.ModeRead}}}
	return wire.OpenInfo{Ticket: t.Encode()}, nil
}

// openAt asks another node. A lease whose answer comes too late ends by its own time.
func (e *Engine) openAt(ctx context.Context, ref PeerRef, q *wire.OpenBlocks, keys []byte, timeoutMillis int64) (opened wire.OpenedBlocks, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(timeoutMillis)*time.Millisecond)
	defer cancel()
	ls, err := e.reach(ctx, ref)
	if err != nil {
		return opened, err
	}
	f, err := ls.call(ctx, wire.KindOpenBlock, q, keys)
	if err != nil {
		return opened, err
	}
	if err := f.Decode(&opened); err != nil {
		return opened, err
	}
	if _, ok := parseHex16(opened.Lease); !ok || len(opened.Secret) != 16 || int(opened.Blocks) != len(keys)/int(q.KeyBytes) {
		return opened, ls.wrong("open", "the answer is of no lease on these blocks")
	}
	return opened, nil
}

// openHere grants a read lease on published blocks. Whose they are is not told: to publish is to permit reading.
func (e *Engine) openHere(op, tenant string, q *wire.OpenBlocks, keys []byte, quota *int) (wire.OpenedBlocks, error) {
	e.mu.Lock()
	ca := e.names[cacheKey(tenant, q.Cache)]
	if ca != nil && e.caches[ca.id] != ca { // not whole yet, or ending
		ca = nil
	}
	e.mu.Unlock()
	if ca == nil {
		return wire.OpenedBlocks{}, fault.New(fault.NotFound, op, "no cache %q on node %s", q.Cache, e.o.Node)
	}
	if err := ca.fits(&q.Find); err != nil {
		return wire.OpenedBlocks{}, err
	}
	size := int(q.KeyBytes)
	blocks := ca.store.Prefix(nil, keys, size)
	if n := len(keys) / size; len(blocks) < n {
		return wire.OpenedBlocks{}, notAll(op, ca, len(blocks), n)
	}
	if err := ca.geometry.CheckBlocks(op, blocks); err != nil {
		return wire.OpenedBlocks{}, fault.Invalid(op, "keys", "a key is named twice, allowed is each once")
	}
	o, _, err := e.readLease(e.ctx, ca.client.id, ca, wire.LeaseRequest{Mode: wire.ModeRead, Readers: 1, TTLMillis: q.TTLMillis}, blocks, readFor{quota: quota})
	if err != nil {
		return wire.OpenedBlocks{}, err
	}
	// From here on the blocks are held. They may have been evicted just before.
	if now := ca.store.Prefix(nil, keys, size); !slices.Equal(now, blocks) {
		o.revoke(fault.LeaseRevoked)
		return wire.OpenedBlocks{}, notAll(op, ca, len(now), len(blocks))
	}
	return wire.OpenedBlocks{Lease: hex16(o.grantID), Secret: o.secret[:], Blocks: uint32(len(blocks))}, nil
}

func notAll(op string, ca *cache, have, want int) error {
	fe := fault.New(fault.NotFound, op, "the first %d of %d keys are there", have, want)
	fe.Region, fe.Field = ca.name, "keys"
	return fe
}

// onOpen answers a peer's OPEN_BLOCKS.
func (ls *linkState) onOpen(f wire.Frame) error {
	var q wire.OpenBlocks
	if err := f.Decode(&q); err != nil {
		return err
	}
	err := q.Validate()
	if err == nil {
		err = wire.CheckKeys("open", f.Array, q.KeyBytes)
	}
	var opened wire.OpenedBlocks
	if err == nil {
		opened, err = ls.e.openHere("open", ls.link.Peer().Tenant, &q, f.Array, &ls.opens)
	}
	if err != nil {
		fe := *fault.From("open", err)
		fe.Peer = ls.e.o.Node
		ls.refuse(f.Request, &fe)
		return nil
	}
	ls.answer(f.Request, opened, nil)
	return nil
}

// openerLost ends what the peer of a lost link, or a client of this node that is gone, opened and nobody reads: who comes back
// counts anew, and would otherwise hold as much again each time. quota is what counted it.
func (e *Engine) openerLost(quota *int, code fault.Code) {
	for _, g := range e.allGrants() {
		if g.terms().quota == quota {
			g.revokeUnbound(code)
		}
	}
}
