package telemetry

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/kvxfer/kvxfer/internal/telemetry/attr"
)

// bound is generous: it ends a test that hangs and says nothing about speed.
const bound = 30 * time.Second

func start(t *testing.T, opt Options) *Telemetry {
	t.Helper()
	tel, err := Start(t.Context(), opt)
	require.NoError(t, err)
	t.Cleanup(func() { shutdown(t, tel) })
	return tel
}

func shutdown(t *testing.T, tel *Telemetry) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	require.NoError(t, tel.Shutdown(ctx))
}

func TestOffStartsNothing(t *testing.T) {
	for name, env := range map[string][2]string{
		"nothing set": {"OTEL_SERVICE_NAME", "x"},
		"disabled":    {"OTEL_SDK_DISABLED", "true"},
		"none":        {"OTEL_TRACES_EXPORTER", "none"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(env[0], env[1])
			if name != "nothing set" {
				t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
			}
			before := goleak.IgnoreCurrent()
			tel := start(t, Options{})
			goleak.VerifyNone(t, before)
			assert.False(t, tel.Enabled())
			assert.NoError(t, tel.Flush(t.Context()))

			ctx, err := ContextWithRemote(t.Context(), sampleParent, "")
			require.NoError(t, err)
			ctx, span := tel.Tracer().Start(ctx, attr.SpanPush)
			assert.False(t, span.IsRecording())
			tp, _ := Carry(ctx)
			assert.Equal(t, sampleParent, tp, "the caller's context is passed on though nothing is recorded here")
			span.End()
			require.NoError(t, tel.RecordClientSpan(sampleSpan()))
			require.Error(t, tel.RecordClientSpan(ClientSpan{}), "a wrong span is refused also while tracing is off")
		})
	}
}

func TestEnvironmentCanBeLeftUnread(t *testing.T) {
	for k, v := range map[string]string{"OTEL_SDK_DISABLED": "true", "OTEL_TRACES_EXPORTER": "zipkin", "OTEL_TRACES_SAMPLER": "always_off", "OTEL_SPAN_EVENT_COUNT_LIMIT": "1",
		"OTEL_SERVICE_NAME": "theirs"} {
		t.Setenv(k, v)
	}
	path := filepath.Join(t.TempDir(), "t.jsonl")
	tel, err := Start(t.Context(), Options{TraceFile: path, NoEnvironment: true})
	require.NoError(t, err)
	_, span := tel.Tracer().Start(t.Context(), attr.SpanPush)
	span.AddEvent("the first")
	span.AddEvent("the second")
	span.End()
	shutdown(t, tel)
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	for _, want := range []string{"the first", "the second", `"kvxfer"`} {
		assert.Contains(t, string(raw), want)
	}
	assert.NotContains(t, string(raw), "theirs")
}

func TestDisabledLeavesTheTraceFileAlone(t *testing.T) {
	t.Setenv("OTEL_SDK_DISABLED", "true")
	path := filepath.Join(t.TempDir(), "t.jsonl")
	start(t, Options{TraceFile: path})
	_, err := os.Stat(path)
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestStartRefusals(t *testing.T) {
	t.Setenv("OTEL_TRACES_EXPORTER", "console")
	_, err := Start(t.Context(), Options{})
	require.Error(t, err)
	t.Setenv("OTEL_TRACES_EXPORTER", "")
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "nonsense")
	_, err = Start(t.Context(), Options{TraceFile: filepath.Join(t.TempDir(), "t")})
	require.ErrorContains(t, err, "OTEL_RESOURCE_ATTRIBUTES")
}

// collector receives spans by either protocol.
type collector struct {
	collectorpb.UnimplementedTraceServiceServer
	mu    sync.Mutex
	spans []*tracepb.ResourceSpans
}

func (c *collector) Export(_ context.Context, r *collectorpb.ExportTraceServiceRequest) (*collectorpb.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.spans = append(c.spans, r.ResourceSpans...)
	return &collectorpb.ExportTraceServiceResponse{}, nil
}

func (c *collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var req collectorpb.ExportTraceServiceRequest
	if err != nil || r.URL.Path != "/v1/traces" || proto.Unmarshal(body, &req) != nil {
		http.Error(w, "bad", http.StatusBadRequest)
		return
	}
	_, _ = c.Export(r.Context(), &req)
}

// names maps each span's name to the service.name of its resource.
func (c *collector) names() map[string]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[string]string{}
	for _, rs := range c.spans {
		service := ""
		for _, kv := range rs.Resource.Attributes {
			if kv.Key == string(keyServiceName) {
				service = kv.Value.GetStringValue()
			}
		}
		for _, ss := range rs.ScopeSpans {
			for _, s := range ss.Spans {
				out[s.Name] = service
			}
		}
	}
	return out
}

func TestExportByOTLP(t *testing.T) {
	for _, protocol := range []string{"http/protobuf", "grpc"} {
		t.Run(protocol, func(t *testing.T) {
			c := &collector{}
			var endpoint string
			if protocol == "grpc" {
				lis, err := net.Listen("tcp", "127.0.0.1:0")
				require.NoError(t, err)
				srv := grpc.NewServer()
				collectorpb.RegisterTraceServiceServer(srv, c)
				served := make(chan error, 1)
				go func() { served <- srv.Serve(lis) }()
				t.Cleanup(func() { srv.Stop(); <-served })
				endpoint = "http://" + lis.Addr().String()
			} else {
				srv := httptest.NewServer(c)
				t.Cleanup(srv.Close)
				endpoint = srv.URL
			}
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
			t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
			t.Setenv("OTEL_SERVICE_NAME", "renamed")
			path := filepath.Join(t.TempDir(), "both.jsonl")
			tel := start(t, Options{NodeName: "n1", TraceFile: path})
			_, span := tel.Tracer().Start(t.Context(), attr.SpanPush)
			span.End()
			require.NoError(t, tel.RecordClientSpan(sampleSpan()))
			shutdown(t, tel)
			assert.Equal(t, map[string]string{attr.SpanPush: "renamed", attr.SpanClientWrite: "python-sdk"}, c.names())
			lines, err := os.ReadFile(path)
			require.NoError(t, err)
			assert.Contains(t, string(lines), `"name":"push"`, "both exporters are on together")
			assert.NoError(t, tel.Shutdown(t.Context()), "a second shutdown does nothing")
		})
	}
}

func TestShutdownDoesNotWaitForAHungCollector(t *testing.T) {
	before := goleak.IgnoreCurrent()
	release := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", srv.URL)
	path := filepath.Join(t.TempDir(), "t.jsonl")
	log := &lockedBuffer{}
	tel, err := Start(t.Context(), Options{TraceFile: path, Logger: slog.New(slog.NewJSONHandler(log, nil))})
	require.NoError(t, err)
	_, span := tel.Tracer().Start(t.Context(), attr.SpanPush)
	span.End()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	require.Error(t, tel.Shutdown(ctx))
	lines, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Contains(t, string(lines), `"name":"push"`, "the file does not suffer from the collector")
	assert.Contains(t, log.String(), `"trace export failed"`)
	close(release)
	srv.Close()
	goleak.VerifyNone(t, before)
}

type lockedBuffer struct {
	mu sync.Mutex
	b  []byte
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b = append(l.b, p...)
	return len(p), nil
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.b)
}
