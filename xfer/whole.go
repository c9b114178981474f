package xfer

import (
	"fmt"
	"sync"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/xfer/protocol"
)

// whole drives protocol.Whole: an instance's lease at the node that made it. It is a grant of the asking client, without
// memory of its own; nobody can bind it, only its parts.
//
// Its lock comes after those of leases and offers, since a part on this node speaks under its own: so a part's end is
// begun beside it, not under it.
type whole struct {
	permit
	instance string

	mu      sync.Mutex
	m       *protocol.Whole
	effects []protocol.WholeEffect
	parts   []wholePart
	answer  fault.Code // of the claim being made
	live    bool       // LEASE was answered; before that nobody is told of the end
	gone    bool       // forgotten
	over    chan struct{}
	cause   *fault.Error
	event   wire.LeaseEvent // what the parts say of their transfer, gathered
	wrote   bool
	note    []byte
	ends    rdma.Instant // when its parts end by themselves
	moved   rdma.Instant // when a part said anything last
}

// wholePart is one rank's part: on this node, or on another.
type wholePart struct {
	rank   Rank
	ticket wire.TicketGrant
	layers uint32
	own    *part      // on this node
	ls     *linkState // on another, by handle
	handle uint64
	doomed fault.Code // it is to end as soon as it is made
	late   bool       // nobody waits for it any more: its answer is met with GRANT_REVOKE
	// One GRANT_RENEW at a time waits for its answer, so that a client that renews in a loop and a peer that does not answer fill no
	// table: renewal is its request, 0 is none. again, not 0, is the end that was wished for meanwhile.
	renewal uint64
	again   rdma.Instant
}

func newWhole(e *Engine, r *wire.LeaseRequest, ranks []Rank, blocks []uint32) *whole {
	uses := 1
	if r.Mode == wire.ModeRead {
		uses = int(max(1, r.Readers))
	}
	w := &whole{permit: permit{e: e, grantID: random16(), secret: random16(), blocks: blocks, mode: r.Mode}, instance: r.Instance,
		m: protocol.NewWhole(len(ranks), uses), parts: make([]wholePart, len(ranks)), over: make(chan struct{})}
	for i := range ranks {
		w.parts[i].rank = ranks[i]
	}
	return w
}

func (w *whole) revoke(code fault.Code) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.step(protocol.WholeEvent{Kind: protocol.WholeRevoke, Code: code})
}

func (w *whole) revokeUnbound(code fault.Code) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.m.Claimed() {
		w.step(protocol.WholeEvent{Kind: protocol.WholeRevoke, Code: code})
	}
}

// renew tells every part; those on other nodes are not waited for. A part that can be renewed no more has ended, which
// ends the whole.
func (w *whole) renew(deadline rdma.Instant) error {
	w.mu.Lock()
	if w.m.Failed() || w.m.Over() {
		defer w.mu.Unlock()
		return ended("renew", w.instance, w.m.Outcome())
	}
	w.ends = deadline
	var own []*part
	for i := range w.parts {
		p := &w.parts[i]
		switch {
		case p.own != nil:
			own = append(own, p.own)
		case p.ls != nil:
			w.renewFar(p, deadline)
		}
	}
	w.mu.Unlock()
	for _, pt := range own {
		if err := pt.g.renew(deadline); err != nil {
			return err
		}
	}
	return nil
}

// renewFar tells a part on another node its new end. The caller holds w.mu.
func (w *whole) renewFar(p *wholePart, deadline rdma.Instant) {
	if p.renewal != 0 {
		p.again = deadline
		return
	}
	w.e.mu.Lock()
	request := w.e.id()
	w.e.mu.Unlock()
	p.renewal, p.again = request, 0
	ttl := max(1, ceilMillis(deadline-w.e.o.Clock.Now()))
	p.ls.ask(request, wire.KindGrantRenew, wire.GrantRenew{Handle: p.handle, TTLMillis: ttl}, nil, func(_ wire.Frame, err error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if p.renewal != request { // nothing is said of the part any more
			return
		}
		if p.renewal = 0; err == nil && p.again != 0 { // one that is refused has ended, as its GRANT_ENDED says
			w.renewFar(p, p.again)
		}
	})
}

// bind is never reached with the whole's secret, which nobody was given.
func (w *whole) bind(b *bindRequest, _ rdma.Instant) {
	b.ls.refuse(b.request, fault.New(fault.TicketInvalid, "bind", "no such lease, or the secret is wrong"))
}

