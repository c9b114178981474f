package node

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/telemetry/instrument"
	"github.com/kvxfer/kvxfer/xfer/blockdb"
)

// A node that has done nothing shows every gauge and counter of the list, those of failures excepted, and nothing else.
func TestNodeShowsTheListedMetrics(t *testing.T) {
	n, err := start(t, testConfig(t, "n0", filepath.Join(t.TempDir(), "state")))
	require.NoError(t, err)
	defer n.Close(t.Context())
	require.Eventually(t, func() bool { return len(n.dir.View().Nodes()) == 1 }, time.Minute, time.Millisecond, "it hears of itself")
	code, body := get(t, "http://"+n.Info().HTTPAddr+"/metrics")
	require.Equal(t, 200, code)
	p := expfmt.NewTextParser(model.LegacyValidation)
	all, err := p.TextToMetricFamilies(strings.NewReader(body))
	require.NoError(t, err)
	listed := map[string]bool{}
	for _, d := range instrument.List {
		listed[d.Prometheus()] = true
		if d.Kind != instrument.Histogram && d.Name != instrument.Errors && !strings.HasPrefix(d.Name, "kvxfer.rdma.") {
			assert.Contains(t, all, d.Prometheus())
		}
	}
	for name := range all {
		assert.True(t, listed[name] || !strings.HasPrefix(name, "kvxfer_"), name)
	}
	assert.EqualValues(t, 1, all["kvxfer_ready"].Metric[0].Gauge.GetValue())
	assert.EqualValues(t, 1, all["kvxfer_registry_nodes"].Metric[0].Gauge.GetValue())
	assert.Positive(t, all["kvxfer_store_disk_bytes"].Metric[0].Gauge.GetValue())
	assert.NotContains(t, body, `"n0"`, "who scrapes knows whom")
}

func TestWrongMetricsSettingEndsTheStart(t *testing.T) {
	t.Setenv("OTEL_METRICS_EXPORTER", "pigeon")
	_, err := start(t, testConfig(t, "n0", filepath.Join(t.TempDir(), "state")))
	require.ErrorIs(t, err, fault.ErrConfigInvalid)
	assert.Equal(t, "OTEL_METRICS_EXPORTER", fault.From("", err).Field)
}

// What the node has counted is exported once more while it is still there, whatever the interval is.
func TestMetricsAreExportedAtTheEnd(t *testing.T) {
	var mu sync.Mutex
	var got []byte
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		got = append(got, body...)
	}))
	defer srv.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", srv.URL+"/v1/metrics")
	t.Setenv("OTEL_METRIC_EXPORT_INTERVAL", "86400000")
	n, err := start(t, testConfig(t, "n0", filepath.Join(t.TempDir(), "state")))
	require.NoError(t, err)
	n.Close(context.Background())
	mu.Lock()
	defer mu.Unlock()
	for _, name := range []string{instrument.Payload, instrument.StoreDisk, instrument.Nodes, instrument.SpansDropped} {
		assert.Contains(t, string(got), name)
	}
}

// While the store's disk stands still a scraper has the last counts, and only one reader waits for the disk.
func TestStoreThatHangsIsReadOnce(t *testing.T) {
	var wg sync.WaitGroup
	hold, reads := make(chan struct{}), 0
	s := &reader[blockdb.Stats]{begin: wg.Go, last: blockdb.Stats{Grants: 3}}
	s.read = func() blockdb.Stats { reads++; <-hold; return blockdb.Stats{Grants: 4} }
	for range 2 {
		assert.EqualValues(t, 3, s.get().Grants)
	}
	close(hold)
	wg.Wait()
	assert.Equal(t, 1, reads)
	assert.EqualValues(t, 4, s.last.Grants)
	require.Eventually(t, func() bool { return s.get().Grants == 4 }, 20*time.Second, time.Millisecond)
	wg.Wait()
}
