package kvxfer

import (
	"context"
	"slices"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/xfer/layout"
)

// AllocateCache allocates memory for a cache, all of it now, and hands it to the daemon. ctx bounds the call, with 30 seconds
// where it has no deadline.
//
// Errors: InvalidArgument names the field and what is allowed; ResourceExhausted, not enough memory; AlreadyExists, the node
// has a cache of that name; MemoryRejected, the daemon does not accept the memory.
func (c *Client) AllocateCache(ctx context.Context, spec CacheSpec) (*Cache, error) {
	const op = "allocate_cache"
	cache, s, err := c.newCache(op, spec)
	if err != nil {
		return nil, err
	}
	if cache.mem, err = allocateMemory(op, spec.Name, int64(cache.geometry.Bytes())); err != nil {
		return nil, err
	}
	if err := c.attach(ctx, op, s, cache); err != nil {
		return nil, err
	}
	return cache, nil
}

// RegisterCache makes a cache of memory that exists, NumBlocks*Layout.BlockBytes() bytes ordered [layer][plane][block]: it
// keeps its contents and its address, and becomes shared with the daemon. [AdoptMode] and [AdoptMemfd] say which memory can
// be handed over how; the default is [AdoptShare].
//
// Nobody may write to the memory while this call runs; reading is safe. The owner must not unmap it before the cache was
// dropped or the client closed without an error. ctx and errors are those of AllocateCache, and NotSupported: this memory
// cannot be handed over that way.
func (c *Client) RegisterCache(ctx context.Context, spec CacheSpec, buf []byte, options ...AdoptOption) (*Cache, error) {
	const op = "register_cache"
	cache, s, err := c.newCache(op, spec)
	if err != nil {
		return nil, err
	}
	if want := cache.geometry.Bytes(); uint64(len(buf)) != want {
		return nil, invalid(op, adoptField, "%d bytes, allowed %d: %d blocks of %d", len(buf), want, spec.NumBlocks, spec.Layout.BlockBytes())
	}
	if cache.mem, err = adoptMemory(op, spec.Name, buf, adoptOptionsOf(options)); err != nil {
		return nil, err
	}
	if err := c.attach(ctx, op, s, cache); err != nil {
		return nil, err
	}
	return cache, nil
}

// AllocateRegion allocates a raw region of size bytes, 1..2^62, all of them now: memory without blocks, which is moved by
// byte ranges. name is unique among this client's caches and regions, 1..64 of [A-Za-z0-9_.-]. ctx and errors are those of
// AllocateCache.
func (c *Client) AllocateRegion(ctx context.Context, name string, size int) (*Region, error) {
	const op = "allocate_region"
	s, err := c.use(op)
	if err != nil {
		return nil, err
	}
	if err := checkName(op, "name", name); err != nil {
		return nil, err
	}
	if size < 1 || size > MaxRegion {
		return nil, invalid(op, "size", "%d, allowed 1..%d", size, MaxRegion)
	}
	r := &Region{registered{client: c, name: name, size: size}}
	if r.mem, err = allocateMemory(op, name, int64(size)); err != nil {
		return nil, err
	}
	if err := c.attach(ctx, op, s, r); err != nil {
		return nil, err
	}
	return r, nil
}

// RegisterRegion makes a raw region of memory that exists, as RegisterCache does a cache; what is said there of writers and
// the memory's life holds here too.
func (c *Client) RegisterRegion(ctx context.Context, name string, buf []byte, options ...AdoptOption) (*Region, error) {
	const op = "register_region"
	s, err := c.use(op)
	if err != nil {
		return nil, err
	}
	if err := checkName(op, "name", name); err != nil {
		return nil, err
	}
	r := &Region{registered{client: c, name: name, size: len(buf)}}
	if r.mem, err = adoptMemory(op, name, buf, adoptOptionsOf(options)); err != nil {
		return nil, err
	}
	if err := c.attach(ctx, op, s, r); err != nil {
		return nil, err
	}
	return r, nil
}

func (c *Client) newCache(op string, spec CacheSpec) (*Cache, *session, error) {
	s, err := c.use(op)
	if err != nil {
		return nil, nil, err
	}
	g, err := spec.check(op)
	if err != nil {
		return nil, nil, err
	}
	spec.Layout = spec.Layout.withDefaults()
	spec.InstanceKey = slices.Clone(spec.InstanceKey)
	return &Cache{registered: registered{client: c, name: spec.Name, size: int(g.Bytes())}, spec: spec, geometry: g, vouched: newVouched(spec.NumBlocks)}, s, nil
}

