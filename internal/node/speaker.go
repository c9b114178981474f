package node

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"os"
	"path/filepath"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/peerlink"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/xfer"
	"github.com/kvxfer/kvxfer/xfer/layout"
)

// Speaker is a peer without a daemon: a link over tcp to one node, by the code that daemons have, and memory of its own that it
// pushes to that node's leases. A process has room for hundreds. One goroutine uses it.
type Speaker struct {
	half   *half
	links  *peerlink.Links
	link   xfer.Link
	frames chan wire.Frame // what the node says; nil Kind: the link is down
	last   uint64          // request
	undo   []func()
}

// OpenSpeaker makes the peer and its link to the node that info tells of, with so many bytes of memory.
func OpenSpeaker(ctx context.Context, name string, to Info, bytes uint64) (_ *Speaker, err error) {
	s := &Speaker{frames: make(chan wire.Frame, 16)}
	later := func(f func()) { s.undo = append(s.undo, f) }
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	dir, err := os.MkdirTemp("", "kvx")
	if err != nil {
		return nil, fault.Wrap(fault.Internal, "peer", err)
	}
	later(func() { _ = os.RemoveAll(dir) })
	if s.half, err = newHalf("tcp", filepath.Join(dir, "half"), nil, bytes, later); err != nil {
		return nil, err
	}
	var epoch [16]byte
	_, _ = rand.Read(epoch[:]) // it never fails
	s.links, err = peerlink.New(peerlink.Options{Node: name, Epoch: hex.EncodeToString(epoch[:]), Tenant: "default", Providers: []rdma.Provider{s.half.Provider}, Handler: s})
	if err != nil {
		return nil, err
	}
	later(func() {
		ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
		defer cancel()
		_ = s.links.Close(ctx)
	})
	s.link, err = s.links.Dial(ctx, xfer.PeerRef{Node: to.Node, Epoch: to.Epoch, Addr: to.PeerAddr, Tenant: "default"})
	return s, err
}

// Close ends the link.
func (s *Speaker) Close() {
	for i := len(s.undo) - 1; i >= 0; i-- {
		s.undo[i]()
	}
	s.undo = nil
}

// LinkUp, LinkFrame and LinkDown implement peerlink.Handler.
func (s *Speaker) LinkUp(xfer.Link) {}

// LinkFrame passes an answer on. There is never more than one that nobody has read, but for what a node says of its own accord.
func (s *Speaker) LinkFrame(_ xfer.Link, f wire.Frame) {
	select {
	case s.frames <- f:
	default:
	}
}

// LinkDown wakes whoever waits for an answer.
func (s *Speaker) LinkDown(xfer.Link, error) {
	select {
	case s.frames <- wire.Frame{}:
	default:
	}
}

// Push writes the first bytes of its memory to a lease on blocks of a model, and returns when the node has committed them.
func (s *Speaker) Push(ctx context.Context, ticket, model string, l layout.Layout) error {
	const op = "push"
	t, err := wire.ParseTicket(ticket)
	if err != nil {
		return err
	}
	g := t.Grants[0]
	own := make([]uint32, g.Blocks)
	for i := range own {
		own[i] = uint32(i)
	}
	from := layout.Geometry{Layout: l, NumBlocks: g.Blocks}
	if err := from.Validate(s.half.mem.Memory().Len); err != nil {
		return err
	}
	var id [16]byte
	_, _ = rand.Read(id[:])
	s.last++
	b := wire.Bind{Lease: g.Lease, Secret: g.Secret, Transfer: hex.EncodeToString(id[:]), Attempt: 1, Model: model, Layout: l, Blocks: g.Blocks, RemainingMillis: 60_000}
	if err := s.send(wire.KindBind, s.last, b); err != nil {
		return err
	}
	f, err := s.answer(ctx, wire.KindOK)
	if err != nil {
		return err
	}
	var bound wire.Bound
	if err := f.Decode(&bound); err != nil {
		return err
	}
	to, err := wire.U32s("blocks", f.Array)
	if err != nil || len(to) != len(own) {
		return fault.New(fault.ProtocolViolation, op, "BOUND lists %d blocks, the ticket %d", len(to), len(own))
	}
	remote := layout.Geometry{Layout: bound.Layout, NumBlocks: bound.NumBlocks}
	for layer := range l.Layers {
		x := rdma.Op{Kind: rdma.OpWrite, ID: uint64(layer) + 1, Local: s.half.reg, Remote: rdma.Key(bound.Key),
			Ranges: layout.Ranges(nil, from, remote, own, to, layer, 0, g.Blocks), Tag: uint64(layout.NewTag(layer, 0, g.Blocks))}
		if n, err := s.link.Initiator().Post([]rdma.Op{x}); err != nil || n != 1 {
			return fault.New(fault.ResourceExhausted, op, "%d operations posted of 1: %v", n, err)
		}
		if err := s.completion(ctx); err != nil {
			return err
		}
	}
	if err := s.send(wire.KindFin, 0, wire.Fin{Handle: bound.Handle, Pieces: uint64(l.Layers) * uint64(g.Blocks)}); err != nil {
		return err
	}
	_, err = s.answer(ctx, wire.KindDone)
	return err
}

func (s *Speaker) send(kind wire.Kind, request uint64, body any) error {
	f, err := wire.NewFrame(kind, request, body, nil)
	if err != nil {
		return err
	}
	return s.link.Send(f)
}

// answer waits for a frame of a kind; anything else is an error.
func (s *Speaker) answer(ctx context.Context, kind wire.Kind) (wire.Frame, error) {
	select {
	case f := <-s.frames:
		if f.Kind == wire.KindError {
			var w fault.Wire
			if err := f.Decode(&w); err != nil {
				return f, err
			}
			return f, fault.FromWire(&w)
		}
		if f.Kind != kind {
			return f, fault.New(fault.PeerLost, "push", "%s where %s was due", f.Kind, kind)
		}
		return f, nil
	case <-ctx.Done():
		return wire.Frame{}, fault.From("push", ctx.Err())
	}
}

// completion waits for the one operation in flight.
func (s *Speaker) completion(ctx context.Context) error {
	var ev [4]rdma.Event
	for {
		if err := s.half.Wait(ctx); err != nil {
			return err
		}
		for i := range s.half.Poll(ev[:]) {
			if e := &ev[i]; e.Kind == rdma.EventCompletion {
				if e.Status != 0 {
					return fault.New(e.Status, "push", "the operation failed")
				}
				return nil
			}
		}
	}
}
