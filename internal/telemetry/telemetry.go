package telemetry

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/kvxfer/kvxfer/internal/fault"

	"github.com/kvxfer/kvxfer/internal/telemetry/attr"
)

const (
	// fileDelay is how long an ended span may wait for its line; readers of the open file see it within a second.
	fileDelay = 500 * time.Millisecond
	fileQueue = 8192 // ended spans that may wait; more are dropped rather than hold up the data path
	// minEvents is enough for an event a layer; OpenTelemetry's default of 128 is less than the deepest models have.
	minEvents = MaxClientEvents
	// abortGrace bounds how long Shutdown waits, after its context ended, for exports that were told to stop.
	abortGrace = 2 * time.Second
)

// The resource attribute names of OpenTelemetry's conventions that are used here.
const (
	keyServiceName    = attribute.Key("service.name")
	keyServiceVersion = attribute.Key("service.version")
	keyHostName       = attribute.Key("host.name")
	keyPID            = attribute.Key("process.pid")
)

// Options says who traces and where to.
type Options struct {
	ServiceName string // default "kvxfer"; OTEL_SERVICE_NAME wins
	NodeName    string // the node's name, on every span's resource; may be empty
	Version     string // of the program; may be empty
	TraceFile   string // path of a file of OTLP JSON lines, "" for none
	// Keep is how many finished spans stay in memory for Find, 0 for none. Above 0 it turns tracing on by itself; below, it is
	// DefaultKeep where something else turns tracing on.
	Keep   int
	Logger *slog.Logger
	// NoEnvironment leaves the OTEL_* variables unread: they are the program's that runs the node inside itself. Only
	// OTEL_RESOURCE_ATTRIBUTES the OpenTelemetry SDK adds to every resource, whoever asks.
	NoEnvironment bool
}

// Telemetry is the tracing of one process. Its methods may be called from any goroutine.
type Telemetry struct {
	tracer     trace.Tracer
	provider   *sdktrace.TracerProvider // nil when off
	processors []sdktrace.SpanProcessor
	exporters  []*exporter
	node       []attribute.KeyValue // what client spans' resources share with the daemon's
	version    string
	dropAll    bool
	kept       *kept     // nil: nothing is kept
	deferred   *deferred // nil when off
	spans      *deferredProvider

	noEnvironment bool

	mu      sync.Mutex
	clients map[clientProcess]trace.Tracer
}

