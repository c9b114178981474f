package embedded_test

import (
	"bytes"
	"context"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/registry/embedded"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func start(t *testing.T, o embedded.Options) *embedded.Server {
	t.Helper()
	if o.StoreDir == "" {
		o.StoreDir = filepath.Join(t.TempDir(), "nats")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s, err := embedded.Start(o)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		require.NoError(t, s.Shutdown(ctx))
		require.NoError(t, s.Shutdown(ctx), "twice")
	})
	return s
}

func TestInProcessOnly(t *testing.T) {
	s := start(t, embedded.Options{ServerName: "inner"})
	assert.Empty(t, s.ClientURL())
	nc, err := s.Connect(nats.Name("test"))
	require.NoError(t, err)
	defer nc.Close()
	assert.Equal(t, "inner", nc.ConnectedServerName())
	require.NoError(t, nc.FlushTimeout(time.Minute))
	_, err = net.DialTimeout("tcp", nats.DefaultURL[len("nats://"):], time.Second)
	assert.Error(t, err, "the server's default port stays closed")
}

func TestListen(t *testing.T) {
	for _, listen := range []string{"127.0.0.1:0", "localhost:0", "[::1]:0"} {
		if listen == "[::1]:0" {
			l, err := net.Listen("tcp", listen)
			if err != nil {
				continue // no IPv6 on this host
			}
			require.NoError(t, l.Close())
		}
		s := start(t, embedded.Options{Listen: listen})
		nc, err := nats.Connect(s.ClientURL())
		require.NoError(t, err, s.ClientURL())
		nc.Close()
	}
}

func TestPortTaken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	var log logText
	_, err = embedded.Start(embedded.Options{StoreDir: t.TempDir(), Listen: l.Addr().String(), Logger: slog.New(slog.NewTextHandler(&log, nil))})
	require.ErrorIs(t, err, fault.ErrRegistryUnavailable)
	assert.ErrorContains(t, err, "address already in use")
	assert.Contains(t, log.String(), "registry server failed")
	assert.NotContains(t, log.String(), "level=INFO")
}

func TestStoreDirUnusable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err := embedded.Start(embedded.Options{StoreDir: filepath.Join(file, "nats")})
	require.ErrorIs(t, err, fault.ErrRegistryUnavailable)
}

func TestBadOptions(t *testing.T) {
	for field, o := range map[string]embedded.Options{
		"store_dir": {StoreDir: "relative"},
		"listen":    {StoreDir: t.TempDir(), Listen: ":4222"},
	} {
		_, err := embedded.Start(o)
		require.ErrorIs(t, err, fault.ErrInvalidArgument)
		assert.Equal(t, field, fault.From("", err).Field)
	}
}

// logText is a log that may be read while the server goes on writing.
type logText struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestOpenListenerIsWarnedOf(t *testing.T) {
	var log logText
	start(t, embedded.Options{Listen: "0.0.0.0:0", Logger: slog.New(slog.NewTextHandler(&log, nil))})
	assert.Contains(t, log.String(), "without credentials")
}

func TestStoreDirIsPrivateAndStaysSmall(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state", "nats")
	start(t, embedded.Options{StoreDir: dir})
	st, err := os.Stat(dir)
	require.NoError(t, err)
	assert.Equal(t, fs.FileMode(0o700), st.Mode().Perm())
	var total int64
	require.NoError(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		i, err := e.Info()
		if err == nil {
			total += i.Size()
		}
		return err
	}))
	assert.Less(t, total, int64(64<<10))
}

func TestShutdownIsBounded(t *testing.T) {
	s := start(t, embedded.Options{})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Shutdown(ctx); err != nil { // it may have been quick enough
		require.ErrorIs(t, err, fault.ErrCancelled)
	}
}
