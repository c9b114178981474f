package telemetry

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/telemetry/attr"
)

const (
	// DefaultKeep is how many finished spans are kept where tracing is on and nothing else was asked for.
	DefaultKeep = 8192
	// MaxKeep bounds the wish.
	MaxKeep = 1 << 20
	// keptSpanBytes is what a kept span may take on average: N spans are N KiB at most, however long their values are.
	keptSpanBytes = 1 << 10
	// linesAtOnce is how many spans become one line. What does not fit is left off by lines.
	linesAtOnce = 128
	// maxNamed bounds the nodes that Find names.
	maxNamed = 1024
)

// Whose says which tenants' spans somebody may see: those of Tenant, or with All every one's.
type Whose struct {
	Tenant string
	All    bool
}

// Named is a node that a span names as the other side, and the tenant whose span it was.
type Named struct{ Node, Tenant string }

// Found is what is kept under an id.
type Found struct {
	TraceID string // whole; "" where every trace was asked for
	Lines   []byte // OTLP JSON lines
	Named   []Named
	LeftOff int // spans that did not fit
}

// kept is the memory of finished spans: a queue bounded in spans and bytes, in which the newest push the oldest out. It is a
// span processor of the SDK. OnEnd takes the SDK's own snapshot, so a span costs one short lock and no copy.
type kept struct {
	most, mostBytes int

	mu    sync.Mutex
	queue []keptSpan // the oldest first; append moves it to a new array now and then, which is cheap per span
	bytes int
}

type keptSpan struct {
	span  sdktrace.ReadOnlySpan
	bytes int
}

var _ sdktrace.SpanProcessor = (*kept)(nil)

func newKept(spans int) *kept { return &kept{most: spans, mostBytes: spans * keptSpanBytes} }

// OnStart does nothing: only finished spans are kept.
func (k *kept) OnStart(context.Context, sdktrace.ReadWriteSpan) {}

