package node

import (
	"encoding/json"
	"io"
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
)

func TestReportsHoldNoSecret(t *testing.T) {
	first, err := start(t, testConfig(t, "n0", filepath.Join(t.TempDir(), "state"), "--nats-listen", "127.0.0.1:0"))
	require.NoError(t, err)
	defer first.Close(t.Context())
	const password = "Tr0ub4dor-and-3"
	url := "nats://user:" + password + "@" + first.Info().NATSURL[len("nats://"):]
	n, err := Start(t.Context(), testConfig(t, "n1", filepath.Join(t.TempDir(), "state"), "--nats", url),
		slog.New(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelDebug})))
	require.NoError(t, err)
	defer n.Close(t.Context())
	for what, want := range map[string]string{wire.ReportConfiguration: `"nats": "external"`, wire.ReportLog: "serving", wire.ReportGoroutines: "goroutine profile"} {
		text, err := n.report(what)
		require.NoError(t, err)
		assert.Contains(t, string(text), want)
		assert.NotContains(t, string(text), password)
	}
	raw, err := n.report(wire.ReportConfiguration)
	require.NoError(t, err)
	var got map[string]any
	require.NoError(t, json.Unmarshal(raw, &got))
	assert.Equal(t, "n1", got["node"])
	assert.Equal(t, n.cfg.DrainTimeout.String(), got["drain_timeout"])
	_, err = n.report("everything")
	assert.ErrorIs(t, err, fault.ErrNotSupported)

	ref, providers, ok := newDirectory(n.dir, n.log).locate("n1")
	require.True(t, ok)
	assert.Equal(t, n.Info().PeerAddr, ref.Addr)
	assert.Equal(t, []string{"shm", "tcp"}, providers)
	_, _, ok = newDirectory(n.dir, n.log).locate("nobody")
	assert.False(t, ok)
}
