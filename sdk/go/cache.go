package kvxfer

import (
	"context"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/xfer/layout"
)

// CacheSpec says what a cache is.
type CacheSpec struct {
	Name      string // unique on the node, 1..64 of [A-Za-z0-9_.-]
	Model     string // 1..1024 bytes; Model, Revision, Compat and Layout must agree on both sides of a transfer
	Revision  string // of the model, up to 1024 bytes
	Compat    string // the caller's own compatibility string (quantisation, adapter, draft model), up to 1024 bytes
	Layout    Layout // where the bytes lie
	NumBlocks int    // 1..16777216
	// Instance is the engine whose rank Layout.TPRank this is; "": of none. InstanceKey is then a secret of the engine's
	// processes, 16..64 bytes: whoever shows it may lease the blocks of every rank.
	Instance    string
	InstanceKey []byte
}

// check returns the cache's geometry when everything is in its range.
func (s *CacheSpec) check(op string) (layout.Geometry, error) {
	for _, err := range [...]error{checkName(op, "name", s.Name), checkText(op, "model", s.Model, 1), checkText(op, "revision", s.Revision, 0),
		checkText(op, "compat", s.Compat, 0)} {
		if err != nil {
			return layout.Geometry{}, err
		}
	}
	if s.Instance != "" || len(s.InstanceKey) > 0 {
		if err := checkInstance(op, s.Instance, s.InstanceKey); err != nil {
			return layout.Geometry{}, err
		}
	}
	return s.Layout.geometry(s.NumBlocks)
}

// Cache is a KV cache in memory that is shared with the daemon, from [Client.AllocateCache] or [Client.RegisterCache].
//
// Its methods may be called from any goroutine. Who writes to its memory while a peer may, or while a transfer reads it,
// destroys what is moved; the leases and transfers say when that is.
type Cache struct {
	registered
	spec     CacheSpec
	geometry layout.Geometry
	vouched  *vouched
	granted  grantedLeases
}

// Layout is where the bytes lie.
func (c *Cache) Layout() Layout { return c.spec.Layout }

// NumBlocks is the number of blocks; their ids are 0..NumBlocks-1.
func (c *Cache) NumBlocks() int { return c.spec.NumBlocks }

// Spec is what the cache was made of, without the instance's key.
func (c *Cache) Spec() CacheSpec {
	s := c.spec
	s.InstanceKey = nil
	return s
}

// LeaseOptions are the terms of a lease.
type LeaseOptions struct {
	// Mode is ModeWrite for Lease, ModeRead for LeaseRead; "": the method's own.
	Mode Mode
	// TTL is how long it lasts, 1 ms to 24 h, on the daemon's clock; 0: 30 seconds.
	TTL time.Duration
	// Readers is how many transfers may bind a lease for reading, 1..65535; 0: 1.
	Readers int
}

// check fills in the defaults.
func (o LeaseOptions) check(op string, mode Mode) (LeaseOptions, error) {
	if o.Mode != "" && o.Mode != mode {
		return o, invalid(op, "mode", "%.80q, allowed %q here; Lease is for writing, LeaseRead for reading", string(o.Mode), string(mode))
	}
	most := 1
	if mode == ModeRead {
		most = wire.MaxReaders
	}
	if o.Readers == 0 {
		o.Readers = 1
	}
	if o.Readers < 1 || o.Readers > most {
		return o, invalid(op, "readers", "%d, allowed 1..%d", o.Readers, most)
	}
	o.Mode = mode
	var err error
	o.TTL, err = checkTTL(op, o.TTL, defaultTTL)
	return o, err
}

// request is the body of LEASE.
func (o LeaseOptions) request(sp *span) wire.LeaseRequest {
	r := wire.LeaseRequest{Mode: string(o.Mode), TTLMillis: millis(o.TTL), Traceparent: sp.traceparent()}
	if o.Readers != 1 {
		r.Readers = uint32(o.Readers)
	}
	return r
}

// Lease gives whoever comes with the lease's ticket permission to write blocks: one transfer, the first that comes. What the
// blocks held is given up with the call. ctx bounds the call, with 5 seconds where it has no deadline.
//
// Errors: InvalidArgument names the field, and the index of a wrong block id; BlocksBusy, a block is leased, held or being
// fenced; DeadlineExceeded or Cancelled (Released false), the lease is revoked as soon as the daemon's answer comes.
func (c *Cache) Lease(ctx context.Context, blocks Blocks, o LeaseOptions) (*Lease, error) {
	const op = "lease"
	at, ids, o, err := c.leaseTerms(op, blocks, o, ModeWrite)
	if err != nil {
		return nil, err
	}
	ctx, cancel := bounded(ctx, defaultTimeout)
	defer cancel()
	sp := startSpan(ctx, "kvxfer.lease", c.client.samples)
	body := o.request(sp)
	body.Cache = at.cache
	// Before the daemon hears of it: from the grant on a peer may write.
	taken := c.vouched.take(ids)
	var lease *Lease
	fe, over := askGrant(ctx, at.session, request{op: op, kind: wire.KindLease, body: &body, data: wire.AppendU32s(nil, ids)}, o.TTL, sp, func(g granted) (grantHandle, func()) {
		// Again: an earlier lease of these blocks may have been committed between the call and its grant.
		c.vouched.take(ids)
		lease = newLease(at.session, g, c.name, c.spec.Layout.Layers, ids, c.vouched, c.Guarantee(), sp)
		return lease, lease.discard
	})
	if fe != nil {
		if refused(fe) { // nothing was changed
			c.vouched.restore(taken)
		}
		return nil, newError(fe, over, ids)
	}
	return lease, nil
}

