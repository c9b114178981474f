package telemetry

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/kvxfer/kvxfer/internal/telemetry/attr"
)

// maxClientProcesses bounds the tracers kept for client processes; above it they are made anew, which costs time
// but loses nothing.
const maxClientProcesses = 256

// clientProcess is one client as the resource and the scope of its spans have it.
type clientProcess struct {
	service string
	pid     int
	tenant  string
}

// RecordClientSpan exports a span that a client measured, under the ids that the client chose and with the client
// as its service. A wrong span is InvalidArgument and names the field, also while tracing is off, so that a
// client's mistake does not wait for the day when somebody traces.
//
// A client hands over only spans of traces that it sampled, so they are kept whatever the daemon's own sampler is,
// except always_off, which means that nothing at all is wanted.
func (t *Telemetry) RecordClientSpan(s ClientSpan) error {
	c, err := s.check()
	if err != nil {
		return err
	}
	if t.provider == nil || t.dropAll {
		return nil
	}
	ctx := context.WithValue(context.Background(), presetKey{}, c.ids)
	if c.parent.IsValid() {
		ctx = trace.ContextWithRemoteSpanContext(ctx, c.parent)
	}
	_, span := t.clientTracer(clientProcess{s.Service, s.PID, s.Tenant}).Start(ctx, s.Name,
		trace.WithSpanKind(trace.SpanKindClient), trace.WithTimestamp(time.Unix(0, s.StartUnixNano)), trace.WithAttributes(c.attributes...))
	for i, e := range s.Events {
		span.AddEvent(e.Name, trace.WithTimestamp(time.Unix(0, e.UnixNano)), trace.WithAttributes(c.events[i]...))
	}
	if s.StatusError != "" {
		span.SetStatus(codes.Error, s.StatusError)
	}
	span.End(trace.WithTimestamp(time.Unix(0, s.EndUnixNano)))
	return nil
}

// clientTracer returns the tracer whose resource is p. Its provider shares the daemon's span processors and is
// never shut down itself, because that would stop them.
func (t *Telemetry) clientTracer(p clientProcess) trace.Tracer {
	t.mu.Lock()
	defer t.mu.Unlock()
	if tr, ok := t.clients[p]; ok {
		return tr
	}
	if len(t.clients) >= maxClientProcesses {
		clear(t.clients)
	}
	attrs := append(t.node[:len(t.node):len(t.node)], keyServiceName.String(p.service))
	if p.pid != 0 {
		attrs = append(attrs, keyPID.Int(p.pid))
	}
	provider := t.newProvider(resource.NewSchemaless(attrs...),
		sdktrace.WithIDGenerator(presetGenerator{}), sdktrace.WithSampler(sdktrace.AlwaysSample()))
	tr := provider.Tracer(attr.ClientScope, trace.WithInstrumentationVersion(t.version), tenantScope(p.tenant))
	t.clients[p] = tr
	return tr
}

// presetIDs are the ids that the next span started under a context gets.
type presetIDs struct {
	trace trace.TraceID
	span  trace.SpanID
}

type presetKey struct{}

// presetGenerator is the SDK's id generator for client spans: it gives out the ids that the context holds.
type presetGenerator struct{}

func (presetGenerator) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	ids, _ := ctx.Value(presetKey{}).(presetIDs)
	return ids.trace, ids.span
}

func (presetGenerator) NewSpanID(ctx context.Context, _ trace.TraceID) trace.SpanID {
	ids, _ := ctx.Value(presetKey{}).(presetIDs)
	return ids.span
}
