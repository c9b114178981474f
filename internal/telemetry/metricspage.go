package telemetry

import (
	"bytes"
	"context"
	"errors"
	"net/http"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// maxPage bounds the page in bytes. One has about 40 KB; more than this no list of kvxfer's can be.
const maxPage = 4 << 20

// formats are those of the page. The first one is for who takes any.
var formats = []expfmt.Format{expfmt.NewFormat(expfmt.TypeTextPlain), openMetrics("1.0.0"), openMetrics("0.0.1")}

func openMetrics(version string) expfmt.Format {
	f, err := expfmt.NewOpenMetricsFormat(version)
	if err != nil { // the library does not know the version: its test asks for each
		return expfmt.NewFormat(expfmt.TypeTextPlain)
	}
	return f
}

// Page makes the page for a scraper that accepts what the Accept header says: Prometheus' text format, or OpenMetrics. It is
// made by one caller at a time and given up when ctx ends: DeadlineExceeded,
// or Cancelled. A page above 4 MiB is ResourceExhausted.
func (m *Metrics) Page(ctx context.Context, accept string) (contentType string, body []byte, err error) {
	const op = "metrics"
	select {
	case m.gather <- struct{}{}:
	case <-ctx.Done():
		return "", nil, fault.From(op, ctx.Err())
	}
	type page struct {
		families []*dto.MetricFamily
		err      error
	}
	// Gathering knows no context. What it asks takes a lock for a moment; should one be held longer, the scraper gets its
	// answer in time all the same and the next one waits for this gathering's end.
	made := make(chan page, 1)
	go func() {
		defer func() { <-m.gather }()
		families, err := m.registry.Gather()
		made <- page{families, err}
	}()
	var p page
	select {
	case p = <-made:
	case <-ctx.Done():
		return "", nil, fault.From(op, ctx.Err())
	}
	if p.err != nil {
		return "", nil, fault.Wrap(fault.Internal, op, p.err)
	}
	format := expfmt.NegotiateAccept(http.Header{"Accept": {accept}}, formats...)
	out := &limited{most: maxPage}
	enc := expfmt.NewEncoder(out, format)
	for _, f := range p.families {
		if err := enc.Encode(f); err != nil {
			return "", nil, encodeFailed(op, err)
		}
	}
	if end, ok := enc.(expfmt.Closer); ok { // OpenMetrics has a last line
		if err := end.Close(); err != nil {
			return "", nil, encodeFailed(op, err)
		}
	}
	return string(format), out.Bytes(), nil
}

var errTooLarge = errors.New("the page is too large")

func encodeFailed(op string, err error) error {
	if errors.Is(err, errTooLarge) {
		return fault.New(fault.ResourceExhausted, op, "the page has more than %d bytes", maxPage)
	}
	return fault.Wrap(fault.Internal, op, err)
}

// limited is a buffer of at most so many bytes.
type limited struct {
	bytes.Buffer
	most int
}

func (l *limited) Write(p []byte) (int, error) {
	if l.Len()+len(p) > l.most {
		return 0, errTooLarge
	}
	return l.Buffer.Write(p)
}
