package kvxfer

import (
	"context"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// attachment is where memory is known: a session and the daemon's numbers there; cache is 0 for a raw region.
type attachment struct {
	session       *session
	region, cache uint64
}

// place is a cache or a region, as its client sees it.
type place interface {
	base() *registered
	// register makes it known to a daemon; served are the blocks that the daemon serves again.
	register(ctx context.Context, op string, s *session) (at attachment, served []uint32, fe *fault.Error)
	// endings are the requests that end it, each answered behind its fence.
	endings(attachment) []request
	keepOnly(served []uint32)
}

// registered is memory that the daemon knows: what caches and raw regions have in common.
type registered struct {
	client *Client
	name   string
	mem    *memory
	size   int

	mu        sync.Mutex
	attached  *attachment // nil: given back, or the client was closed
	guarantee string
}

// Name is unique among the client's caches and regions, a cache's also on the node.
func (r *registered) Name() string { return r.name }

// Memory is the bytes, shared with the daemon; nil once they were given back. A cache's are ordered [layer][plane][block],
// NumBlocks*Layout.BlockBytes() of them.
//
// The slice is the memory itself, not a copy. It must not be used after the cache was dropped, the region deregistered, or
// the client closed: what the SDK allocated is unmapped then.
func (r *registered) Memory() []byte {
	b := r.mem.bytes()
	if b == nil {
		return nil
	}
	return b[:r.size:r.size]
}

// Guarantee is "full", or [GuaranteeLiveClientOnly]: what is promised of this memory ends with this process.
func (r *registered) Guarantee() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.guarantee
}

// isAdopted says whether others may get the memory when it is given back.
func (m *memory) isAdopted() bool { return m.claim != nil }

func (r *registered) base() *registered { return r }

func (r *registered) keepOnly([]uint32) {}

// use is where it is known, or Closed.
func (r *registered) use(op string) (attachment, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.attached == nil {
		e := fault.New(fault.Closed, op, "it was given back already, or the client was closed")
		e.Region = r.name
		return attachment{}, newError(e, true, nil)
	}
	return *r.attached, nil
}

func (r *registered) attach(at *attachment) {
	r.mu.Lock()
	r.attached = at
	r.mu.Unlock()
}

// handOver gives the daemon the memory itself.
func (r *registered) handOver(ctx context.Context, op string, s *session) (uint64, *fault.Error) {
	body, fd, fe := r.mem.registration(r.name)
	if fe != nil {
		return 0, again(fe, op)
	}
	defer func() { _ = unix.Close(fd) }() // it was sent, or what waits to be sent has a duplicate
	var info wire.RegionInfo
	fe, _ = s.conn.request(ctx, request{op: op, kind: wire.KindRegisterRegion, body: &body, fds: []int{fd},
		onOK: func(f *wire.Frame) error {
			if err := f.Decode(&info); err != nil {
				return err
			}
			g := info.Guarantee
			if g == "" {
				g = r.mem.guarantee
			}
			r.mu.Lock()
			r.guarantee = g
			r.mu.Unlock()
			return nil
		},
		onLate: func() {
			undo(s, op, wire.KindDeregisterRegion, &wire.DeregisterRegion{Region: info.Region})
		}})
	return info.Region, fe
}

// undo takes back what nobody has: its caller went before the answer came.
func undo(s *session, op string, kind wire.Kind, body any) {
	// Where the connection is lost, the daemon ends everything of it.
	_ = s.conn.requestLater(request{op: op, kind: kind, body: body})
}

// giveBack ends it at the daemon and gives the memory up; it does nothing where that was done already.
func (r *registered) giveBack(ctx context.Context, op string, self place) error {
	r.mu.Lock()
	at := r.attached
	r.mu.Unlock()
	if at == nil {
		return nil
	}
	ctx, cancel := bounded(ctx, slowTimeout)
	defer cancel()
	for _, q := range self.endings(*at) {
		q.op = op
		fe, over := at.session.conn.request(ctx, q)
		switch {
		case fe == nil:
		case over && fe.Code == fault.NotFound: // an earlier call got as far, without an answer in its time
		default:
			return newError(fe, false, nil)
		}
	}
	at.session.fenced(r.name)
	for _, former := range r.client.former(r.name) {
		if exited, known := former.conn.daemonExited(ctx); !exited || !known {
			e := fault.New(fault.DeadlineExceeded, op, "a former daemon of this node, stopped perhaps, may still touch the memory")
			e.Region = r.name
			return newError(e, false, nil)
		}
	}
	r.mu.Lock()
	first := r.attached != nil
	r.attached = nil
	r.mu.Unlock()
	if !first { // another call came here first
		return nil
	}
	r.client.forget(self)
	return r.mem.close()
}