// attach hands new memory over; where that fails its owner has it back.
func (c *Client) attach(ctx context.Context, op string, s *session, p place) error {
	b := p.base()
	b.guarantee = b.mem.guarantee
	ctx, cancel := bounded(ctx, slowTimeout)
	defer cancel()
	at, _, fe := p.register(ctx, op, s)
	if fe == nil {
		c.mu.Lock()
		if c.closed {
			fe = fault.New(fault.Closed, op, "the client was closed")
		} else {
			b.attach(&at)
			c.places = append(c.places, p)
		}
		c.mu.Unlock()
	}
	if fe == nil {
		return nil
	}
	// Nothing was granted on it, unless its registration is undone only after the instance's other processes knew of it and
	// leased it.
	if cache, ok := p.(*Cache); refused(fe) || !ok || cache.spec.Instance == "" {
		_ = b.mem.close()
		return newError(fe, true, nil)
	}
	return newError(fe, !b.mem.giveUp(), nil)
}

// forget: a cache or region was given back.
func (c *Client) forget(p place) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := slices.Index(c.places, p); i >= 0 {
		c.places = slices.Delete(c.places, i, i+1)
	}
}

// former are the lost sessions whose daemon may still touch that cache's or region's memory.
func (c *Client) former(name string) []*session {
	c.mu.Lock()
	old := slices.Clone(c.old)
	c.mu.Unlock()
	return slices.DeleteFunc(old, func(s *session) bool { return !s.holds(name) })
}

// LeaseInstance leases the same blocks on every rank of an instance for writing, under one ticket. Any process that has the
// instance's key may ask, with memory of its own or without. Each rank's own process hears of it, see [Cache.Granted]. The
// lease is committed on every rank or on none.
//
// instance is the engine's name as its ranks gave it, and key its secret, 16..64 bytes; blocks are at most 16,384. ctx bounds
// the call, for which the ranks' nodes are asked, with 15 seconds where it has no deadline.
//
// Errors: InvalidArgument names the field, and the index of a wrong block id; NotFound, a rank is not there;
// PermissionDenied, a wrong key; BlocksBusy, a block is leased, held or being fenced on a rank; DeadlineExceeded or Cancelled
// (Released false), the lease is revoked as soon as the daemon's answer comes.
func (c *Client) LeaseInstance(ctx context.Context, instance string, key []byte, blocks Blocks, o LeaseOptions) (*Lease, error) {
	var lease *Lease
	err := c.leaseInstance(ctx, instance, key, blocks, o, ModeWrite, func(s *session, g granted, ids []uint32, _ int, sp *span) (grantHandle, func()) {
		lease = newLease(s, g, "", layout.MaxLayers, ids, nil, guaranteeFull, sp)
		return lease, lease.discard
	})
	if err != nil {
		return nil, err
	}
	return lease, nil
}

// LeaseInstanceRead is LeaseInstance for reading.
func (c *Client) LeaseInstanceRead(ctx context.Context, instance string, key []byte, blocks Blocks, o LeaseOptions) (*ReadLease, error) {
	var lease *ReadLease
	err := c.leaseInstance(ctx, instance, key, blocks, o, ModeRead, func(s *session, g granted, ids []uint32, readers int, sp *span) (grantHandle, func()) {
		lease = newReadLease(s, g, "", ids, readers, guaranteeFull, sp)
		return lease, lease.discard
	})
	if err != nil {
		return nil, err
	}
	return lease, nil
}

func (c *Client) leaseInstance(ctx context.Context, instance string, key []byte, blocks Blocks, o LeaseOptions, mode Mode,
	made func(*session, granted, []uint32, int, *span) (grantHandle, func())) error {
	const op = "lease"
	s, err := c.use(op)
	if err != nil {
		return err
	}
	if err := checkInstance(op, instance, key); err != nil {
		return err
	}
	if o, err = o.check(op, mode); err != nil {
		return err
	}
	ids, err := packBlocks(op, blocks, MaxBlocks)
	if err != nil {
		return err
	}
	ctx, cancel := bounded(ctx, instanceTimeout)
	defer cancel()
	sp := startSpan(ctx, "kvxfer.lease", c.samples)
	body := o.request(sp)
	body.Instance, body.InstanceKey = instance, key
	fe, over := askGrant(ctx, s, request{op: op, kind: wire.KindLease, body: &body, data: wire.AppendU32s(nil, ids)}, o.TTL, sp, func(g granted) (grantHandle, func()) {
		return made(s, g, ids, o.Readers, sp)
	})
	if fe != nil {
		return newError(fe, over, nil)
	}
	return nil
}
