package telemetry

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/embedded"
)

const (
	// deferTime is how often ended spans are handed to the SDK, those of many transfers together. It runs by the clock alone: to
	// wake a goroutine costs a transfer more than to note its spans.
	deferTime = 100 * time.Millisecond
	// deferQueue bounds the spans that wait; more are dropped, as the exporters do.
	deferQueue = 8192
	// deferWork bounds the transfers whose spans are still to be made; the spans of more are dropped.
	deferWork = 4096
)

// deferred hands spans to the SDK when their transfer is over. A span of the SDK costs some microseconds to start and to end,
// most of it for what only an exporter needs; 16 of them in the way of a transfer of 1 MiB would cost it several per cent.
// So a span here only notes names, times and attributes. Whether it is sampled and which ids it has is decided at its start, by
// the SDK's samplers; the SDK gets it under these ids and times from one goroutine, in bulk.
type deferred struct {
	sampler sdktrace.Sampler
	stop    chan struct{}
	done    chan struct{}
	once    sync.Once
	full    atomic.Uint64 // dropped because too many wait

	mu      sync.Mutex
	waiting []*deferredSpan
	work    []func()
	closed  bool

	handing sync.Mutex // held while spans are handed over: who returns from drain finds them there
	spare   []*deferredSpan
}

func newDeferred(sampler sdktrace.Sampler) *deferred {
	d := &deferred{sampler: sampler, stop: make(chan struct{}), done: make(chan struct{})}
	go d.run()
	return d
}

func (d *deferred) run() {
	defer close(d.done)
	t := time.NewTicker(deferTime)
	defer t.Stop()
	for {
		select {
		case <-d.stop:
			return
		case <-t.C:
		}
		d.drain()
	}
}

// add takes a span that has ended.
func (d *deferred) add(s *deferredSpan) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.closed:
	case len(d.waiting) < deferQueue:
		d.waiting = append(d.waiting, s)
	default:
		d.full.Add(1)
	}
}

// later queues work that makes spans.
func (d *deferred) later(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.closed:
	case len(d.work) < deferWork:
		d.work = append(d.work, f)
	default: // how many spans it would have made nobody knows: it counts as one
		d.full.Add(1)
	}
}

// drain hands over everything that has ended before the call.
func (d *deferred) drain() {
	d.handing.Lock()
	defer d.handing.Unlock()
	d.mu.Lock()
	work := d.work
	d.work = nil
	d.mu.Unlock()
	for _, f := range work {
		f() // ends spans
	}
	d.mu.Lock()
	all := d.waiting
	d.waiting = d.spare
	d.mu.Unlock()
	for _, s := range all {
		s.hand()
	}
	clear(all)
	d.spare = all[:0]
}

// close hands over what has ended and stops; spans that end later are dropped.
func (d *deferred) close() {
	d.once.Do(func() {
		close(d.stop)
		<-d.done
		d.drain()
		d.mu.Lock()
		d.closed = true
		d.mu.Unlock()
		d.drain()
	})
}

// deferredTracer makes spans of one scope. real is the SDK's tracer, whose provider samples everything and takes ids from the context.
type deferredTracer struct {
	embedded.Tracer
	d    *deferred
	of   *deferredProvider
	real trace.Tracer
}

// deferredProvider is the SDK's provider behind a deferred queue.
type deferredProvider struct {
	embedded.TracerProvider
	d    *deferred
	real trace.TracerProvider
}

// Tracer makes the tracer of a scope.
func (p *deferredProvider) Tracer(name string, opts ...trace.TracerOption) trace.Tracer {
	return &deferredTracer{d: p.d, of: p, real: p.real.Tracer(name, opts...)}
}

var _ trace.Tracer = (*deferredTracer)(nil)

// Start begins a span below the one in ctx. Options but kind, time and attributes are of no meaning here.
func (t *deferredTracer) Start(ctx context.Context, name string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	config := trace.NewSpanStartConfig(opts...)
	parent := trace.SpanContextFromContext(ctx)
	id := trace.SpanContextConfig{TraceID: parent.TraceID(), SpanID: newSpanID(), TraceFlags: parent.TraceFlags() &^ trace.FlagsSampled}
	if !parent.IsValid() {
		parent = trace.SpanContext{}
		id.TraceID, id.TraceFlags = newTraceID(), 0
	}
	result := t.d.sampler.ShouldSample(sdktrace.SamplingParameters{ParentContext: ctx, TraceID: id.TraceID, Name: name, Kind: config.SpanKind()})
	id.TraceState = result.Tracestate
	if result.Decision != sdktrace.RecordAndSample {
		ctx = trace.ContextWithSpanContext(ctx, trace.NewSpanContext(id))
		return ctx, trace.SpanFromContext(ctx)
	}
	id.TraceFlags |= trace.FlagsSampled
	s := &deferredSpan{t: t, own: trace.NewSpanContext(id), parent: parent, name: name, kind: config.SpanKind(), begun: config.Timestamp(), attributes: config.Attributes()}
	if s.begun.IsZero() {
		s.begun = time.Now()
	}
	return trace.ContextWithSpan(ctx, s), s
}

