package node

import (
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/registry"
	"github.com/kvxfer/kvxfer/xfer"
)

// directory announces the engine's caches, in order, from a goroutine of its own: the engine must not wait for the
// registry. What fails there is remembered and repeated by the registry itself.
type directory struct {
	reg registry.Directory
	log *slog.Logger

	mu      sync.Mutex
	waiting []change
	wake    chan struct{}
}

// change is a cache to announce, or only the name of one to withdraw.
type change struct {
	name  string
	entry *xfer.CacheEntry
}

// directoryTimeout bounds one call; the registry repeats what was not said in time.
const directoryTimeout = 2 * time.Second

func newDirectory(reg registry.Directory, log *slog.Logger) *directory {
	return &directory{reg: reg, log: log, wake: make(chan struct{}, 1)}
}

// PutCache implements xfer.Directory.
func (d *directory) PutCache(c xfer.CacheEntry) { d.queue(change{c.Name, &c}) }

// DropCache implements xfer.Directory.
func (d *directory) DropCache(name string) { d.queue(change{name: name}) }

func (d *directory) queue(c change) {
	d.mu.Lock()
	d.waiting = append(d.waiting, c)
	d.mu.Unlock()
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// run says what is queued until ctx ends; what is queued then is withdrawn with the node's entry anyway.
func (d *directory) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.wake:
		}
		d.mu.Lock()
		todo := d.waiting
		d.waiting = nil
		d.mu.Unlock()
		for _, c := range todo {
			if err := d.say(ctx, c); err != nil && ctx.Err() == nil {
				d.log.Warn("cache not announced or withdrawn yet", "cache", c.name, "error", err)
			}
		}
	}
}

func (d *directory) say(ctx context.Context, c change) error {
	ctx, cancel := context.WithTimeout(ctx, directoryTimeout)
	defer cancel()
	if c.entry == nil {
		return d.reg.DropCache(ctx, c.name)
	}
	spec := &c.entry.Spec
	raw, err := json.Marshal(spec.Layout)
	if err != nil {
		return fault.Wrap(fault.Internal, "announce", err)
	}
	block := int64(spec.Layout.BlockBytes())
	return d.reg.PutCache(ctx, registry.Cache{
		Name: c.name, ID: c.entry.ID, Model: spec.Model, Revision: spec.Revision, Compat: spec.Compat, Layout: raw,
		MemoryKind: c.entry.MemoryKind, NumBlocks: int(spec.NumBlocks), BlockBytes: block, Bytes: block * int64(spec.NumBlocks),
	})
}

// resolve gives what the local view knows of a node.
func (d *directory) resolve(name string) (addr, epoch string, ok bool) {
	n, ok := d.reg.View().Node(name)
	return n.PeerAddr, n.Epoch, ok
}
