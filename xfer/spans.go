package xfer

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/telemetry/attr"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/xfer/protocol"
)

// remoteContext puts a W3C traceparent into ctx; one that cannot be read is ignored: tracing never fails a transfer.
func remoteContext(ctx context.Context, traceparent string) context.Context {
	return propagation.TraceContext{}.Extract(ctx, parentCarrier(traceparent))
}

// parentCarrier is a traceparent as OpenTelemetry's propagator reads it; a map for one string would cost more than the parsing.
type parentCarrier string

func (c parentCarrier) Get(key string) string {
	if key == "traceparent" {
		return string(c)
	}
	return ""
}
func (parentCarrier) Set(string, string) {}
func (parentCarrier) Keys() []string     { return []string{"traceparent"} }

func formatTraceparent(sc trace.SpanContext) string {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(trace.ContextWithSpanContext(context.Background(), sc), carrier)
	return carrier["traceparent"]
}

// layerSpans holds the open span of each layer, at most attr.MaxBatchSpans in a transfer.
type layerSpans struct {
	open  map[uint32]*layerSpan
	begun int
}

type layerSpan struct {
	span trace.Span
	left uint64
}

func (s *layerSpans) get(layer uint32, start func() trace.Span) *layerSpan {
	if x := s.open[layer]; x != nil || s.begun >= attr.MaxBatchSpans {
		return x
	}
	if s.open == nil {
		s.open = map[uint32]*layerSpan{}
	}
	s.begun++
	x := &layerSpan{span: start()}
	s.open[layer] = x
	return x
}

func (s *layerSpans) end(layer uint32) {
	if x := s.open[layer]; x != nil {
		x.span.End()
		delete(s.open, layer)
	}
}

func (s *layerSpans) endAll(failure *fault.Error) {
	for layer, x := range s.open {
		if failure != nil {
			fail(x.span, failure)
		}
		s.end(layer)
	}
}

// sendSpans are the source daemon's spans of a push, under the push's lock. Where the transfer is not recorded, begin alone
// does something: it makes the ids that travel on; every later step is a comparison.
type sendSpans struct {
	on        bool // the transfer is recorded
	ctx       context.Context
	push      trace.Span
	bind, fin trace.Span
	layers    layerSpans
	batches   int
}

// begin starts the span of the transfer below the client's own span, whose id the client chose.
func (s *sendSpans) begin(p *transfer, traceparent, clientSpan string) wire.PushInfo {
	parent := trace.SpanContextFromContext(remoteContext(context.Background(), traceparent))
	info := wire.PushInfo{}
	config := trace.SpanContextConfig{TraceID: parent.TraceID(), TraceFlags: parent.TraceFlags(), Remote: true}
	if parent.IsValid() {
		info.ParentID = parent.SpanID().String()
	} else {
		config.TraceID, config.TraceFlags = newTrace(p.client.tracer, p.spanName())
	}
	id, err := trace.SpanIDFromHex(clientSpan)
	if err != nil { // the client has no span of its own
		if id = parent.SpanID(); !id.IsValid() {
			id = randomSpanID()
		}
	}
	config.SpanID = id
	ctx := trace.ContextWithRemoteSpanContext(context.Background(), trace.NewSpanContext(config))
	s.ctx, s.push = p.client.tracer.Start(ctx, p.spanName(), producer)
	if s.on = s.push.IsRecording(); s.on {
		s.push.SetAttributes(attr.KeyTransferID.String(hex16(p.transferID)), attr.KeyCache.String(p.name()), attr.KeyPeer.String(p.ticket.Node),
			attr.KeyBlocks.Int(len(p.blocks)))
	}
	info.TraceID, info.Sampled = config.TraceID.String(), s.on
	return info
}

var producer = trace.WithSpanKind(trace.SpanKindProducer)

// newTrace makes the id of a trace that begins with a client's span, and asks the sampler about it. A span is the only way to
// ask: this one is dropped without an end, so nobody exports it. Without a sampler here the trace counts as sampled, since
// the peer may have one.
func newTrace(tracer trace.Tracer, name string) (trace.TraceID, trace.TraceFlags) {
	_, question := tracer.Start(context.Background(), name)
	if sc := question.SpanContext(); sc.IsValid() {
		return sc.TraceID(), sc.TraceFlags()
	}
	return trace.TraceID(random16()), trace.FlagsSampled
}

func (s *sendSpans) traceparent() string { return formatTraceparent(s.push.SpanContext()) }

func (s *sendSpans) start(p *transfer, name string, attrs ...attribute.KeyValue) trace.Span {
	_, span := p.client.tracer.Start(s.ctx, name, trace.WithAttributes(attrs...))
	return span
}

func (s *sendSpans) binding(p *transfer) {
	if !s.on {
		return
	}
	name, reason := p.ls.link.Provider()
	s.push.SetAttributes(attr.KeyProvider.String(name), attr.KeyProviderReason.String(reason))
	s.bind = s.start(p, attr.SpanBind, attr.KeyEpoch.String(p.ticket.Epoch))
}

func (s *sendSpans) bound(*transfer) {
	if s.bind != nil {
		s.bind.End()
	}
}

func (s *sendSpans) bindFailed(err error) {
	if s.bind != nil {
		fail(s.bind, err)
		s.bind.End()
	}
}

func (s *sendSpans) posting(p *transfer, f protocol.TransferEffect) {
	s.batches++
	if !s.on {
		return
	}
	bytes := p.plan.bytes(f.Layer, f.First, f.Count)
	x := s.layers.get(f.Layer, func() trace.Span {
		return s.start(p, attr.SpanBatch, attr.KeyLayer.Int64(int64(f.Layer)), attr.KeyBlocks.Int64(int64(f.Count)),
			attr.KeyBytes.Int64(int64(bytes)), attr.KeyProvider.String(p.ls.provider))
	})
	if x != nil {
		x.left += uint64(f.Count)
	}
}

