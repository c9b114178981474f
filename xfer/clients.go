package xfer

import (
	"context"
	"fmt"
	"regexp"

	"go.opentelemetry.io/otel/trace"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/xfer/blockdb"
	"github.com/kvxfer/kvxfer/xfer/layout"
)

// client is an attached process. Its fields are under Engine.mu.
type client struct {
	id        ClientID
	info      ClientInfo
	sink      Sink
	gone      bool
	regions   map[uint64]*region
	leases    int
	opens     int // read leases that it opened by keys on this node
	transfers int
	tracer    trace.Tracer // of the tenant's spans
}

var nameRule = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)

func checkName(op, name string) error {
	if !nameRule.MatchString(name) {
		return fault.Invalid(op, "name", "%.80q, allowed 1..64 of [A-Za-z0-9_.-], beginning with a letter or digit", name)
	}
	return nil
}

// AddClient attaches a process.
func (e *Engine) AddClient(info ClientInfo, sink Sink) (ClientID, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.draining {
		return 0, fault.New(fault.Draining, "connect", "node %s is draining", e.o.Node)
	}
	if len(e.clients) >= e.o.Limits.Clients {
		return 0, fault.New(fault.ResourceExhausted, "connect", "%d clients are attached, allowed %d", len(e.clients), e.o.Limits.Clients)
	}
	c := &client{id: ClientID(e.id()), info: info, sink: sink, regions: map[uint64]*region{}, tracer: e.o.Tracer}
	if e.o.TenantTracer != nil {
		c.tracer = e.o.TenantTracer(info.Tenant)
	}
	e.clients[c.id] = c
	return c.id, nil
}

// lookup returns a live client. The caller holds e.mu.
func (e *Engine) lookup(op string, id ClientID) (*client, error) {
	c := e.clients[id]
	if c == nil || c.gone {
		return nil, fault.New(fault.Closed, op, "the client is detached")
	}
	return c, nil
}

// admit returns the client that may begin one more of what it already has held(c) of. The caller holds e.mu.
func (e *Engine) admit(op string, id ClientID, what string, held func(*client) int, limit int) (*client, error) {
	c, err := e.lookup(op, id)
	switch {
	case err != nil:
		return nil, err
	case e.draining:
		return nil, fault.New(fault.Draining, op, "node %s is draining", e.o.Node)
	case held(c) >= limit:
		return nil, fault.New(fault.ResourceExhausted, op, "%d %s, allowed %d", held(c), what, limit)
	}
	return c, nil
}

// ClientGone ends everything of a client and returns at once; memory is unmapped when it is fenced.
func (e *Engine) ClientGone(id ClientID) {
	e.mu.Lock()
	c := e.clients[id]
	if c == nil || c.gone {
		e.mu.Unlock()
		return
	}
	c.gone = true
	regions := make([]*region, 0, len(c.regions))
	for _, r := range c.regions {
		regions = append(regions, r)
	}
	e.mu.Unlock()
	e.abandonWholes(c)
	e.openerLost(&c.opens, fault.ClientGone)
	e.wg.Go(func() {
		for _, r := range regions {
			e.abandon(r)
		}
		e.mu.Lock()
		delete(e.clients, id)
		e.idle.Broadcast()
		e.mu.Unlock()
	})
}

// cacheKey is what a cache is known by on this node, also in the journal: its name is unique in its tenant. The default tenant's
// have their bare name there, which no other tenant's can be: a name has no slash.
func cacheKey(tenant, name string) string {
	if tenant == "default" {
		return name
	}
	return tenant + "/" + name
}