// Start sets up tracing as the OTEL_* environment and opt ask. Without an endpoint, a trace file and a wish to keep spans it is off:
// Enabled is false and no goroutine runs. Errors are ConfigInvalid and name the variable, or "trace-file".
// ctx bounds the start only.
func Start(ctx context.Context, opt Options) (*Telemetry, error) {
	if opt.Logger == nil {
		opt.Logger = slog.New(slog.DiscardHandler)
	}
	if opt.ServiceName == "" {
		opt.ServiceName = "kvxfer"
	}
	off := &Telemetry{tracer: noop.NewTracerProvider().Tracer(attr.Scope)}
	getenv := opt.getenv()
	env, err := fromEnvironment(getenv, traces)
	if err != nil {
		return nil, err
	}
	switch {
	case env.disabled && opt.TraceFile != "":
		opt.Logger.Warn("tracing is off and the trace file is not written", "reason", "OTEL_SDK_DISABLED=true", "trace_file", opt.TraceFile)
		return off, nil
	case env.disabled:
		opt.Logger.Info("tracing is off", "reason", "OTEL_SDK_DISABLED=true")
		return off, nil
	case !env.otlp && opt.TraceFile == "" && opt.Keep <= 0:
		opt.Logger.Info("tracing is off", "reason", "no OTLP endpoint and no trace file is set, and no spans are to be kept")
		return off, nil
	}

	t := &Telemetry{version: opt.Version, noEnvironment: opt.NoEnvironment, dropAll: env.dropAll, clients: map[clientProcess]trace.Tracer{}}
	t.node = opt.node()
	res, err := opt.resource(ctx)
	if err != nil {
		return nil, err
	}

	if opt.Keep < 0 {
		opt.Keep = DefaultKeep
	}
	if opt.Keep > 0 {
		t.kept = newKept(opt.Keep)
	}
	// The file comes first: processors are shut down in this order, and a collector that hangs must not use up the
	// time in which the file is flushed.
	if opt.TraceFile != "" {
		f, err := openTraceFile(opt.TraceFile)
		if err != nil {
			return nil, err
		}
		if err := t.add(ctx, f, "file", opt.Logger, sdktrace.WithBatchTimeout(fileDelay),
			sdktrace.WithMaxQueueSize(fileQueue), sdktrace.WithMaxExportBatchSize(sdktrace.DefaultMaxExportBatchSize)); err != nil {
			return nil, err
		}
	}
	if env.otlp {
		client := otlptracehttp.NewClient()
		if env.grpc {
			client = otlptracegrpc.NewClient()
		}
		var queue []sdktrace.BatchSpanProcessorOption
		if os.Getenv("OTEL_BSP_MAX_QUEUE_SIZE") == "" { // spans come in bulk: the standard's 2048 would be little
			queue = append(queue, sdktrace.WithMaxQueueSize(fileQueue))
		}
		if err := t.add(ctx, client, "otlp", opt.Logger, queue...); err != nil {
			t.provider = t.newProvider(res)
			return nil, errors.Join(err, t.Shutdown(ctx))
		}
	}
	t.provider = t.newProvider(res, sdktrace.WithIDGenerator(presetGenerator{}), sdktrace.WithSampler(sdktrace.AlwaysSample()))
	t.deferred = newDeferred(samplerOf(getenv))
	t.spans = &deferredProvider{d: t.deferred, real: t.provider}
	t.tracer = t.spans.Tracer(attr.Scope, trace.WithInstrumentationVersion(opt.Version))
	opt.Logger.Info("tracing is on", "otlp", env.otlp, "otlp_grpc", env.grpc, "otlp_endpoint", env.endpoint, "trace_file", opt.TraceFile, "spans_kept", opt.Keep)
	return t, nil
}

// node is what the resources of the node's own telemetry and its clients' share.
func (opt *Options) node() (of []attribute.KeyValue) {
	if opt.NodeName != "" {
		of = append(of, attr.KeyNode.String(opt.NodeName))
	}
	if host, err := os.Hostname(); err == nil {
		of = append(of, keyHostName.String(host))
	}
	return of
}

// resource says whose telemetry it is.
func (opt *Options) resource(ctx context.Context) (*resource.Resource, error) {
	from := []resource.Option{resource.WithTelemetrySDK(), resource.WithAttributes(keyServiceName.String(opt.ServiceName), keyServiceVersion.String(opt.Version))}
	if !opt.NoEnvironment {
		from = append(from, resource.WithFromEnv())
	}
	res, err := resource.New(ctx, append(from, resource.WithAttributes(append(opt.node(), keyPID.Int(os.Getpid()))...))...)
	if err != nil {
		return nil, configInvalid("OTEL_RESOURCE_ATTRIBUTES", "%v", err)
	}
	return res, nil
}

// getenv reads the environment, or what stands for it where it is not ours.
func (opt *Options) getenv() func(string) string {
	if opt.NoEnvironment {
		return func(string) string { return "" }
	}
	return os.Getenv
}

// add starts client and a batch processor on top of it.
func (t *Telemetry) add(ctx context.Context, client otlptrace.Client, name string, logger *slog.Logger,
	opts ...sdktrace.BatchSpanProcessorOption) error {
	inner, err := otlptrace.New(ctx, client)
	if err != nil {
		return fault.Wrap(fault.ConfigInvalid, "telemetry: start the "+name+" exporter", err)
	}
	e := newExporter(inner, name, logger)
	t.exporters = append(t.exporters, e)
	t.processors = append(t.processors, newCountedProcessor(e, opts...))
	return nil
}