func (s *sendSpans) completed(ev protocol.TransferEvent) {
	x := s.layers.open[ev.Layer]
	if x == nil {
		return
	}
	if ev.Code != 0 {
		fail(x.span, fault.New(ev.Code, "batch", ""))
	}
	if x.left -= min(x.left, uint64(ev.Count)); x.left == 0 {
		s.layers.end(ev.Layer)
	}
}

func (s *sendSpans) finishing(p *transfer) {
	if s.on {
		s.fin = s.start(p, attr.SpanFin)
	}
}

func (s *sendSpans) ended(p *transfer, failure *fault.Error) {
	if !s.on {
		return
	}
	s.layers.endAll(failure)
	if s.bind != nil { // it may have ended before the answer came
		s.bind.End()
	}
	if s.fin != nil {
		s.fin.End()
	}
	s.push.SetAttributes(attr.KeyBatches.Int(s.batches), attr.KeyBytes.Int64(int64(p.bytes)))
	endResult(s.push, failure)
}

func endResult(span trace.Span, failure *fault.Error) {
	if failure == nil {
		span.SetAttributes(attr.KeyResult.String("DONE"))
	} else {
		fail(span, failure)
		span.SetAttributes(attr.KeyMayHaveWritten.Bool(failure.MayHaveWritten))
	}
	span.End()
}

// receiveSpans are the target daemon's spans of a lease that was bound, under the lease's lock.
type receiveSpans struct {
	on     bool // the transfer is recorded
	ctx    context.Context
	bind   trace.Span
	layers layerSpans
}

// begin starts the bind span below the source's push span.
func (s *receiveSpans) begin(l *permit, b *bindRequest) {
	s.ctx = remoteContext(context.Background(), b.parent)
	_, s.bind = l.client.tracer.Start(s.ctx, attr.SpanBind)
	if s.on = s.bind.IsRecording(); s.on {
		s.bind.SetAttributes(attr.KeyLeaseID.String(hex16(l.grantID)), attr.KeyTransferID.String(b.transfer), attr.KeyPeer.String(b.ls.link.Peer().Node))
	}
}

// unrecorded is a span that does nothing.
var unrecorded = trace.SpanFromContext(context.Background())

func (s *receiveSpans) start(l *permit, name string) trace.Span {
	if !s.on {
		return unrecorded
	}
	_, span := l.client.tracer.Start(s.ctx, name, trace.WithAttributes(attr.KeyLeaseID.String(hex16(l.grantID))))
	return span
}

func (s *receiveSpans) bound() { s.bind.End() }

// arrived opens a layer's place span at its first piece.
func (s *receiveSpans) arrived(l *lease, ev protocol.LeaseEvent) {
	if !s.on {
		return
	}
	layer, _, _ := ev.Tag.Parts()
	if l.m.LayerVisible(layer) || layer >= l.cache.spec.Layout.Layers {
		return
	}
	s.layers.get(layer, func() trace.Span {
		_, span := l.client.tracer.Start(s.ctx, attr.SpanPlace, trace.WithTimestamp(time.Now().Add(-time.Duration(ev.Took))),
			trace.WithAttributes(attr.KeyLeaseID.String(hex16(l.grantID)), attr.KeyLayer.Int64(int64(layer)), attr.KeyBlocks.Int(len(l.blocks)),
				attr.KeyBytes.Int64(int64(len(l.blocks))*int64(l.cache.spec.Layout.PieceBytes()))))
		return span
	})
}

func (s *receiveSpans) layerPlaced(_ *lease, layer uint32) { s.layers.end(layer) }

func unfenced(error) {}

// fencing opens the fence span; the returned function ends it, from any goroutine.
func (s *receiveSpans) fencing(l *permit, code fault.Code) func(error) {
	if !s.on {
		return unfenced
	}
	reason := "complete"
	if code != 0 {
		reason = code.String()
	}
	span := s.start(l, attr.SpanFence)
	span.SetAttributes(attr.KeyFenceReason.String(reason))
	return func(err error) {
		if err != nil {
			fail(span, err)
		}
		span.End()
	}
}

func (s *receiveSpans) ended(failure *fault.Error) {
	s.layers.endAll(failure)
	if s.bind != nil {
		s.bind.End()
	}
}

// planned says in a span of its own how a transfer of blocks was cut.
func (s *sendSpans) planned(p *transfer, b *blockPlan) {
	if !s.on {
		return
	}
	span := s.start(p, attr.SpanPlan)
	l := b.local.Layout
	opsPerLayer := (uint32(len(p.blocks)) + b.opPieces - 1) / b.opPieces
	rangesPerLayer := len(b.append(nil, 0, 0, uint32(len(p.blocks))))
	span.SetAttributes(attr.KeyLayers.Int64(int64(l.Layers)), attr.KeyBlocks.Int(len(p.blocks)),
		attr.KeyPieces.Int64(int64(l.Layers)*int64(len(p.blocks))), attr.KeyBatches.Int64(int64(l.Layers)*int64(opsPerLayer)),
		attr.KeyRanges.Int64(int64(l.Layers)*int64(rangesPerLayer)),
		attr.KeyBytes.Int64(int64(l.Layers)*int64(len(p.blocks))*int64(l.PieceBytes())))
	span.End()
}

// spanName is the name of the transfer's own span.
func (p *transfer) spanName() string {
	switch p.kind {
	case kindPull:
		return attr.SpanPull
	case kindScatter:
		return attr.SpanScatter
	}
	return attr.SpanPush
}