// claim says whether a transfer that has presented part i may own the lease.
func (w *whole) claim(i int, transfer string, attempt uint32) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.step(protocol.WholeEvent{Kind: protocol.WholeClaim, Part: i, Transfer: transfer, Attempt: attempt})
	if w.answer == 0 {
		return nil
	}
	fe := &fault.Error{Code: w.answer, Op: "bind", Peer: w.e.o.Node}
	if w.answer == fault.TicketBound {
		fe.Detail = "the instance's lease belongs to another transfer; take a new lease for another attempt"
	}
	return fe
}

// layersVisible takes layers of part i.
func (w *whole) layersVisible(i int, layers []uint32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var visible []uint32
	for _, layer := range layers {
		w.step(protocol.WholeEvent{Kind: protocol.WholeLayer, Part: i, Layer: layer})
		for _, f := range w.effects {
			visible = append(visible, f.Layer)
		}
	}
	if len(visible) > 0 && w.live && !w.gone {
		w.client.sink.LayersVisible(wire.LayersVisible{Lease: w.id, Layers: visible})
	}
}

// partEnded takes the end of part i. failure nil: its blocks are COMMITTED, or its readers had them.
func (w *whole) partEnded(i int, ev wire.LeaseEvent, failure *fault.Error, note []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := &w.parts[i].rank
	code := fault.Code(0)
	if failure != nil {
		code = failure.Code
		w.wrote = w.wrote || failure.MayHaveWritten
		if w.cause == nil && !w.m.Failed() {
			fe := *failure
			fe.Op, fe.Region = "lease", r.Cache
			fe.Peer = r.Peer.Node
			fe.Detail = fmt.Sprintf("rank %d: %s", r.Rank, fe.Detail)
			w.cause = &fe
		}
	}
	if w.event.TransferID == "" {
		w.event.TransferID = ev.TransferID
	}
	if w.event.Peer == "" || r.Rank == 0 && ev.Peer != "" {
		w.event.Peer, w.event.Provider = ev.Peer, ev.Provider
	}
	if len(w.note) == 0 || r.Rank == 0 && len(note) > 0 {
		w.note = note
	}
	if code != 0 {
		w.drop(i)
	}
	w.step(protocol.WholeEvent{Kind: protocol.WholePartEnded, Part: i, Code: code, Bytes: ev.Bytes})
}

// step feeds an event and does what the machine says. The caller holds w.mu.
func (w *whole) step(ev protocol.WholeEvent) {
	w.effects = w.m.Step(w.effects[:0], ev)
	w.moved = w.e.o.Clock.Now()
	for _, f := range w.effects {
		switch f.Kind {
		case protocol.WholeAnswer:
			w.answer = f.Code
		case protocol.WholeRevokePart:
			w.revokePart(&w.parts[f.Part], f.Code)
		case protocol.WholeEvictPart:
			if p := &w.parts[f.Part]; p.own != nil {
				p.own.evict()
			} else if p.ls != nil {
				p.ls.send(wire.KindGrantRevoke, wire.GrantRevoke{Handle: p.handle, Error: fault.ToWire(&fault.Error{Code: w.m.Outcome(), Op: "lease"})}, nil)
				w.drop(f.Part)
			}
		case protocol.WholeKeepPart:
			if p := &w.parts[f.Part]; p.ls != nil {
				p.ls.send(wire.KindGrantRevoke, wire.GrantRevoke{Handle: p.handle}, nil)
				w.drop(f.Part)
			}
		case protocol.WholeEnd:
			w.end(f)
		}
	}
}

// revokePart ends a part, now or when it is made.
func (w *whole) revokePart(p *wholePart, code fault.Code) {
	switch {
	case p.own != nil:
		pt := p.own
		w.e.wg.Go(func() { pt.takeBack(code) }) // it may be another part that speaks now, under its lock
	case p.ls != nil:
		p.ls.send(wire.KindGrantRevoke, wire.GrantRevoke{Handle: p.handle, Error: fault.ToWire(&fault.Error{Code: code, Op: "lease"})}, nil)
	default:
		p.doomed = code
	}
}

// drop takes a part on another node out of its link's table: nothing more is said of it.
func (w *whole) drop(i int) {
	p := &w.parts[i]
	if p.ls == nil {
		return
	}
	p.ls.dropWhole(p.handle)
	if p.renewal != 0 {
		p.ls.forgetAsk(p.renewal)
		p.renewal = 0
	}
}

// end tells the client and forgets the whole.
func (w *whole) end(f protocol.WholeEffect) {
	live := w.live && !w.gone
	w.forget()
	if live {
		ev := w.event
		ev.Lease, ev.Bytes = w.id, f.Bytes
		note := w.note
		if f.Code != 0 {
			ev.Error, note = fault.ToWire(w.failure(f.Code)), nil
			w.e.o.Logger.Info("lease ended", "lease", hex16(w.grantID), "instance", w.instance, "transfer", ev.TransferID, "result", f.Code.String())
		}
		w.client.sink.LeaseEnded(ev, note)
	}
	close(w.over)
}

