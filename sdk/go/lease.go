package kvxfer

import (
	"context"
	"sync"

	"github.com/kvxfer/kvxfer/internal/wire"
)

// LeaseResult is how a lease was fulfilled. Its blocks are COMMITTED.
type LeaseResult struct {
	Blocks       int
	Bytes        uint64 // payload bytes that were placed
	Notification []byte // what the source gave to Finish, up to 64 KiB
	Peer         string // node that wrote
	Provider     string // what moved the bytes
	TransferID   string // 32 hex digits, the same on both nodes
	// Generation is what the blocks were committed under; 0 of an instance's lease, whose every rank has its own.
	Generation uint64
	Guarantee  string // "full", or "live-client-only" where what is promised of the memory ends with its client's process
}

// Lease is permission for one transfer to write own blocks, from [Cache.Lease]. Waiting for it waits for the whole transfer.
//
// Close, for defer, leaves nothing behind: the blocks are committed, or the lease was revoked and fenced.
//
// A lease ends with LeaseExpired, LeaseRevoked, PeerLost, ClientGone, Cancelled, ... when nothing was committed; its blocks
// are then fenced (Released is true on the error). When the daemon says nothing until half a second after the lease's time,
// or is lost, or could not fence (Internal), the error has Released false.
//
// From [Client.LeaseInstance] it covers the same blocks on every rank of an instance, is committed on all of them or on
// none, and a layer is visible when it is on every rank. Where the daemon is lost, Released of such a lease stays false: the
// memory is on other nodes, and the handles of [Cache.Granted] know. A handle of that method has no ticket, traceparent or
// time of its own.
//
// Its methods may be called from any goroutine.
type Lease struct {
	grant[LeaseResult]
	ranks   int
	vouched *vouched // nil: not this process's blocks

	lmu        sync.Mutex
	generation uint64
	visible    []bool
	arrived    []chan struct{} // by layer, until it is visible or the lease has ended; made by who waits first
}

func newLease(s *session, info granted, place string, layers int, ids []uint32, v *vouched, guarantee string, sp *span) *Lease {
	l := &Lease{ranks: int(info.Ranks), vouched: v, generation: info.Generation, visible: make([]bool, layers), arrived: make([]chan struct{}, layers)}
	l.describe, l.afterEnd = l.describeLease, l.endLayers
	l.init(s, "lease", info, place, ids, guarantee, l, sp)
	return l
}

// Generation is what the blocks are committed under; 0 of an instance's lease.
func (l *Lease) Generation() uint64 {
	l.lmu.Lock()
	defer l.lmu.Unlock()
	return l.generation
}

// Ranks is how many ranks an instance's lease covers; 0 of a lease on one cache.
func (l *Lease) Ranks() int { return l.ranks }

// WaitLayer waits until all blocks of that layer are there, 0..Layers-1.
//
// Visible is not committed: the bytes may be used, the blocks must not be served to others before Wait returns. The error is
// the lease's where it has ended without being committed, or DeadlineExceeded or Cancelled when ctx ends first: the lease
// goes on then. A context without a deadline waits for the lease's own time.
func (l *Lease) WaitLayer(ctx context.Context, layer int) error {
	ch, err := l.Layer(layer)
	if err != nil {
		return err
	}
	if fe := l.await(ctx, ch); fe != nil {
		return l.leaving(fe)
	}
	return l.Err()
}

// Layer is a channel that is closed when all blocks of that layer are there, 0..Layers-1, or when the lease has ended: Err
// tells one from the other. What WaitLayer says of visible layers holds. InvalidArgument: a layer out of range.
func (l *Lease) Layer(layer int) (<-chan struct{}, error) {
	if layer < 0 || layer >= len(l.visible) {
		return nil, invalid("lease.layer", "layer", "%d, allowed 0..%d", layer, len(l.visible)-1)
	}
	l.lmu.Lock()
	defer l.lmu.Unlock()
	if l.visible[layer] || l.isOver() { // endLayers comes behind the end, and would close what is made before it
		return closedChannel, nil
	}
	if l.arrived[layer] == nil {
		l.arrived[layer] = make(chan struct{})
	}
	return l.arrived[layer], nil
}

// endLayers ends the waiting for layers that do not come any more.
func (l *Lease) endLayers() {
	l.lmu.Lock()
	defer l.lmu.Unlock()
	for i, ch := range l.arrived {
		if ch != nil {
			close(ch)
			l.arrived[i] = nil
		}
	}
}

var closedChannel = func() <-chan struct{} { ch := make(chan struct{}); close(ch); return ch }()

// VisibleLayers are the layers whose blocks are all there, in order.
func (l *Lease) VisibleLayers() []int {
	l.lmu.Lock()
	defer l.lmu.Unlock()
	out := []int{}
	for i, v := range l.visible {
		if v {
			out = append(out, i)
		}
	}
	return out
}

func (l *Lease) onLayers(layers []uint32) error {
	for _, n := range layers {
		if int(n) >= len(l.visible) {
			return violated("layers", "layer %d, allowed 0..%d", n, len(l.visible)-1)
		}
		l.lmu.Lock()
		if !l.visible[n] {
			l.show(int(n))
			l.lmu.Unlock()
			l.layerSpan(int(n))
			continue
		}
		l.lmu.Unlock()
	}
	return nil
}

// show is called with lmu held.
func (l *Lease) show(n int) {
	l.visible[n] = true
	if l.arrived[n] != nil {
		close(l.arrived[n])
		l.arrived[n] = nil
	}
}

func (l *Lease) onEnded(e *wire.LeaseEvent, note []byte) bool {
	return l.over(e, func() LeaseResult {
		l.lmu.Lock()
		l.generation = e.Generation
		if l.vouched != nil {
			for n, v := range l.visible {
				if !v {
					l.show(n)
				}
			}
		}
		l.lmu.Unlock()
		if l.vouched != nil {
			l.vouched.put(l.ids, e.Generation)
		}
		return LeaseResult{Blocks: len(l.ids), Bytes: e.Bytes, Notification: note, Peer: e.Peer, Provider: e.Provider,
			TransferID: e.TransferID, Generation: e.Generation, Guarantee: guaranteeOf(e.Guarantee)}
	})
}

func (l *Lease) describeLease(sp *span, v *LeaseResult) {
	l.describeGrant(sp)
	sp.set("kvxfer.blocks", len(l.ids))
	if v != nil {
		sp.set("kvxfer.bytes", v.Bytes)
		sp.set("kvxfer.peer", v.Peer)
		sp.set("kvxfer.provider", v.Provider)
	}
}

// guaranteeOf is a guarantee of the wire, where "" is the full one.
func guaranteeOf(s string) string {
	if s == "" {
		return guaranteeFull
	}
	return s
}
