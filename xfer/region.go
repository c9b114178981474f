package xfer

import (
	"context"
	"sync"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/rdma"
)

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
	if r.mapping.Memory().Kind == rdma.MemoryProcess {
		return wire.GuaranteeLiveClient
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
