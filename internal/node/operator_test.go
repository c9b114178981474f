package node

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/registry"
)

// TestPagesByName: names come and go between pages; those that stay are shown once.
func TestPagesByName(t *testing.T) {
	names := func(n int) (rows []wire.NodeRow) {
		for i := range n {
			rows = append(rows, wire.NodeRow{Node: fmt.Sprintf("n%02d", i)})
		}
		return rows
	}
	key := func(r *wire.NodeRow) string { return r.Node }
	for _, limit := range []uint32{1, 3, 10, 11} {
		var got []wire.NodeRow
		q := wire.Inspect{Limit: limit}
		for more := true; more; more = q.After != "" {
			var rows []wire.NodeRow
			rows, q.After = page(&q, names(10), key)
			assert.LessOrEqual(t, len(rows), int(limit))
			got = append(got, rows...)
		}
		assert.Equal(t, names(10), got)
	}
	rows, next := page(&wire.Inspect{After: "n03", Limit: 2}, names(10)[5:], key)
	assert.Equal(t, names(7)[5:], rows, "what the cursor named is gone")
	assert.Equal(t, "n06", next)
	rows, next = page(&wire.Inspect{After: "z"}, names(10), key)
	assert.Empty(t, rows)
	assert.Empty(t, next)
}

// TestCacheRowsAreBounded: a layout is another node's text.
func TestCacheRowsAreBounded(t *testing.T) {
	for text, want := range map[string]string{
		"":                                    "unknown",
		`"` + strings.Repeat("x", 5000) + `"`: "unknown",
		`{"layers":0}`:                        "unknown",
		`[1]`:                                 "unknown",
		`{"layers":2,"kv_heads":1,"head_dim":8,"dtype":"float32","block_tokens":4,"order":"HND","tp_size":1}`: "HND 2L x 1H x 8D x 4T float32 tp 0/1",
	} {
		row := cacheRow(&registry.Cache{Name: "c", Layout: json.RawMessage(text)})
		assert.Equal(t, want, row.LayoutText, "%.20s", text)
		raw, err := wire.PackRows([]wire.CacheRow{row})
		require.NoError(t, err)
		assert.Less(t, len(raw), maxLayout)
	}
}

// TestLogTellsOfItsLevel: of each change, also of one after which it says no more.
func TestLogTellsOfItsLevel(t *testing.T) {
	level, text := new(slog.LevelVar), new(bytes.Buffer)
	op := operator{&Node{level: level, log: slog.New(slog.NewTextHandler(text, &slog.HandlerOptions{Level: level}))}}
	for was, to := "info", []string{"error", "debug", "debug", "warn", "error", "info"}; len(to) > 0; was, to = to[0], to[1:] {
		text.Reset()
		_, err := op.LogLevel(to[0])
		require.NoError(t, err)
		if was == to[0] {
			assert.Empty(t, text.String())
		} else {
			assert.Contains(t, text.String(), "level="+to[0]+" was="+was)
		}
		assert.Equal(t, strings.ToUpper(to[0]), level.Level().String())
	}
}

// TestOperatorSteersTheNode: the log's level, where it is the node's; and a drain that /readyz tells of and that a restart
// alone takes back.
func TestOperatorSteersTheNode(t *testing.T) {
	n, err := start(t, testConfig(t, "n0", filepath.Join(t.TempDir(), "state")))
	require.NoError(t, err)
	defer n.Close(t.Context())
	op := operator{n}
	_, err = op.LogLevel("debug")
	require.ErrorIs(t, err, fault.ErrNotSupported)
	level := new(slog.LevelVar)
	WithLogLevel(level)(n)
	for _, c := range [][3]string{{"", "info", "info"}, {"debug", "debug", "info"}, {"error", "error", "debug"}, {"", "error", "error"}} {
		got, err := op.LogLevel(c[0])
		require.NoError(t, err)
		assert.Equal(t, wire.LogLevelInfo{Level: c[1], Was: c[2]}, got)
	}
	assert.Equal(t, slog.LevelError, level.Level())
	_, err = op.LogLevel("loud")
	assert.ErrorIs(t, err, fault.ErrInvalidArgument)

	require.Eventually(t, func() bool { return len(n.dir.View().Nodes()) == 1 }, 20*time.Second, 5*time.Millisecond)
	info, array, err := op.Inspect("default", wire.Inspect{What: wire.InspectNodes})
	require.NoError(t, err)
	rows, err := wire.Rows[wire.NodeRow](array)
	require.NoError(t, err)
	require.Len(t, rows, 1)
	assert.True(t, rows[0].Own)
	assert.False(t, info.Stale)
	assert.Less(t, rows[0].ToldMs, int64(10*time.Minute/time.Millisecond))

	for range 2 {
		left, err := op.Drain(t.Context(), wire.Drain{Wait: true, TimeoutMillis: 1})
		require.NoError(t, err)
		assert.Equal(t, wire.DrainInfo{}, left)
	}
	code, body := get(t, "http://"+n.Info().HTTPAddr+"/readyz")
	assert.Equal(t, 503, code)
	assert.Contains(t, body, "draining")
	assert.True(t, n.status().Draining)
	require.Eventually(t, func() bool { x, _ := n.dir.View().Node("n0"); return x.Draining }, 20*time.Second, 5*time.Millisecond)
}
