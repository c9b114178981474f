package health

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
)

func TestMetricsPage(t *testing.T) {
	addr, _ := serve(t, Options{Metrics: func(_ context.Context, accept string) (string, []byte, error) {
		return "text/x" + accept, []byte("kvxfer_ready 1\n"), nil
	}})
	resp, text := ask(t, "GET", addr, "/metrics")
	assert.Equal(t, 200, resp.StatusCode)
	assert.Equal(t, "text/x", resp.Header.Get("Content-Type"))
	assert.Equal(t, "kvxfer_ready 1\n", text)
	resp, text = ask(t, "HEAD", addr, "/metrics")
	assert.Equal(t, 200, resp.StatusCode)
	assert.Empty(t, text)
	resp, _ = ask(t, "POST", addr, "/metrics")
	assert.Equal(t, 405, resp.StatusCode)
}

func TestMetricsThatHang(t *testing.T) {
	addr, _ := serve(t, Options{Timeout: 500 * time.Millisecond, Metrics: func(ctx context.Context, _ string) (string, []byte, error) {
		<-ctx.Done()
		return "", nil, fault.From("metrics", ctx.Err())
	}})
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	require.Eventually(t, func() bool { // a machine that sleeps through the time for the answer gets another try
		resp, err := client.Get("http://" + addr + "/metrics")
		if err != nil {
			return false
		}
		defer func() { _ = resp.Body.Close() }()
		text, _ := io.ReadAll(resp.Body)
		return resp.StatusCode == 503 && strings.Contains(string(text), "in time")
	}, patience, time.Millisecond)
	resp, _ := ask(t, "GET", addr, "/healthz")
	assert.Equal(t, 200, resp.StatusCode)

	addr, _ = serve(t, Options{Metrics: func(context.Context, string) (string, []byte, error) {
		return "", nil, errors.New("secret detail")
	}})
	resp, text := ask(t, "GET", addr, "/metrics")
	assert.Equal(t, 500, resp.StatusCode)
	assert.NotContains(t, text, "secret")
}
