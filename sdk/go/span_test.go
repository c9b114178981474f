package kvxfer

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"

	"github.com/kvxfer/kvxfer/internal/wire"
)

const (
	traceText  = "0af7651916cd43dd8448eb211c80319c"
	parentText = "00-" + traceText + "-b7ad6b7169203331-01"
)

func ended(t *testing.T, s *span, err error) wire.ClientSpan {
	t.Helper()
	var q spans
	require.True(t, q.end(s, err))
	var got []wire.ClientSpan
	q.flush(func(b *wire.Spans) error { got = append(got, b.Spans...); return nil })
	require.Len(t, got, 1)
	return got[0]
}

func TestSpanBelongsToTheContext(t *testing.T) {
	ctx, err := ContextWithTraceparent(t.Context(), parentText)
	require.NoError(t, err)
	for _, s := range []*span{startSpan(ctx, "kvxfer.lease", always), startTransferSpan(ctx, "kvxfer.write")} {
		assert.Equal(t, parentText, s.parent())
		assert.Equal(t, "00-"+traceText+"-"+s.spanID()+"-01", s.traceparent())
		s.set("kvxfer.blocks", 3)
		s.layer(7)
		got := ended(t, s, errors.New("lost"))
		assert.Equal(t, []string{traceText, s.spanID(), "b7ad6b7169203331", s.name, "lost"}, []string{got.TraceID, got.SpanID, got.ParentID, got.Name, got.Error})
		assert.Equal(t, map[string]any{"kvxfer.blocks": 3}, got.Attributes)
		assert.Equal(t, "layer 7", got.Events[0].Name)
		assert.True(t, got.StartNanos <= got.Events[0].Nanos && got.Events[0].Nanos <= got.EndNanos)
	}
}

func TestSpanWithoutAContext(t *testing.T) {
	root := startSpan(t.Context(), "kvxfer.lease", always)
	assert.Empty(t, root.parent())
	got := ended(t, root, nil)
	assert.Empty(t, got.ParentID)
	assert.Equal(t, fmt.Sprintf("00-%s-%s-01", got.TraceID, got.SpanID), root.traceparent())

	push := startTransferSpan(t.Context(), "kvxfer.write")
	assert.Empty(t, push.traceparent()+push.parent())
	var q spans
	assert.False(t, q.end(push, nil), "of what never began the trace is known to the ticket alone")
	push.joinTrace("not a trace", "", true)
	assert.Empty(t, push.traceparent())
	push.joinTrace(traceText, "b7ad6b7169203331", true)
	got = ended(t, push, nil)
	assert.Equal(t, []string{traceText, push.spanID(), "b7ad6b7169203331"}, []string{got.TraceID, got.SpanID, got.ParentID})
}

func TestUnsampledTracesSendNothing(t *testing.T) {
	ctx, err := ContextWithTraceparent(t.Context(), parentText[:len(parentText)-1]+"0")
	require.NoError(t, err)
	s := startSpan(ctx, "kvxfer.lease", always)
	assert.True(t, strings.HasSuffix(s.traceparent(), "-00"))
	var q spans
	assert.False(t, q.end(s, nil))
	push := startTransferSpan(t.Context(), "kvxfer.write")
	push.joinTrace(traceText, "", false)
	assert.False(t, q.end(push, nil))
}

func TestTraceparentIsChecked(t *testing.T) {
	for _, bad := range []string{"", "00", strings.ToUpper(parentText), parentText + "-x", parentText[:len(parentText)-1], "ff" + parentText[2:],
		"00-" + strings.Repeat("0", 32) + "-b7ad6b7169203331-01", "00-" + traceText + "-0000000000000000-01", " " + parentText, parentText + "\n", "01" + parentText[2:] + "x"} {
		_, err := ContextWithTraceparent(t.Context(), bad)
		require.ErrorIs(t, err, ErrInvalidArgument, "%q", bad)
		assert.Equal(t, "traceparent", err.(*Error).Field)
	}
	sc, ok := parseTraceparent("01-" + parentText[3:len(parentText)-2] + "03-more")
	require.True(t, ok)
	assert.Equal(t, parentText, formatTraceparent(sc))
}

func FuzzTraceparent(f *testing.F) {
	f.Add(parentText)
	f.Add("cc" + parentText[2:] + "-what the future will be like")
	f.Fuzz(func(t *testing.T, s string) {
		sc, ok := parseTraceparent(s)
		require.Equal(t, ok, sc.IsValid())
		if ok {
			again, ok := parseTraceparent(formatTraceparent(sc))
			require.True(t, ok)
			require.True(t, sc.Equal(again))
		}
	})
}

func TestSpanLimits(t *testing.T) {
	s := startSpan(t.Context(), strings.Repeat("é", 200), always)
	for i := range 2 * maxSpanEvents {
		s.layer(i)
	}
	for i := range 2 * maxSpanAttributes {
		s.set(fmt.Sprint("key ", i), i)
	}
	s.set("key 0", strings.Repeat("x", 2*maxSpanText))
	s.set("key 1", math.NaN())
	s.set("key 2", uint64(math.MaxUint64))
	s.set("key 3", errors.New("text"))
	got := ended(t, s, errors.New(strings.Repeat("y", 2*maxSpanText)))
	assert.Equal(t, strings.Repeat("é", maxSpanName/2), got.Name)
	assert.Len(t, got.Events, maxSpanEvents)
	assert.Len(t, got.Attributes, maxSpanAttributes)
	assert.Len(t, got.Attributes["key 0"], maxSpanText)
	assert.Equal(t, []any{"NaN", "18446744073709551615", "text"}, []any{got.Attributes["key 1"], got.Attributes["key 2"], got.Attributes["key 3"]})
	assert.Len(t, got.Error, maxSpanText)
	assert.Equal(t, "span", ended(t, startSpan(t.Context(), "", always), nil).Name)
}

func TestSpansTravelInAFewFrames(t *testing.T) {
	var q spans
	for i := range maxSpansWaiting + 9 {
		assert.Equal(t, i == 0, q.end(startSpan(t.Context(), "kvxfer.write", always), nil))
	}
	frames, total := 0, 0
	q.flush(func(b *wire.Spans) error {
		raw, err := json.Marshal(b)
		require.NoError(t, err)
		assert.Less(t, len(raw), 1<<20)
		frames, total = frames+1, total+len(b.Spans)
		return nil
	})
	assert.Equal(t, []int{maxSpansWaiting / maxSpansAFrame, maxSpansWaiting}, []int{frames, total})
	q.flush(func(*wire.Spans) error { t.Error("nothing waits"); return nil })

	for range 3 * maxSpansAFrame {
		q.end(startSpan(t.Context(), "kvxfer.write", always), nil)
	}
	frames = 0
	q.flush(func(*wire.Spans) error { frames++; return errors.New("lost") })
	assert.Equal(t, 1, frames)
}

func TestCallersOwnSpan(t *testing.T) {
	var q spans
	ctx, s := newSpan(t.Context(), "prefill", always, func(sp *span, err error) { q.end(sp, err) })
	s.Set("tokens", 5)
	s.Event("embedded")
	child := startSpan(ctx, "kvxfer.lease", always)
	assert.Equal(t, s.Traceparent(), child.parent())
	assert.True(t, trace.SpanContextFromContext(ctx).IsSampled())
	s.End(nil)
	s.End(errors.New("late"))
	q.flush(func(b *wire.Spans) error {
		require.Len(t, b.Spans, 1)
		assert.Equal(t, map[string]any{"tokens": 5}, b.Spans[0].Attributes)
		assert.Empty(t, b.Spans[0].Error)
		return nil
	})
}
