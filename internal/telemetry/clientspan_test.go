package telemetry

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"

	"github.com/kvxfer/kvxfer/internal/telemetry/attr"
)

func sampleSpan() ClientSpan {
	const at = 1_700_000_000_000_000_000
	return ClientSpan{
		TraceID: "4bf92f3577b34da6a3ce929d0e0e4736", SpanID: "00f067aa0ba902b7", Name: attr.SpanClientWrite,
		StartUnixNano: at, EndUnixNano: at + 5_000_000, Service: "python-sdk", PID: 42,
		Attributes: Attributes{"kvxfer.cache": "c", "kvxfer.bytes": 7, "f": 0.5, "b": true},
		Events:     []ClientEvent{{Name: attr.EventLayer, UnixNano: at + 1, Attributes: Attributes{"kvxfer.layer": int64(3)}}},
	}
}

func TestClientSpanKeepsItsIDs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "t.jsonl")
	t.Setenv("OTEL_TRACES_SAMPLER", "traceidratio")
	t.Setenv("OTEL_TRACES_SAMPLER_ARG", "0")
	tel := start(t, Options{NodeName: "n1", TraceFile: path})
	root := sampleSpan()
	require.NoError(t, tel.RecordClientSpan(root), "what the client sampled is kept whatever the daemon samples")
	child := sampleSpan()
	child.SpanID, child.ParentSpanID, child.Name, child.StatusError = "00f067aa0ba902b8", root.SpanID, "child", "PeerLost: gone"
	require.NoError(t, tel.RecordClientSpan(child))
	other := sampleSpan()
	other.SpanID, other.Service, other.PID = "00f067aa0ba902b9", "other", 0
	require.NoError(t, tel.RecordClientSpan(other))
	shutdown(t, tel)
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	text := string(b)
	for _, want := range []string{
		`"traceId":"4bf92f3577b34da6a3ce929d0e0e4736","spanId":"00f067aa0ba902b7","flags":`,
		`"spanId":"00f067aa0ba902b8","parentSpanId":"00f067aa0ba902b7"`,
		`"startTimeUnixNano":"1700000000000000000","endTimeUnixNano":"1700000000005000000"`,
		`"status":{"message":"PeerLost: gone","code":2}`,
		`{"key":"process.pid","value":{"intValue":"42"}}`,
		`{"key":"service.name","value":{"stringValue":"other"}}`,
		`{"key":"f","value":{"doubleValue":0.5}}`,
		`"events":[{"timeUnixNano":"1700000000000000001","name":"layer","attributes":[{"key":"kvxfer.layer","value":{"intValue":"3"}}]}]`,
	} {
		assert.Contains(t, text, want)
	}
}

func TestClientSpansOffBySampler(t *testing.T) {
	path := filepath.Join(t.TempDir(), "t.jsonl")
	t.Setenv("OTEL_TRACES_SAMPLER", "always_off")
	tel := start(t, Options{TraceFile: path})
	require.NoError(t, tel.RecordClientSpan(sampleSpan()))
	shutdown(t, tel)
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Empty(t, b)
}

func TestManyClientProcesses(t *testing.T) {
	tel := start(t, Options{TraceFile: filepath.Join(t.TempDir(), "t.jsonl")})
	for pid := range 2*maxClientProcesses + 3 {
		s := sampleSpan()
		s.PID = pid
		require.NoError(t, tel.RecordClientSpan(s))
		require.LessOrEqual(t, len(tel.clients), maxClientProcesses)
	}
}

func TestManyEventsAreKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "t.jsonl")
	tel := start(t, Options{TraceFile: path})
	s := sampleSpan()
	s.Events = make([]ClientEvent, MaxClientEvents)
	for i := range s.Events {
		s.Events[i] = ClientEvent{Name: attr.EventLayer, UnixNano: s.StartUnixNano}
	}
	require.NoError(t, tel.RecordClientSpan(s))
	shutdown(t, tel)
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, MaxClientEvents, strings.Count(string(b), `"name":"layer"`))
}

