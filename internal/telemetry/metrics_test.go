package telemetry

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/telemetry/instrument"
)

func startMetrics(t *testing.T, opt Options) *Metrics {
	t.Helper()
	m, err := StartMetrics(t.Context(), opt)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), bound)
		defer cancel()
		require.NoError(t, m.Shutdown(ctx))
	})
	return m
}

// observed makes every metric of the list with each of its attributes' first values.
func observed(m metric.Meter) {
	for i := range instrument.List {
		d := &instrument.List[i]
		var kv []attribute.KeyValue
		for _, a := range d.Attributes {
			value := "x"
			if a.Values != nil {
				value = a.Values[0]
			}
			kv = append(kv, a.Key.String(value))
		}
		with := metric.WithAttributes(kv...)
		switch {
		case d.Kind == instrument.Histogram:
			instrument.NewHistogram(m, d.Name).Record(context.Background(), .2, with)
		case d.Kind == instrument.Counter:
			c := instrument.NewCounter(m, d.Name)
			instrument.Observe(m, func(_ context.Context, o metric.Observer) error { o.ObserveInt64(c, 7, with); return nil }, c)
		case d.Unit == "s":
			g := instrument.NewAge(m, d.Name)
			instrument.Observe(m, func(_ context.Context, o metric.Observer) error { o.ObserveFloat64(g, 1.5, with); return nil }, g)
		default:
			g := instrument.NewGauge(m, d.Name)
			instrument.Observe(m, func(_ context.Context, o metric.Observer) error { o.ObserveInt64(g, 7, with); return nil }, g)
		}
	}
}

func families(t *testing.T, m *Metrics) map[string]*dto.MetricFamily {
	t.Helper()
	kind, body, err := m.Page(t.Context(), "")
	require.NoError(t, err)
	assert.True(t, strings.HasPrefix(kind, "text/plain; version=0.0.4"), kind)
	p := expfmt.NewTextParser(model.LegacyValidation)
	all, err := p.TextToMetricFamilies(bytes.NewReader(body))
	require.NoError(t, err)
	return all
}

