package telemetry

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/telemetry/attr"
)

func droppedSpans(t *testing.T, m *Metrics) map[string]float64 {
	out := map[string]float64{}
	f := families(t, m)["kvxfer_spans_dropped_total"]
	require.NotNil(t, f)
	assert.Equal(t, dto.MetricType_COUNTER, f.GetType())
	for _, s := range f.Metric {
		out[s.Label[0].GetValue()] = s.Counter.GetValue()
	}
	return out
}

// Spans that find the queue full, and those that the collector refuses, are counted; all others are exported.
func TestDroppedSpansAreCounted(t *testing.T) {
	asked, release := make(chan struct{}, 100), make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked <- struct{}{}
		<-release
		w.WriteHeader(http.StatusBadRequest)
	}))
	t.Cleanup(srv.Close)
	t.Setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", srv.URL+"/v1/traces")
	t.Setenv("OTEL_BSP_MAX_QUEUE_SIZE", "4")
	t.Setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1")
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "1")
	m := startMetrics(t, Options{})
	tel := start(t, Options{})
	t.Cleanup(tel.Measure(m.Meter()))
	assert.Equal(t, map[string]float64{"queue_full": 0, "export_failed": 0}, droppedSpans(t, m))
	end := func(n int) {
		for range n {
			_, s := tel.Tracer().Start(t.Context(), attr.SpanBatch)
			s.End()
		}
		tel.deferred.drain() // which is done ten times a second
	}
	end(1)
	<-asked // that one has left the queue
	end(10)
	assert.Equal(t, map[string]float64{"queue_full": 6, "export_failed": 0}, droppedSpans(t, m))
	close(release)
	require.Eventually(t, func() bool { return droppedSpans(t, m)["export_failed"] == 5 }, bound, 5*time.Millisecond)
	assert.EqualValues(t, 6, droppedSpans(t, m)["queue_full"])
}
