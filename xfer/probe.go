package xfer

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// Probe moves random bytes between this node and another one over one provider: this node writes and reads, then the other
// one does. The other node connects back for its part, so a network that lets connections through in one direction alone
// shows. A step that fails is told in the answer; the error is about the request. One probe runs at a time.
func (e *Engine) Probe(ctx context.Context, tenant string, r wire.Probe) (wire.ProbeInfo, error) {
	const op = "probe"
	none := wire.ProbeInfo{}
	if err := r.Validate(); err != nil {
		return none, err
	}
	if r.Node == e.o.Node {
		return none, fault.Invalid(op, "node", "%q is this node itself, allowed is another one", r.Node)
	}
	ref, providers, err := e.locate(op, r.Node, tenant)
	if err != nil {
		return none, err
	}
	select {
	case e.probing <- struct{}{}:
		defer func() { <-e.probing }()
	case <-ctx.Done():
		return none, fault.From(op, ctx.Err())
	}
	info := wire.ProbeInfo{Node: ref.Node, Epoch: ref.Epoch, Addr: ref.Addr, Providers: providers}
	info.Steps, err = e.probe(ctx, ref, &r)
	info.Ways, info.Unused = e.ways(ref, r.Provider)
	return info, err
}

// locate finds a node by the directory. Probes go to addresses that nodes announced, and to no other.
func (e *Engine) locate(op, node, tenant string) (PeerRef, []string, error) {
	if e.o.Locate != nil {
		if ref, providers, ok := e.o.Locate(node); ok {
			ref.Tenant = tenant
			return ref, providers, nil
		}
	}
	return PeerRef{}, nil, &fault.Error{Code: fault.NotFound, Op: op, Peer: node, Field: "node", Detail: "the directory of this node has no node of that name"}
}

// probe makes the four steps. The requests go over whichever link there is: a provider that does not work is the steps' affair.
func (e *Engine) probe(ctx context.Context, ref PeerRef, r *wire.Probe) ([]wire.ProbeStep, error) {
	var seed [wire.ProbeSeedBytes]byte
	_, _ = rand.Read(seed[:])
	ttl := probeTime(r.TimeoutMillis)
	s, err := e.newScratch(ctx, ref.Tenant, r.Bytes, seed[:], true)
	if err != nil {
		return nil, err
	}
	defer s.close()
	write, read, err := s.tickets(ctx, ttl)
	if err != nil {
		return nil, err
	}
	limit := time.Duration(r.TimeoutMillis) * time.Millisecond
	ls, opened, err := e.openProbe(ctx, ref, limit, wire.ProbeOpen{Bytes: r.Bytes, Seed: seed[:], TTLMillis: ttl})
	if err != nil {
		return e.unasked(ref, err), nil
	}
	steps := []wire.ProbeStep{s.step(wire.ModeWrite, opened.WriteTicket, r.Provider, r.TimeoutMillis),
		s.step(wire.ModeRead, opened.ReadTicket, r.Provider, r.TimeoutMillis)}

	runCtx, cancel := context.WithTimeout(ctx, 3*limit) // two steps, and the way there and back
	defer cancel()
	var ran wire.ProbeRan
	f, err := ls.call(runCtx, wire.KindProbeRun, wire.ProbeRun{Provider: r.Provider, WriteTicket: write, ReadTicket: read, TimeoutMillis: r.TimeoutMillis}, nil)
	if err == nil {
		err = decodeAnswer(&f, &ran)
	}
	if err != nil {
		return append(steps, failedSteps(ref.Node, true, fault.From("probe", err))...), nil
	}
	if steps[0].Error == nil && !ran.Received {
		steps[0].Error = fault.ToWire(changed())
	}
	for i := range ran.Steps {
		x := &ran.Steps[i]
		x.From, x.ByPeer = ref.Node, true
		if x.Error != nil { // its texts are the peer's
			x.Error = fault.ToWire(fault.FromWire(x.Error))
		}
	}
	if w := &ran.Steps[0]; w.Error == nil && !s.arrived(partIn) {
		w.Error = fault.ToWire(changed())
	}
	return append(steps, ran.Steps...), nil
}

// openProbe asks the peer for its scratch memory.
func (e *Engine) openProbe(ctx context.Context, ref PeerRef, limit time.Duration, q wire.ProbeOpen) (*linkState, *wire.ProbeOpened, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	link, err := e.o.Dialer.Dial(ctx, ref)
	if err != nil {
		return nil, nil, err
	}
	ls := e.state(link)
	if ls == nil {
		return nil, nil, &fault.Error{Code: fault.PeerLost, Op: "probe", Peer: ref.Node}
	}
	f, err := ls.call(ctx, wire.KindProbeOpen, q, nil)
	if err != nil {
		return nil, nil, err
	}
	var opened wire.ProbeOpened
	if err := f.Decode(&opened); err != nil {
		return nil, nil, err
	}
	return ls, &opened, nil
}

func decodeAnswer(f *wire.Frame, v interface{ Validate() error }) error {
	if err := f.Decode(v); err != nil {
		return err
	}
	return v.Validate()
}

// unasked is the outcome of a probe whose peer could not be asked: the own steps failed of that, the peer's were not tried.
func (e *Engine) unasked(ref PeerRef, err error) []wire.ProbeStep {
	fe := fault.From("probe", err)
	fe.Peer = ref.Node
	not := &fault.Error{Code: fe.Code, Op: "probe", Peer: ref.Node, Detail: fmt.Sprintf("not tried: node %s could not be asked to", ref.Node)}
	return append(failedSteps(e.o.Node, false, fe), failedSteps(ref.Node, true, not)...)
}

func failedSteps(from string, byPeer bool, err error) []wire.ProbeStep {
	w := fault.ToWire(err)
	return []wire.ProbeStep{{Op: wire.ModeWrite, From: from, ByPeer: byPeer, Error: w}, {Op: wire.ModeRead, From: from, ByPeer: byPeer, Error: w}}
}
