package telemetry

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"unicode/utf8"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// The limits of a client span. They bound what one client can make the daemon hold until it is exported.
const (
	MaxClientName       = 128  // bytes of a name, an attribute key or a service
	MaxClientValue      = 1024 // bytes of an attribute's string value or of the status
	MaxClientAttributes = 64   // of the span
	MaxClientEvents     = 512  // an event for each layer of the deepest models, twice over
	MaxEventAttributes  = 8    // of one event

	MaxClientText = 256 << 10 // bytes of all names, keys and string values of the span and its events together
)

const (
	// minUnixNano is September 2001: below it the time was not in nanoseconds.
	minUnixNano = 1e18
	// maxUnixNano is the year 2128; above it a sum with a duration could overflow.
	maxUnixNano = 5e18
	// maxClientDuration is a week in nanoseconds.
	maxClientDuration = 7 * 24 * 3600 * 1e9
)

// ClientSpan is one span as a client measured it, by the client's wall clock. The JSON form is that of the local
// protocol.
type ClientSpan struct {
	TraceID       string        `json:"trace_id"`                 // 32 lower-case hex digits, not all zero
	SpanID        string        `json:"span_id"`                  // 16 lower-case hex digits, not all zero
	ParentSpanID  string        `json:"parent_span_id,omitempty"` // as SpanID; "" makes a root
	Name          string        `json:"name"`
	StartUnixNano int64         `json:"start_unix_nano"`
	EndUnixNano   int64         `json:"end_unix_nano"` // not before the start, at most a week after it
	Service       string        `json:"service"`       // the client's service.name, such as "python-sdk"
	PID           int           `json:"pid,omitempty"` // the client's process id, 0 for not told
	Tenant        string        `json:"-"`             // whose span it is: the daemon's word, never the client's
	StatusError   string        `json:"status_error,omitempty"`
	Attributes    Attributes    `json:"attributes,omitempty"`
	Events        []ClientEvent `json:"events,omitempty"`
}

// ClientEvent is a moment inside a client span.
type ClientEvent struct {
	Name       string     `json:"name"`
	UnixNano   int64      `json:"unix_nano"` // not before the span's start, not after its end
	Attributes Attributes `json:"attributes,omitempty"`
}

// Attributes are key-value pairs; a value is a string, a bool, an integer that fits 64 bits signed, or a float.
type Attributes map[string]any

// UnmarshalJSON keeps integers apart from floats: 3 is an integer attribute, 3.0 a float.
func (a *Attributes) UnmarshalJSON(b []byte) error {
	var m map[string]any
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	if err := d.Decode(&m); err != nil {
		return fmt.Errorf("attributes: %w", err)
	}
	*a = m
	return nil
}

// checkedSpan is a ClientSpan in the SDK's terms.
type checkedSpan struct {
	ids        presetIDs
	parent     trace.SpanContext
	attributes []attribute.KeyValue
	events     [][]attribute.KeyValue
}

