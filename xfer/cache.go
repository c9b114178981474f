package xfer

import (
	"context"
	"fmt"
	"sync"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/xfer/blockdb"
	"github.com/kvxfer/kvxfer/xfer/layout"
)

// cache is a registered KV cache.
type cache struct {
	e        *Engine
	id       uint64
	key      blockdb.CacheID // the region's random id: metadata follows the memory
	name     string
	client   *client
	region   *region
	spec     wire.RegisterCache
	geometry layout.Geometry
	store    *blockdb.Cache // set once, before the cache is known to anybody

	mu     sync.Mutex
	held   []uint32 // how many pushes read the block
	users  int      // leases and pushes whose memory is not released
	unused chan struct{}
	ending bool
	// quarantined: a fence failed, so the memory is never given back.
	quarantined bool
	stuck       bool // under Engine.mu: it is quarantined and its end was tried
}

func newCache(e *Engine, c *client, r *region, spec wire.RegisterCache) *cache {
	return &cache{e: e, key: r.key, name: spec.Name, client: c, region: r, spec: spec,
		geometry: layout.Geometry{Layout: spec.Layout, NumBlocks: spec.NumBlocks},
		held:     make([]uint32, min(spec.NumBlocks, layout.MaxBlocks))}
}

func (ca *cache) identity() layout.Identity {
	return layout.Identity{Model: ca.spec.Model, Revision: ca.spec.Revision, Compat: ca.spec.Compat}
}

func (ca *cache) digest() [32]byte { return ca.geometry.Layout.Digest(ca.geometry.NumBlocks) }

// use counts a lease or push in; the caller holds ca.mu.
func (ca *cache) use(op string) error {
	if ca.ending {
		return fault.New(fault.NotFound, op, "cache %q is being dropped", ca.name)
	}
	ca.users++
	return nil
}

// unuse counts it out.
func (ca *cache) unuse() {
	ca.mu.Lock()
	defer ca.mu.Unlock()
	if ca.users--; ca.users == 0 && ca.unused != nil {
		close(ca.unused)
		ca.unused = nil
	}
}

// waitUnused waits until no lease or push can touch the memory.
func (ca *cache) waitUnused(ctx context.Context) error {
	ca.mu.Lock()
	for ca.users > 0 {
		if ca.unused == nil {
			ca.unused = make(chan struct{})
		}
		ch := ca.unused
		ca.mu.Unlock()
		select {
		case <-ch:
		case <-ctx.Done():
			return fault.From("drop_cache", ctx.Err())
		}
		ca.mu.Lock()
	}
	bad := ca.quarantined
	ca.mu.Unlock()
	if bad {
		return fault.New(fault.Internal, "drop_cache", "a fence on cache %q failed: its memory is quarantined", ca.name)
	}
	return nil
}

// fenced says whether nothing can touch the memory any more, whatever else went wrong.
func (ca *cache) fenced() bool {
	ca.mu.Lock()
	defer ca.mu.Unlock()
	return ca.users == 0 && !ca.quarantined
}

// hold marks a push's source blocks. Blocks that a peer may write are refused.
func (ca *cache) hold(blocks []uint32) (err error) {
	ca.mu.Lock()
	defer ca.mu.Unlock()
	if err := ca.use("push"); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			ca.users--
		}
	}()
	for _, b := range blocks {
		r, err := ca.store.State(b)
		if err != nil {
			return err
		}
		if r.State != blockdb.Free && r.State != blockdb.Committed {
			return &fault.Error{Code: fault.BlocksBusy, Op: "push", Region: ca.name, Field: "blocks",
				Detail: fmt.Sprintf("block %d is %s", b, r.State)}
		}
	}
	for _, b := range blocks {
		ca.held[b]++
	}
	return nil
}

func (ca *cache) unhold(blocks []uint32) {
	ca.mu.Lock()
	for _, b := range blocks {
		ca.held[b]--
	}
	ca.mu.Unlock()
	ca.unuse()
}

// grant moves blocks to LEASED in the store. It is durable when it returns.
func (ca *cache) grant(rec blockdb.LeaseRecord) (uint64, error) {
	ca.mu.Lock()
	defer ca.mu.Unlock()
	for _, b := range rec.Blocks {
		if ca.held[b] > 0 {
			return 0, &fault.Error{Code: fault.BlocksBusy, Op: "lease", Region: ca.name, Field: "blocks",
				Detail: fmt.Sprintf("block %d is held by a transfer", b)}
		}
	}
	if err := ca.use("lease"); err != nil {
		return 0, err
	}
	gen, err := ca.store.Grant(rec)
	if err != nil {
		ca.users--
	}
	return gen, err
}

func (ca *cache) states() (wire.BlocksInfo, []byte, error) {
	ca.mu.Lock()
	defer ca.mu.Unlock()
	info := wire.BlocksInfo{Total: ca.geometry.NumBlocks}
	var out []wire.BlockEntry
	ca.store.Blocks(func(r blockdb.Record) bool {
		if ca.held[r.Block] > 0 {
			return true // a committed block that is being sent counts once, as HELD
		}
		switch r.State {
		case blockdb.Leased:
			info.Leased++
		case blockdb.Committed:
			info.Committed++
		case blockdb.Revoking:
			info.Revoking++
			r.Generation = 0 // they will never be committed under it
		default:
			return true
		}
		out = append(out, wire.BlockEntry{Block: r.Block, State: uint32(r.State), Generation: r.Generation})
		return true
	})
	for b, n := range ca.held {
		if n > 0 {
			info.Held++
			out = append(out, wire.BlockEntry{Block: uint32(b), State: wire.StateHeld})
		}
	}
	if most := int(wire.LocalLimits.Array / 16); len(out) > most {
		return wire.BlocksInfo{}, nil, fault.New(fault.NotSupported, "blocks", "%d blocks are not FREE, a frame lists up to %d", len(out), most)
	}
	return info, wire.AppendBlockEntries(nil, out), nil
}