func (w *whole) failure(code fault.Code) *fault.Error {
	if c := w.cause; c != nil && c.Code == code {
		fe := *c
		fe.MayHaveWritten = w.wrote
		return &fe
	}
	return &fault.Error{Code: code, Op: "lease", MayHaveWritten: w.wrote}
}

// forget takes the whole out of every table, once.
func (w *whole) forget() {
	if w.gone {
		return
	}
	w.gone = true
	for i := range w.parts {
		w.drop(i)
	}
	w.e.dropGrant(&w.permit)
}

// abandon ends the whole of a client that is gone: there is nobody to tell, so the parts on other nodes are not waited for.
func (w *whole) abandon(code fault.Code) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.m.Over() {
		return
	}
	w.step(protocol.WholeEvent{Kind: protocol.WholeRevoke, Code: code})
	w.forget()
}

// localAsker is an asker on the part's own node.
type localAsker struct {
	w *whole
	i int
}

func (a localAsker) claim(transfer string, attempt uint32, answered func(error)) func() {
	answered(a.w.claim(a.i, transfer, attempt))
	return func() {}
}

func (a localAsker) layers(layers []uint32) { a.w.layersVisible(a.i, layers) }

func (a localAsker) ended(ev wire.LeaseEvent, note []byte) {
	var failure *fault.Error
	if ev.Error != nil {
		failure = fault.From("lease", fault.FromWire(ev.Error))
	}
	a.w.partEnded(a.i, ev, failure, note)
}

// wholeRef is a part on another node, as its link knows it.
type wholeRef struct {
	w *whole
	i int
}

// addWhole names a part that the peer has granted.
func (ls *linkState) addWhole(handle uint64, r wholeRef) error {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	_, used := ls.wholes[handle]
	switch {
	case ls.down:
		return &fault.Error{Code: fault.PeerLost, Op: "lease", Peer: ls.link.Peer().Node}
	case handle == 0 || used:
		return ls.wrong("lease", "handle %d is 0 or in use", handle)
	}
	ls.wholes[handle] = r
	return nil
}

func (ls *linkState) whole(handle uint64) (wholeRef, bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	r, ok := ls.wholes[handle]
	return r, ok
}

func (ls *linkState) dropWhole(handle uint64) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	delete(ls.wholes, handle)
}

func (ls *linkState) onGrantLayers(f wire.Frame) error {
	var q wire.GrantHandle
	if err := f.Decode(&q); err != nil {
		return err
	}
	layers, err := wire.U32s("layers", f.Array)
	if err != nil {
		return err
	}
	if r, ok := ls.whole(q.Handle); ok {
		r.w.layersVisible(r.i, layers)
	}
	return nil
}

func (ls *linkState) onGrantEnded(f wire.Frame) error {
	var q wire.GrantEnded
	if err := f.Decode(&q); err != nil {
		return err
	}
	if err := q.Validate(); err != nil {
		return err
	}
	if err := wire.CheckNotification("lease", f.Array); err != nil {
		return err
	}
	r, ok := ls.whole(q.Handle)
	if !ok {
		return nil
	}
	var failure *fault.Error
	if q.Error != nil {
		failure = fault.From("lease", fault.FromWire(q.Error))
	}
	r.w.partEnded(r.i, wire.LeaseEvent{TransferID: q.TransferID, Peer: q.Peer, Provider: q.Provider, Bytes: q.Bytes}, failure, f.Array)
	return nil
}

func (ls *linkState) onClaim(f wire.Frame) error {
	var q wire.Claim
	if err := f.Decode(&q); err != nil {
		return err
	}
	if err := q.Validate(); err != nil {
		return err
	}
	err := error(fault.New(fault.LeaseRevoked, "bind", "the lease is over"))
	if r, ok := ls.whole(q.Handle); ok {
		err = r.w.claim(r.i, q.Transfer, q.Attempt)
	}
	ls.send(wire.KindClaimed, wire.Claimed{Claim: q.Claim, Error: fault.ToWire(err)}, nil)
	return nil
}

// ownersLost ends the parts on a node whose link is lost. What that node does with their memory is its own matter.
func (ls *linkState) ownersLost() {
	ls.mu.Lock()
	all := ls.wholes
	ls.wholes = map[uint64]wholeRef{}
	ls.mu.Unlock()
	for _, r := range all {
		r.w.partEnded(r.i, wire.LeaseEvent{}, fault.New(fault.PeerLost, "lease", "the rank's node is lost; it takes its part back by itself"), nil)
	}
}