// newTraceID and newSpanID are random and not secret, as the SDK's are.
func newTraceID() (id trace.TraceID) {
	for !id.IsValid() {
		binary.NativeEndian.PutUint64(id[:8], rand.Uint64())
		binary.NativeEndian.PutUint64(id[8:], rand.Uint64())
	}
	return id
}

func newSpanID() (id trace.SpanID) {
	for !id.IsValid() {
		binary.NativeEndian.PutUint64(id[:], rand.Uint64())
	}
	return id
}

// deferredSpan is a span as it is noted.
type deferredSpan struct {
	embedded.Span
	t           *deferredTracer
	own, parent trace.SpanContext

	mu         sync.Mutex
	name       string
	kind       trace.SpanKind
	begun, end time.Time // end is zero until End
	attributes []attribute.KeyValue
	events     []deferredEvent
	code       codes.Code
	status     string
}

type deferredEvent struct {
	name string
	o    []trace.EventOption
}

var _ trace.Span = (*deferredSpan)(nil)

// End ends the span; a second call does nothing.
func (s *deferredSpan) End(opts ...trace.SpanEndOption) {
	at := time.Now()
	if len(opts) > 0 {
		if config := trace.NewSpanEndConfig(opts...); !config.Timestamp().IsZero() {
			at = config.Timestamp()
		}
	}
	s.mu.Lock()
	again := !s.end.IsZero()
	if !again {
		s.end = at
	}
	s.mu.Unlock()
	if !again {
		s.t.d.add(s)
	}
}

// note changes a span that has not ended.
func (s *deferredSpan) note(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end.IsZero() {
		change()
	}
}

// AddEvent notes a moment, by default now.
func (s *deferredSpan) AddEvent(name string, opts ...trace.EventOption) {
	if c := trace.NewEventConfig(opts...); c.Timestamp().IsZero() {
		opts = append(slices.Clip(opts), trace.WithTimestamp(time.Now()))
	}
	s.note(func() {
		if len(s.events) < minEvents {
			s.events = append(s.events, deferredEvent{name, opts})
		}
	})
}

// AddLink does nothing: no span here has links.
func (s *deferredSpan) AddLink(trace.Link) {}

// IsRecording is true until End.
func (s *deferredSpan) IsRecording() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.end.IsZero()
}

// RecordError notes an error as OpenTelemetry's conventions have it.
func (s *deferredSpan) RecordError(err error, opts ...trace.EventOption) {
	if err != nil {
		s.AddEvent("exception", append(slices.Clip(opts), trace.WithAttributes(attribute.String("exception.message", err.Error())))...)
	}
}

// SpanContext is the span's place in the trace.
func (s *deferredSpan) SpanContext() trace.SpanContext { return s.own }

// SetStatus says how it ended; OK stays, as the standard has it.
func (s *deferredSpan) SetStatus(code codes.Code, text string) {
	s.note(func() {
		if s.code <= code {
			s.code, s.status = code, text
		}
	})
}

// SetName gives another name.
func (s *deferredSpan) SetName(name string) { s.note(func() { s.name = name }) }

// SetAttributes adds attributes; of a key that comes twice the last value counts.
func (s *deferredSpan) SetAttributes(kv ...attribute.KeyValue) {
	s.note(func() { s.attributes = append(s.attributes, kv...) })
}

// TracerProvider gives tracers of any scope over the same queue.
func (s *deferredSpan) TracerProvider() trace.TracerProvider { return s.t.of }

// hand gives the span to the SDK.
func (s *deferredSpan) hand() {
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx := context.WithValue(context.Background(), presetKey{}, presetIDs{s.own.TraceID(), s.own.SpanID()})
	if s.parent.IsValid() {
		ctx = trace.ContextWithSpanContext(ctx, s.parent)
	}
	_, real := s.t.real.Start(ctx, s.name, trace.WithSpanKind(s.kind), trace.WithTimestamp(s.begun), trace.WithAttributes(s.attributes...))
	for _, e := range s.events {
		real.AddEvent(e.name, e.o...)
	}
	if s.code != codes.Unset {
		real.SetStatus(s.code, s.status)
	}
	real.End(trace.WithTimestamp(s.end))
}

// samplerOf is the sampler that OTEL_TRACES_SAMPLER and its argument name, which checkSampler has let pass.
func samplerOf(getenv func(string) string) sdktrace.Sampler {
	ratio := 1.0
	if v := strings.TrimSpace(getenv("OTEL_TRACES_SAMPLER_ARG")); v != "" {
		ratio, _ = strconv.ParseFloat(v, 64)
	}
	name := strings.ToLower(strings.TrimSpace(getenv("OTEL_TRACES_SAMPLER")))
	root, ofParent := strings.CutPrefix(name, "parentbased_")
	sampler := sdktrace.AlwaysSample()
	switch root {
	case "always_off":
		sampler = sdktrace.NeverSample()
	case "traceidratio":
		sampler = sdktrace.TraceIDRatioBased(ratio)
	}
	if ofParent || name == "" {
		sampler = sdktrace.ParentBased(sampler)
	}
	return sampler
}
