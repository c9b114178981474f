package xfer

import (
	"crypto/subtle"
	"sync"
	"sync/atomic"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/rdma"
)

const (
	// maxParts bounds the parts that one link's asker has here, committed ones included until it says how the whole ended.
	maxParts = 8192
	// maxClaims bounds the BINDs of one part that wait for the asker's word.
	maxClaims = 64
)

// asker is who made the instance's lease that a part belongs to. layers and ended come under the part's lock.
type asker interface {
	// claim asks whether a transfer may own the lease; answered is called once. forget ends the wait.
	claim(transfer string, attempt uint32, answered func(error)) (forget func())
	layers(layers []uint32)
	ended(ev wire.LeaseEvent, note []byte)
	// node is where it is.
	node() string
}

// part is the owner's side of one rank's part in an instance's lease. What it permits is a lease or an offer like any
// other, with the rank's client as its owner; the part adds the asker.
type part struct {
	e     *Engine
	whole [16]byte // the lease's id, the same on every rank
	asker asker
	// made runs when the part is granted, under its lock: before anybody can hear of it.
	made func(p *permit, generation uint64)

	mu         sync.Mutex
	g          grant
	claims     map[claimKey]*claim
	waiting    int
	asked      rdma.Instant // when the asker was asked last
	over       bool
	doomed     bool   // its end was asked for: what it commits all the same is evicted
	generation uint64 // not 0: over, with its blocks COMMITTED under it
}

type claimKey struct {
	transfer string
	attempt  uint32
}

// claim is a BIND that waits for the asker's word, or has got it.
type claim struct {
	key      claimKey
	bind     *bindRequest
	deadline rdma.Instant
	stop     func() bool
	forget   func()
	decided  bool
}

// granted tells the rank's client, then the asker. The caller holds the lock of g.
func (pt *part) granted(g grant, generation uint64) {
	p := g.terms()
	pt.mu.Lock()
	pt.g = g
	pt.mu.Unlock()
	p.client.sink.Granted(wire.GrantedEvent{Lease: p.id, Cache: p.cache.id, LeaseID: hex16(pt.whole), Mode: p.mode, Generation: generation}, p.blocks)
	pt.made(p, generation)
}

// bind asks the asker before the lease is bound: the first transfer owns every part. It waits for the word until the
// transfer's own time is over.
func (pt *part) bind(b *bindRequest, deadline rdma.Instant) {
	c := &claim{key: claimKey{b.transfer, b.attempt}, bind: b, deadline: deadline}
	pt.mu.Lock()
	var err *fault.Error
	over := pt.over
	switch {
	case over:
	case pt.claims[c.key] != nil:
		err = fault.New(fault.TicketBound, "bind", "this transfer has bound its part already")
	case pt.waiting >= maxClaims:
		err = fault.New(fault.ResourceExhausted, "bind", "%d transfers wait for this part, allowed %d", pt.waiting, maxClaims)
	default:
		if pt.claims == nil {
			pt.claims = map[claimKey]*claim{}
		}
		pt.claims[c.key] = c
		pt.asked = pt.e.o.Clock.Now()
		pt.waiting++
		c.stop = pt.e.o.Clock.AfterFunc(deadline, func() {
			pt.decide(c, fault.New(fault.DeadlineExceeded, "bind", "the node that made the lease did not answer in the transfer's time"))
		})
	}
	pt.mu.Unlock()
	switch {
	case over: // it says how it ended
		pt.g.bind(b, deadline)
	case err != nil:
		pt.refuse(b, err)
	default:
		forget := pt.asker.claim(b.transfer, b.attempt, func(err error) { pt.decide(c, err) })
		pt.mu.Lock()
		c.forget = forget
		late := c.decided
		pt.mu.Unlock()
		if late {
			forget()
		}
	}
}

// decide takes the first of: the asker's word, the end of the transfer's time, the end of the part.
func (pt *part) decide(c *claim, err error) {
	pt.mu.Lock()
	if c.decided {
		pt.mu.Unlock()
		return
	}
	c.decided = true
	pt.waiting--
	if err != nil {
		delete(pt.claims, c.key)
	}
	stop, forget := c.stop, c.forget
	pt.mu.Unlock()
	stop()
	if forget != nil {
		forget()
	}
	if err != nil {
		pt.refuse(c.bind, fault.From("bind", err))
		return
	}
	pt.g.bind(c.bind, c.deadline)
}

func (pt *part) refuse(b *bindRequest, err *fault.Error) {
	fe := *err
	fe.Op = "bind"
	if fe.Peer == "" {
		fe.Peer = pt.e.o.Node
	}
	b.ls.refuse(b.request, &fe)
}