func TestClientSpanRefusals(t *testing.T) {
	tel := start(t, Options{})
	many := func(n int) Attributes {
		a := Attributes{}
		for i := range n {
			a[string(rune('a'+i/26))+string(rune('a'+i%26))] = i
		}
		return a
	}
	for field, change := range map[string]func(s *ClientSpan){
		"trace_id":                             func(s *ClientSpan) { s.TraceID = strings.Repeat("0", 32) },
		"span_id":                              func(s *ClientSpan) { s.SpanID = strings.ToUpper("00f067aa0ba902b7") },
		"parent_span_id":                       func(s *ClientSpan) { s.ParentSpanID = s.SpanID },
		"name":                                 func(s *ClientSpan) { s.Name = "" },
		"service":                              func(s *ClientSpan) { s.Service = strings.Repeat("s", MaxClientName+1) },
		"status_error":                         func(s *ClientSpan) { s.StatusError = "\xff" },
		"pid":                                  func(s *ClientSpan) { s.PID = -1 },
		"start_unix_nano":                      func(s *ClientSpan) { s.StartUnixNano /= 1000 },
		"end_unix_nano":                        func(s *ClientSpan) { s.EndUnixNano = s.StartUnixNano - 1 },
		"attributes":                           func(s *ClientSpan) { s.Attributes = many(MaxClientAttributes + 1) },
		"attributes key":                       func(s *ClientSpan) { s.Attributes = Attributes{"": 1} },
		`attributes["k"]`:                      func(s *ClientSpan) { s.Attributes = Attributes{"k": []string{"no"}} },
		`attributes["n"]`:                      func(s *ClientSpan) { s.Attributes = Attributes{"n": json.Number("9223372036854775808")} },
		`attributes["v"]`:                      func(s *ClientSpan) { s.Attributes = Attributes{"v": strings.Repeat("v", MaxClientValue+1)} },
		"events":                               func(s *ClientSpan) { s.Events = make([]ClientEvent, MaxClientEvents+1) },
		"events[0].name":                       func(s *ClientSpan) { s.Events[0].Name = "" },
		"events[0].unix_nano":                  func(s *ClientSpan) { s.Events[0].UnixNano = s.EndUnixNano + 1 },
		"events[0].attributes":                 func(s *ClientSpan) { s.Events[0].Attributes = many(MaxEventAttributes + 1) },
		`events[0].attributes["kvxfer.layer"]`: func(s *ClientSpan) { s.Events[0].Attributes["kvxfer.layer"] = nil },
	} {
		t.Run(field, func(t *testing.T) {
			s := sampleSpan()
			change(&s)
			requireField(t, tel.RecordClientSpan(s), fault.InvalidArgument, field)
		})
	}
	s := sampleSpan()
	s.EndUnixNano = s.StartUnixNano + math.MaxInt64/2
	requireField(t, tel.RecordClientSpan(s), fault.InvalidArgument, "end_unix_nano")
	s = sampleSpan()
	s.Events = nil
	for range MaxClientEvents {
		s.Events = append(s.Events, ClientEvent{Name: "e", UnixNano: s.StartUnixNano, Attributes: Attributes{"k": strings.Repeat("v", MaxClientValue)}})
	}
	err := tel.RecordClientSpan(s)
	requireField(t, err, fault.InvalidArgument, "events")
	require.ErrorContains(t, err, "together")
}

func TestClientSpanFromJSON(t *testing.T) {
	var s ClientSpan
	require.NoError(t, json.Unmarshal([]byte(`{"trace_id":"4bf92f3577b34da6a3ce929d0e0e4736","span_id":"00f067aa0ba902b7","name":"n",
		"start_unix_nano":1700000000000000001,"end_unix_nano":1700000000000000002,"service":"s","later":"ignored",
		"attributes":{"i":9007199254740993,"f":3.0,"e":1e3,"s":"x","b":false}}`), &s))
	c, err := s.check()
	require.NoError(t, err)
	got := map[string]any{}
	for _, kv := range c.attributes {
		got[string(kv.Key)] = kv.Value.AsInterface()
	}
	assert.Equal(t, map[string]any{"i": int64(9007199254740993), "f": 3.0, "e": 1000.0, "s": "x", "b": false}, got)
}

func FuzzClientSpan(f *testing.F) {
	b, err := json.Marshal(sampleSpan())
	require.NoError(f, err)
	f.Add(b)
	f.Add([]byte(`{"attributes":{"x":1e400}}`))
	path := filepath.Join(f.TempDir(), "t.jsonl")
	tel, err := Start(f.Context(), Options{TraceFile: path})
	require.NoError(f, err)
	f.Cleanup(func() { _ = tel.Shutdown(f.Context()) })
	f.Fuzz(func(t *testing.T, b []byte) {
		var s ClientSpan
		if json.Unmarshal(b, &s) != nil {
			return
		}
		if err := tel.RecordClientSpan(s); err != nil {
			var e *fault.Error
			require.True(t, errors.As(err, &e))
			require.Equal(t, fault.InvalidArgument, e.Code)
			require.NotEmpty(t, e.Field)
		}
	})
}
