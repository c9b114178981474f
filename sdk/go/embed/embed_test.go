package embed_test

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	kvxfer "github.com/kvxfer/kvxfer/sdk/go"
	"github.com/kvxfer/kvxfer/sdk/go/embed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var quiet = slog.New(slog.DiscardHandler)

// start fills in what every test wants: silence, and an end.
func start(t testing.TB, cfg embed.Config) *embed.Node {
	t.Helper()
	cfg.Logger = quiet
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	n, err := embed.Start(ctx, cfg)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, n.Close(context.Background())) })
	return n
}

// refused starts what must not start.
func refused(t *testing.T, cfg embed.Config) error {
	t.Helper()
	cfg.Logger = quiet
	n, err := embed.Start(t.Context(), cfg)
	require.Nil(t, n)
	require.Error(t, err)
	return err
}

// ownTemp makes this test's directories its own, so that what is left behind is seen.
func ownTemp(t *testing.T) string {
	dir, err := os.MkdirTemp("", "kvx") // short, since sockets lie in it
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
	t.Setenv("TMPDIR", dir)
	return dir
}

func openFDs(t *testing.T) int {
	found, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(found)
}

var layout = kvxfer.Layout{Layers: 3, KVHeads: 2, HeadDim: 8, DType: "bfloat16", BlockTokens: 4}

func cacheOf(t *testing.T, n *embed.Node, name string) *kvxfer.Cache {
	t.Helper()
	c, err := n.Client().AllocateCache(t.Context(), kvxfer.CacheSpec{Name: name, Model: "m", Layout: layout, NumBlocks: 16})
	require.NoError(t, err)
	return c
}

// pushed moves blocks and checks every byte of them.
func pushed(t *testing.T, from, to *kvxfer.Cache, source, target []uint32) kvxfer.TransferResult {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, _ = rand.Read(from.Memory())
	lease, err := to.Lease(ctx, target, kvxfer.LeaseOptions{})
	require.NoError(t, err)
	push, err := from.Write(ctx, source, lease.Ticket())
	require.NoError(t, err)
	result, err := push.Wait(ctx)
	require.NoError(t, err)
	_, err = lease.Wait(ctx)
	require.NoError(t, err)
	for l := range layout.Layers {
		a, err := kvxfer.Layer[uint16](from, l)
		require.NoError(t, err)
		b, err := kvxfer.Layer[uint16](to, l)
		require.NoError(t, err)
		for i := range source {
			for _, plane := range []int{kvxfer.PlaneK, kvxfer.PlaneV} {
				require.Equal(t, a.Block(plane, int(source[i])), b.Block(plane, int(target[i])))
			}
		}
	}
	return result
}

func TestTwoNodesInOneProgram(t *testing.T) {
	for _, provider := range []string{"shm", "tcp"} {
		t.Run(provider, func(t *testing.T) {
			traces := filepath.Join(t.TempDir(), "traces")
			a := start(t, embed.Config{Node: "a", Providers: []string{provider}, TraceFile: traces, NATSListen: "127.0.0.1:0"})
			b := start(t, embed.Config{Node: "b", Providers: []string{provider}, NATS: a.Info().NATSURL})
			ca, cb := cacheOf(t, a, "prefill"), cacheOf(t, b, "decode")
			result := pushed(t, ca, cb, []uint32{3, 4, 9}, []uint32{15, 0, 1})
			assert.Equal(t, []string{provider, "b"}, []string{result.Provider, result.Peer})
			pushed(t, cb, ca, []uint32{2}, []uint32{7})

			// One more after the other node's end fails in a way that a caller can tell.
			lease, err := cb.Lease(t.Context(), []int{5}, kvxfer.LeaseOptions{})
			require.NoError(t, err)
			require.NoError(t, b.Close(t.Context()))
			_, err = lease.Wait(t.Context())
			var te *kvxfer.TransferError
			require.ErrorAs(t, err, &te)
			push, err := ca.Write(t.Context(), []int{1}, lease.Ticket())
			if err == nil {
				_, err = push.Wait(t.Context())
			}
			require.ErrorAs(t, err, &te)
			assert.False(t, te.MayHaveWritten, "%v", te)

			require.NoError(t, a.Close(t.Context()))
			raw, err := os.ReadFile(traces)
			require.NoError(t, err)
			assert.Contains(t, string(raw), "kvxfer.write", "the client's last spans are exported")
		})
	}
}

