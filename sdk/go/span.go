package kvxfer

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/kvxfer/kvxfer/internal/wire"
)

// Tracing. A call belongs to the OpenTelemetry span that its context carries, whatever made it. The SDK's own spans
// (docs/tracing.md) are measured here and handed to the daemon, which exports them under the ids that were chosen here, with
// the process as service.name. There is this one way, as in the Python SDK: it needs no OpenTelemetry SDK in the program, the
// span of a transfer can join the ticket's trace, which is known only with the daemon's answer, and nobody has to guess
// whether the program's own tracer provider exports anything.

// The limits are the daemon's; what is above them is cut here, because a span is never worth a connection.
const (
	maxSpanName       = 128  // bytes
	maxSpanText       = 1024 // bytes
	maxSpanAttributes = 64
	maxSpanEvents     = 256
	maxSpansWaiting   = 1024
	maxSpansAFrame    = 64
	maxSpanBytes      = 512 << 10 // of a frame
)

// ContextWithTraceparent returns a context whose calls belong to a W3C traceparent, for programs that carry one without
// OpenTelemetry. ErrInvalidArgument: it is none.
func ContextWithTraceparent(ctx context.Context, traceparent string) (context.Context, error) {
	sc, ok := parseTraceparent(traceparent)
	if !ok {
		return nil, invalid("traceparent", "traceparent", "%.80q, allowed 00-<32 hex digits>-<16 hex digits>-<2 hex digits>", traceparent)
	}
	return trace.ContextWithRemoteSpanContext(ctx, sc), nil
}

// parseTraceparent reads version-trace-parent-flags in lower-case hex; a version above 00 may say more behind that.
func parseTraceparent(s string) (sc trace.SpanContext, ok bool) {
	const size = 2 + 1 + 32 + 1 + 16 + 1 + 2
	if len(s) < size || s[2] != '-' || s[35] != '-' || s[52] != '-' {
		return sc, false
	}
	version, flags, rest := s[:2], s[53:55], s[size:]
	if !isLowerHex(version) || version == "ff" || !isLowerHex(flags) || rest != "" && (version == "00" || rest[0] != '-' || strings.ContainsAny(rest, "\r\n")) {
		return sc, false
	}
	traceID, err1 := trace.TraceIDFromHex(s[3:35])
	spanID, err2 := trace.SpanIDFromHex(s[36:52])
	if err1 != nil || err2 != nil {
		return sc, false
	}
	var sampled trace.TraceFlags
	if strings.IndexByte("13579bdf", flags[1]) >= 0 {
		sampled = trace.FlagsSampled
	}
	return trace.NewSpanContext(trace.SpanContextConfig{TraceID: traceID, SpanID: spanID, TraceFlags: sampled, Remote: true}), true
}

func isLowerHex(s string) bool { return strings.Trim(s, "0123456789abcdef") == "" }

// formatTraceparent is a W3C traceparent of version 00; "" where sc is not valid.
func formatTraceparent(sc trace.SpanContext) string {
	if !sc.IsValid() {
		return ""
	}
	const dash = '-'
	tid, sid := sc.TraceID(), sc.SpanID()
	b := make([]byte, 0, len("00--")+2*len(tid)+2*len(sid)+len("-00"))
	b = append(hex.AppendEncode(append(b, "00-"...), tid[:]), dash)
	b = append(hex.AppendEncode(b, sid[:]), dash, '0')
	return string(append(b, '0'+byte(sc.TraceFlags()&trace.FlagsSampled)))
}

// span is one call as its caller sees it. It is safe for concurrent use.
type span struct {
	name  string
	begin time.Time // with the monotonic clock, which a stepped wall clock does not disturb

	mu         sync.Mutex
	self       trace.SpanContext // not valid while its trace is not known
	id         trace.SpanID
	over       trace.SpanContext // what the call's context carries
	parentID   string
	attributes map[string]any
	events     []wire.ClientSpanEvent
	layers     []layerMoment // made for as many as are kept: noting one allocates nothing
}