// ended tells the asker. The caller holds the lock of the part's lease.
func (pt *part) ended(ev wire.LeaseEvent, note []byte) {
	pt.mu.Lock()
	pt.over, pt.generation = true, ev.Generation
	doomed := pt.doomed
	waiting := make([]*claim, 0, pt.waiting)
	for _, c := range pt.claims {
		if !c.decided {
			waiting = append(waiting, c)
		}
	}
	pt.mu.Unlock()
	for _, c := range waiting {
		err := fault.FromWire(ev.Error)
		if err == nil {
			err = fault.New(fault.TicketBound, "bind", "the lease belongs to another transfer")
		}
		pt.decide(c, err)
	}
	if doomed && ev.Generation != 0 { // the commit was decided before its end was asked for, and nobody is left who must ask again
		pt.evict()
		ev.Generation = 0
	}
	pt.asker.ended(ev, note)
}

// takeBack ends the part, or evicts what it has committed or is about to commit.
func (pt *part) takeBack(code fault.Code) {
	pt.mu.Lock()
	g, over := pt.g, pt.over
	pt.doomed = true
	pt.mu.Unlock()
	if over {
		pt.evict()
		return
	}
	g.revoke(code)
}

// evict frees the blocks that the part committed, as far as they are still what it committed: the rank's client may
// have leased them again since.
func (pt *part) evict() {
	pt.mu.Lock()
	p, generation := pt.g.terms(), pt.generation
	pt.mu.Unlock()
	if generation == 0 {
		return
	}
	if err := p.cache.store.EvictGeneration(p.blocks, generation); err != nil && fault.CodeOf(err) != fault.Closed {
		pt.e.o.Logger.Error("blocks of a lease that failed elsewhere could not be evicted", "lease", hex16(pt.whole), "cache", p.cache.name, "error", err)
	}
}

// tellLayers says which layers are visible.
func (p *permit) tellLayers(layers []uint32) {
	p.client.sink.LayersVisible(wire.LayersVisible{Lease: p.id, Layers: layers})
	if p.part != nil {
		p.part.asker.layers(layers)
	}
}

// tellEnd says that the permission is over and fenced.
func (p *permit) tellEnd(ev wire.LeaseEvent, note []byte) {
	p.client.sink.LeaseEnded(ev, note)
	if p.part != nil {
		p.part.ended(ev, note)
	}
}

// rankCache finds the cache of a rank for whoever shows the instance's key.
func (e *Engine) rankCache(op, tenant, name, instance string, key []byte) (*cache, error) {
	e.mu.Lock()
	ca := e.names[cacheKey(tenant, name)]
	if ca != nil && (e.caches[ca.id] != ca || ca.spec.Instance != instance) {
		ca = nil
	}
	draining := e.draining
	e.mu.Unlock()
	switch {
	case ca == nil:
		fe := fault.New(fault.NotFound, op, "no cache %q of instance %q on node %s", name, instance, e.o.Node)
		fe.Retry = true // the asker's directory has it: its client is about to come back, or the directory to forget it
		return nil, fe
	case subtle.ConstantTimeCompare(ca.spec.InstanceKey, key) != 1:
		return nil, &fault.Error{Code: fault.PermissionDenied, Op: op, Region: name, Field: "instance_key", Detail: "it is not the instance's"}
	case draining:
		return nil, fault.New(fault.Draining, op, "node %s is draining", e.o.Node)
	}
	return ca, nil
}

// onGrant answers a peer's GRANT: an asker there makes an instance's lease.
func (ls *linkState) onGrant(f wire.Frame) error {
	var q wire.Grant
	if err := f.Decode(&q); err != nil {
		return err
	}
	blocks, err := wire.U32s("blocks", f.Array)
	if err != nil {
		return err
	}
	if err := ls.grantPart(f.Request, &q, blocks); err != nil {
		fe := fault.From("lease", err)
		fe.Peer = ls.e.o.Node
		ls.refuse(f.Request, fe)
	}
	return nil
}

func (ls *linkState) grantPart(request uint64, q *wire.Grant, blocks []uint32) error {
	const op = "lease"
	if err := q.Validate(); err != nil {
		return err
	}
	ca, err := ls.e.rankCache(op, ls.link.Peer().Tenant, q.Cache, q.Instance, q.InstanceKey)
	if err != nil {
		return err
	}
	ls.mu.Lock()
	n := len(ls.parts)
	ls.mu.Unlock()
	if n >= maxParts {
		return fault.New(fault.ResourceExhausted, op, "the link has %d parts of leases, allowed %d", n, maxParts)
	}
	whole, _ := parseHex16(q.LeaseID)
	far := &linkAsker{ls: ls}
	pt := &part{e: ls.e, whole: whole, asker: far}
	pt.made = func(p *permit, generation uint64) {
		far.handle.Store(ls.addPart(pt))
		ls.answer(request, wire.Granted{Handle: far.handle.Load(), Lease: hex16(p.grantID), Secret: p.secret[:], Generation: generation,
			Layers: p.cache.spec.Layout.Layers, Rank: p.cache.spec.Layout.TPRank}, nil)
	}
	return ls.e.grantPart(ca, wire.LeaseRequest{Mode: q.Mode, Readers: q.Readers, TTLMillis: q.TTLMillis, Traceparent: q.Traceparent}, blocks, pt)
}