func TestStartsAndStops(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	temp, fds := ownTemp(t), openFDs(t)
	n := start(t, embed.Config{Node: "n0", StateDir: state, HTTP: "127.0.0.1:0", AllowTenants: []embed.AllowedTenant{{Name: "other"}}})
	i := n.Info()
	assert.Equal(t, "n0", i.Node)
	assert.Equal(t, i.Epoch, n.Client().Epoch())
	for _, addr := range []string{i.PeerAddr, i.HTTPAddr} {
		c, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		require.NoError(t, c.Close())
	}
	other, err := n.Dial(t.Context(), kvxfer.WithTenant("other"))
	require.NoError(t, err)
	assert.Equal(t, "other", other.Tenant())
	require.NoError(t, other.Close())

	// Memory that the program adopted is its own again after Close.
	pages, err := unix.Mmap(-1, 0, 1<<16, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Munmap(pages)) }()
	_, err = n.Client().RegisterRegion(t.Context(), "mine", pages)
	require.NoError(t, err)
	select {
	case err := <-n.Failed():
		t.Fatal(err)
	default:
	}
	require.NoError(t, n.Close(t.Context()))
	require.NoError(t, n.Close(t.Context()))
	pages[0] = 1

	again := start(t, embed.Config{Node: "n0", StateDir: state})
	assert.NotEqual(t, i.Epoch, again.Info().Epoch)
	_, err = again.Client().RegisterRegion(t.Context(), "mine", pages)
	require.NoError(t, err)
	require.NoError(t, again.Close(t.Context()))

	left, err := os.ReadDir(temp)
	require.NoError(t, err)
	assert.Empty(t, left)
	assert.Equal(t, fds, openFDs(t))
}

func TestFailedStartLeavesNothing(t *testing.T) {
	temp, fds := ownTemp(t), openFDs(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	err = refused(t, embed.Config{Node: "n0", Listen: l.Addr().String()})
	require.NoError(t, l.Close())
	require.ErrorIs(t, err, kvxfer.ErrConfigInvalid)
	var e *kvxfer.Error
	require.ErrorAs(t, err, &e)
	assert.Equal(t, "listen", e.Field)

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = embed.Start(ended, embed.Config{Node: "n0", Logger: quiet})
	require.Error(t, err)

	left, err := os.ReadDir(temp)
	require.NoError(t, err)
	assert.Empty(t, left)
	assert.Equal(t, fds, openFDs(t))
}

func TestWrongFieldsAreNamed(t *testing.T) {
	temp := ownTemp(t)
	err := refused(t, embed.Config{Node: "a b", Lanes: 65, Heartbeat: -time.Second, Providers: []string{"rdma"}})
	require.ErrorIs(t, err, kvxfer.ErrConfigInvalid)
	for _, text := range []string{`field="node"`, `field="lanes"`, "allowed: 1 to 64", `field="heartbeat"`, `field="providers"`, "from the program"} {
		assert.ErrorContains(t, err, text)
	}
	var e *kvxfer.Error
	require.ErrorAs(t, err, &e)
	assert.Equal(t, []string{"ConfigInvalid", "configuration", "node"}, []string{e.Code, e.Op, e.Field})
	var all interface{ Unwrap() []error }
	require.True(t, errors.As(err, &all))
	left, err := os.ReadDir(temp)
	require.NoError(t, err)
	assert.Empty(t, left)
}

func TestEnvironmentIsNotRead(t *testing.T) {
	t.Setenv("KVXFER_LANES", "none")
	t.Setenv("KVXFER_CONFIG", "/nowhere")
	t.Setenv("KVXFER_SOCKET", "/nowhere/s")
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "no URL")
	t.Setenv("OTEL_TRACES_SAMPLER", "always_off")
	n := start(t, embed.Config{Node: "n0"})
	_, span := n.Client().Span(t.Context(), "step")
	assert.True(t, span.Sampled())
	span.End(nil)
	require.NoError(t, n.Close(t.Context()))

	err := refused(t, embed.Config{Node: "n0", OTelEnvironment: true})
	var e *kvxfer.Error
	require.ErrorAs(t, err, &e)
	assert.Equal(t, "OTEL_EXPORTER_OTLP_ENDPOINT", e.Field)
}
