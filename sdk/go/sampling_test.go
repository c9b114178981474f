package kvxfer

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// TestSamplingAgreesWithOpenTelemetry: of the same id the same is decided, whatever the variables say.
func TestSamplingAgreesWithOpenTelemetry(t *testing.T) {
	for _, c := range []struct {
		name, argument, disabled string
		want                     sdktrace.Sampler
	}{
		{"", "", "", sdktrace.AlwaysSample()},
		{"parentbased_always_off", "", "", sdktrace.NeverSample()},
		{" Always_Off ", "", "", sdktrace.NeverSample()},
		{"traceidratio", "0.25", "", sdktrace.TraceIDRatioBased(0.25)},
		{"parentbased_traceidratio", " 0.75", "", sdktrace.TraceIDRatioBased(0.75)},
		{"traceidratio", "0", "", sdktrace.NeverSample()},
		{"traceidratio", "1", "", sdktrace.AlwaysSample()},
		{"traceidratio", "", "", sdktrace.AlwaysSample()},
		{"traceidratio", "2", "", sdktrace.AlwaysSample()},
		{"traceidratio", "nan", "", sdktrace.AlwaysSample()},
		{"of a later version", "", "", sdktrace.AlwaysSample()},
		{"always_on", "", "TRUE", sdktrace.NeverSample()},
	} {
		t.Run(c.name+" "+c.argument+c.disabled, func(t *testing.T) {
			t.Setenv("OTEL_TRACES_SAMPLER", c.name)
			t.Setenv("OTEL_TRACES_SAMPLER_ARG", c.argument)
			t.Setenv("OTEL_SDK_DISABLED", c.disabled)
			samples := environmentSampler()
			id := newTraceID()
			for i := range uint64(64) {
				binary.BigEndian.PutUint64(id[8:], i<<58|1)
				want := c.want.ShouldSample(sdktrace.SamplingParameters{TraceID: id}).Decision == sdktrace.RecordAndSample
				require.Equal(t, want, samples(id), "%s", id)
			}
		})
	}
}

// TestSamplingOfAClient: a trace that begins in a client is recorded by its share, and one that began before as it was.
func TestSamplingOfAClient(t *testing.T) {
	d := startFake(t)
	for _, bad := range []float64{-0.1, 1.1, math.NaN()} {
		_, err := Dial(t.Context(), d.socket, WithSampling(bad))
		require.ErrorIs(t, err, ErrInvalidArgument)
		assert.Equal(t, "sampling", err.(*Error).Field)
	}
	t.Setenv("OTEL_TRACES_SAMPLER", "always_off")
	for _, c := range []struct {
		options []Option
		sampled bool
	}{{nil, false}, {[]Option{WithSampling(1)}, true}, {[]Option{WithSampling(0)}, false}} {
		client := dial(t, d.socket, c.options...)
		ctx, s := client.Span(t.Context(), "step")
		assert.Equal(t, c.sampled, s.Sampled())
		sc := trace.SpanContextFromContext(ctx)
		assert.Equal(t, []string{sc.TraceID().String(), sc.SpanID().String()}, []string{s.TraceID(), s.SpanID()})
		s.End(nil)
		over, err := ContextWithTraceparent(t.Context(), parentText)
		require.NoError(t, err)
		_, s = client.Span(over, "step")
		assert.True(t, s.Sampled())
		require.NoError(t, client.Close())
	}
}
