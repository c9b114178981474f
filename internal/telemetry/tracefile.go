package telemetry

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/encoding/protojson"
)

// traceFile is the OTLP client that writes OTLP JSON lines to a file. The SDK's own exporter sits on top of it, so
// that spans become OTLP by the SDK's code and not by a second model here.
type traceFile struct {
	mu   sync.Mutex
	out  io.WriteCloser
	torn bool // the last write was cut short (disk full): the next begins on a new line
}

var _ otlptrace.Client = (*traceFile)(nil)

// openTraceFile opens path for appending, creating it readable for the owner only: attributes name models, peers
// and processes. A last line that a crash left torn is ended, so that what follows stays readable.
func openTraceFile(path string) (*traceFile, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil, configInvalid("trace-file", "cannot be opened for appending: %v", err)
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fmt.Errorf("must be a regular file, is %s", st.Mode().Type())
	}
	var torn bool
	if err == nil && st.Size() > 0 {
		var last [1]byte
		_, err = f.ReadAt(last[:], st.Size()-1)
		torn = last[0] != '\n'
	}
	if err != nil {
		_ = f.Close()
		return nil, configInvalid("trace-file", "%v", err)
	}
	return &traceFile{out: f, torn: torn}, nil
}

// Start has nothing to do: the file is open.
func (t *traceFile) Start(context.Context) error { return nil }

// Stop closes the file. Lines are not held back, so there is nothing to flush.
func (t *traceFile) Stop(context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.out.Close()
}

// UploadTraces appends one line by one write call, so that a reader of the open file, or a second process that
// appends to it, never sees half of one line inside another.
func (t *traceFile) UploadTraces(_ context.Context, spans []*tracepb.ResourceSpans) error {
	line, err := encodeLine(spans)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.torn {
		line = append([]byte{'\n'}, line...)
	}
	n, err := t.out.Write(line)
	if n > 0 {
		t.torn = n < len(line)
	}
	return err
}

// encodeLine returns the JSON object of an ExportTraceServiceRequest and a newline. It changes the ids in spans.
//
// OTLP JSON is protobuf's JSON with two differences: enums are numbers, and trace and span ids are hex where
// protobuf writes bytes as base64. Hex digits are base64 digits too, and 32 and 16 of them are whole base64 groups,
// so each id is replaced by the bytes whose base64 text is the id's hex text: protojson then writes the hex itself
// and no JSON has to be rewritten.
func encodeLine(spans []*tracepb.ResourceSpans) ([]byte, error) {
	for _, rs := range spans {
		for _, ss := range rs.ScopeSpans {
			for _, s := range ss.Spans {
				s.TraceId, s.SpanId, s.ParentSpanId = hexAsBase64(s.TraceId), hexAsBase64(s.SpanId), hexAsBase64(s.ParentSpanId)
				for _, l := range s.Links {
					l.TraceId, l.SpanId = hexAsBase64(l.TraceId), hexAsBase64(l.SpanId)
				}
			}
		}
	}
	raw, err := protojson.MarshalOptions{UseEnumNumbers: true}.Marshal(
		&collectorpb.ExportTraceServiceRequest{ResourceSpans: spans})
	if err != nil {
		return nil, fmt.Errorf("encode OTLP JSON: %w", err)
	}
	// protojson puts in blanks at random so that nobody relies on its bytes; Compact takes them out.
	var line bytes.Buffer
	line.Grow(len(raw) + 1)
	if err := json.Compact(&line, raw); err != nil {
		return nil, fmt.Errorf("encode OTLP JSON: %w", err)
	}
	line.WriteByte('\n')
	return line.Bytes(), nil
}

func hexAsBase64(id []byte) []byte {
	b, err := base64.StdEncoding.DecodeString(hex.EncodeToString(id))
	if err != nil { // only for an id of odd length, which OTLP does not have
		return nil
	}
	return b
}