// LeaseRead gives up to Readers transfers that come with the lease's ticket permission to read blocks, which are HELD until
// the lease is over. Context and errors are those of Lease, but blocks that are only HELD are not busy.
func (c *Cache) LeaseRead(ctx context.Context, blocks Blocks, o LeaseOptions) (*ReadLease, error) {
	const op = "lease"
	at, ids, o, err := c.leaseTerms(op, blocks, o, ModeRead)
	if err != nil {
		return nil, err
	}
	ctx, cancel := bounded(ctx, defaultTimeout)
	defer cancel()
	sp := startSpan(ctx, "kvxfer.lease", c.client.samples)
	body := o.request(sp)
	body.Cache = at.cache
	var lease *ReadLease
	fe, over := askGrant(ctx, at.session, request{op: op, kind: wire.KindLease, body: &body, data: wire.AppendU32s(nil, ids)}, o.TTL, sp, func(g granted) (grantHandle, func()) {
		lease = newReadLease(at.session, g, c.name, ids, o.Readers, c.Guarantee(), sp)
		return lease, lease.discard
	})
	if fe != nil {
		return nil, newError(fe, over, ids)
	}
	return lease, nil
}

func (c *Cache) leaseTerms(op string, blocks Blocks, o LeaseOptions, mode Mode) (attachment, []uint32, LeaseOptions, error) {
	at, err := c.use(op)
	if err != nil {
		return at, nil, o, err
	}
	if o, err = o.check(op, mode); err != nil {
		return at, nil, o, err
	}
	ids, err := packBlocks(op, blocks, c.spec.NumBlocks)
	return at, ids, o, err
}

// Publish makes blocks that this process filled itself COMMITTED under keys, so that lookups find them, and returns the
// generation under which they are. To publish is to permit every peer of the tenant to read them: do not change them before
// Evict. ctx bounds the call, with 5 seconds where it has no deadline; without an answer they may be published or not.
//
// keys are one for each block, in the same order, of equal length, 1..255 bytes; see [ChainKeys]. The blocks are FREE or
// COMMITTED. InvalidArgument names the field, and the index of a wrong block id or key; BlocksBusy: a block is leased or
// being fenced.
func (c *Cache) Publish(ctx context.Context, blocks Blocks, keys [][]byte) (generation uint64, err error) {
	const op = "publish"
	at, err := c.use(op)
	if err != nil {
		return 0, err
	}
	ids, err := packBlocks(op, blocks, c.spec.NumBlocks)
	if err != nil {
		return 0, err
	}
	data, keyBytes, err := packKeys(op, keys, c.spec.NumBlocks)
	if err != nil {
		return 0, err
	}
	if len(keys) != len(ids) {
		return 0, invalid(op, "keys", "%d for %d blocks, allowed one for each", len(keys), len(ids))
	}
	if n := 4*len(ids) + len(data); n > int(wire.LocalLimits.Array) {
		return 0, invalid(op, "keys", "%d bytes with the block ids, allowed 0..%d", n, wire.LocalLimits.Array)
	}
	ctx, cancel := bounded(ctx, defaultTimeout)
	defer cancel()
	taken := c.vouched.take(ids)
	var info wire.PublishInfo
	fe, over := at.session.conn.request(ctx, request{op: op, kind: wire.KindPublish, body: &wire.Publish{Cache: at.cache, KeyBytes: keyBytes},
		data: append(wire.AppendU32s(nil, ids), data...), onOK: func(f *wire.Frame) error {
			if err := f.Decode(&info); err != nil {
				return err
			}
			c.vouched.put(ids, info.Generation)
			return nil
		}})
	if fe != nil {
		if refused(fe) {
			c.vouched.restore(taken)
		}
		return 0, newError(fe, over, ids)
	}
	return info.Generation, nil
}

