package telemetry

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
)

// TestDeferredSpansAreTheSDKs does the same with the SDK's tracer and with the one that defers: what is exported differs in the
// spans' own ids alone.
func TestDeferredSpansAreTheSDKs(t *testing.T) {
	at := time.Unix(1_700_000_000, 0)
	parent, err := ParseTraceparent(sampleParent)
	require.NoError(t, err)
	do := func(tracer trace.Tracer) {
		ctx := trace.ContextWithRemoteSpanContext(t.Context(), parent)
		ctx, a := tracer.Start(ctx, "a", trace.WithSpanKind(trace.SpanKindProducer), trace.WithTimestamp(at), trace.WithAttributes(attribute.Int("x", 1)))
		assert.True(t, a.IsRecording())
		a.SetAttributes(attribute.Int("x", 2), attribute.String("y", "z"))
		_, b := tracer.Start(ctx, "b", trace.WithTimestamp(at.Add(time.Second)))
		b.AddEvent("moment", trace.WithTimestamp(at.Add(2*time.Second)), trace.WithAttributes(attribute.Bool("z", true)))
		b.SetStatus(codes.Error, "wrong")
		b.SetName("b2")
		b.End(trace.WithTimestamp(at.Add(3 * time.Second)))
		b.SetName("late")
		b.End()
		assert.False(t, b.IsRecording())
		a.SetStatus(codes.Ok, "")
		a.SetStatus(codes.Error, "later")
		a.End(trace.WithTimestamp(at.Add(4 * time.Second)))
	}
	stubs := func(make func(*tracetest.InMemoryExporter) (trace.Tracer, func())) tracetest.SpanStubs {
		e := tracetest.NewInMemoryExporter()
		tracer, flush := make(e)
		do(tracer)
		flush()
		return e.GetSpans()
	}
	sdk := stubs(func(e *tracetest.InMemoryExporter) (trace.Tracer, func()) {
		return sdktrace.NewTracerProvider(sdktrace.WithSyncer(e)).Tracer("s"), func() {}
	})
	ours := stubs(func(e *tracetest.InMemoryExporter) (trace.Tracer, func()) {
		d := newDeferred(samplerOf(func(string) string { return "" }))
		p := sdktrace.NewTracerProvider(sdktrace.WithSyncer(e), sdktrace.WithIDGenerator(presetGenerator{}), sdktrace.WithSampler(sdktrace.AlwaysSample()))
		return (&deferredProvider{d: d, real: p}).Tracer("s"), d.close
	})
	require.Len(t, ours, len(sdk))
	for i, want := range sdk {
		got := ours[i]
		assert.Equal(t, want.SpanContext.TraceID(), got.SpanContext.TraceID())
		assert.Equal(t, want.SpanContext.TraceFlags(), got.SpanContext.TraceFlags())
		assert.Equal(t, want.Parent.IsRemote(), got.Parent.IsRemote())
		assert.Equal(t, []any{want.Name, want.SpanKind, want.StartTime, want.EndTime, want.Attributes, want.Events, want.Status, want.InstrumentationScope},
			[]any{got.Name, got.SpanKind, got.StartTime, got.EndTime, got.Attributes, got.Events, got.Status, got.InstrumentationScope})
	}
	assert.Equal(t, ours[1].SpanContext.SpanID(), ours[0].Parent.SpanID())
}

// TestSamplersAreTheSDKs compares decisions of every sampler on many ids with those of the SDK, which reads the environment itself.
func TestSamplersAreTheSDKs(t *testing.T) {
	for _, sampler := range []string{"", "always_on", "always_off", "traceidratio", "parentbased_always_on", "parentbased_always_off", "parentbased_traceidratio"} {
		for _, arg := range []string{"", "0", "0.3", "1"} {
			t.Setenv("OTEL_TRACES_SAMPLER", sampler)
			t.Setenv("OTEL_TRACES_SAMPLER_ARG", arg)
			ours := samplerOf(os.Getenv)
			for i := range 15 {
				id := newTraceID()
				for _, flags := range []trace.TraceFlags{0, trace.FlagsSampled} {
					ctx := trace.ContextWithRemoteSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{TraceID: id, SpanID: newSpanID(), TraceFlags: flags}))
					if i%3 == 0 {
						ctx = t.Context()
					}
					asked := &fixedID{id: id}
					_, want := sdktrace.NewTracerProvider(sdktrace.WithIDGenerator(asked)).Tracer("").Start(ctx, "x")
					got := ours.ShouldSample(sdktrace.SamplingParameters{ParentContext: ctx, TraceID: id, Name: "x"})
					require.Equal(t, want.SpanContext().IsSampled(), got.Decision == sdktrace.RecordAndSample, "%s %s %s", sampler, arg, id)
				}
			}
		}
	}
}

func TestLateSpansAreDroppedAndTheQueueIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "t.jsonl")
	tel := start(t, Options{TraceFile: path})
	_, late := tel.Tracer().Start(t.Context(), "late")
	late.RecordError(errors.New("x"))
	d := tel.deferred
	d.handing.Lock() // nothing is handed over
	for range deferQueue + 10 {
		_, s := tel.Tracer().Start(t.Context(), "s")
		s.End()
	}
	for range deferWork + 10 {
		tel.Later(func() {})
	}
	d.mu.Lock()
	assert.Len(t, d.waiting, deferQueue)
	assert.Len(t, d.work, deferWork)
	d.mu.Unlock()
	d.handing.Unlock()
	worked := false
	require.NoError(t, tel.Flush(t.Context()))
	tel.Later(func() { worked = true })
	shutdown(t, tel)
	assert.True(t, worked, "what was queued is done before the end")
	late.End()
	tel.Later(func() { t.Error("too late") })
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, deferQueue, strings.Count(string(b), `"name":"s"`))
	assert.NotContains(t, string(b), `"name":"late"`)
}

// fixedID gives the trace's id that a sampler is to be asked about.
type fixedID struct{ id trace.TraceID }

func (f *fixedID) NewIDs(context.Context) (trace.TraceID, trace.SpanID)  { return f.id, newSpanID() }
func (f *fixedID) NewSpanID(context.Context, trace.TraceID) trace.SpanID { return newSpanID() }
