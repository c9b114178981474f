package xfer

import (
	"context"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/telemetry"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/xfer/layout"
	"github.com/kvxfer/kvxfer/xfer/protocol"
)

// The cost of the spans of one transfer of 4 layers and 16 blocks on both nodes together, without the transfer.
//
// Baseline is what a transfer needs for its ids where nobody traces: the ids and the traceparent travel on, so that a peer
// that traces gets them.

// spanLink is a link that says who is there and nothing else.
type spanLink struct{ Link }

func (spanLink) Peer() PeerRef              { return PeerRef{Node: "peer"} }
func (spanLink) Provider() (string, string) { return "tcp", "the only one" }
func (spanLink) Session() rdma.SessionID    { return 1 }

const (
	sampledParent   = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	unsampledParent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"
	clientSpanID    = "00f067aa0ba902b8"
)

// spanRig is a transfer and a lease as far as their spans look at them.
type spanRig struct {
	p *transfer
	l *lease
	b *blockPlan
}

func newSpanRig(tracer trace.Tracer, later func(func())) *spanRig {
	e := &Engine{o: Options{Later: later}}
	lay := layout.Layout{Layers: 4, KVHeads: 2, HeadDim: 64, DType: "float32", BlockTokens: 16, Order: layout.HND, TPSize: 1}
	blocks := make([]uint32, 16)
	for i := range blocks {
		blocks[i] = uint32(2 * i)
	}
	g := layout.Geometry{Layout: lay, NumBlocks: 64}
	c := &client{tracer: tracer}
	ca := &cache{name: "c", client: c, geometry: g, spec: wire.RegisterCache{Layout: lay, NumBlocks: 64}}
	plan := newBlockPlan(rdma.Caps{MaxRanges: 256, MaxOpBytes: 1 << 20}, g, g, blocks, blocks)
	p := &transfer{e: e, client: c, cache: ca, blocks: blocks, plan: plan, ls: &linkState{link: spanLink{}, provider: "tcp"}}
	l := &lease{permit: permit{e: e, client: c, cache: ca, blocks: blocks}, m: protocol.NewLease(lay.Layers, uint32(len(blocks)), lay.PieceBytes(), 1<<60)}
	return &spanRig{p: p, l: l, b: plan}
}

// transfer calls what a transfer calls, in its order.
func (r *spanRig) transfer(parent string) {
	var s sendSpans
	r.p.bytes = 0
	s.begin(r.p, parent, clientSpanID)
	s.binding(r.p)
	bind := &bindRequest{parent: s.traceparent(), transfer: "4bf92f3577b34da6a3ce929d0e0e4736", ls: r.p.ls}
	var t receiveSpans
	t.begin(&r.l.permit, bind)
	t.bound()
	s.bound(r.p)
	s.planning()
	s.cut(r.b)
	for layer := range uint32(4) {
		s.posting(r.p, protocol.TransferEffect{Layer: layer, Count: 16})
		t.arrived(r.l, protocol.LeaseEvent{Tag: layout.NewTag(layer, 0, 16)})
		t.layerPlaced(r.l, layer)
		s.completed(protocol.TransferEvent{Layer: layer, Count: 16})
	}
	s.finishing(r.p)
	t.fencing(&r.l.permit, 0)(nil)
	t.start(&r.l.permit, "commit").End()
	t.ended(&r.l.permit, nil)
	s.ended(r.p, nil)
}

func benchmarkSpans(b *testing.B, tracer trace.Tracer, later func(func()), parent string) {
	r := newSpanRig(tracer, later)
	b.ReportAllocs()
	for b.Loop() {
		r.transfer(parent)
	}
}

// counting is a span processor that only counts, so that the exporter's cost is not in the figure.
type counting struct {
	sdktrace.SpanProcessor
	ended int
}

func (*counting) OnStart(context.Context, sdktrace.ReadWriteSpan) {}
func (c *counting) OnEnd(sdktrace.ReadOnlySpan)                   { c.ended++ }

func recording() (trace.Tracer, *counting) {
	c := &counting{}
	return sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(c)).Tracer("kvxfer"), c
}

func BenchmarkTransferSpansOff(b *testing.B) {
	benchmarkSpans(b, noop.NewTracerProvider().Tracer(""), nil, sampledParent)
}

func BenchmarkTransferSpansUnsampled(b *testing.B) {
	tracer, _ := recording()
	benchmarkSpans(b, tracer, nil, unsampledParent)
}

// BenchmarkTransferSpansOn is what the transfer itself takes: telemetry's tracer notes spans and hands them to the SDK later, of
// those of this loop only a part.
func BenchmarkTransferSpansOn(b *testing.B) {
	tel, err := telemetry.Start(b.Context(), telemetry.Options{Keep: 1})
	require.NoError(b, err)
	defer func() { _ = tel.Shutdown(context.Background()) }()
	benchmarkSpans(b, tel.Tracer(), tel.Later, sampledParent)
}

// BenchmarkTransferSpansSDK makes the spans at once, with the SDK's tracer: what telemetry's spares the transfer.
func BenchmarkTransferSpansSDK(b *testing.B) {
	tracer, _ := recording()
	benchmarkSpans(b, tracer, nil, sampledParent)
}

// BenchmarkTransferSpansBaseline makes the ids that travel.
func BenchmarkTransferSpansBaseline(b *testing.B) {
	tracer := noop.NewTracerProvider().Tracer("")
	r := newSpanRig(tracer, nil)
	b.ReportAllocs()
	for b.Loop() {
		var s sendSpans
		s.begin(r.p, sampledParent, clientSpanID)
		var t receiveSpans
		t.begin(&r.l.permit, &bindRequest{parent: s.traceparent(), ls: r.p.ls})
	}
}

// TestUnrecordedTransferCostsItsIDs: without a recording the steps of a transfer allocate nothing and make no span; the ids
// that travel are all that is made.
func TestUnrecordedTransferCostsItsIDs(t *testing.T) {
	tracer, ended := recording()
	for name, x := range map[string]struct {
		tracer trace.Tracer
		parent string
	}{"off": {noop.NewTracerProvider().Tracer(""), sampledParent}, "unsampled": {tracer, unsampledParent}} {
		r := newSpanRig(x.tracer, nil)
		ids := testing.AllocsPerRun(200, func() {
			var s sendSpans
			s.begin(r.p, x.parent, clientSpanID)
			var u receiveSpans
			u.begin(&r.l.permit, &bindRequest{parent: s.traceparent(), ls: r.p.ls})
		})
		all := testing.AllocsPerRun(200, func() { r.transfer(x.parent) })
		require.LessOrEqual(t, all, ids, name)
	}
	require.Zero(t, ended.ended)
	newSpanRig(tracer, nil).transfer(sampledParent)
	require.Equal(t, len([]string{"push", "bind", "plan", "fin"})+4+len([]string{"bind", "fence", "commit"})+4, ended.ended)
}