// Evict takes blocks back from every peer and makes them FREE. Leases that touch them, of writers and of readers, are
// revoked. After nil nobody can read or write the blocks any more. ctx bounds the call, with 10 seconds where it has no
// deadline.
//
// Errors: InvalidArgument names the index of a wrong block id; BlocksBusy, an own transfer holds a block: cancel it first,
// nothing was changed; DeadlineExceeded, not fenced in time, DaemonUnavailable or Internal (Released false).
func (c *Cache) Evict(ctx context.Context, blocks Blocks) error {
	const op = "evict"
	at, err := c.use(op)
	if err != nil {
		return err
	}
	ids, err := packBlocks(op, blocks, c.spec.NumBlocks)
	if err != nil {
		return err
	}
	ctx, cancel := bounded(ctx, fenceTimeout)
	defer cancel()
	taken := c.vouched.take(ids)
	fe, _ := at.session.conn.request(ctx, request{op: op, kind: wire.KindEvict, body: &wire.Evict{Cache: at.cache}, data: wire.AppendU32s(nil, ids)})
	if fe != nil {
		if refused(fe) {
			c.vouched.restore(taken)
		}
		return newError(fe, refused(fe), ids) // whatever else it is, it is no word of a fence
	}
	return nil
}

// Drop ends the cache: it revokes and fences its leases and transfers, and gives the memory back. After nil nothing can
// touch the memory any more; what the SDK allocated is unmapped, so that slices of it must not be used. A second call does
// nothing. ctx bounds the call, with 30 seconds where it has no deadline.
//
// Errors: DeadlineExceeded, not fenced in time (Released false): call it again; DaemonUnavailable, the daemon is lost
// (Released false): the cache stays, for Reconnect.
func (c *Cache) Drop(ctx context.Context) error { return c.giveBack(ctx, "drop", c) }

// kind is what must agree on both sides, with the keys' length.
func (c *Cache) kind() kind {
	return kind{c.spec.Model, c.spec.Revision, c.spec.Compat, c.geometry.Layout}
}

// kind is what must agree on both sides of a transfer.
type kind struct {
	model, revision, compat string
	layout                  layout.Layout
}

// For the client and its sessions.

func (c *Cache) keepOnly(served []uint32) { c.vouched.keepOnly(served) }

func (c *Cache) endings(at attachment) []request {
	return []request{{kind: wire.KindDropCache, body: &wire.DropCache{Cache: at.cache}},
		{kind: wire.KindDeregisterRegion, body: &wire.DeregisterRegion{Region: at.region}}}
}

func (c *Cache) register(ctx context.Context, op string, s *session) (attachment, []uint32, *fault.Error) {
	vouches := c.vouched.packed()
	if most := int(wire.LocalLimits.Array) / 16 * 16; len(vouches) > most { // blocks above are safe and only lost
		vouches = vouches[:most]
	}
	region, fe := c.handOver(ctx, op, s)
	if fe != nil {
		return attachment{}, nil, fe
	}
	var info wire.CacheInfo
	var served []uint32
	deregister := func() {
		undo(s, op, wire.KindDeregisterRegion, &wire.DeregisterRegion{Region: region})
	}
	fe, over := s.conn.request(ctx, request{op: op, kind: wire.KindRegisterCache, data: vouches,
		body: &wire.RegisterCache{Name: c.name, Region: region, Model: c.spec.Model, Revision: c.spec.Revision, Compat: c.spec.Compat,
			Layout: c.geometry.Layout, NumBlocks: c.geometry.NumBlocks, Instance: c.spec.Instance, InstanceKey: c.spec.InstanceKey},
		onOK: func(f *wire.Frame) (err error) {
			if err := f.Decode(&info); err != nil {
				return err
			}
			if want := c.geometry.Layout.BlockBytes(); info.BlockBytes != want {
				return violated("block_bytes", "%d, want %d", info.BlockBytes, want)
			}
			s.addCache(info.Cache, c)
			served, err = wire.U32s("served", f.Array)
			return err
		},
		onLate: func() {
			undo(s, op, wire.KindDropCache, &wire.DropCache{Cache: info.Cache})
			deregister()
		}})
	if fe != nil {
		if over { // else the answer may come yet, and onLate undoes both
			deregister()
		}
		return attachment{}, nil, fe
	}
	return attachment{s, region, info.Cache}, served, nil
}

func (c *Cache) onGranted(s *session, e *wire.GrantedEvent, array []byte) error {
	ids, err := wire.U32s("blocks", array)
	if err == nil {
		err = c.geometry.CheckBlocks("granted", ids)
	}
	if err != nil {
		return violated("blocks", "%v", err)
	}
	info := granted{LeaseInfo: wire.LeaseInfo{Lease: e.Lease, LeaseID: e.LeaseID, Generation: e.Generation}}
	if e.Mode == wire.ModeRead {
		l := newReadLease(s, info, c.name, ids, 0, c.Guarantee(), nil)
		s.addLease(e.Lease, l)
		c.granted.add(e.LeaseID, l)
		return nil
	}
	c.vouched.take(ids)
	l := newLease(s, info, c.name, c.spec.Layout.Layers, ids, c.vouched, c.Guarantee(), nil)
	s.addLease(e.Lease, l)
	c.granted.add(e.LeaseID, l)
	return nil
}