// OnEnd keeps the span.
func (k *kept) OnEnd(s sdktrace.ReadOnlySpan) {
	if !s.SpanContext().IsSampled() {
		return
	}
	n := spanBytes(s)
	if n > k.mostBytes { // it would push everything else out and not fit either
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.queue = append(k.queue, keptSpan{s, n})
	k.bytes += n
	for len(k.queue) > k.most || k.bytes > k.mostBytes {
		k.bytes -= k.queue[0].bytes
		k.queue[0] = keptSpan{}
		k.queue = k.queue[1:]
	}
}

// Shutdown has nothing to do: what is kept ends with the process.
func (k *kept) Shutdown(context.Context) error { return nil }

// ForceFlush has nothing to do.
func (k *kept) ForceFlush(context.Context) error { return nil }

// spanBytes estimates what a span takes in memory: the SDK's snapshot, its attributes and events, and their text.
func spanBytes(s sdktrace.ReadOnlySpan) int {
	const fixed, perAttribute, perEvent = 512, 80, 96
	n := fixed + len(s.Name()) + len(s.Status().Description)
	add := func(attributes []attribute.KeyValue) {
		for _, a := range attributes {
			n += perAttribute + len(a.Key)
			if a.Value.Type() == attribute.STRING {
				n += len(a.Value.AsString())
			}
		}
	}
	add(s.Attributes())
	for _, e := range s.Events() {
		n += perEvent + len(e.Name)
		add(e.Attributes)
	}
	return n
}

// snapshot returns what w may see, the oldest first.
func (k *kept) snapshot(w Whose) []sdktrace.ReadOnlySpan {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := make([]sdktrace.ReadOnlySpan, 0, len(k.queue))
	for _, x := range k.queue {
		if w.All || tenantOf(x.span) == w.Tenant {
			out = append(out, x.span)
		}
	}
	return out
}

func tenantOf(s sdktrace.ReadOnlySpan) string {
	scope := s.InstrumentationScope()
	v, _ := scope.Attributes.Value(attr.KeyTenant)
	return v.AsString()
}

func stringOf(s sdktrace.ReadOnlySpan, key attribute.Key) string {
	for _, a := range s.Attributes() {
		if a.Key == key {
			return a.Value.AsString()
		}
	}
	return ""
}

// Find returns the kept spans of the trace that id names: by its own id, by that of a transfer in it, by the beginning of
// either, or as "latest", the one that began last; "" is every trace. Lines take at most most bytes.
//
// Errors: NotSupported where no spans are kept; NotFound; InvalidArgument where id begins several traces' ids.
func (t *Telemetry) Find(w Whose, id string, most int) (Found, error) {
	const op = "trace"
	if t.kept == nil {
		return Found{}, fault.New(fault.NotSupported, op, "this daemon keeps no spans: start it with --trace-keep N, or with tracing on "+
			"(OTEL_EXPORTER_OTLP_ENDPOINT or --trace-file) and without --trace-keep 0")
	}
	t.deferred.drain()
	spans := t.kept.snapshot(w)
	f := Found{}
	if id != "" {
		var err error
		if f.TraceID, err = resolve(op, spans, id); err != nil {
			return Found{}, err
		}
		spans = slices.DeleteFunc(spans, func(s sdktrace.ReadOnlySpan) bool { return s.SpanContext().TraceID().String() != f.TraceID })
	}
	named := map[Named]bool{}
	for _, s := range spans {
		if n := (Named{stringOf(s, attr.KeyPeer), tenantOf(s)}); n.Node != "" && !named[n] && len(f.Named) < maxNamed {
			named[n] = true
			f.Named = append(f.Named, n)
		}
	}
	out := &lines{most: most}
	e := otlptrace.NewUnstarted(out)
	for len(spans) > 0 {
		n := min(linesAtOnce, len(spans))
		if err := e.ExportSpans(context.Background(), spans[:n]); err != nil {
			return Found{}, fault.Wrap(fault.Internal, op, err)
		}
		if out.full {
			break
		}
		spans = spans[n:]
	}
	f.Lines, f.LeftOff = out.b, len(spans)
	return f, nil
}

// resolve finds the trace that id names.
func resolve(op string, spans []sdktrace.ReadOnlySpan, id string) (string, error) {
	found := map[trace.TraceID]bool{}
	began := map[trace.TraceID]time.Time{}
	for _, s := range spans {
		tid := s.SpanContext().TraceID()
		if b, ok := began[tid]; !ok || s.StartTime().Before(b) {
			began[tid] = s.StartTime()
		}
		switch text := tid.String(); {
		case text == id:
			return id, nil
		case strings.HasPrefix(text, id), strings.HasPrefix(stringOf(s, attr.KeyTransferID), id):
			found[tid] = true
		}
	}
	if id == "latest" {
		var last trace.TraceID
		for tid, b := range began {
			if !last.IsValid() || b.After(began[last]) {
				last = tid
			}
		}
		if last.IsValid() {
			return last.String(), nil
		}
	}
	switch len(found) {
	case 0:
		return "", fault.New(fault.NotFound, op, "no trace or transfer %.40q among the %d traces kept; `kvxfer trace list` shows them", id, len(began))
	case 1:
		for tid := range found {
			id = tid.String()
		}
		return id, nil
	}
	return "", fault.Invalid(op, "id", "%.40q, allowed what begins one trace's or transfer's id, and %d begin with it: give more digits", id, len(found))
}

// lines is an OTLP client that keeps what it is given as OTLP JSON lines, so that spans become OTLP by the SDK's code alone.
type lines struct {
	b    []byte
	most int
	full bool
}

// Start has nothing to do.
func (l *lines) Start(context.Context) error { return nil }

// Stop has nothing to do.
func (l *lines) Stop(context.Context) error { return nil }

// UploadTraces appends a line, or says by full that it does not fit.
func (l *lines) UploadTraces(_ context.Context, spans []*tracepb.ResourceSpans) error {
	line, err := encodeLine(spans)
	if err != nil {
		return err
	}
	if l.full = len(l.b)+len(line) > l.most; !l.full {
		l.b = append(l.b, line...)
	}
	return nil
}