// check validates s; the error is InvalidArgument and names the field by its wire name and the allowed range.
func (s *ClientSpan) check() (checkedSpan, error) {
	var c checkedSpan
	var err error
	if c.ids.trace, err = trace.TraceIDFromHex(s.TraceID); err != nil {
		return c, invalidSpan("trace_id", "must be 32 lower-case hex digits, not all zero")
	}
	if c.ids.span, err = trace.SpanIDFromHex(s.SpanID); err != nil {
		return c, invalidSpan("span_id", "must be 16 lower-case hex digits, not all zero")
	}
	if s.ParentSpanID != "" {
		p, err := trace.SpanIDFromHex(s.ParentSpanID)
		if err != nil || p == c.ids.span {
			return c, invalidSpan("parent_span_id", "must be empty or 16 lower-case hex digits, not all zero, and not the span_id")
		}
		c.parent = trace.NewSpanContext(trace.SpanContextConfig{TraceID: c.ids.trace, SpanID: p, TraceFlags: trace.FlagsSampled, Remote: true})
	}
	if err := checkText("name", s.Name, 1, MaxClientName); err != nil {
		return c, err
	}
	if err := checkText("service", s.Service, 1, MaxClientName); err != nil {
		return c, err
	}
	if err := checkText("status_error", s.StatusError, 0, MaxClientValue); err != nil {
		return c, err
	}
	if s.PID < 0 || s.PID > math.MaxInt32 {
		return c, invalidSpan("pid", "must be 0 to %d", math.MaxInt32)
	}
	if s.StartUnixNano < minUnixNano || s.StartUnixNano > maxUnixNano {
		return c, invalidSpan("start_unix_nano", "must be nanoseconds since 1970, %d to %d", int64(minUnixNano), int64(maxUnixNano))
	}
	if s.EndUnixNano < s.StartUnixNano || s.EndUnixNano-s.StartUnixNano > maxClientDuration {
		return c, invalidSpan("end_unix_nano", "must be start_unix_nano to %d ns (7 days) after it", int64(maxClientDuration))
	}
	if c.attributes, err = s.Attributes.check("attributes", MaxClientAttributes); err != nil {
		return c, err
	}
	if len(s.Events) > MaxClientEvents {
		return c, invalidSpan("events", "at most %d", MaxClientEvents)
	}
	for i, e := range s.Events {
		field := fmt.Sprintf("events[%d].", i)
		if err := checkText(field+"name", e.Name, 1, MaxClientName); err != nil {
			return c, err
		}
		if e.UnixNano < s.StartUnixNano || e.UnixNano > s.EndUnixNano {
			return c, invalidSpan(field+"unix_nano", "must be start_unix_nano to end_unix_nano")
		}
		attrs, err := e.Attributes.check(field+"attributes", MaxEventAttributes)
		if err != nil {
			return c, err
		}
		c.events = append(c.events, attrs)
	}
	if n := s.textBytes(); n > MaxClientText {
		return c, invalidSpan("events", "names, keys and string values of the span and its events: at most %d bytes together, not %d", MaxClientText, n)
	}
	return c, nil
}

func (s *ClientSpan) textBytes() int {
	n := len(s.Name) + len(s.Service) + len(s.StatusError) + s.Attributes.textBytes()
	for _, e := range s.Events {
		n += len(e.Name) + e.Attributes.textBytes()
	}
	return n
}

func (a Attributes) textBytes() (n int) {
	for k, v := range a {
		text, _ := v.(string)
		n += len(k) + len(text)
	}
	return n
}

// check converts the attributes in the order of their keys.
func (a Attributes) check(field string, limit int) ([]attribute.KeyValue, error) {
	if len(a) > limit {
		return nil, invalidSpan(field, "at most %d", limit)
	}
	keys := make([]string, 0, len(a))
	for k := range a {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	out := make([]attribute.KeyValue, 0, len(a))
	for _, k := range keys {
		if err := checkText(field+" key", k, 1, MaxClientName); err != nil {
			return nil, err
		}
		name := fmt.Sprintf("%s[%q]", field, k)
		key := attribute.Key(k)
		switch v := a[k].(type) {
		case string:
			if err := checkText(name, v, 0, MaxClientValue); err != nil {
				return nil, err
			}
			out = append(out, key.String(v))
		case bool:
			out = append(out, key.Bool(v))
		case int:
			out = append(out, key.Int(v))
		case int64:
			out = append(out, key.Int64(v))
		case float64:
			out = append(out, key.Float64(v))
		case json.Number:
			if i, err := v.Int64(); err == nil {
				out = append(out, key.Int64(i))
			} else if f, err := v.Float64(); err == nil && bytes.ContainsAny([]byte(v), ".eE") {
				out = append(out, key.Float64(f))
			} else {
				return nil, invalidSpan(name, "must be an integer of 64 bits signed or a float of 64 bits")
			}
		default:
			return nil, invalidSpan(name, "must be a string, a bool, an integer or a float")
		}
	}
	return out, nil
}

// checkText also refuses what is not UTF-8, because one such string would make a whole batch unfit for OTLP.
func checkText(field, s string, low, high int) error {
	if len(s) < low || len(s) > high || !utf8.ValidString(s) {
		return invalidSpan(field, "must be %d to %d bytes of UTF-8", low, high)
	}
	return nil
}

func invalidSpan(field, format string, args ...any) error {
	return fault.Invalid("record_span", field, format, args...)
}
