package xfer

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/kvxfer/kvxfer/internal/testseed"
)

func TestTraceparentIsThePropagators(t *testing.T) {
	rng := testseed.New(t)
	for range 200 {
		var c trace.SpanContextConfig
		if rng.IntN(8) > 0 {
			for i := range c.TraceID {
				c.TraceID[i] = byte(rng.Uint32())
			}
		}
		if rng.IntN(8) > 0 {
			for i := range c.SpanID {
				c.SpanID[i] = byte(rng.Uint32())
			}
		}
		c.TraceFlags = trace.TraceFlags(rng.Uint32())
		sc := trace.NewSpanContext(c)
		carrier := propagation.MapCarrier{}
		propagation.TraceContext{}.Inject(trace.ContextWithSpanContext(context.Background(), sc), carrier)
		require.Equal(t, carrier["traceparent"], formatTraceparent(sc))
	}
}
