package xfer

import (
	"context"
	"sync"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/rdma"
)

// region is memory of a client, registered with every provider.
type region struct {
	id      uint64
	key     [16]byte // the client's own random id
	client  *client
	name    string
	mapping Mapping
	inner   map[string]rdma.Region  // by provider
	refused map[string]*fault.Error // by provider: why it did not take the memory
	cache   *cache                  // under Engine.mu
	stuck   bool                    // under Engine.mu: it is quarantined and its end was tried
	spoilt  uint64                  // under usage.mu: bytes that a failed fence has made useless
	usage                           // advertisements and transfers of raw memory
}

func (r *region) use(op string) error { return r.usage.use(op, r.name) }

// deregister takes the memory from every provider, which fences.
func (r *region) deregister(e *Engine) (failed error) {
	defer e.metrics.fences.begin(e.o.Clock)()
	for name, in := range r.inner {
		if err := in.Close(); err != nil {
			e.o.Logger.Error("region is quarantined", "region", r.name, "provider", name, "error", err)
			failed = fault.Wrap(fault.Internal, "deregister_region", err)
		}
	}
	return failed
}

// memoryKey is what memory is known by on this node: a client that comes back hands the same memory over under the same id.
type memoryKey struct {
	tenant string
	id     [16]byte
}

func (r *region) memoryKey() memoryKey { return memoryKey{r.client.info.Tenant, r.key} }

// close deregisters everywhere, unmaps and gives the id out again. If a provider cannot fence, the mapping stays for ever,
// and so does the id: whoever could register the memory again would take it for fenced.
func (r *region) close(e *Engine) error {
	err := r.deregister(e)
	if err == nil {
		err = r.mapping.Close()
	}
	if err != nil {
		r.spoil(e, r.mapping.Memory().Len)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if err == nil {
		delete(e.memories, r.memoryKey())
	}
	r.stuck = err != nil
	e.idle.Broadcast()
	return err
}

// stick says that a region's end was tried in vain.
func (r *region) stick(e *Engine) {
	r.spoil(e, r.mapping.Memory().Len)
	e.mu.Lock()
	defer e.mu.Unlock()
	r.stuck = true
	e.idle.Broadcast()
}

// abandon ends what uses a dead client's region, and the region. What cannot be fenced stays mapped.
func (e *Engine) abandon(r *region) {
	e.mu.Lock()
	ca := r.cache
	e.mu.Unlock()
	if ca != nil {
		if err := e.endCache(e.ctx, ca, fault.ClientGone); err != nil {
			e.o.Logger.Error("cache of a dead client could not be ended", "cache", ca.name, "error", err)
			if !ca.fenced() {
				r.stick(e)
				return
			}
		}
	}
	if err := e.endUses(e.ctx, r, "deregister_region", fault.ClientGone); err != nil {
		e.o.Logger.Error("region of a dead client could not be ended", "region", r.name, "error", err)
		if !r.fenced() {
			r.stick(e)
			return
		}
	}
	if err := r.close(e); err != nil {
		e.o.Logger.Error("region of a dead client could not be closed", "region", r.name, "error", err)
	}
}

// usage counts what may still touch memory, so that its owner's calls can wait for the last.
type usage struct {
	mu          sync.Mutex
	users       int
	unused      chan struct{}
	ending      bool // nothing new begins
	quarantined bool // a fence failed: the memory is never given back
}

// use counts one in, unless the memory is being given back.
func (u *usage) use(op, name string) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.useLocked(op, name)
}

// useLocked is use for a caller that holds u.mu.
func (u *usage) useLocked(op, name string) error {
	if u.ending {
		return fault.New(fault.NotFound, op, "%q is being dropped", name)
	}
	u.users++
	return nil
}

func (u *usage) unuse() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.users--; u.users == 0 && u.unused != nil {
		close(u.unused)
		u.unused = nil
	}
}

func (u *usage) setEnding() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.ending = true
}

func (u *usage) isEnding() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.ending
}

func (u *usage) quarantine() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.quarantined = true
}

// wait returns when nothing touches the memory any more, or with ctx's error, or with Internal when it is quarantined.
func (u *usage) wait(ctx context.Context, op, name string) error {
	u.mu.Lock()
	for u.users > 0 {
		if u.unused == nil {
			u.unused = make(chan struct{})
		}
		ch := u.unused
		u.mu.Unlock()
		select {
		case <-ch:
		case <-ctx.Done():
			return fault.From(op, ctx.Err())
		}
		u.mu.Lock()
	}
	defer u.mu.Unlock()
	if u.quarantined {
		return fault.New(fault.Internal, op, "a fence on %q failed: its memory is quarantined", name)
	}
	return nil
}

// fenced says whether nothing can touch the memory any more, whatever else went wrong.
func (u *usage) fenced() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.users == 0 && !u.quarantined
}

// RegisterRegion takes a client's memory over. Where a client that is gone had registered it, that one's region is fenced
// before this returns: who comes back learns by the answer that nothing of before can touch the memory. On an error the
// caller closes m.
func (e *Engine) RegisterRegion(ctx context.Context, id ClientID, r wire.RegisterRegion, m Mapping) (wire.RegionInfo, error) {
	const op = "register_region"
	if err := checkName(op, r.Name); err != nil {
		return wire.RegionInfo{}, err
	}
	key, ok := parseHex16(r.ID)
	if !ok {
		return wire.RegionInfo{}, fault.Invalid(op, "id", "%.40q, want 32 hex digits", r.ID)
	}
	reg := &region{key: key, name: r.Name, mapping: m, inner: map[string]rdma.Region{}, refused: map[string]*fault.Error{}}
	if err := e.addRegion(ctx, op, id, reg, false); err != nil {
		return wire.RegionInfo{}, err
	}
	if err := reg.register(e); err != nil {
		return wire.RegionInfo{}, err
	}
	// It is known only when it is whole: whoever ends the client meanwhile does not see it, so it is ended here.
	if err := e.addRegion(ctx, op, id, reg, true); err != nil {
		_ = reg.deregister(e)
		return wire.RegionInfo{}, err
	}
	return wire.RegionInfo{Region: reg.id, MemoryKind: m.Memory().Kind.String(), Guarantee: guaranteeOf(m.Memory().Kind)}, nil
}