// RegisterCache declares a KV cache in a region and brings back the committed blocks that the owner vouches for.
func (e *Engine) RegisterCache(ctx context.Context, id ClientID, r wire.RegisterCache, vouched []wire.Vouch) (wire.CacheInfo, []uint32, error) {
	const op = "register_cache"
	none := wire.CacheInfo{}
	if err := checkName(op, r.Name); err != nil {
		return none, nil, err
	}
	for _, f := range [...]struct {
		name, v string
		least   int
	}{{"model", r.Model, 1}, {"revision", r.Revision, 0}, {"compat", r.Compat, 0}} {
		if n := len(f.v); n < f.least || n > blockdb.MaxStringBytes {
			return none, nil, fault.Invalid(op, f.name, "%d bytes, allowed %d..%d", n, f.least, blockdb.MaxStringBytes)
		}
	}
	e.mu.Lock()
	c, err := e.lookup(op, id)
	if err != nil {
		e.mu.Unlock()
		return none, nil, err
	}
	key := cacheKey(c.info.Tenant, r.Name)
	// A client that comes back finds its former connection's cache still being fenced: it waits for that. A
	// quarantined one it would wait for in vain.
	e.awaitLocked(ctx, func() bool { old := e.names[key]; return old == nil || !old.client.gone || old.stuck })
	if c, err = e.lookup(op, id); err != nil { // gone while it waited
		e.mu.Unlock()
		return none, nil, err
	}
	reg := c.regions[r.Region]
	switch old := e.names[key]; {
	case reg == nil:
		err = fault.New(fault.NotFound, op, "no region %d", r.Region)
	case old != nil && old.client.gone && !old.stuck:
		err = fault.From(op, ctx.Err())
	case old != nil:
		err = fault.New(fault.AlreadyExists, op, "a cache %q of this tenant is registered on this node", r.Name)
	case reg.cache != nil:
		err = fault.New(fault.AlreadyExists, op, "cache %q lies in this region", reg.cache.name)
	case reg.isEnding():
		err = fault.New(fault.NotFound, op, "region %q is being deregistered", reg.name)
	case !reg.fenced():
		err = fault.Invalid(op, "region", "%q is in use as raw memory: end its advertisements and transfers first", reg.name)
	}
	if err != nil {
		e.mu.Unlock()
		return none, nil, err
	}
	if err := (layout.Geometry{Layout: r.Layout, NumBlocks: r.NumBlocks}).Validate(reg.mapping.Memory().Len); err != nil {
		e.mu.Unlock()
		return none, nil, err
	}
	ca := newCache(e, c, reg, r)
	ca.id = e.id()
	e.names[key], reg.cache = ca, ca
	e.mu.Unlock()

	dev, ino := reg.mapping.Object()
	vv := make([]blockdb.Vouch, len(vouched))
	for i, v := range vouched {
		vv[i] = blockdb.Vouch(v)
	}
	store, served, err := e.o.Store.Attach(blockdb.AttachSpec{
		Name: key, Model: r.Model, NumBlocks: r.NumBlocks, LayoutDigest: ca.digest(),
		Binding: blockdb.Binding{BootID: e.o.BootID, Dev: dev, Ino: ino, CacheID: ca.key},
	}, vv)
	ca.mu.Lock()
	defer ca.mu.Unlock() // endCache waits here, so that it takes back what is announced and not the reverse
	e.mu.Lock()
	if err == nil && c.gone {
		// ClientGone came before the cache was known; nobody else ends it.
		e.mu.Unlock()
		if derr := store.Detach(); derr != nil {
			e.o.Logger.Error("cache of a dead client could not be ended", "cache", r.Name, "error", derr)
		}
		e.mu.Lock()
		err = fault.New(fault.Closed, op, "the client is detached")
	}
	if err != nil {
		delete(e.names, key)
		reg.cache = nil
		e.idle.Broadcast()
		e.mu.Unlock()
		return none, nil, err
	}
	ca.store = store
	e.caches[ca.id] = ca
	e.mu.Unlock()
	public := r
	public.InstanceKey = nil
	var numaNode *int
	if e.o.NUMANode != nil {
		numaNode = e.o.NUMANode(reg.mapping.Memory())
	}
	e.o.Directory.PutCache(CacheEntry{NUMANode: numaNode, Name: r.Name, ID: hex16(ca.key), MemoryKind: reg.mapping.Memory().Kind.String(), Tenant: c.info.Tenant, Spec: public})
	e.o.Logger.Info("cache registered", "cache", r.Name, "model", r.Model, "layout", r.Layout.String(), "blocks", r.NumBlocks, "served", len(served))
	return wire.CacheInfo{Cache: ca.id, BlockBytes: r.Layout.BlockBytes()}, served, nil
}

// DropCache ends a cache's leases and transfers, waits for their fences and forgets its blocks.
func (e *Engine) DropCache(ctx context.Context, id ClientID, cacheID uint64) error {
	ca, err := e.ownCache("drop_cache", id, cacheID)
	if err != nil {
		return err
	}
	return e.endCache(ctx, ca, fault.LeaseRevoked)
}

