package telemetry

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	promexporter "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/telemetry/attr"
)

// Metrics is the measuring of one process: what is counted through its meter is shown on a page for Prometheus and, where
// the environment asks for it, exported over OTLP. Its methods may be called from any goroutine.
type Metrics struct {
	provider *sdkmetric.MeterProvider
	meter    metric.Meter
	registry *prometheus.Registry
	gather   chan struct{} // holds one token: one page is made at a time
	otlp     bool
}

// StartMetrics sets up measuring as the OTEL_* environment and opt ask (TraceFile means nothing here). The page is there
// also where OTEL_SDK_DISABLED or OTEL_METRICS_EXPORTER=none turn the export off. Errors are ConfigInvalid and name the
// variable. ctx bounds the start only.
func StartMetrics(ctx context.Context, opt Options) (*Metrics, error) {
	if opt.Logger == nil {
		opt.Logger = slog.New(slog.DiscardHandler)
	}
	if opt.ServiceName == "" {
		opt.ServiceName = "kvxfer"
	}
	env, err := fromEnvironment(opt.getenv(), metrics)
	if err != nil {
		return nil, err
	}
	m := &Metrics{registry: prometheus.NewRegistry(), gather: make(chan struct{}, 1), otlp: env.otlp && !env.disabled}
	// No resource or scope on the page: who scrapes knows whom, and names of nodes are no labels.
	page, err := promexporter.New(promexporter.WithRegisterer(m.registry), promexporter.WithoutTargetInfo(), promexporter.WithoutScopeInfo())
	if err != nil {
		return nil, fault.Wrap(fault.Internal, "telemetry", err)
	}
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	opts := []sdkmetric.Option{sdkmetric.WithReader(page)}
	if m.otlp {
		if err := checkIntervals(os.Getenv); err != nil {
			return nil, err
		}
		res, err := opt.resource(ctx)
		if err != nil {
			return nil, err
		}
		exporter, err := newMetricExporter(ctx, env.grpc, opt.Logger)
		if err != nil {
			return nil, err
		}
		opts = append(opts, sdkmetric.WithResource(res), sdkmetric.WithReader(sdkmetric.NewPeriodicReader(exporter)))
		opt.Logger.Info("metrics are exported", "otlp_grpc", env.grpc, "otlp_endpoint", env.endpoint)
	}
	m.provider = sdkmetric.NewMeterProvider(opts...)
	m.meter = m.provider.Meter(attr.Scope, metric.WithInstrumentationVersion(opt.Version))
	return m, nil
}

// checkIntervals refuses what the SDK would only log and replace.
func checkIntervals(getenv func(string) string) error {
	for _, name := range []string{"OTEL_METRIC_EXPORT_INTERVAL", "OTEL_METRIC_EXPORT_TIMEOUT"} {
		v := getenv(name)
		if n, err := strconv.Atoi(v); v != "" && (err != nil || n < 1 || n > maxInterval) {
			return configInvalid(name, "%.40q, allowed 1 to %d milliseconds", v, maxInterval)
		}
	}
	return nil
}

// maxInterval is a day in milliseconds.
const maxInterval = 24 * 3600 * 1000

// Meter makes instruments; package instrument has the list of them.
func (m *Metrics) Meter() metric.Meter { return m.meter }

// Exported says whether metrics go anywhere beside the page.
func (m *Metrics) Exported() bool { return m.otlp }

// Flush exports the metrics as they are now.
func (m *Metrics) Flush(ctx context.Context) error {
	if !m.otlp {
		return nil
	}
	return m.provider.ForceFlush(ctx)
}

// Shutdown exports once more and stops; when ctx ends before, without that export. A page that is asked for afterwards has
// nothing of the node's. A second call does nothing.
func (m *Metrics) Shutdown(ctx context.Context) error {
	err := m.provider.Shutdown(ctx)
	if errors.Is(err, sdkmetric.ErrReaderShutdown) { // by the first call
		return nil
	}
	return err
}

// metricExporter logs its failures itself, as exporter does for spans and for the same reason.
type metricExporter struct {
	sdkmetric.Exporter
	logger *slog.Logger

	mu     sync.Mutex
	logged time.Time
	failed int
}

func newMetricExporter(ctx context.Context, grpc bool, logger *slog.Logger) (_ sdkmetric.Exporter, err error) {
	var inner sdkmetric.Exporter
	if grpc {
		inner, err = otlpmetricgrpc.New(ctx)
	} else {
		inner, err = otlpmetrichttp.New(ctx)
	}
	if err != nil {
		return nil, fault.Wrap(fault.ConfigInvalid, "telemetry: start the otlp exporter of metrics", err)
	}
	return &metricExporter{Exporter: inner, logger: logger}, nil
}

// Export exports and logs a failure; it returns nil also then. Counters are cumulative, so the next export makes it good.
func (e *metricExporter) Export(ctx context.Context, rm *metricdata.ResourceMetrics) error {
	err := e.Exporter.Export(ctx, rm)
	if err == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.failed++
	if e.logged.IsZero() || time.Since(e.logged) >= failureLogEvery {
		e.logger.Warn("metrics export failed", "failures", e.failed, "error", err)
		e.logged, e.failed = time.Now(), 0
	}
	return nil
}
