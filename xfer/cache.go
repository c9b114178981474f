package xfer

import (
	"fmt"

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

	usage          // leases and transfers whose memory is not released
	held  []uint32 // under usage.mu: how many pushes and read leases have the block read
	stuck bool     // under Engine.mu: it is quarantined and its end was tried
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

// hold marks blocks that a push or a read lease has read. Blocks that may be written are refused.
func (ca *cache) hold(op string, blocks []uint32) (err error) {
	ca.mu.Lock()
	defer ca.mu.Unlock()
	if err := ca.useLocked(op, ca.name); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			ca.users--
		}
	}()
	b, state, taken, err := ca.store.Taken(blocks)
	if err != nil {
		return err
	}
	if taken {
		return &fault.Error{Code: fault.BlocksBusy, Op: op, Region: ca.name, Field: "blocks",
			Detail: fmt.Sprintf("block %d is %s", b, state)}
	}
	fresh := 0
	for _, b := range blocks {
		if ca.held[b]++; ca.held[b] == 1 {
			fresh++
		}
	}
	ca.e.metrics.held(ca, fresh)
	return nil
}

func (ca *cache) unhold(blocks []uint32) {
	ca.mu.Lock()
	free := 0
	for _, b := range blocks {
		if ca.held[b]--; ca.held[b] == 0 {
			free++
		}
	}
	ca.mu.Unlock()
	ca.e.metrics.held(ca, -free)
	ca.unuse()
}

// grant moves blocks to LEASED in the store. It is durable when it returns.
func (ca *cache) grant(op string, rec blockdb.LeaseRecord) (uint64, error) {
	ca.mu.Lock()
	defer ca.mu.Unlock()
	for _, b := range rec.Blocks {
		if ca.held[b] > 0 {
			return 0, &fault.Error{Code: fault.BlocksBusy, Op: op, Region: ca.name, Field: "blocks",
				Detail: fmt.Sprintf("block %d is held: a push or a read lease has it read", b)}
		}
	}
	if err := ca.useLocked(op, ca.name); err != nil {
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
