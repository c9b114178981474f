package xfer

import (
	"context"
	"slices"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// A peer may ask for a probe and so make this node hold memory and connect. It is bounded: one probe a peer, of 3 MiB and a
// minute at most, maxScratches in all; it ends with the peer's link; and this node connects to no address but the one that
// the peer itself announced in the directory.

// maxScratches bounds the scratch memories for peers, those that wait for their fence included.
const maxScratches = 8

// onProbeOpen makes scratch memory for a peer. A former one of the same peer goes.
func (ls *linkState) onProbeOpen(f wire.Frame) error {
	var q wire.ProbeOpen
	if err := f.Decode(&q); err != nil {
		return err
	}
	if err := q.Validate(); err != nil {
		ls.refuse(f.Request, err)
		return nil
	}
	ls.e.wg.Go(func() {
		opened, err := ls.e.openScratch(ls, &q)
		if err != nil {
			ls.refuse(f.Request, err)
			return
		}
		ls.answer(f.Request, opened, nil)
	})
	return nil
}

func (e *Engine) openScratch(ls *linkState, q *wire.ProbeOpen) (*wire.ProbeOpened, error) {
	const op = "probe"
	peer := ls.link.Peer()
	e.endProbes(func(s *scratch) bool { return s.ls.link.Peer().Node == peer.Node })
	e.mu.Lock()
	full := e.scratches >= maxScratches
	if !full {
		e.scratches++
	}
	e.mu.Unlock()
	if full {
		return nil, &fault.Error{Code: fault.ResourceExhausted, Op: op, Peer: e.o.Node, Detail: "as many probes run as this node permits"}
	}
	ctx, cancel := context.WithTimeout(e.ctx, e.o.ProviderWait)
	defer cancel()
	s, err := e.newScratch(ctx, peer.Tenant, q.Bytes, q.Seed, false)
	if err != nil {
		e.dropScratch(0)
		return nil, err
	}
	s.ls = ls
	var opened wire.ProbeOpened
	if opened.WriteTicket, opened.ReadTicket, err = s.tickets(ctx, q.TTLMillis); err != nil {
		e.discard(s)
		return nil, err
	}
	itself := func(x *scratch) bool { return x == s }
	e.mu.Lock()
	s.stop = e.o.Clock.AfterFunc(e.millis(q.TTLMillis), func() { e.endProbes(itself) })
	e.probes = append(e.probes, s)
	e.mu.Unlock()
	ls.mu.Lock()
	down := ls.down
	ls.mu.Unlock()
	if down { // LinkDown may have come before it was in the list
		e.endProbes(itself)
		return nil, &fault.Error{Code: fault.PeerLost, Op: op, Peer: peer.Node}
	}
	return &opened, nil
}

// endProbes ends the peers' probes that match. The steps of one that runs end with it.
func (e *Engine) endProbes(match func(*scratch) bool) {
	var out []*scratch
	e.mu.Lock()
	e.probes = slices.DeleteFunc(e.probes, func(s *scratch) bool {
		hit := match(s)
		if hit {
			out = append(out, s)
		}
		return hit
	})
	e.mu.Unlock()
	for _, s := range out {
		s.stop()
		e.discard(s)
	}
}

// discard closes scratch memory of a peer's probe; it counts until it is fenced.
func (e *Engine) discard(s *scratch) {
	s.close()
	e.wg.Go(func() { e.dropScratch(s.id) })
}

func (e *Engine) dropScratch(id ClientID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.awaitLocked(e.ctx, func() bool { return e.clients[id] == nil })
	e.scratches--
}

// onProbeRun makes this side's steps with the asker's memory.
func (ls *linkState) onProbeRun(f wire.Frame) error {
	var q wire.ProbeRun
	if err := f.Decode(&q); err != nil {
		return err
	}
	s, write, read, err := ls.takeProbe(&q)
	if err != nil {
		ls.refuse(f.Request, err)
		return nil
	}
	e := ls.e
	e.wg.Go(func() {
		ran := wire.ProbeRan{Received: s.arrived(partIn)}
		ran.Steps = []wire.ProbeStep{s.step(wire.ModeWrite, write, q.Provider, q.TimeoutMillis), s.step(wire.ModeRead, read, q.Provider, q.TimeoutMillis)}
		e.endProbes(func(x *scratch) bool { return x == s })
		ls.answer(f.Request, ran, nil)
	})
	return nil
}

// takeProbe finds the probe of a PROBE_RUN and makes tickets that lead to the asker alone.
func (ls *linkState) takeProbe(q *wire.ProbeRun) (s *scratch, write, read string, err error) {
	const op = "probe"
	e, peer := ls.e, ls.link.Peer()
	if err = q.Validate(); err != nil {
		return nil, "", "", err
	}
	ref, _, err := e.locate(op, peer.Node, peer.Tenant)
	if err != nil {
		return nil, "", "", err
	}
	if write, err = ownTicket(q.WriteTicket, &peer, ref.Addr); err != nil {
		return nil, "", "", err
	}
	if read, err = ownTicket(q.ReadTicket, &peer, ref.Addr); err != nil {
		return nil, "", "", err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	i := slices.IndexFunc(e.probes, func(s *scratch) bool { return s.ls == ls && !s.running })
	if i < 0 {
		return nil, "", "", &fault.Error{Code: fault.NotFound, Op: op, Peer: e.o.Node, Detail: "no probe was opened on this connection, or its time is over"}
	}
	e.probes[i].running = true
	return e.probes[i], write, read, nil
}

// ownTicket refuses a ticket that is not the peer's own and puts the address into it that the peer announced.
func ownTicket(text string, peer *PeerRef, addr string) (string, error) {
	t, err := wire.ParseTicket(text)
	if err != nil {
		return "", err
	}
	if len(t.Grants) != 1 || !t.Grants[0].Raw || t.Grants[0].Node != peer.Node || t.Grants[0].Epoch != peer.Epoch {
		return "", &fault.Error{Code: fault.PermissionDenied, Op: "probe", Peer: peer.Node, Field: "ticket", Detail: "allowed is a ticket of the asking node's own memory"}
	}
	t.Grants[0].Addr = addr
	return t.Encode(), nil
}
