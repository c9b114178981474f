package benchcmd

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func call(args ...string) (code int, stdout, stderr string) {
	var out, err bytes.Buffer
	code = Run(args, &out, &err)
	return code, out.String(), err.String()
}

func TestUsage(t *testing.T) {
	for want, args := range map[string][]string{
		"tcp, shm, host, verbs or many": {"fly"},
		`no size "3KiB"`:                {"verbs", "--size", "3KiB"},
		"or two separated":              {"verbs", "--device", "a,b,c"},
		"are for verbs":                 {"tcp", "--size", "4KiB"},
		"say what":                      {"tcp", "shm"},
		"allowed write":                 {"tcp", "--op", "push"},
		"--op is for":                   {"copy", "--op", "write"},
		"--way is for":                  {"copy", "--way", "all"},
		"allowed transfers":             {"tcp", "--way", "fly"},
		"--busy is for":                 {"shm", "--busy", "1"},
		"allowed 0..1024":               {"host", "--busy", "1025"},
		"--busy -1":                     {"host", "--busy", "-1"},
		"allowed 1..10000":              {"tcp", "--rounds", "0"},
		"allowed 0.1..3600":             {"tcp", "--seconds", "NaN"},
		`no case "3x3B"`:                {"tcp", "--case", "3x3B"},
		"a socket":                      {workerName},
	} {
		code, stdout, stderr := call(args...)
		assert.Equal(t, 2, code, args)
		assert.Empty(t, stdout)
		assert.Contains(t, stderr, want)
	}
	code, stdout, _ := call("--help")
	assert.Zero(t, code)
	assert.Equal(t, help, stdout)
	code, _, stderr := call(workerName, filepath.Join(t.TempDir(), "none.sock"))
	assert.Equal(t, 1, code)
	assert.Contains(t, stderr, "none.sock")
}

func TestCopy(t *testing.T) {
	program(t, t.TempDir())
	out := filepath.Join(t.TempDir(), "out.json")
	code, stdout, stderr := call("copy", "--case", "1x8B,64x4KiB", "--rounds", "3", "--seconds", "0.1", "--json", "--out", out)
	require.Zero(t, code, stderr)
	var records []Record
	require.NoError(t, json.Unmarshal([]byte(stdout), &records))
	var ops []string
	for _, r := range records {
		ops = append(ops, r.Case+" "+r.Op)
		assert.Positive(t, r.GBps)
		require.NotNil(t, r.Ratio)
		assert.InEpsilon(t, r.GBps / *r.LimitGBps, *r.Ratio, 0.01)
		assert.Contains(t, stderr, r.Case+" "+r.Op)
	}
	assert.Equal(t, []string{"1x8B memcpy-1", "1x8B stream-1", "1x8B go-1",
		"64x4KiB memcpy-1", "64x4KiB stream-1", "64x4KiB memcpy-2", "64x4KiB stream-2", "64x4KiB go-1"}, ops)
	b, err := os.ReadFile(out)
	require.NoError(t, err)
	assert.JSONEq(t, stdout, string(b))
}

func TestChild(t *testing.T) {
	dir := t.TempDir()
	c, err := spawn(t.Context(), "a cat", dir, environment(), "/bin/cat")
	require.NoError(t, err)
	_, err = io.WriteString(c.in, "x\n")
	require.NoError(t, err)
	b := make([]byte, 2)
	_, err = io.ReadFull(c.out, b)
	require.NoError(t, err)
	used, err := c.cpu()
	require.NoError(t, err)
	assert.Positive(t, used)
	rss, err := c.rss()
	require.NoError(t, err)
	assert.Positive(t, rss)
	require.NoError(t, c.end(0), "its input has ended")

	c, err = spawn(t.Context(), "a shell", dir, environment(), "/bin/sh", "-c", "echo the reason >&2; exit 3")
	require.NoError(t, err)
	err = c.end(0)
	assert.ErrorContains(t, err, "a shell: exit status 3")
	assert.ErrorContains(t, err, "the reason")

	ctx, cancel := context.WithCancel(t.Context())
	c, err = spawn(ctx, "a sleeper", dir, environment(), "/bin/sleep", "1000")
	require.NoError(t, err)
	cancel()
	select {
	case <-c.done:
	case <-time.After(patience):
		t.Fatal("a child outlives the run's context")
	}
	assert.Error(t, c.end(syscall.SIGTERM))
}

func TestEnvironment(t *testing.T) {
	t.Setenv("KVXFER_LANES", "1")
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318")
	t.Setenv("HOME", "/somewhere")
	env := environment()
	assert.NotContains(t, env, "KVXFER_LANES=1")
	assert.NotContains(t, env, "OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4318")
	assert.Contains(t, env, "HOME=/somewhere")
}

func TestOthers(t *testing.T) {
	from, err := look(nil, nil)
	require.NoError(t, err)
	assert.Positive(t, from.all)
	assert.Positive(t, from.ours)
	cores, second := time.Duration(runtime.NumCPU()), time.Second
	at := func(all, ours time.Duration) instant {
		return instant{at: from.at.Add(10 * second), all: from.all + all, ours: from.ours + ours}
	}
	assert.Zero(t, others(from, at(4*second, 4*second)))
	assert.Zero(t, others(from, at(4*second, 4*second+time.Millisecond)), "ticks are coarse")
	assert.InDelta(t, 0.25, others(from, at(4*second+cores*5*second/2, 4*second)), 1e-9)
	assert.Equal(t, 1, disturbed([]Record{{OtherCPU: 0.1}, {OtherCPU: 0.2}}))
	_, err = clockOf(1<<22 + 1) // above every process number
	assert.Error(t, err)
}