func TestExporterMakesTheListedNames(t *testing.T) {
	m := startMetrics(t, Options{NodeName: "n1", Version: "v1"})
	observed(m.Meter())
	all := families(t, m)
	assert.Contains(t, all, "go_goroutines")
	assert.Contains(t, all, "process_open_fds")
	listed := map[string]bool{}
	for _, d := range instrument.List {
		f := all[d.Prometheus()]
		listed[d.Prometheus()] = true
		if !assert.NotNil(t, f, d.Prometheus()) {
			continue
		}
		assert.Equal(t, d.Kind.String(), strings.ToLower(f.GetType().String()), d.Name)
		assert.Equal(t, d.Meaning, f.GetHelp())
		assert.Len(t, f.Metric[0].Label, len(d.Attributes), "%s: no label of a resource or scope", d.Name)
	}
	for name := range all {
		assert.True(t, listed[name] || strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_"), name)
	}
}

func TestPageFormats(t *testing.T) {
	m := startMetrics(t, Options{})
	observed(m.Meter())
	kind, body, err := m.Page(t.Context(), "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5")
	require.NoError(t, err)
	assert.True(t, strings.HasPrefix(kind, "application/openmetrics-text; version=1.0.0"), kind)
	assert.True(t, bytes.HasSuffix(body, []byte("\n# EOF\n")))
	for accept, want := range map[string]string{
		"*/*": "text/plain; version=0.0.4", "nonsense;;": "text/plain; version=0.0.4", "text/html": "text/plain; version=0.0.4",
		"application/openmetrics-text;version=0.0.1":                                         "application/openmetrics-text; version=0.0.1",
		"application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=x": "text/plain; version=0.0.4",
	} {
		kind, _, err := m.Page(t.Context(), accept)
		require.NoError(t, err)
		assert.True(t, strings.HasPrefix(kind, want), "%s: %s", accept, kind)
	}
	assert.Contains(t, string(body), "# TYPE kvxfer_payload_bytes counter\n")
	assert.Contains(t, string(body), `kvxfer_payload_bytes_total{direction="sent",provider="shm"} 7`)
	assert.Contains(t, string(body), `kvxfer_transfer_duration_seconds_bucket{kind="push",outcome="done",provider="shm",le="0.25"} 1`)
}

// A metric that hangs costs its scraper the answer, in time; the next one has it.
func TestPageInTime(t *testing.T) {
	m := startMetrics(t, Options{})
	hold := make(chan struct{})
	g := instrument.NewGauge(m.Meter(), instrument.Ready)
	instrument.Observe(m.Meter(), func(_ context.Context, o metric.Observer) error { <-hold; o.ObserveInt64(g, 1); return nil }, g)
	for range 2 { // the second one waits for the first one's end
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		_, _, err := m.Page(ctx, "")
		cancel()
		require.ErrorIs(t, err, fault.ErrDeadlineExceeded)
	}
	close(hold)
	assert.Contains(t, families(t, m), "kvxfer_ready")
}

func TestPageIsBounded(t *testing.T) {
	l := &limited{most: 10}
	for _, n := range []int{6, 4} {
		_, err := l.Write(make([]byte, n))
		require.NoError(t, err)
	}
	_, err := l.Write([]byte{1})
	require.Error(t, err)
	require.ErrorIs(t, encodeFailed("metrics", err), fault.ErrResourceExhausted)
	assert.Equal(t, 10, l.Len())
}

func TestMetricsSettingsFromEnvironment(t *testing.T) {
	const ep = "OTEL_EXPORTER_OTLP_ENDPOINT"
	for name, tc := range map[string]struct {
		env      map[string]string
		exported bool
		field    string
	}{
		"nothing":              {},
		"endpoint":             {env: map[string]string{ep: "http://127.0.0.1:1"}, exported: true},
		"metrics endpoint":     {env: map[string]string{"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://127.0.0.1:1"}, exported: true},
		"traces endpoint":      {env: map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:1"}},
		"exporter otlp":        {env: map[string]string{"OTEL_METRICS_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "grpc"}, exported: true},
		"exporter none":        {env: map[string]string{ep: "http://127.0.0.1:1", "OTEL_METRICS_EXPORTER": "none"}},
		"exporter prometheus":  {env: map[string]string{ep: "http://127.0.0.1:1", "OTEL_METRICS_EXPORTER": "prometheus"}},
		"both exporters":       {env: map[string]string{ep: "http://127.0.0.1:1", "OTEL_METRICS_EXPORTER": "prometheus,otlp"}, exported: true},
		"disabled":             {env: map[string]string{ep: "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"}},
		"interval":             {env: map[string]string{ep: "http://127.0.0.1:1", "OTEL_METRIC_EXPORT_INTERVAL": "86400000"}, exported: true},
		"bad exporter":         {env: map[string]string{"OTEL_METRICS_EXPORTER": "console"}, field: "OTEL_METRICS_EXPORTER"},
		"bad metrics endpoint": {env: map[string]string{"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "c:1"}, field: "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"},
		"bad protocol":         {env: map[string]string{ep: "http://c:1", "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "x"}, field: "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL"},
		"interval of 0":        {env: map[string]string{ep: "http://c:1", "OTEL_METRIC_EXPORT_INTERVAL": "0"}, field: "OTEL_METRIC_EXPORT_INTERVAL"},
		"interval in words":    {env: map[string]string{ep: "http://c:1", "OTEL_METRIC_EXPORT_INTERVAL": "1s"}, field: "OTEL_METRIC_EXPORT_INTERVAL"},
		"bad timeout":          {env: map[string]string{ep: "http://c:1", "OTEL_METRIC_EXPORT_TIMEOUT": "-1"}, field: "OTEL_METRIC_EXPORT_TIMEOUT"},
		"bad resource":         {env: map[string]string{ep: "http://c:1", "OTEL_RESOURCE_ATTRIBUTES": "nonsense"}, field: "OTEL_RESOURCE_ATTRIBUTES"},
	} {
		t.Run(name, func(t *testing.T) {
			for k, v := range tc.env {
				t.Setenv(k, v)
			}
			m, err := StartMetrics(t.Context(), Options{})
			if tc.field != "" {
				requireField(t, err, fault.ConfigInvalid, tc.field)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, tc.exported, m.Exported())
			assert.Contains(t, families(t, m), "go_goroutines", "the page is always there")
			ctx, cancel := context.WithCancel(t.Context())
			cancel() // nobody listens there: not to wait for it
			_ = m.Shutdown(ctx)
		})
	}
}

// metricCollector receives metrics by either protocol.
type metricCollector struct {
	collectorpb.UnimplementedMetricsServiceServer
	mu  sync.Mutex
	got []*metricspb.ResourceMetrics
}

func (c *metricCollector) Export(_ context.Context, r *collectorpb.ExportMetricsServiceRequest) (*collectorpb.ExportMetricsServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.got = append(c.got, r.ResourceMetrics...)
	return &collectorpb.ExportMetricsServiceResponse{}, nil
}

func (c *metricCollector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var req collectorpb.ExportMetricsServiceRequest
	if err != nil || r.URL.Path != "/v1/metrics" || proto.Unmarshal(body, &req) != nil {
		http.Error(w, "bad", http.StatusBadRequest)
		return
	}
	_, _ = c.Export(r.Context(), &req)
}

// latest gives what was received: the metrics' names, and the node of their resource.
func (c *metricCollector) latest() (names []string, node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.got) == 0 {
		return nil, ""
	}
	rm := c.got[len(c.got)-1]
	for _, kv := range rm.Resource.Attributes {
		if kv.Key == "kvxfer.node" {
			node = kv.Value.GetStringValue()
		}
	}
	for _, s := range rm.ScopeMetrics {
		for _, m := range s.Metrics {
			names = append(names, m.Name)
		}
	}
	return names, node
}

func TestMetricsExportByOTLP(t *testing.T) {
	var want []string
	for _, d := range instrument.List {
		want = append(want, d.Name)
	}
	for _, protocol := range []string{"http/protobuf", "grpc"} {
		t.Run(protocol, func(t *testing.T) {
			c := &metricCollector{}
			var endpoint string
			if protocol == "grpc" {
				lis, err := net.Listen("tcp", "127.0.0.1:0")
				require.NoError(t, err)
				srv := grpc.NewServer()
				collectorpb.RegisterMetricsServiceServer(srv, c)
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
			t.Setenv("OTEL_METRIC_EXPORT_INTERVAL", "20")
			m := startMetrics(t, Options{NodeName: "n1"})
			observed(m.Meter())
			require.Eventually(t, func() bool { names, _ := c.latest(); return len(names) == len(want) }, bound, 5*time.Millisecond)
			names, node := c.latest()
			assert.ElementsMatch(t, want, names)
			assert.Equal(t, "n1", node)
			require.NoError(t, m.Flush(t.Context()))
			assert.Contains(t, families(t, m), "kvxfer_ready", "and the page, too")
			require.NoError(t, m.Shutdown(t.Context()))
			require.NoError(t, m.Shutdown(t.Context()), "a second shutdown does nothing")
		})
	}
}

func TestMetricsShutdownDoesNotWaitForAHungCollector(t *testing.T) {
	before := goleak.IgnoreCurrent()
	release, asked := make(chan struct{}), make(chan struct{}, 100)
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked <- struct{}{}; <-release }))
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", srv.URL)
	t.Setenv("OTEL_METRIC_EXPORT_INTERVAL", "10")
	log := &lockedBuffer{}
	m, err := StartMetrics(t.Context(), Options{Logger: slog.New(slog.NewJSONHandler(log, nil))})
	require.NoError(t, err)
	observed(m.Meter())
	<-asked
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_ = m.Shutdown(ctx)
	assert.Contains(t, log.String(), `"metrics export failed"`)
	close(release)
	srv.Close()
	goleak.VerifyNone(t, before)
}
