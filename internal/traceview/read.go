package traceview

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/encoding/protojson"
)

// The limits of what is read; they bound memory, not files: lines above MaxLine are skipped.
const (
	MaxLine  = 32 << 20 // bytes of one line
	MaxSpans = 500_000  // spans of all files together
	// maxDepth bounds nested attribute values.
	maxDepth = 64
)

// The attribute keys that the view knows; others are shown in tooltips as they are.
const (
	keyService  = "service.name"
	keyNode     = "kvxfer.node"
	keyHost     = "host.name"
	keyPID      = "process.pid"
	keyLayer    = "kvxfer.layer"
	keyBytes    = "kvxfer.bytes"
	keyResult   = "kvxfer.result"
	keyProvider = "kvxfer.provider"
)

// Process is where spans were measured.
type Process struct {
	Service string `json:"service"`
	Node    string `json:"node,omitempty"` // kvxfer.node, else host.name
	PID     string `json:"pid,omitempty"`
}

// Attr is one attribute, its value as text.
type Attr struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// Event is a moment inside a span.
type Event struct {
	Name         string `json:"name"`
	TimeUnixNano int64  `json:"time_unix_nano"`
	Attributes   []Attr `json:"attributes,omitempty"`
}

// Span is one span; ids are lower-case hex, ParentID is "" for a root.
type Span struct {
	TraceID       string  `json:"trace_id"`
	SpanID        string  `json:"span_id"`
	ParentID      string  `json:"parent_span_id,omitempty"`
	Name          string  `json:"name"`
	Process       Process `json:"process"`
	StartUnixNano int64   `json:"start_unix_nano"`
	EndUnixNano   int64   `json:"end_unix_nano"` // never before the start
	Failed        bool    `json:"failed,omitempty"`
	Status        string  `json:"status,omitempty"` // the failure's text
	Attributes    []Attr  `json:"attributes,omitempty"`
	Events        []Event `json:"events,omitempty"`
}

// Attr returns the value of the attribute key, "" where it is not there.
func (s *Span) Attr(key string) string {
	for _, a := range s.Attributes {
		if a.Key == key {
			return a.Value
		}
	}
	return ""
}

func (s *Span) duration() int64 { return s.EndUnixNano - s.StartUnixNano }

// Set is what was read. Skipped says how many lines or spans could not be used, FirstSkipped why for the first one;
// the last line of a file that is still written may be one of them.
type Set struct {
	Skipped      int
	FirstSkipped string
	traces       map[string][]*Span
	seen         map[[2]string]bool
	spans        int
}

// Read collects the spans of several sources of OTLP JSON lines. Lines that are no such request are counted and
// skipped, unknown fields ignored, and a span that is in two files is taken once. The error is a reader's, or says
// that MaxSpans is exceeded; what was read until then is in the Set.
func Read(rs ...io.Reader) (*Set, error) {
	s := &Set{traces: map[string][]*Span{}, seen: map[[2]string]bool{}}
	for i, r := range rs {
		if err := s.read(i+1, r); err != nil {
			return s, err
		}
	}
	return s, nil
}

func (s *Set) read(file int, r io.Reader) error {
	br := bufio.NewReaderSize(r, 64<<10)
	var line []byte
	for n := 1; ; n++ {
		line = line[:0]
		long := false
		var err error
		for {
			var part []byte
			part, err = br.ReadSlice('\n')
			if long = long || len(line)+len(part) > MaxLine; !long {
				line = append(line, part...)
			}
			if !errors.Is(err, bufio.ErrBufferFull) {
				break
			}
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("read source %d, line %d: %w", file, n, err)
		}
		switch {
		case long:
			s.skip("source %d, line %d: longer than %d bytes", file, n, MaxLine)
		case len(bytes.TrimSpace(line)) > 0:
			var req collectorpb.ExportTraceServiceRequest
			if perr := (protojson.UnmarshalOptions{DiscardUnknown: true, RecursionLimit: maxDepth}).Unmarshal(line, &req); perr != nil {
				s.skip("source %d, line %d: not an OTLP JSON request: %v", file, n, perr)
			} else if aerr := s.add(&req); aerr != nil {
				return aerr
			}
		}
		if err != nil {
			return nil
		}
	}
}

func (s *Set) skip(format string, args ...any) {
	if s.Skipped++; s.Skipped == 1 {
		// protobuf's errors hold blanks that change from build to build.
		s.FirstSkipped = strings.ReplaceAll(fmt.Sprintf(format, args...), "\u00a0", " ")
	}
}

