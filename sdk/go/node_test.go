package kvxfer

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/config"
	"github.com/kvxfer/kvxfer/internal/node"
)

// patience bounds the waits of tests, which end as soon as their condition holds.
const patience = 30 * time.Second

// serveVariable makes this test program a daemon with the arguments that it names, one a line: a process that can be killed.
const serveVariable = "KVXFER_TEST_SERVE"

func TestMain(m *testing.M) {
	if args := os.Getenv(serveVariable); args != "" {
		serve(strings.Split(args, "\n"))
		return
	}
	goleak.VerifyTestMain(m)
}

func serve(args []string) {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	cfg, err := config.Load(args, nil)
	if err == nil {
		var n *node.Node
		if n, err = node.Start(ctx, *cfg, slog.New(slog.DiscardHandler)); err == nil {
			<-ctx.Done()
			n.Close(context.Background())
			return
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// daemon is a node of its own, inside this process.
type daemon struct {
	*node.Node
	args []string
}

// nodeArguments are those of a node with everything below directories of its own.
func nodeArguments(t testing.TB, name string, more ...string) []string {
	sockets, err := os.MkdirTemp("", "kvx") // the path of a socket is short
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(sockets) })
	return append([]string{"--node", name, "--state-dir", filepath.Join(t.TempDir(), "state"), "--socket", filepath.Join(sockets, "s"),
		"--listen", "127.0.0.1:0", "--http", "off", "--drain-timeout", "1s"}, more...)
}

func startArguments(t testing.TB, args []string) *daemon {
	cfg, err := config.Load(args, nil)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	n, err := node.Start(ctx, *cfg, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(func() { n.Close(context.Background()) })
	return &daemon{n, args}
}

func startNode(t testing.TB, name string, more ...string) *daemon {
	return startArguments(t, nodeArguments(t, name, more...))
}

// startPair starts two nodes with one registry.
func startPair(t testing.TB, more ...string) (*daemon, *daemon) {
	a := startNode(t, "n0", append(more, "--nats-listen", "127.0.0.1:0")...)
	b := startNode(t, "n1", append(more, "--nats", a.Info().NATSURL)...)
	return a, b
}

// process is a node in a process of its own.
type process struct {
	cmd    *exec.Cmd
	socket string
}

func startProcess(t testing.TB, args []string) *process {
	p := &process{cmd: exec.Command(os.Args[0]), socket: args[5]}
	p.cmd.Env = append(os.Environ(), serveVariable+"="+strings.Join(args, "\n"))
	p.cmd.Stderr = os.Stderr
	require.NoError(t, p.cmd.Start())
	t.Cleanup(p.kill)
	require.Eventually(t, func() bool {
		c, err := Dial(t.Context(), p.socket, WithLogger(slog.New(slog.DiscardHandler)))
		if err != nil {
			return false
		}
		return c.Close() == nil
	}, patience, 10*time.Millisecond)
	return p
}

// kill ends the process as kill -9 does; a second call does nothing.
func (p *process) kill() {
	if p.cmd.ProcessState == nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	}
}

func dial(t testing.TB, socket string, o ...Option) *Client {
	c, err := Dial(t.Context(), socket, append([]Option{WithLogger(slog.New(slog.DiscardHandler))}, o...)...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

var testLayout = Layout{Layers: 3, KVHeads: 2, HeadDim: 8, DType: "float32", BlockTokens: 4}

func allocate(t testing.TB, c *Client, name string, blocks int) *Cache {
	cache, err := c.AllocateCache(t.Context(), CacheSpec{Name: name, Model: "m", Layout: testLayout, NumBlocks: blocks})
	require.NoError(t, err)
	return cache
}

// pieces are the bytes of a block in one layer, K and V.
func pieces(c *Cache, layer, block int) [][]byte {
	l := c.Layout()
	size := l.PlaneBlockBytes()
	var out [][]byte
	for plane := range l.Planes() {
		at := ((layer*l.Planes()+plane)*c.NumBlocks() + block) * size
		out = append(out, c.Memory()[at:at+size])
	}
	return out
}

// fill writes a pattern that names block, layer and plane.
func fill(c *Cache, salt byte, blocks ...int) {
	for layer := range c.Layout().Layers {
		for _, b := range blocks {
			for plane, p := range pieces(c, layer, b) {
				for i := range p {
					p[i] = salt + byte(3*b+5*layer+7*plane+i)
				}
			}
		}
	}
}

// requireSame compares blocks of two caches byte by byte.
func requireSame(t testing.TB, a *Cache, as []int, b *Cache, bs []int) {
	t.Helper()
	for layer := range a.Layout().Layers {
		for i := range as {
			require.Equal(t, pieces(a, layer, as[i]), pieces(b, layer, bs[i]), "layer %d, position %d", layer, i)
		}
	}
}
