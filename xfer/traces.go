package xfer

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// maxTraceAnswer bounds the lines that one answer gathers from all nodes, in bytes: well inside a frame.
const maxTraceAnswer = 48 << 20

// maxTraceQuestions bounds how many of them are made at a time.
const maxTraceQuestions = 4

// Traces is the memory of finished spans that a node has, and who else may have some.
type Traces interface {
	// Find returns what is kept under an id that wire.TraceQuery describes, in at most most bytes of OTLP JSON lines. Errors:
	// NotSupported (nothing is kept at all), NotFound, InvalidArgument (several traces).
	Find(w Whose, id string, most int) (FoundTrace, error)
	// Node is where a node of that name is reached in a tenant, Nodes all that are known but the own one.
	Node(tenant, name string) (PeerRef, bool)
	Nodes(tenant string) []PeerRef
}

// Whose says which spans somebody may see: those of a tenant's transfers, or with All those of every tenant's.
type Whose struct {
	Tenant string
	All    bool
}

// FoundTrace is what one node keeps of a trace.
type FoundTrace struct {
	TraceID string // whole; "" where every trace was asked for
	Lines   []byte
	Named   []NamedNode // the other sides, as the spans name them
	LeftOff int         // spans that did not fit
}

// NamedNode is a node that a span names, with the tenant whose span it was.
type NamedNode struct{ Node, Tenant string }

// gathered is the answer to a trace query while nodes are being asked.
type gathered struct {
	e *Engine

	mu    sync.Mutex
	info  wire.TraceInfo
	lines []byte
	next  []NamedNode
	seen  map[NamedNode]bool // asked, or to be asked
}

// Trace answers a client's question for a trace: from the own spans, and with those of every node that the spans found so far
// name, until no new node is named. Where nothing is kept here under the id, every node is asked. Root and the daemon's own
// user see all tenants' spans that this node keeps; of other nodes they too get only those of the tenants whose spans led there.
func (e *Engine) Trace(ctx context.Context, who ClientInfo, q wire.TraceQuery) (wire.TraceInfo, []byte, error) {
	const op = "trace"
	if err := q.Validate(); err != nil {
		return wire.TraceInfo{}, nil, err
	}
	if e.o.Traces == nil {
		return wire.TraceInfo{}, nil, fault.New(fault.NotSupported, op, "this node keeps no spans")
	}
	if n := e.asking.Add(1); n > maxTraceQuestions {
		e.asking.Add(-1)
		return wire.TraceInfo{}, nil, fault.New(fault.ResourceExhausted, op, "%d questions are being answered, allowed %d: an answer may take %d bytes", n-1, maxTraceQuestions, maxTraceAnswer)
	}
	defer e.asking.Add(-1)
	whose := Whose{Tenant: who.Tenant, All: who.Uid == 0 || who.Uid == os.Geteuid()}
	most := maxTraceAnswer
	if !q.LocalOnly && q.ID != "" {
		most /= 2 // the rest is for other nodes'
	}
	found, err := e.o.Traces.Find(whose, q.ID, most)
	g := &gathered{e: e, seen: map[NamedNode]bool{}, info: wire.TraceInfo{TraceID: found.TraceID, LeftOff: found.LeftOff}, lines: found.Lines}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(q.TimeoutMillis)*time.Millisecond)
	defer cancel()
	switch {
	case err == nil && (q.LocalOnly || q.ID == ""):
		return g.info, g.lines, nil
	case err == nil:
		g.name(found.Named)
	case q.LocalOnly, q.ID == "", q.ID == wire.TraceLatest, !errors.Is(err, fault.ErrNotFound) && !errors.Is(err, fault.ErrNotSupported):
		return wire.TraceInfo{}, nil, err
	default:
		if e2 := g.search(ctx, whose.Tenant, q.ID); e2 != nil {
			return wire.TraceInfo{}, nil, e2
		}
		if g.info.TraceID == "" {
			return wire.TraceInfo{}, nil, err
		}
	}
	for todo := g.take(); len(todo) > 0; todo = g.take() {
		g.ask(ctx, todo)
	}
	slices.Sort(g.info.Unasked)
	g.info.Unasked = slices.Compact(g.info.Unasked)
	return g.info, g.lines, nil
}

// name notes nodes to be asked, each once. The caller holds g.mu, or is alone.
func (g *gathered) name(nodes []NamedNode) {
	for _, n := range nodes {
		if n.Node != g.e.o.Node && !g.seen[n] {
			g.seen[n] = true
			g.next = append(g.next, n)
		}
	}
}

func (g *gathered) take() []NamedNode {
	todo := g.next
	g.next = nil
	return todo
}

