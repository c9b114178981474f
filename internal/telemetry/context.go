package telemetry

import (
	"context"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/kvxfer/kvxfer/internal/fault"
)

const (
	headerTraceparent = "traceparent"
	headerTracestate  = "tracestate"

	// maxTraceparent leaves room for what a future version may append; version 00 has 55 bytes.
	maxTraceparent = 256
	// maxTracestate is more than the 512 bytes that W3C asks implementations to carry; longer ones are dropped.
	maxTracestate = 1024
)

// ParseTraceparent reads a W3C traceparent ("00-<32 hex>-<16 hex>-<2 hex>") into a remote span context.
// Anything else is InvalidArgument with the field "traceparent".
func ParseTraceparent(s string) (trace.SpanContext, error) {
	if len(s) <= maxTraceparent {
		carrier := propagation.MapCarrier{headerTraceparent: s}
		sc := trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), carrier))
		if sc.IsValid() {
			return sc, nil
		}
	}
	return trace.SpanContext{}, fault.Invalid("trace", headerTraceparent,
		"must be version-traceid-parentid-flags in lower-case hex (00-32 digits-16 digits-2 digits), ids not all zero")
}

// FormatTraceparent writes sc as a W3C traceparent of version 00, "" where sc is not valid.
func FormatTraceparent(sc trace.SpanContext) string {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(trace.ContextWithSpanContext(context.Background(), sc), carrier)
	return carrier[headerTraceparent]
}

// ContextWithRemote returns ctx with the caller's span as parent of what is started next. An empty traceparent
// means that the caller does not trace. The context is usable also beside an error: W3C wants a request with a
// bad traceparent served, as the start of a new trace. A bad tracestate is dropped without an error, as W3C asks.
func ContextWithRemote(ctx context.Context, traceparent, tracestate string) (context.Context, error) {
	if traceparent == "" {
		return ctx, nil
	}
	sc, err := ParseTraceparent(traceparent)
	if err != nil {
		return ctx, err
	}
	if tracestate != "" && len(tracestate) <= maxTracestate {
		if ts, err := trace.ParseTraceState(tracestate); err == nil {
			sc = sc.WithTraceState(ts)
		}
	}
	return trace.ContextWithRemoteSpanContext(ctx, sc), nil
}

// Carry returns what ContextWithRemote takes on the other side: the current span's traceparent and tracestate,
// both "" where there is no span.
func Carry(ctx context.Context) (traceparent, tracestate string) {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier[headerTraceparent], carrier[headerTracestate]
}