// newProvider makes a provider over the shared processors; it starts nothing by itself.
func (t *Telemetry) newProvider(res *resource.Resource, opts ...sdktrace.TracerProviderOption) *sdktrace.TracerProvider {
	limits := sdktrace.NewSpanLimits()
	switch {
	case t.noEnvironment: // what the OpenTelemetry SDK has read of it is set back
		limits = sdktrace.SpanLimits{AttributeValueLengthLimit: sdktrace.DefaultAttributeValueLengthLimit, AttributeCountLimit: sdktrace.DefaultAttributeCountLimit,
			EventCountLimit: minEvents, LinkCountLimit: sdktrace.DefaultLinkCountLimit, AttributePerEventCountLimit: sdktrace.DefaultAttributePerEventCountLimit,
			AttributePerLinkCountLimit: sdktrace.DefaultAttributePerLinkCountLimit}
		opts = append([]sdktrace.TracerProviderOption{sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.AlwaysSample()))}, opts...)
	case os.Getenv("OTEL_SPAN_EVENT_COUNT_LIMIT") == "":
		limits.EventCountLimit = minEvents
	}
	opts = append(opts, sdktrace.WithResource(res), sdktrace.WithRawSpanLimits(limits))
	for _, p := range t.processors {
		opts = append(opts, sdktrace.WithSpanProcessor(p))
	}
	if t.kept != nil {
		opts = append(opts, sdktrace.WithSpanProcessor(t.kept))
	}
	return sdktrace.NewTracerProvider(opts...)
}

// Tracer returns the daemon's tracer; when tracing is off its spans do nothing but still pass on the remote
// parent's context.
func (t *Telemetry) Tracer() trace.Tracer { return t.tracer }

// TenantTracer returns the tracer for spans of a tenant's transfers. The tenant is on the instrumentation scope, where it costs
// a span nothing.
func (t *Telemetry) TenantTracer(tenant string) trace.Tracer {
	if t.provider == nil {
		return t.tracer
	}
	return t.spans.Tracer(attr.Scope, trace.WithInstrumentationVersion(t.version), tenantScope(tenant))
}

// Later runs f, which makes and ends spans of something that is over, beside the transfers; within a tenth of a second, and
// before Flush, Find and Shutdown return. Where tracing is off or has ended f is dropped.
func (t *Telemetry) Later(f func()) {
	if t.deferred != nil {
		t.deferred.later(f)
	}
}

func tenantScope(tenant string) trace.TracerOption {
	return trace.WithInstrumentationAttributes(attr.KeyTenant.String(tenant))
}

// Enabled says whether spans go anywhere.
func (t *Telemetry) Enabled() bool { return t.provider != nil }

// Flush exports what has ended so far.
func (t *Telemetry) Flush(ctx context.Context) error {
	if t.provider == nil {
		return nil
	}
	t.deferred.drain()
	return t.provider.ForceFlush(ctx)
}

// Shutdown exports what has ended and stops. When ctx ends before, exports in flight are cut short; no goroutine
// is left behind either way. Spans that end later are dropped. A second call does nothing.
func (t *Telemetry) Shutdown(ctx context.Context) error {
	if t.provider == nil {
		return nil
	}
	if t.deferred != nil { // nil: Start failed half way
		t.deferred.close()
	}
	stop := context.AfterFunc(ctx, t.abort)
	defer stop()
	err := t.provider.Shutdown(ctx)
	if ctx.Err() == nil {
		return err
	}
	// The provider gave up waiting, maybe before it told every processor.
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortGrace)
	defer cancel()
	for i, p := range t.processors {
		t.exporters[i].abort()
		_ = p.Shutdown(grace)
		select {
		case <-t.exporters[i].done:
		case <-grace.Done():
		}
	}
	return err
}

func (t *Telemetry) abort() {
	for _, e := range t.exporters {
		e.abort()
	}
}
