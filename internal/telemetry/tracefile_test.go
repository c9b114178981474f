package telemetry

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/kvxfer/kvxfer/internal/fault"

	"github.com/kvxfer/kvxfer/internal/telemetry/attr"
)

func sampleOTLP() []*tracepb.ResourceSpans {
	str := func(k, v string) *commonpb.KeyValue {
		return &commonpb.KeyValue{Key: k, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: v}}}
	}
	num := func(k string, v int64) *commonpb.KeyValue {
		return &commonpb.KeyValue{Key: k, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_IntValue{IntValue: v}}}
	}
	traceID, _ := hex.DecodeString("5b8efff798038103d269b633813fc60c")
	return []*tracepb.ResourceSpans{{
		Resource: &resourcepb.Resource{Attributes: []*commonpb.KeyValue{str("service.name", "kvxfer")}},
		ScopeSpans: []*tracepb.ScopeSpans{{Scope: &commonpb.InstrumentationScope{Name: attr.Scope}, Spans: []*tracepb.Span{{
			TraceId: traceID, SpanId: []byte{0xee, 0xe1, 0x9b, 0x7e, 0xc3, 0xc1, 0xb1, 0x74}, ParentSpanId: []byte{0xee, 0xe1, 0x9b, 0x7e, 0xc3, 0xc1, 0xb1, 0x73},
			Name: "batch", Kind: tracepb.Span_SPAN_KIND_INTERNAL, StartTimeUnixNano: 1544712660000000000, EndTimeUnixNano: 1544712661000000000,
			Attributes: []*commonpb.KeyValue{num("kvxfer.layer", 3), str("kvxfer.peer", "a \"b\"\n<c>")},
			Events:     []*tracepb.Span_Event{{Name: "layer", TimeUnixNano: 1544712660500000000}},
			Links:      []*tracepb.Span_Link{{TraceId: traceID, SpanId: []byte{1, 2, 3, 4, 5, 6, 7, 8}}},
			Status:     &tracepb.Status{Code: tracepb.Status_STATUS_CODE_ERROR, Message: "PeerLost"},
		}}}},
	}}
}

func TestLineGolden(t *testing.T) {
	line, err := encodeLine(sampleOTLP())
	require.NoError(t, err)
	golden(t, "line.jsonl", line)
}

// TestLineRoundTrip reads a line back with protobuf's own JSON after the ids were made base64 again.
func TestLineRoundTrip(t *testing.T) {
	line, err := encodeLine(sampleOTLP())
	require.NoError(t, err)
	assert.Equal(t, 1, bytes.Count(line, []byte("\n")))
	var doc any
	d := json.NewDecoder(bytes.NewReader(line))
	d.UseNumber()
	require.NoError(t, d.Decode(&doc))
	var idsToBase64 func(v any)
	idsToBase64 = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, e := range v {
				idsToBase64(e)
			}
		case map[string]any:
			for k, e := range v {
				if k == "traceId" || k == "spanId" || k == "parentSpanId" {
					b, err := hex.DecodeString(e.(string))
					require.NoError(t, err)
					v[k] = base64.StdEncoding.EncodeToString(b)
				}
				idsToBase64(e)
			}
		}
	}
	idsToBase64(doc)
	raw, err := json.Marshal(doc)
	require.NoError(t, err)
	var got collectorpb.ExportTraceServiceRequest
	require.NoError(t, protojson.Unmarshal(raw, &got))
	require.True(t, proto.Equal(&collectorpb.ExportTraceServiceRequest{ResourceSpans: sampleOTLP()}, &got))
}

func TestTraceFileLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace.jsonl")
	tel := start(t, Options{NodeName: "n1", Version: "v1", TraceFile: path})
	require.True(t, tel.Enabled())
	st, err := os.Stat(path)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), st.Mode().Perm())

	ctx, parent := tel.Tracer().Start(t.Context(), attr.SpanPush)
	_, child := tel.Tracer().Start(ctx, attr.SpanBatch, trace.WithAttributes(attr.KeyLayer.Int(4)))
	child.End()
	parent.End()
	// The file is readable while open, without a shutdown.
	var text string
	require.Eventually(t, func() bool {
		b, err := os.ReadFile(path)
		text = string(b)
		return err == nil && strings.HasSuffix(text, "\n")
	}, bound, 10*time.Millisecond)
	for line := range strings.Lines(text) {
		require.True(t, json.Valid([]byte(line)), line)
	}
	sc := parent.SpanContext()
	assert.Contains(t, text, `"traceId":"`+sc.TraceID().String()+`"`)
	assert.Contains(t, text, `"parentSpanId":"`+sc.SpanID().String()+`"`)
	assert.Contains(t, text, `{"key":"kvxfer.layer","value":{"intValue":"4"}}`)
	assert.Contains(t, text, `{"key":"kvxfer.node","value":{"stringValue":"n1"}}`)
}

func TestShutdownFlushesTheTraceFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace.jsonl")
	tel := start(t, Options{TraceFile: path})
	const n = 1500 // more than one batch
	for range n {
		_, s := tel.Tracer().Start(t.Context(), attr.SpanBatch)
		s.End()
	}
	shutdown(t, tel)
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, n, strings.Count(string(b), `"name":"batch"`))
	_, s := tel.Tracer().Start(t.Context(), attr.SpanBatch)
	s.End()
	require.NoError(t, tel.RecordClientSpan(sampleSpan()), "late spans are dropped")
}

func TestTraceFileMendsATornLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace.jsonl")
	require.NoError(t, os.WriteFile(path, []byte("{\"resourceSp"), 0o644))
	f, err := openTraceFile(path)
	require.NoError(t, err)
	require.NoError(t, f.UploadTraces(context.Background(), sampleOTLP()))
	require.NoError(t, f.UploadTraces(context.Background(), sampleOTLP()))
	require.NoError(t, f.Stop(context.Background()))
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	lines := strings.Split(string(b), "\n")
	require.Len(t, lines, 4)
	assert.Equal(t, `{"resourceSp`, lines[0])
	assert.True(t, json.Valid([]byte(lines[1])))
	assert.True(t, json.Valid([]byte(lines[2])))
}

// shortWriter takes only half of its first write, as a full disk does.
type shortWriter struct {
	bytes.Buffer
	writes int
}

func (w *shortWriter) Write(p []byte) (int, error) {
	if w.writes++; w.writes == 1 {
		n, _ := w.Buffer.Write(p[:len(p)/2])
		return n, errors.New("no space")
	}
	return w.Buffer.Write(p)
}

func (w *shortWriter) Close() error { return nil }

func TestTraceFileAfterAShortWrite(t *testing.T) {
	w := &shortWriter{}
	f := &traceFile{out: w}
	require.Error(t, f.UploadTraces(context.Background(), sampleOTLP()))
	require.NoError(t, f.UploadTraces(context.Background(), sampleOTLP()))
	lines := strings.Split(w.String(), "\n")
	require.Len(t, lines, 3)
	assert.True(t, json.Valid([]byte(lines[1])))
	assert.Equal(t, 2, w.writes, "one write a line")
}

func TestTraceFileRefusals(t *testing.T) {
	dir := t.TempDir()
	for _, path := range []string{filepath.Join(dir, "no", "such"), dir, "/dev/null"} {
		_, err := Start(t.Context(), Options{TraceFile: path})
		requireField(t, err, fault.ConfigInvalid, "trace-file")
	}
}
