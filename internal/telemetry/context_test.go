package telemetry

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"

	"github.com/kvxfer/kvxfer/internal/fault"
)

const sampleParent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

func TestTraceparent(t *testing.T) {
	sc, err := ParseTraceparent(sampleParent)
	require.NoError(t, err)
	assert.Equal(t, "4bf92f3577b34da6a3ce929d0e0e4736", sc.TraceID().String())
	assert.Equal(t, "00f067aa0ba902b7", sc.SpanID().String())
	assert.True(t, sc.IsSampled())
	assert.True(t, sc.IsRemote())
	assert.Equal(t, sampleParent, FormatTraceparent(sc))
	assert.Empty(t, FormatTraceparent(trace.SpanContext{}))

	for _, bad := range []string{"", "x", sampleParent[1:], strings.ToUpper(sampleParent), "ff" + sampleParent[2:],
		"00-00000000000000000000000000000000-00f067aa0ba902b7-01", "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
		sampleParent + "-more", "01" + sampleParent[2:] + "-" + strings.Repeat("a", maxTraceparent)} {
		_, err := ParseTraceparent(bad)
		requireField(t, err, fault.InvalidArgument, "traceparent")
	}
}

func TestContextWithRemote(t *testing.T) {
	ctx, err := ContextWithRemote(context.Background(), sampleParent, "a=1,b=2")
	require.NoError(t, err)
	tp, ts := Carry(ctx)
	assert.Equal(t, sampleParent, tp)
	assert.Equal(t, "a=1,b=2", ts)

	ctx, err = ContextWithRemote(context.Background(), sampleParent, "=,=")
	require.NoError(t, err, "a bad tracestate does not cost the trace")
	tp, ts = Carry(ctx)
	assert.Equal(t, sampleParent, tp)
	assert.Empty(t, ts)

	ctx, err = ContextWithRemote(context.Background(), "bad", "")
	require.Error(t, err)
	assert.False(t, trace.SpanContextFromContext(ctx).IsValid())
	ctx, err = ContextWithRemote(context.Background(), "", "a=1")
	require.NoError(t, err)
	tp, _ = Carry(ctx)
	assert.Empty(t, tp)
}

func FuzzTraceparent(f *testing.F) {
	f.Add(sampleParent, "a=1")
	f.Add("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-03-later", "")
	f.Fuzz(func(t *testing.T, tp, ts string) {
		sc, err := ParseTraceparent(tp)
		if err != nil {
			require.False(t, sc.IsValid())
			return
		}
		again, err := ParseTraceparent(FormatTraceparent(sc))
		require.NoError(t, err)
		require.True(t, again.Equal(sc))
		ctx, err := ContextWithRemote(context.Background(), tp, ts)
		require.NoError(t, err)
		require.Equal(t, sc.TraceID(), trace.SpanContextFromContext(ctx).TraceID())
	})
}