// layerMoment is when a layer was handed over or became visible.
type layerMoment struct {
	layer int
	nanos int64
}

// startSpan begins a span under what ctx carries, or the root of a new trace, of which samples says whether it is recorded.
func startSpan(ctx context.Context, name string, samples sampler) *span {
	s := startTransferSpan(ctx, name)
	if !s.over.IsValid() {
		id := newTraceID()
		s.self = spanContext(id, s.id, samples(id))
	}
	return s
}

// startTransferSpan begins a span under what ctx carries. Where that is nothing, the trace is the ticket's: joinTrace says it,
// and until then traceparent is "".
func startTransferSpan(ctx context.Context, name string) *span {
	s := &span{name: name, begin: time.Now(), id: newSpanID(), over: trace.SpanContextFromContext(ctx)}
	if s.over.IsValid() {
		s.self, s.parentID = spanContext(s.over.TraceID(), s.id, s.over.IsSampled()), s.over.SpanID().String()
	}
	return s
}

func spanContext(t trace.TraceID, id trace.SpanID, sampled bool) trace.SpanContext {
	return trace.NewSpanContext(trace.SpanContextConfig{TraceID: t, SpanID: id, TraceFlags: trace.TraceFlags(0).WithSampled(sampled)})
}

func newTraceID() (id trace.TraceID) {
	for !id.IsValid() {
		_, _ = rand.Read(id[:])
	}
	return id
}

func newSpanID() (id trace.SpanID) {
	for !id.IsValid() {
		_, _ = rand.Read(id[:])
	}
	return id
}

// traceparent is the span's own context; "" while its trace is not known.
func (s *span) traceparent() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return formatTraceparent(s.self)
}

// parent is the context that the call belongs to; "" where it belongs to none.
func (s *span) parent() string { return formatTraceparent(s.over) }

// spanID is 16 hex digits.
func (s *span) spanID() string { return s.id.String() }

// joinTrace places the span into the trace that the daemon's answer names. What cannot be read leaves it where it is.
func (s *span) joinTrace(traceID, parentID string, sampled bool) {
	t, err := trace.TraceIDFromHex(traceID)
	if err != nil {
		return
	}
	if _, err := trace.SpanIDFromHex(parentID); err != nil {
		parentID = ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.self, s.parentID = spanContext(t, s.id, sampled), parentID
}

// set sets an attribute: a string, a bool, an integer or a float.
func (s *span) set(key string, value any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key = clipText(key, maxSpanName)
	if _, there := s.attributes[key]; !there && len(s.attributes) >= maxSpanAttributes || key == "" {
		return
	}
	if s.attributes == nil {
		s.attributes = map[string]any{}
	}
	s.attributes[key] = spanValue(value)
}

func spanValue(v any) any {
	switch v := v.(type) {
	case bool, int, int8, int16, int32, int64, uint8, uint16, uint32:
		return v
	case uint64:
		if v <= math.MaxInt64 {
			return v
		}
	case float64:
		if !math.IsNaN(v) && !math.IsInf(v, 0) {
			return v
		}
	case string:
		return clipText(v, maxSpanText)
	}
	return clipText(fmt.Sprint(v), maxSpanText)
}

// event notes a moment; above 256 they are left out.
func (s *span) event(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.events)+len(s.layers) < maxSpanEvents {
		s.events = append(s.events, wire.ClientSpanEvent{Name: clipText(name, maxSpanName), Nanos: s.now()})
	}
}

// layer notes that a layer was handed over or became visible.
func (s *span) layer(l int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.self.IsValid() && !s.self.IsSampled() {
		return
	}
	if s.layers == nil {
		s.layers = make([]layerMoment, 0, maxSpanEvents)
	}
	if len(s.events)+len(s.layers) < maxSpanEvents {
		s.layers = append(s.layers, layerMoment{l, s.now()})
	}
}

func (s *span) now() int64 { return s.begin.Add(time.Since(s.begin)).UnixNano() }

