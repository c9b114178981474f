package node

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/kvxfer/kvxfer/internal/config"
	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/xfer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func testConfig(t *testing.T, name, dir string, args ...string) config.Config {
	sockets, err := os.MkdirTemp("", "kvx")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(sockets) })
	cfg, err := config.Load(append([]string{"--node", name, "--state-dir", dir, "--socket", filepath.Join(sockets, "s"),
		"--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"}, args...), nil)
	require.NoError(t, err)
	return *cfg
}

func start(t *testing.T, cfg config.Config) (*Node, error) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	return Start(ctx, cfg, slog.New(slog.DiscardHandler))
}

func get(t *testing.T, url string) (int, string) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := client.Get(url)
	require.NoError(t, err)
	defer func() { _ = r.Body.Close() }()
	raw, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	return r.StatusCode, string(raw)
}

func TestNodeStartsAndStops(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	n, err := start(t, testConfig(t, "n0", dir, "--nats-listen", "127.0.0.1:0"))
	require.NoError(t, err)

	raw, err := os.ReadFile(filepath.Join(dir, infoName))
	require.NoError(t, err)
	var info Info
	require.NoError(t, json.Unmarshal(raw, &info))
	assert.Equal(t, n.Info(), info)
	code, _ := get(t, "http://"+info.HTTPAddr+"/readyz")
	assert.Equal(t, 200, code)
	code, body := get(t, "http://"+info.HTTPAddr+"/status")
	assert.Equal(t, 200, code)
	assert.Contains(t, body, `"node": "n0"`)

	other, err := start(t, testConfig(t, "n1", filepath.Join(t.TempDir(), "state"), "--nats", info.NATSURL))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(other.status().Nodes) == 2 }, 20*time.Second, 5*time.Millisecond)
	link, err := other.links.Dial(t.Context(), xfer.PeerRef{Node: "n0", Epoch: info.Epoch, Addr: info.PeerAddr, Tenant: "default"})
	require.NoError(t, err)
	assert.Equal(t, "n0", link.Peer().Node)

	other.Close(t.Context())
	n.Close(t.Context())
	n.Close(t.Context())
	assert.NoFileExists(t, filepath.Join(dir, infoName))
	_, err = net.Dial("tcp", info.PeerAddr)
	assert.Error(t, err)

	again, err := start(t, testConfig(t, "n0", dir))
	require.NoError(t, err)
	assert.NotEqual(t, info.Epoch, again.Info().Epoch)
	again.Close(t.Context())
}

func TestNameOfALiveNodeIsRefused(t *testing.T) {
	n, err := start(t, testConfig(t, "n0", filepath.Join(t.TempDir(), "state"), "--nats-listen", "127.0.0.1:0"))
	require.NoError(t, err)
	_, err = start(t, testConfig(t, "n0", filepath.Join(t.TempDir(), "state"), "--nats", n.Info().NATSURL))
	assert.ErrorIs(t, err, fault.ErrNameTaken)
	n.Close(t.Context())
}

// notices says when a record with the given text is logged.
type notices struct {
	slog.Handler
	text string
	seen chan struct{}
	once *sync.Once
}

func (h notices) Enabled(context.Context, slog.Level) bool { return true }

func (h notices) Handle(_ context.Context, r slog.Record) error {
	if strings.HasPrefix(r.Message, h.text) {
		h.once.Do(func() { close(h.seen) })
	}
	return nil
}

func TestStartThatWaitsSaysSo(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	n, err := start(t, testConfig(t, "n0", dir))
	require.NoError(t, err)
	defer n.Close(context.Background())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	h := notices{slog.DiscardHandler, "still starting", make(chan struct{}), new(sync.Once)}
	end := make(chan error, 1)
	cfg := testConfig(t, "n0", dir)
	go func() { _, err := Start(ctx, cfg, slog.New(h)); end <- err }()
	select {
	case <-h.seen:
	case err := <-end:
		t.Fatalf("it ended without a word: %v", err)
	}
	cancel()
	err = <-end
	require.ErrorIs(t, err, fault.ErrAlreadyExists)
	assert.Equal(t, "state-dir", fault.From("", err).Field)
}

func TestTakenPortNamesTheField(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	for _, field := range []string{"listen", "http"} {
		_, err := start(t, testConfig(t, "n0", filepath.Join(t.TempDir(), "state"), "--"+field, l.Addr().String()))
		require.ErrorIs(t, err, fault.ErrConfigInvalid)
		assert.Equal(t, field, fault.From("", err).Field)
	}
}

// The last step of a start fails: what the steps before it began is ended, the clients' socket too.
func TestFailedStartLeavesNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	require.NoError(t, os.MkdirAll(filepath.Join(dir, infoName+".tmp"), 0o700))
	require.NoError(t, os.Chmod(dir, 0o700))
	cfg := testConfig(t, "n0", dir)
	_, err := start(t, cfg)
	require.Error(t, err)
	assert.NoFileExists(t, cfg.Socket)
	_, err = net.Dial("unix", cfg.Socket)
	assert.Error(t, err)
}

func TestAdvertisedPort(t *testing.T) {
	bound := &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 7420}
	for want, have := range map[string]string{
		"": "10.0.0.1:7420", "192.0.2.1:0": "192.0.2.1:7420", "192.0.2.1:99": "192.0.2.1:99", "[2001:db8::1]:0": "[2001:db8::1]:7420",
	} {
		got, err := advertised(want, bound)
		require.NoError(t, err)
		assert.Equal(t, have, got, fmt.Sprintf("%q", want))
	}
}