// endCache is the one way a cache ends: code is what its leases end with. A second caller waits for the first.
func (e *Engine) endCache(ctx context.Context, ca *cache, code fault.Code) error {
	ca.setEnding() // nothing new begins from here on
	for _, g := range e.allGrants() {
		if g.terms().cache == ca {
			g.revoke(code)
		}
	}
	pushCode := code
	if code == fault.LeaseRevoked { // which a source hears when the target took its blocks back
		pushCode = fault.Cancelled
	}
	for _, p := range e.allTransfers() {
		if p.cache == ca {
			p.cancel(pushCode)
		}
	}
	if err := ca.wait(ctx, "drop_cache", ca.name); err != nil {
		e.mu.Lock()
		ca.stuck = ca.stuck || ctx.Err() == nil
		e.idle.Broadcast()
		e.mu.Unlock()
		return err
	}
	e.mu.Lock()
	first := e.caches[ca.id] == ca
	delete(e.caches, ca.id)
	e.mu.Unlock()
	if !first {
		return nil
	}
	// A client that dropped its cache will not come back with it; one that is gone may, with the same memory.
	end := ca.store.Detach
	if code == fault.LeaseRevoked {
		end = ca.store.Drop
	}
	err := end()
	e.o.Directory.DropCache(ca.client.info.Tenant, ca.name)
	e.mu.Lock()
	delete(e.names, cacheKey(ca.client.info.Tenant, ca.name))
	ca.region.cache = nil
	e.idle.Broadcast()
	e.mu.Unlock()
	return err
}

func (e *Engine) ownCache(op string, id ClientID, cacheID uint64) (*cache, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, err := e.lookup(op, id); err != nil {
		return nil, err
	}
	ca := e.caches[cacheID]
	if ca == nil || ca.client.id != id {
		return nil, fault.New(fault.NotFound, op, "no cache %d", cacheID)
	}
	return ca, nil
}

// Blocks counts a cache's blocks by state; the array lists those that are not FREE as {block u32, state u32, generation u64}.
func (e *Engine) Blocks(id ClientID, cacheID uint64) (wire.BlocksInfo, []byte, error) {
	ca, err := e.ownCache("blocks", id, cacheID)
	if err != nil {
		return wire.BlocksInfo{}, nil, err
	}
	return ca.states()
}

// Evict takes blocks back from every peer and makes the committed ones FREE. Leases that touch them are revoked and fenced;
// when it returns nil, nobody but the client can touch them. The client's own transfers are its own to cancel: blocks that
// one of them holds are BlocksBusy, and nothing is changed.
func (e *Engine) Evict(ctx context.Context, id ClientID, cacheID uint64, blocks []uint32) error {
	const op = "evict"
	ca, err := e.ownCache(op, id, cacheID)
	if err != nil {
		return err
	}
	if err := ca.geometry.CheckBlocks(op, blocks); err != nil {
		return err
	}
	if err := e.ownUse(ctx, op, ca, blocks); err != nil {
		return err
	}
	if err := e.takeBack(ctx, op, e.touching(ca, blocks)); err != nil {
		return err
	}
	return ca.evict(op, blocks)
}

// evict makes committed blocks FREE that no permission names.
func (ca *cache) evict(op string, blocks []uint32) error {
	ca.mu.Lock()
	defer ca.mu.Unlock()
	for _, b := range blocks {
		if ca.held[b] > 0 { // by what began meanwhile
			return &fault.Error{Code: fault.BlocksBusy, Op: op, Region: ca.name, Field: "blocks", Detail: fmt.Sprintf("block %d is held", b)}
		}
	}
	return ca.store.Evict(blocks)
}

// ownUse refuses blocks that a transfer of the client itself holds. One that has given them back is waited for: its end is
// told before the blocks are evicted, and who has heard of it is not refused.
func (e *Engine) ownUse(ctx context.Context, op string, ca *cache, blocks []uint32) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	telling, err := e.ownUsers(op, ca, blocks)
	if err != nil {
		return err
	}
	told := func() bool {
		for _, p := range telling {
			if e.transfers[p.id] != nil {
				return false
			}
		}
		return true
	}
	e.awaitLocked(ctx, told)
	if !told() {
		return fault.From(op, ctx.Err())
	}
	return nil
}

// ownUsers lists the client's own transfers with these blocks that have given them back and whose end is being told; one that
// has not is BlocksBusy. The caller holds e.mu.
func (e *Engine) ownUsers(op string, ca *cache, blocks []uint32) (telling []*transfer, err error) {
	var named *layout.Set
	for _, p := range e.transfers {
		if p.cache != ca {
			continue
		}
		if named == nil {
			named = layout.SetOf(ca.geometry.NumBlocks, blocks)
		}
		b, ok := named.First(p.blocks)
		switch {
		case !ok:
		case !p.gaveBack:
			return nil, &fault.Error{Code: fault.BlocksBusy, Op: op, Region: ca.name, Field: "blocks",
				Detail: fmt.Sprintf("block %d is held by transfer %s of this client: cancel it first", b, hex16(p.transferID))}
		default:
			telling = append(telling, p)
		}
	}
	return telling, nil
}