func (s *Set) add(req *collectorpb.ExportTraceServiceRequest) error {
	for _, rs := range req.ResourceSpans {
		var p Process
		host := ""
		for _, kv := range rs.GetResource().GetAttributes() {
			switch v := text(kv.GetValue()); kv.GetKey() {
			case keyService:
				p.Service = v
			case keyNode:
				p.Node = v
			case keyHost:
				host = v
			case keyPID:
				p.PID = v
			}
		}
		if p.Node == "" {
			p.Node = host
		}
		if p.Service == "" {
			p.Service = "unknown_service"
		}
		for _, ss := range rs.GetScopeSpans() {
			for _, ps := range ss.GetSpans() {
				if err := s.addSpan(p, ps); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (s *Set) addSpan(p Process, ps *tracepb.Span) error {
	span := &Span{TraceID: id(ps.GetTraceId(), 16), SpanID: id(ps.GetSpanId(), 8), ParentID: id(ps.GetParentSpanId(), 8),
		Name: ps.GetName(), Process: p, StartUnixNano: nano(ps.GetStartTimeUnixNano()), EndUnixNano: nano(ps.GetEndTimeUnixNano()),
		Failed: ps.GetStatus().GetCode() == tracepb.Status_STATUS_CODE_ERROR, Attributes: attrs(ps.GetAttributes())}
	if span.TraceID == "" || span.SpanID == "" {
		s.skip("a span %.40q without a trace id of 32 and a span id of 16 hex digits", span.Name)
		return nil
	}
	if span.Failed {
		span.Status = ps.GetStatus().GetMessage()
	}
	span.EndUnixNano = max(span.EndUnixNano, span.StartUnixNano)
	for _, e := range ps.GetEvents() {
		span.Events = append(span.Events, Event{Name: e.GetName(), TimeUnixNano: nano(e.GetTimeUnixNano()), Attributes: attrs(e.GetAttributes())})
	}
	key := [2]string{span.TraceID, span.SpanID}
	if s.seen[key] {
		return nil
	}
	if s.spans >= MaxSpans {
		return fmt.Errorf("more than %d spans; give fewer or shorter files", MaxSpans)
	}
	s.seen[key] = true
	s.spans++
	s.traces[span.TraceID] = append(s.traces[span.TraceID], span)
	return nil
}

// id undoes what protojson did to a hex id: it took the digits for base64. A writer that really wrote base64, as
// protobuf alone does, gives the id's own length and is understood too. "" stands for no id, or a wrong one.
func id(b []byte, size int) string {
	if len(b) == size {
		return hex.EncodeToString(b)
	}
	raw, err := hex.DecodeString(base64.StdEncoding.EncodeToString(b))
	if err != nil || len(raw) != size {
		return ""
	}
	if len(bytes.Trim(raw, "\x00")) == 0 {
		return ""
	}
	return hex.EncodeToString(raw)
}

// nano keeps times where differences of two cannot overflow.
func nano(v uint64) int64 { return int64(min(v, 1<<62)) }

func attrs(kvs []*commonpb.KeyValue) []Attr {
	var out []Attr
	for _, kv := range kvs {
		out = append(out, Attr{kv.GetKey(), text(kv.GetValue())})
	}
	return out
}

func text(v *commonpb.AnyValue) string {
	switch v := v.GetValue().(type) {
	case *commonpb.AnyValue_StringValue:
		return v.StringValue
	case *commonpb.AnyValue_BoolValue:
		return strconv.FormatBool(v.BoolValue)
	case *commonpb.AnyValue_IntValue:
		return strconv.FormatInt(v.IntValue, 10)
	case *commonpb.AnyValue_DoubleValue:
		return strconv.FormatFloat(v.DoubleValue, 'g', -1, 64)
	case *commonpb.AnyValue_BytesValue:
		return hex.EncodeToString(v.BytesValue)
	case *commonpb.AnyValue_ArrayValue:
		var parts []string
		for _, e := range v.ArrayValue.GetValues() {
			parts = append(parts, text(e))
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case *commonpb.AnyValue_KvlistValue:
		var parts []string
		for _, kv := range v.KvlistValue.GetValues() {
			parts = append(parts, kv.GetKey()+"="+text(kv.GetValue()))
		}
		return "{" + strings.Join(parts, ", ") + "}"
	}
	return ""
}
