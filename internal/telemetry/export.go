package telemetry

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// failureLogEvery bounds the log of a collector that is away: the first failure at once, then one line a minute.
const failureLogEvery = time.Minute

// exporter is a SpanExporter that logs its failures itself (the SDK would hand them to a process-wide handler,
// which may belong to the program that embeds the node) and whose exports can be cut short at shutdown.
type exporter struct {
	sdktrace.SpanExporter
	name   string
	logger *slog.Logger
	ctx    context.Context // ends when abort is called
	abort  context.CancelFunc
	done   chan struct{} // closed when the processor's goroutine has shut the exporter down
	once   sync.Once

	waiting atomic.Int64  // spans that ended and were not handed to an export yet
	full    atomic.Uint64 // spans dropped because too many waited
	failing atomic.Uint64 // spans that an export lost

	mu        sync.Mutex
	logged    time.Time
	lostSince int
}

func newExporter(inner sdktrace.SpanExporter, name string, logger *slog.Logger) *exporter {
	ctx, cancel := context.WithCancel(context.Background())
	return &exporter{SpanExporter: inner, name: name, logger: logger, ctx: ctx, abort: cancel, done: make(chan struct{})}
}

// ExportSpans exports and logs a failure; it returns nil also then, because there is nobody left to tell.
func (e *exporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	e.waiting.Add(-int64(len(spans)))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.ctx, cancel)()
	if err := e.SpanExporter.ExportSpans(ctx, spans); err != nil {
		e.failed(err, len(spans))
	}
	return nil
}

func (e *exporter) failed(err error, spans int) {
	e.failing.Add(uint64(spans))
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lostSince += spans
	if !e.logged.IsZero() && time.Since(e.logged) < failureLogEvery {
		return
	}
	e.logger.Warn("trace export failed", "exporter", e.name, "spans_lost", e.lostSince, "error", err)
	e.logged, e.lostSince = time.Now(), 0
}

// Shutdown is called by the batch processor as the last thing its goroutine does.
func (e *exporter) Shutdown(ctx context.Context) error {
	defer e.once.Do(func() { close(e.done) })
	return e.SpanExporter.Shutdown(ctx)
}
