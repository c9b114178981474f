package node

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"github.com/kvxfer/kvxfer/registry"
	"github.com/kvxfer/kvxfer/xfer"
)

// directory announces the engine's caches. What fails is remembered and repeated by the registry itself.
type directory struct {
	reg registry.Directory
	log *slog.Logger
}

// directoryTimeout bounds one call; the registry repeats what was not said in time.
const directoryTimeout = 2 * time.Second

func (d *directory) PutCache(c xfer.CacheEntry) {
	raw, err := json.Marshal(c.Spec.Layout)
	if err == nil {
		block := int64(c.Spec.Layout.BlockBytes())
		ctx, cancel := context.WithTimeout(context.Background(), directoryTimeout)
		defer cancel()
		err = d.reg.PutCache(ctx, registry.Cache{
			Name: c.Name, ID: c.ID, Model: c.Spec.Model, Revision: c.Spec.Revision, Compat: c.Spec.Compat, Layout: raw,
			MemoryKind: c.MemoryKind, NumBlocks: int(c.Spec.NumBlocks), BlockBytes: block, Bytes: block * int64(c.Spec.NumBlocks),
		})
	}
	if err != nil {
		d.log.Warn("cache not announced yet", "cache", c.Name, "error", err)
	}
}

func (d *directory) DropCache(name string) {
	ctx, cancel := context.WithTimeout(context.Background(), directoryTimeout)
	defer cancel()
	if err := d.reg.DropCache(ctx, name); err != nil {
		d.log.Warn("cache not withdrawn yet", "cache", name, "error", err)
	}
}

// resolve gives what the local view knows of a node.
func (d *directory) resolve(name string) (addr, epoch string, ok bool) {
	n, ok := d.reg.View().Node(name)
	return n.PeerAddr, n.Epoch, ok
}