// finished is the span as it travels; false: it is not sampled, or its trace was never known.
func (s *span) finished(err error) (wire.ClientSpan, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.self.IsSampled() || !s.self.IsValid() {
		return wire.ClientSpan{}, false
	}
	for _, m := range s.layers {
		s.events = append(s.events, wire.ClientSpanEvent{Name: fmt.Sprintf("layer %d", m.layer), Nanos: m.nanos})
	}
	out := wire.ClientSpan{TraceID: s.self.TraceID().String(), SpanID: s.id.String(), ParentID: s.parentID, Name: clipText(s.name, maxSpanName),
		StartNanos: s.begin.UnixNano(), EndNanos: s.now(), Attributes: s.attributes, Events: s.events}
	if out.Name == "" {
		out.Name = "span"
	}
	if err != nil {
		out.Error = clipText(err.Error(), maxSpanText)
	}
	s.attributes, s.events, s.layers = nil, nil, nil // the daemon's from here on
	return out, true
}

// clipText is text in at most n bytes of valid UTF-8.
func clipText(text string, n int) string {
	return strings.ToValidUTF8(text[:min(n, len(text))], "")
}

// spans are finished spans on their way to the daemon: at most 1,024 wait, later ones are dropped.
type spans struct {
	mu      sync.Mutex
	waiting []wire.ClientSpan
}

// end takes a finished span; first: it is the first that waits, so a flush is due soon.
func (q *spans) end(s *span, err error) (first bool) {
	out, ok := s.finished(err)
	if !ok {
		return false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) >= maxSpansWaiting {
		return false
	}
	q.waiting = append(q.waiting, out)
	return len(q.waiting) == 1
}

// flush hands everything to send, in a few frames. What cannot be sent is lost.
func (q *spans) flush(send func(*wire.Spans) error) {
	q.mu.Lock()
	waiting := q.waiting
	q.waiting = nil
	q.mu.Unlock()
	batch, size := []wire.ClientSpan{}, 0
	for _, s := range waiting {
		raw, err := json.Marshal(s)
		if err != nil || len(raw) > maxSpanBytes {
			continue
		}
		if len(batch) > 0 && (size+len(raw) > maxSpanBytes || len(batch) >= maxSpansAFrame) {
			if send(&wire.Spans{Spans: batch}) != nil {
				return
			}
			batch, size = []wire.ClientSpan{}, 0
		}
		batch, size = append(batch, s), size+len(raw)
	}
	if len(batch) > 0 {
		_ = send(&wire.Spans{Spans: batch})
	}
}

// Span is a step of the program's own in the same trace, from [Client.Span]: for programs without OpenTelemetry, which use
// their own tracer instead.
type Span struct {
	span *span
	end  func(*span, error)
	once sync.Once
}

// newSpan begins one; the context it returns carries the span, so that calls with it become its children.
func newSpan(ctx context.Context, name string, samples sampler, end func(*span, error)) (context.Context, *Span) {
	s := &Span{span: startSpan(ctx, name, samples), end: end}
	return trace.ContextWithSpanContext(ctx, s.span.self), s
}

// Traceparent is the W3C context of the span.
func (s *Span) Traceparent() string { return s.span.traceparent() }

// TraceID is the trace's, 32 hex digits.
func (s *Span) TraceID() string { return s.span.self.TraceID().String() }

// SpanID is 16 hex digits.
func (s *Span) SpanID() string { return s.span.spanID() }

// Sampled is false when nothing of the trace is recorded.
func (s *Span) Sampled() bool { return s.span.self.IsSampled() }

// Set sets an attribute: a string, a bool, an integer or a float; above 64 they are left out.
func (s *Span) Set(key string, value any) { s.span.set(key, value) }

// Event notes a moment; above 256 they are left out.
func (s *Span) Event(name string) { s.span.event(name) }

// End hands the span to the daemon, failed where err is not nil. A second call does nothing.
func (s *Span) End(err error) { s.once.Do(func() { s.end(s.span, err) }) }