// search asks every node for an id that means nothing here. What a node answers is only where the trace is: its spans come
// when all nodes are asked for the whole id, since another one may know the trace and not the transfer.
func (g *gathered) search(ctx context.Context, tenant, id string) error {
	var ambiguous error
	refs := g.e.o.Traces.Nodes(tenant)
	g.each(len(refs), func(i int) {
		info, _, err := g.e.traceAt(ctx, refs[i], id)
		g.mu.Lock()
		defer g.mu.Unlock()
		switch {
		case errors.Is(err, fault.ErrInvalidArgument):
			ambiguous = err
		case err != nil:
			g.missed(refs[i].Node, err)
		case g.info.TraceID != "" && g.info.TraceID != info.TraceID:
			ambiguous = fault.Invalid("trace", "id", "%q, allowed what begins one trace's or transfer's id, and several begin with it: give more digits", id)
		default:
			g.info.TraceID = info.TraceID
			g.name([]NamedNode{{refs[i].Node, tenant}})
		}
	})
	return ambiguous
}

// ask gathers the spans of nodes.
func (g *gathered) ask(ctx context.Context, nodes []NamedNode) {
	g.each(len(nodes), func(i int) {
		n := nodes[i]
		var info wire.TraceOfInfo
		var lines []byte
		err := error(fault.New(fault.NotFound, "trace", "node %q is not in the directory", n.Node))
		ref, known := g.e.o.Traces.Node(n.Tenant, n.Node)
		if known {
			info, lines, err = g.e.traceAt(ctx, ref, g.info.TraceID)
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		switch {
		case !known:
			g.info.Unasked = append(g.info.Unasked, n.Node)
		case err != nil:
			g.missed(n.Node, err)
		case info.TraceID != g.info.TraceID:
			g.missed(n.Node, fault.New(fault.ProtocolViolation, "trace", "it answered with another trace"))
		default:
			for _, p := range info.Peers {
				g.name([]NamedNode{{p, n.Tenant}})
			}
			g.info.LeftOff += info.LeftOff
			if len(g.lines)+len(lines) > maxTraceAnswer {
				g.info.Unasked = append(g.info.Unasked, n.Node)
				return
			}
			g.lines = append(g.lines, lines...)
		}
	})
}

// missed notes a node whose spans are missing; one that has none misses nothing. The caller holds g.mu.
func (g *gathered) missed(node string, err error) {
	if !errors.Is(err, fault.ErrNotFound) {
		g.info.Unasked = append(g.info.Unasked, node)
		g.e.o.Logger.Debug("trace not answered", "peer", node, "error", err)
	}
}

// each runs f for 0 to n-1, some at a time, and waits.
func (g *gathered) each(n int, f func(int)) {
	var wg sync.WaitGroup
	room := make(chan struct{}, findersAtOnce)
	for i := range n {
		room <- struct{}{}
		wg.Go(func() {
			defer func() { <-room }()
			f(i)
		})
	}
	wg.Wait()
}

// traceAt asks one node.
func (e *Engine) traceAt(ctx context.Context, ref PeerRef, id string) (info wire.TraceOfInfo, lines []byte, err error) {
	ls, err := e.reach(ctx, ref)
	if err != nil {
		return info, nil, err
	}
	f, err := ls.call(ctx, wire.KindTraceOf, &wire.TraceOf{ID: id}, nil)
	if err != nil {
		return info, nil, err
	}
	if err := f.Decode(&info); err != nil {
		return info, nil, err
	}
	if err := info.Validate(); err != nil {
		return info, nil, ls.wrong("trace_of", "%s", err)
	}
	if len(f.Array) > wire.MaxTraceLines {
		return info, nil, ls.wrong("trace_of", "%d bytes of lines, allowed 0..%d", len(f.Array), wire.MaxTraceLines)
	}
	return info, f.Array, nil
}

// onTraceOf answers a peer's TRACE_OF, beside the link's reader: the answer may take a while to write down.
func (ls *linkState) onTraceOf(f wire.Frame) error {
	var q wire.TraceOf
	if err := f.Decode(&q); err != nil {
		return err
	}
	if f.Request == 0 || len(f.Array) > 0 {
		return fault.New(fault.ProtocolViolation, "trace_of", "request %d with an array of %d bytes, allowed any other id and 0", f.Request, len(f.Array))
	}
	e := ls.e
	err := q.Validate()
	switch {
	case err == nil && e.o.Traces == nil:
		err = fault.New(fault.NotSupported, "trace_of", "node %s keeps no spans", e.o.Node)
	case err == nil && e.tracing.Add(1) > maxTracesAnswered:
		e.tracing.Add(-1)
		err = fault.New(fault.ResourceExhausted, "trace_of", "node %s is writing %d traces down", e.o.Node, maxTracesAnswered)
	}
	if err != nil {
		ls.refuse(f.Request, err)
		return nil
	}
	tenant := ls.link.Peer().Tenant
	e.wg.Go(func() {
		defer e.tracing.Add(-1)
		found, err := e.o.Traces.Find(Whose{Tenant: tenant}, q.ID, wire.MaxTraceLines)
		if err != nil {
			ls.refuse(f.Request, err)
			return
		}
		info := wire.TraceOfInfo{TraceID: found.TraceID, LeftOff: found.LeftOff}
		for _, n := range found.Named {
			info.Peers = append(info.Peers, n.Node)
		}
		ls.answer(f.Request, &info, found.Lines)
	})
	return nil
}

// maxTracesAnswered bounds the answers to TRACE_OF that are made at a time, each of which may hold wire.MaxTraceLines.
const maxTracesAnswered = 4
