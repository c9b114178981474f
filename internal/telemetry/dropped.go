package telemetry

import (
	"context"
	"os"
	"strconv"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/kvxfer/kvxfer/internal/telemetry/instrument"
)

// countedProcessor is a batch processor that counts what it drops, which the SDK's own keeps to itself: no more spans are
// let in than the SDK's queue has room for, so that nothing is dropped behind it.
type countedProcessor struct {
	sdktrace.SpanProcessor
	e    *exporter
	most int64
}

func newCountedProcessor(e *exporter, opts ...sdktrace.BatchSpanProcessorOption) *countedProcessor {
	o := sdktrace.BatchSpanProcessorOptions{MaxQueueSize: sdktrace.DefaultMaxQueueSize}
	if n, err := strconv.Atoi(os.Getenv("OTEL_BSP_MAX_QUEUE_SIZE")); err == nil && n > 0 {
		o.MaxQueueSize = n
	}
	for _, set := range opts {
		set(&o)
	}
	opts = append(opts[:len(opts):len(opts)], sdktrace.WithMaxQueueSize(o.MaxQueueSize))
	return &countedProcessor{SpanProcessor: sdktrace.NewBatchSpanProcessor(e, opts...), e: e, most: int64(o.MaxQueueSize)}
}

// OnEnd queues a span, or counts it as dropped.
func (p *countedProcessor) OnEnd(s sdktrace.ReadOnlySpan) {
	if !s.SpanContext().IsSampled() { // it is not exported, and so not counted out again
		return
	}
	if p.e.waiting.Add(1) > p.most {
		p.e.waiting.Add(-1)
		p.e.full.Add(1)
		return
	}
	p.SpanProcessor.OnEnd(s)
}

// Measure makes the metric of dropped spans; stop takes it back. While tracing is off it stays 0.
func (t *Telemetry) Measure(m metric.Meter) (stop func()) {
	dropped := instrument.NewCounter(m, instrument.SpansDropped)
	full := metric.WithAttributeSet(attribute.NewSet(instrument.KeyReason.String("queue_full")))
	failing := metric.WithAttributeSet(attribute.NewSet(instrument.KeyReason.String("export_failed")))
	sum := func(of func(*exporter) *atomic.Uint64) (n int64) {
		for _, e := range t.exporters {
			n += int64(of(e).Load())
		}
		return n
	}
	noted := func() int64 { // those that did not even come to the exporters' queues
		if t.deferred == nil {
			return 0
		}
		return int64(t.deferred.full.Load())
	}
	return instrument.Observe(m, func(_ context.Context, o metric.Observer) error {
		o.ObserveInt64(dropped, sum(func(e *exporter) *atomic.Uint64 { return &e.full })+noted(), full)
		o.ObserveInt64(dropped, sum(func(e *exporter) *atomic.Uint64 { return &e.failing }), failing)
		return nil
	}, dropped)
}