// guaranteeOf says how far the promise goes that memory which was taken back is never written again.
func guaranteeOf(k rdma.MemoryKind) string {
	if k == rdma.MemoryProcess {
		return wire.GuaranteeLiveClient
	}
	return wire.GuaranteeFull
}

// addRegion checks whether a client may have one more region and, with insert, adds it. It waits for the end of a region
// of the same memory whose client is gone; a quarantined one it would wait for in vain.
func (e *Engine) addRegion(ctx context.Context, op string, id ClientID, reg *region, insert bool) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	c, err := e.lookup(op, id)
	if err != nil {
		return err
	}
	key := memoryKey{c.info.Tenant, reg.key}
	e.awaitLocked(ctx, func() bool { old := e.memories[key]; return old == nil || !old.client.gone || old.stuck })
	if c, err = e.lookup(op, id); err != nil { // gone while it waited
		return err
	}
	if len(c.regions) >= e.o.Limits.Regions {
		return fault.New(fault.ResourceExhausted, op, "%d regions, allowed %d", len(c.regions), e.o.Limits.Regions)
	}
	for _, other := range c.regions {
		if other.name == reg.name || other.key == reg.key {
			return fault.New(fault.AlreadyExists, op, "the client has a region %q with this name or id", other.name)
		}
	}
	switch old := e.memories[key]; {
	case old == nil:
	case old.stuck:
		return &fault.Error{Code: fault.AlreadyExists, Op: op, Region: reg.name, Field: "id", Detail: "a fence on this memory failed: it is quarantined"}
	case old.client.gone:
		return fault.From(op, ctx.Err())
	default: // a former connection, perhaps, whose end was not seen yet
		return &fault.Error{Code: fault.AlreadyExists, Op: op, Region: reg.name, Field: "id", Detail: "another client of this tenant has a region with this id"}
	}
	if insert {
		reg.id, reg.client = e.id(), c
		c.regions[reg.id], e.memories[key] = reg, reg
	}
	return nil
}

// DeregisterRegion ends what uses raw memory, fences and unmaps. A cache in it must have been dropped.
func (e *Engine) DeregisterRegion(ctx context.Context, id ClientID, regionID uint64) error {
	const op = "deregister_region"
	e.mu.Lock()
	c, err := e.lookup(op, id)
	if err != nil {
		e.mu.Unlock()
		return err
	}
	r := c.regions[regionID]
	switch {
	case r == nil:
		err = fault.New(fault.NotFound, op, "no region %d", regionID)
	case r.cache != nil:
		err = fault.Invalid(op, "region", "cache %q lies in it; drop the cache first", r.cache.name)
	default:
		r.setEnding() // under the engine's lock: no cache is registered in it from here on
	}
	e.mu.Unlock()
	if err != nil {
		return err
	}
	if err := e.endUses(ctx, r, op, fault.LeaseRevoked); err != nil {
		return err
	}
	e.mu.Lock()
	if c.regions[regionID] != r { // it was ended meanwhile, with its client or by another call
		e.mu.Unlock()
		return nil
	}
	delete(c.regions, regionID)
	e.mu.Unlock()
	return r.close(e)
}

// ownRegion finds a client's raw region; memory with a cache in it is reached by blocks alone.
func (e *Engine) ownRegion(op string, id ClientID, regionID uint64) (*region, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	c, err := e.lookup(op, id)
	if err != nil {
		return nil, err
	}
	r := c.regions[regionID]
	switch {
	case r == nil:
		return nil, fault.New(fault.NotFound, op, "no region %d", regionID)
	case r.cache != nil:
		return nil, fault.Invalid(op, "region", "cache %q lies in it, allowed is raw memory", r.cache.name)
	}
	return r, nil
}

// useRaw counts one in that reaches a region as raw memory. A cache may have been registered in it since it was looked up:
// RegisterCache looks at the count where it sets the cache, this the other way round, so that one of the two is refused.
func (e *Engine) useRaw(op string, r *region) error {
	if err := r.use(op); err != nil {
		return err
	}
	e.mu.Lock()
	ca := r.cache
	e.mu.Unlock()
	if ca == nil {
		return nil
	}
	r.unuse()
	return fault.Invalid(op, "region", "cache %q lies in it, allowed is raw memory", ca.name)
}

// guarantee is what results say of memory whose promise is not the full one.
func (r *region) guarantee() string {
	if g := guaranteeOf(r.mapping.Memory().Kind); g != wire.GuaranteeFull {
		return g
	}
	return ""
}

// endUses ends the advertisements and transfers of raw memory and waits until nothing touches it. code is what they end with.
func (e *Engine) endUses(ctx context.Context, r *region, op string, code fault.Code) error {
	r.usage.setEnding()
	for _, g := range e.allGrants() {
		if p := g.terms(); p.region == r && p.cache == nil {
			g.revoke(code)
		}
	}
	transferCode := code
	if code == fault.LeaseRevoked { // which a source hears when the target took its memory back
		transferCode = fault.Cancelled
	}
	for _, p := range e.allTransfers() {
		if p.region == r && p.cache == nil {
			p.cancel(transferCode)
		}
	}
	return r.usage.wait(ctx, op, r.name)
}
