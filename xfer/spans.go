package xfer

import (
	"context"
	"encoding/hex"
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

// formatTraceparent is what OpenTelemetry's propagator would inject, without a context and a map for one string.
func formatTraceparent(sc trace.SpanContext) string {
	if !sc.IsValid() {
		return ""
	}
	const dash = '-'
	tid, sid := sc.TraceID(), sc.SpanID()
	b := make([]byte, 0, len("00--")+2*len(tid)+2*len(sid)+len("-00"))
	b = append(hex.AppendEncode(append(b, "00-"...), tid[:]), dash)
	b = append(hex.AppendEncode(b, sid[:]), dash, '0')
	return string(append(b, '0'+byte(sc.TraceFlags()&(trace.FlagsSampled|trace.FlagsRandom))))
}

// layerNotes are what is noted of a transfer's layers while it runs, at most attr.MaxBatchSpans; spans are made of them when it
// is over. To make a span in the way of the bytes costs more than the layer's other bookkeeping.
type layerNotes []layerNote

type layerNote struct {
	layer         uint32
	open          bool
	blocks, bytes int64
	left          uint64
	begun, end    time.Time
	failure       error
}

// find returns a layer's open note; layers come mostly in order, so the last ones are looked at first.
func (n layerNotes) find(layer uint32) *layerNote {
	for i := len(n) - 1; i >= 0; i-- {
		if n[i].layer == layer && n[i].open {
			return &n[i]
		}
	}
	return nil
}

// get returns a layer's open note, or begins one; nil: there are as many as may be.
func (n *layerNotes) get(layer uint32) (x *layerNote, begun bool) {
	if x := n.find(layer); x != nil || len(*n) >= attr.MaxBatchSpans {
		return x, false
	}
	*n = append(*n, layerNote{layer: layer, open: true})
	return &(*n)[len(*n)-1], true
}

func (x *layerNote) close() { x.open, x.end = false, time.Now() }

// closeAll ends what is open when the transfer is over.
func (n layerNotes) closeAll(failure *fault.Error) {
	for i := range n {
		if x := &n[i]; x.open {
			if x.close(); failure != nil {
				x.failure = failure
			}
		}
	}
}

// emit makes the spans.
func (n layerNotes) emit(ctx context.Context, tracer trace.Tracer, name string, more ...attribute.KeyValue) {
	for i := range n {
		x := &n[i]
		span := noted(ctx, tracer, name, x.begun, append(more[:len(more):len(more)], attr.KeyLayer.Int64(int64(x.layer)), attr.KeyBlocks.Int64(x.blocks), attr.KeyBytes.Int64(x.bytes))...)
		if x.failure != nil {
			fail(span, x.failure)
		}
		span.End(trace.WithTimestamp(x.end))
	}
}

// noted starts a span of something that has begun.
func noted(ctx context.Context, tracer trace.Tracer, name string, begun time.Time, attrs ...attribute.KeyValue) trace.Span {
	_, span := tracer.Start(ctx, name, trace.WithTimestamp(begun), trace.WithAttributes(attrs...))
	return span
}

// later runs f when nothing waits for it.
func (e *Engine) later(f func()) {
	if e.o.Later == nil {
		f()
		return
	}
	e.o.Later(f)
}

// sendSpans are the source daemon's spans of a push, under the push's lock. Where the transfer is not recorded, begin alone
// does something: it makes the ids that travel on; every later step is a comparison.
type sendSpans struct {
	on      bool // the transfer is recorded
	ctx     context.Context
	push    trace.Span
	layers  layerNotes
	batches int

	binds, binded  time.Time // zero: not reached
	bindErr        error
	plans, planned time.Time
	plan           *blockPlan
	fins           time.Time
	provider       string
	reason         string
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
	s.on = s.push.IsRecording()
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

func (s *sendSpans) binding(p *transfer) {
	if s.on {
		s.provider, s.reason = p.way()
		s.binds = time.Now()
	}
}

func (s *sendSpans) bound(*transfer) {
	if s.on {
		s.binded = time.Now()
	}
}

func (s *sendSpans) bindFailed(err error) {
	if s.on {
		s.binded, s.bindErr = time.Now(), err
	}
}

// planning is called before a transfer of blocks is cut, and cut behind it.
func (s *sendSpans) planning() {
	if s.on {
		s.plans = time.Now()
	}
}

func (s *sendSpans) cut(plan *blockPlan) {
	if s.on {
		s.planned, s.plan = time.Now(), plan
	}
}

func (s *sendSpans) posting(p *transfer, f protocol.TransferEffect) {
	s.batches++
	if !s.on {
		return
	}
	x, begun := s.layers.get(f.Layer)
	if begun {
		x.begun, x.blocks, x.bytes = time.Now(), int64(f.Count), int64(p.plan.bytes(f.Layer, f.First, f.Count))
	}
	if x != nil {
		x.left += uint64(f.Count)
	}
}

func (s *sendSpans) completed(ev protocol.TransferEvent) {
	if !s.on {
		return
	}
	x := s.layers.find(ev.Layer)
	if x == nil {
		return
	}
	if ev.Code != 0 {
		x.failure = fault.New(ev.Code, "batch", "")
	}
	if x.left -= min(x.left, uint64(ev.Count)); x.left == 0 {
		x.close()
	}
}

func (s *sendSpans) finishing(*transfer) {
	if s.on {
		s.fins = time.Now()
	}
}

// ended makes the spans of what was noted, when the client has been told.
func (s *sendSpans) ended(p *transfer, failure *fault.Error) {
	if !s.on {
		return
	}
	end := time.Now()
	s.layers.closeAll(failure)
	n, tracer := *s, p.client.tracer
	name, peer, epoch := p.name(), p.ticket.Node, p.ticket.Epoch
	id, blocks, bytes := p.transferID, len(p.blocks), p.bytes
	p.e.later(func() {
		at := trace.WithTimestamp(end)
		if !n.binds.IsZero() {
			span := noted(n.ctx, tracer, attr.SpanBind, n.binds, attr.KeyEpoch.String(epoch))
			if n.bindErr != nil {
				fail(span, n.bindErr)
			}
			if n.binded.IsZero() { // it has ended before the answer came
				n.binded = end
			}
			span.End(trace.WithTimestamp(n.binded))
			n.push.SetAttributes(attr.KeyProvider.String(n.provider), attr.KeyProviderReason.String(n.reason))
		}
		if n.plan != nil {
			noted(n.ctx, tracer, attr.SpanPlan, n.plans, n.plan.spanAttributes(blocks)...).End(trace.WithTimestamp(n.planned))
		}
		n.layers.emit(n.ctx, tracer, attr.SpanBatch, attr.KeyProvider.String(n.provider))
		if !n.fins.IsZero() {
			noted(n.ctx, tracer, attr.SpanFin, n.fins).End(at)
		}
		n.push.SetAttributes(attr.KeyTransferID.String(hex16(id)), attr.KeyCache.String(name), attr.KeyPeer.String(peer),
			attr.KeyBlocks.Int(blocks), attr.KeyBatches.Int(n.batches), attr.KeyBytes.Int64(int64(bytes)))
		endResult(n.push, failure, at)
	})
}

// spanAttributes say how a transfer of blocks was cut.
func (b *blockPlan) spanAttributes(blocks int) []attribute.KeyValue {
	l := b.local.Layout
	opsPerLayer := (uint32(blocks) + b.opPieces - 1) / b.opPieces
	rangesPerLayer := len(b.append(nil, 0, 0, uint32(blocks)))
	return []attribute.KeyValue{attr.KeyLayers.Int64(int64(l.Layers)), attr.KeyBlocks.Int(blocks),
		attr.KeyPieces.Int64(int64(l.Layers) * int64(blocks)), attr.KeyBatches.Int64(int64(l.Layers) * int64(opsPerLayer)),
		attr.KeyRanges.Int64(int64(l.Layers) * int64(rangesPerLayer)),
		attr.KeyBytes.Int64(int64(l.Layers) * int64(blocks) * int64(l.PieceBytes()))}
}

func endResult(span trace.Span, failure *fault.Error, at trace.SpanEndOption) {
	if failure == nil {
		span.SetAttributes(attr.KeyResult.String("DONE"))
	} else {
		fail(span, failure)
		span.SetAttributes(attr.KeyMayHaveWritten.Bool(failure.MayHaveWritten))
	}
	span.End(at)
}

// receiveSpans are the target daemon's spans of a lease that was bound, under the lease's lock.
type receiveSpans struct {
	on     bool // the transfer is recorded
	ctx    context.Context
	bind   trace.Span
	layers layerNotes
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
	if x, begun := s.layers.get(layer); begun {
		x.begun, x.blocks = time.Now().Add(-time.Duration(ev.Took)), int64(len(l.blocks))
		x.bytes = int64(len(l.blocks)) * int64(l.cache.spec.Layout.PieceBytes())
	}
}

func (s *receiveSpans) layerPlaced(_ *lease, layer uint32) {
	if x := s.layers.find(layer); x != nil {
		x.close()
	}
}

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

// ended makes the spans of what was noted, when the owner has been told.
func (s *receiveSpans) ended(l *permit, failure *fault.Error) {
	if !s.on {
		return
	}
	s.bind.End()
	s.layers.closeAll(failure)
	n, tracer, id := *s, l.client.tracer, l.grantID
	l.e.later(func() { n.layers.emit(n.ctx, tracer, attr.SpanPlace, attr.KeyLeaseID.String(hex16(id))) })
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
