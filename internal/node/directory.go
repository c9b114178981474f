package node

import (
	"context"
	"encoding/json"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/registry"
	"github.com/kvxfer/kvxfer/xfer"
)

// directory announces the engine's caches and finds others'. It announces in order, from a goroutine of its own: the engine must not wait for the
// registry. What fails there is remembered and repeated by the registry itself.
//
// While the registry is away a call takes its time-out, and a client may register and drop caches much faster. So a
// name waits once, with its last change, and a cache that came and went unsaid is not said at all: what waits is
// bounded by the caches there are and those that the registry was told of.
type directory struct {
	reg registry.Directory
	log *slog.Logger

	mu      sync.Mutex
	waiting []change               // one a name
	said    map[cacheName]struct{} // names that the registry may have
	wake    chan struct{}
}

// change is a cache to announce, or only the name of one to withdraw.
type change struct {
	cacheName
	entry *xfer.CacheEntry
}

// cacheName is what a cache is known by on a node.
type cacheName struct{ tenant, name string }

// directoryTimeout bounds one call. The registry repeats what was not said in time, but only if it came to hear of it: a heartbeat that
// waits for a server that is away holds calls up for several requests' time-outs, and a word that is given up then is lost.
const directoryTimeout = 2 * time.Minute

func newDirectory(reg registry.Directory, log *slog.Logger) *directory {
	return &directory{reg: reg, log: log, said: map[cacheName]struct{}{}, wake: make(chan struct{}, 1)}
}

// PutCache implements xfer.Directory.
func (d *directory) PutCache(c xfer.CacheEntry) { d.queue(change{cacheName{c.Tenant, c.Name}, &c}) }

// DropCache implements xfer.Directory.
func (d *directory) DropCache(tenant, name string) {
	d.queue(change{cacheName: cacheName{tenant, name}})
}

func (d *directory) queue(c change) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.waiting = slices.DeleteFunc(d.waiting, func(old change) bool { return old.cacheName == c.cacheName })
	if _, said := d.said[c.cacheName]; c.entry == nil && !said {
		return
	}
	d.waiting = append(d.waiting, c)
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// next takes the change that has waited longest.
func (d *directory) next() (c change, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.waiting) == 0 {
		return c, false
	}
	c = d.waiting[0]
	d.waiting = slices.Delete(d.waiting, 0, 1)
	if c.entry != nil {
		d.said[c.cacheName] = struct{}{}
	} else {
		delete(d.said, c.cacheName)
	}
	return c, true
}

// run says what is queued until ctx ends; what is queued then is withdrawn with the node's entry anyway.
func (d *directory) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.wake:
		}
		for c, ok := d.next(); ok && ctx.Err() == nil; c, ok = d.next() {
			if err := d.say(ctx, c); err != nil && ctx.Err() == nil {
				d.log.Warn("cache not announced or withdrawn yet", "tenant", c.tenant, "cache", c.name, "error", err)
			}
		}
	}
}

func (d *directory) say(ctx context.Context, c change) error {
	ctx, cancel := context.WithTimeout(ctx, directoryTimeout)
	defer cancel()
	if c.entry == nil {
		return d.reg.DropCache(ctx, c.tenant, c.name)
	}
	spec := &c.entry.Spec
	raw, err := json.Marshal(spec.Layout)
	if err != nil {
		return fault.Wrap(fault.Internal, "announce", err)
	}
	block := int64(spec.Layout.BlockBytes())
	entry := registry.Cache{
		Tenant: c.tenant, Name: c.name, ID: c.entry.ID, Model: spec.Model, Revision: spec.Revision, Compat: spec.Compat, Layout: raw,
		MemoryKind: c.entry.MemoryKind, NUMANode: c.entry.NUMANode, NumBlocks: int(spec.NumBlocks), BlockBytes: block, Bytes: block * int64(spec.NumBlocks),
	}
	if spec.Instance != "" {
		entry.Instance, entry.Rank, entry.Ranks = spec.Instance, int(spec.Layout.TPRank), int(spec.Layout.TPSize)
	}
	return d.reg.PutCache(ctx, entry)
}

// Ranks implements xfer.Finder.
func (d *directory) Ranks(tenant, instance string) (out []xfer.Rank) {
	for _, c := range d.reg.View().Caches(tenant) {
		if c.Instance == instance && c.Ranks > 0 && c.Ranks <= math.MaxInt32 && c.Rank < c.Ranks {
			if n, ok := d.reg.View().Node(c.Node); ok && n.Epoch == c.Epoch {
				out = append(out, xfer.Rank{Peer: peerRef(&n, tenant), Cache: c.Name, Rank: uint32(c.Rank), Ranks: uint32(c.Ranks)})
			}
		}
	}
	return out
}

// Holders implements xfer.Finder.
func (d *directory) Holders(tenant, model string) (out []xfer.PeerRef) {
	last := ""
	for _, c := range d.reg.View().Caches(tenant) { // sorted by node
		if c.Model == model && c.Node != last {
			last = c.Node
			if n, ok := d.reg.View().Node(c.Node); ok {
				out = append(out, peerRef(&n, tenant))
			}
		}
	}
	return out
}

func peerRef(n *registry.Node, tenant string) xfer.PeerRef {
	return xfer.PeerRef{Node: n.Name, Epoch: n.Epoch, Addr: n.PeerAddr, Tenant: tenant}
}

// resolve gives what the local view knows of a node.
func (d *directory) resolve(name string) (addr, epoch string, ok bool) {
	n, ok := d.reg.View().Node(name)
	return n.PeerAddr, n.Epoch, ok
}
