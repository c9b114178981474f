package xfer

import (
	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// Publish makes blocks of an own cache that the client's engine computed itself COMMITTED under keys: one for each block,
// in the same order. Blocks that are HELD may be published: they are only read. Errors: InvalidArgument; NotFound (the
// cache); BlocksBusy (a block is leased); StoreFailed.
func (e *Engine) Publish(id ClientID, r wire.Publish, blocks []uint32, keys [][]byte) (wire.PublishInfo, error) {
	const op = "publish"
	ca, err := e.ownCache(op, id, r.Cache)
	if err != nil {
		return wire.PublishInfo{}, err
	}
	if err := ca.geometry.CheckBlocks(op, blocks); err != nil {
		return wire.PublishInfo{}, err
	}
	if len(keys) != len(blocks) {
		return wire.PublishInfo{}, fault.Invalid(op, "keys", "%d, allowed is one for each of %d blocks", len(keys), len(blocks))
	}
	gen, err := ca.store.Publish(blocks, keys)
	return wire.PublishInfo{Generation: gen}, err
}
