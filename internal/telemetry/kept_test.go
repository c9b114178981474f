package telemetry

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/telemetry/attr"
)

const enough = 1 << 20

// all is who sees everything.
var all = Whose{All: true}

// record makes a span of tenant in a trace and returns the trace's id.
func record(tel *Telemetry, tenant, name, traceparent string, o ...trace.SpanStartOption) string {
	ctx, _ := ContextWithRemote(context.Background(), traceparent, "")
	_, s := tel.TenantTracer(tenant).Start(ctx, name, o...)
	s.End()
	return s.SpanContext().TraceID().String()
}

func parent(traceID string) string { return "00-" + traceID + "-00f067aa0ba902b7-01" }

func TestFind(t *testing.T) {
	path := filepath.Join(t.TempDir(), "t.jsonl")
	tel := start(t, Options{NodeName: "n1", TraceFile: path, Keep: -1})
	first, second := "a1"+strings.Repeat("0", 30), "a2"+strings.Repeat("0", 30)
	transfer := "b3" + strings.Repeat("7", 30)
	require.Equal(t, first, record(tel, "t", attr.SpanPush, parent(first), trace.WithAttributes(attr.KeyTransferID.String(transfer), attr.KeyPeer.String("n2"))))
	record(tel, "t", attr.SpanBind, parent(first), trace.WithAttributes(attr.KeyPeer.String("n2")))
	record(tel, "t", attr.SpanPush, parent(second), trace.WithAttributes(attr.KeyPeer.String("n3")))
	span := sampleSpan()
	span.TraceID, span.Tenant = first, "t"
	require.NoError(t, tel.RecordClientSpan(span))

	for _, id := range []string{first, "a1", transfer, "b3", "b"} {
		f, err := tel.Find(all, id, enough)
		require.NoError(t, err, id)
		assert.Equal(t, first, f.TraceID, id)
		assert.Equal(t, []Named{{"n2", "t"}}, f.Named)
		assert.Zero(t, f.LeftOff)
		for _, want := range []string{`"name":"push"`, `"name":"bind"`, `"name":"kvxfer.write"`, `{"key":"kvxfer.tenant","value":{"stringValue":"t"}}`, `"stringValue":"n1"`} {
			assert.Contains(t, string(f.Lines), want)
		}
		assert.NotContains(t, string(f.Lines), second)
	}
	latest, err := tel.Find(all, "latest", enough)
	require.NoError(t, err)
	assert.Equal(t, second, latest.TraceID)
	_, err = tel.Find(all, "a", enough)
	requireField(t, err, fault.InvalidArgument, "id")
	_, err = tel.Find(all, "c", enough)
	require.ErrorIs(t, err, fault.ErrNotFound)

	// The file holds the same spans in other lines.
	everything, err := tel.Find(all, "", enough)
	require.NoError(t, err)
	shutdown(t, tel)
	file, err := os.ReadFile(path)
	require.NoError(t, err)
	for _, text := range []string{`"spanId"`, `"name":"push"`, `"traceId":"` + first, `"key":"kvxfer.tenant"`} {
		assert.Equal(t, strings.Count(string(file), text), strings.Count(string(everything.Lines), text), text)
	}
}

func TestFindKeepsTenantsApart(t *testing.T) {
	tel := start(t, Options{Keep: 16})
	require.True(t, tel.Enabled(), "a wish to keep spans turns tracing on")
	id := strings.Repeat("ab", 16)
	record(tel, "one", attr.SpanPush, parent(id))
	record(tel, "two", attr.SpanFence, parent(id)) // the ids of traces are the callers' choice
	for tenant, not := range map[string]string{"one": attr.SpanFence, "two": attr.SpanPush} {
		f, err := tel.Find(Whose{Tenant: tenant}, id, enough)
		require.NoError(t, err)
		assert.Equal(t, 1, strings.Count(string(f.Lines), `"spanId"`))
		assert.NotContains(t, string(f.Lines), `"name":"`+not)
	}
	_, err := tel.Find(Whose{Tenant: "three"}, id, enough)
	require.ErrorIs(t, err, fault.ErrNotFound)
	none, err := tel.Find(Whose{Tenant: "three"}, "", enough)
	require.NoError(t, err)
	assert.Empty(t, none.Lines)
	_, err = tel.Find(Whose{Tenant: ""}, "latest", enough)
	require.ErrorIs(t, err, fault.ErrNotFound)
}

func TestKeptIsBounded(t *testing.T) {
	tel := start(t, Options{Keep: 8})
	var ids []string
	for i := range 40 {
		ids = append(ids, record(tel, "t", attr.SpanPush, parent(fmt.Sprintf("%032x", i+1))))
	}
	for i, id := range ids {
		_, err := tel.Find(all, id, enough)
		assert.Equal(t, i >= 32, err == nil, "the newest stay")
	}
	// One long span takes the place of several; one that is longer than everything may be takes none.
	record(tel, "t", attr.SpanPush, parent(ids[0]), trace.WithAttributes(attr.KeyCache.String(strings.Repeat("x", 4<<10))))
	require.NoError(t, tel.Flush(t.Context()))
	assert.LessOrEqual(t, tel.kept.bytes, 8<<10)
	assert.Less(t, len(tel.kept.queue), 8)
	record(tel, "t", attr.SpanPush, parent(ids[1]), trace.WithAttributes(attr.KeyCache.String(strings.Repeat("x", 16<<10))))
	require.NoError(t, tel.Flush(t.Context()))
	assert.LessOrEqual(t, tel.kept.bytes, 8<<10)
	assert.NotEmpty(t, tel.kept.queue)

	// An answer is bounded too.
	wide := start(t, Options{Keep: 4 * linesAtOnce})
	for range 4 * linesAtOnce {
		record(wide, "t", attr.SpanPush, parent(ids[0]))
	}
	whole, err := wide.Find(all, ids[0], enough)
	require.NoError(t, err)
	half, err := wide.Find(all, ids[0], len(whole.Lines)/2)
	require.NoError(t, err)
	assert.LessOrEqual(t, len(half.Lines), len(whole.Lines)/2)
	assert.Equal(t, 2*linesAtOnce, half.LeftOff)
}

func TestNothingKept(t *testing.T) {
	for name, o := range map[string]Options{"off": {Keep: -1}, "on": {TraceFile: filepath.Join(t.TempDir(), "t")}} {
		tel := start(t, o)
		assert.Equal(t, name == "on", tel.Enabled())
		_, err := tel.Find(all, "latest", enough)
		require.ErrorIs(t, err, fault.ErrNotSupported)
		assert.ErrorContains(t, err, "--trace-keep")
	}
}