// grantPart gives a part, in the name of the rank's client.
func (e *Engine) grantPart(ca *cache, r wire.LeaseRequest, blocks []uint32, pt *part) error {
	if err := ca.geometry.CheckBlocks("lease", blocks); err != nil {
		return err
	}
	r.Cache = ca.id
	var err error
	if r.Mode == wire.ModeRead {
		_, _, err = e.readLease(e.ctx, ca.client.id, ca, r, blocks, readFor{part: pt})
	} else {
		_, err = e.writeLease(e.ctx, ca.client.id, ca, r, blocks, pt)
	}
	return err
}

// linkAsker is an asker on another node.
type linkAsker struct {
	ls     *linkState
	handle atomic.Uint64 // set before the asker hears of the part; its transfers come over other links
}

func (a *linkAsker) claim(transfer string, attempt uint32, answered func(error)) func() {
	e := a.ls.e
	e.mu.Lock()
	id := e.id()
	e.mu.Unlock()
	a.ls.mu.Lock()
	down := a.ls.down
	if !down {
		a.ls.claims[id] = answered
	}
	a.ls.mu.Unlock()
	if down {
		answered(&fault.Error{Code: fault.PeerLost, Op: "bind", Detail: "the node that made the lease is lost"})
		return func() {}
	}
	a.ls.send(wire.KindClaim, wire.Claim{Handle: a.handle.Load(), Claim: id, Transfer: transfer, Attempt: attempt}, nil)
	return func() { a.ls.takeClaim(id) }
}

func (a *linkAsker) layers(layers []uint32) {
	a.ls.send(wire.KindGrantLayers, wire.GrantHandle{Handle: a.handle.Load()}, wire.AppendU32s(nil, layers))
}

func (a *linkAsker) ended(ev wire.LeaseEvent, note []byte) {
	if ev.Generation == 0 { // a committed part waits for word of the whole
		a.ls.dropPart(a.handle.Load())
	}
	a.ls.send(wire.KindGrantEnded, wire.GrantEnded{Handle: a.handle.Load(), TransferID: ev.TransferID, Peer: ev.Peer, Provider: ev.Provider,
		Bytes: ev.Bytes, Error: ev.Error}, note)
}

func (ls *linkState) addPart(pt *part) uint64 {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.handles++
	ls.parts[ls.handles] = pt
	if ls.down { // LinkDown came between the request and here and did not see this part
		ls.e.wg.Go(func() { pt.takeBack(fault.PeerLost) })
	}
	return ls.handles
}

func (ls *linkState) part(handle uint64) *part {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return ls.parts[handle]
}

func (ls *linkState) dropPart(handle uint64) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	delete(ls.parts, handle)
}

func (ls *linkState) takeClaim(id uint64) func(error) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	answered := ls.claims[id]
	delete(ls.claims, id)
	return answered
}

// onGrantRevoke ends a part. Of a committed one it says how the whole ended: with an error its blocks are evicted.
func (ls *linkState) onGrantRevoke(f wire.Frame) error {
	var q wire.GrantRevoke
	if err := f.Decode(&q); err != nil {
		return err
	}
	pt := ls.part(q.Handle)
	if pt == nil {
		return nil // GRANT_ENDED is on its way
	}
	pt.mu.Lock()
	over := pt.over
	pt.mu.Unlock()
	if over {
		ls.dropPart(q.Handle)
		if q.Error != nil {
			pt.evict()
		}
		return nil
	}
	code := fault.LeaseRevoked
	if q.Error != nil && q.Error.Code.Known() && q.Error.Code != fault.Internal {
		code = q.Error.Code
	}
	pt.takeBack(code)
	return nil
}

func (ls *linkState) onGrantRenew(f wire.Frame) error {
	var q wire.GrantRenew
	if err := f.Decode(&q); err != nil {
		return err
	}
	err := q.Validate()
	if err == nil {
		if pt := ls.part(q.Handle); pt != nil {
			err = pt.g.renew(ls.e.millis(q.TTLMillis))
		} else {
			err = fault.New(fault.NotFound, "renew", "the part has ended")
		}
	}
	if err != nil {
		ls.refuse(f.Request, err)
		return nil
	}
	ls.answer(f.Request, nil, nil)
	return nil
}

// onClaimed takes the asker's word on a claim.
func (ls *linkState) onClaimed(f wire.Frame) error {
	var q wire.Claimed
	if err := f.Decode(&q); err != nil {
		return err
	}
	if answered := ls.takeClaim(q.Claim); answered != nil {
		answered(fault.FromWire(q.Error))
	}
	return nil
}

// askerLost ends what a lost link's asker has here. Nobody will say any more how its leases ended, so what they committed
// is evicted.
func (ls *linkState) askerLost() {
	ls.mu.Lock()
	parts, claims := ls.parts, ls.claims
	ls.parts, ls.claims = map[uint64]*part{}, map[uint64]func(error){}
	ls.mu.Unlock()
	for _, answered := range claims {
		answered(&fault.Error{Code: fault.PeerLost, Op: "bind", Detail: "the node that made the lease is lost"})
	}
	for _, pt := range parts {
		pt.takeBack(fault.PeerLost)
	}
}
