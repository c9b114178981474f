package node

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/peerlink"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/tcp"
	"github.com/kvxfer/kvxfer/xfer"
)

// withVerbs makes a node's provider for RDMA another way.
func withVerbs(m maker) Option {
	return func(n *Node) {
		n.makers = maps.Clone(n.makers)
		n.makers["verbs"] = m
	}
}

// noVerbs is the maker on a host without RDMA.
func noVerbs(err error) Option {
	return withVerbs(func(*Node, rdma.Clock) (made, error) { return made{}, err })
}

// fakeVerbs is the TCP provider under another name, with a prefix of its own at the peers' port.
type fakeVerbs struct {
	*tcp.Provider
	prefixes chan string
}

func (fakeVerbs) Name() string { return "verbs" }

func (f fakeVerbs) serve(conn net.Conn, prefix []byte) error {
	f.prefixes <- string(prefix)
	return conn.Close()
}

func (f fakeVerbs) make(*Node, rdma.Clock) (_ made, err error) {
	f.Provider, err = tcp.New(tcp.Options{Clock: xfer.NewClock()})
	return made{f, "KVXV", peerlink.LaneFunc(f.serve)}, err
}

type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func startWith(t *testing.T, args []string, log *slog.Logger, options ...Option) (*Node, error) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	return Start(ctx, testConfig(t, "n0", filepath.Join(t.TempDir(), "state"), args...), log, options...)
}

var errNoDevice = fault.New(fault.NotSupported, "verbs", "no RDMA device")

// TestUnusableProviderIsLeftOut: a host without RDMA costs one line in the log, and the status says it.
func TestUnusableProviderIsLeftOut(t *testing.T) {
	for name, c := range map[string]struct {
		args  []string
		err   error
		level string
	}{
		"no device":               {nil, errNoDevice, "INFO"},
		"the one that was chosen": {[]string{"--rdma-devices", "mlx5_7"}, errNoDevice, "WARN"},
		"may not be opened":       {nil, fault.New(fault.PermissionDenied, "verbs", "/dev/infiniband/uverbs0"), "WARN"},
	} {
		t.Run(name, func(t *testing.T) {
			log := new(buffer)
			n, err := startWith(t, c.args, slog.New(slog.NewJSONHandler(log, nil)), noVerbs(c.err))
			require.NoError(t, err)
			defer n.Close(context.Background())
			want := []wire.Absence{{Provider: "verbs", Why: fault.From("", c.err).Detail}}
			assert.Equal(t, []string{"shm", "tcp"}, n.status().Providers)
			assert.Equal(t, want, n.status().Absent)
			_, body := get(t, "http://"+n.Info().HTTPAddr+"/status")
			var said wire.Status
			require.NoError(t, json.Unmarshal([]byte(body), &said))
			assert.Equal(t, want, said.Absent)
			var lines []string
			log.mu.Lock()
			for line := range bytes.Lines(log.b.Bytes()) {
				var l struct{ Level, Msg, Provider, Reason string }
				require.NoError(t, json.Unmarshal(line, &l))
				if l.Msg == "provider left out" {
					lines = append(lines, l.Level+" "+l.Provider+" "+l.Reason)
				}
			}
			log.mu.Unlock()
			assert.Equal(t, []string{c.level + " verbs " + want[0].Why}, lines)
		})
	}
}

// TestNamedProviderMustWork: who names a provider gets it, or no daemon.
func TestNamedProviderMustWork(t *testing.T) {
	_, err := startWith(t, []string{"--providers", "verbs,tcp"}, slog.New(slog.DiscardHandler), noVerbs(errNoDevice))
	require.ErrorIs(t, err, fault.ErrConfigInvalid)
	assert.Equal(t, "providers", fault.From("", err).Field)
	assert.ErrorContains(t, err, "verbs is named and cannot be used: no RDMA device")

	n, err := startWith(t, []string{"--providers", "tcp"}, slog.New(slog.DiscardHandler), noVerbs(errNoDevice))
	require.NoError(t, err)
	defer n.Close(context.Background())
	assert.Empty(t, n.status().Absent, "who leaves it out lacks nothing")
}

// TestWrongOptionEndsTheStart: what is wrong with a setting is no lack of the host.
func TestWrongOptionEndsTheStart(t *testing.T) {
	_, err := startWith(t, nil, slog.New(slog.DiscardHandler), noVerbs(fault.Invalid("verbs", "Timeout", "0")))
	require.ErrorIs(t, err, fault.ErrInvalidArgument)
}

// TestProviderThatOnePeerLacks: the reason of a link says which node lacks what the other would have taken, and why.
func TestProviderThatOnePeerLacks(t *testing.T) {
	lacks, err := startWith(t, []string{"--nats-listen", "127.0.0.1:0"}, slog.New(slog.DiscardHandler), noVerbs(errNoDevice))
	require.NoError(t, err)
	defer lacks.Close(context.Background())
	f := fakeVerbs{prefixes: make(chan string, 8)}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	has, err := Start(ctx, testConfig(t, "n1", filepath.Join(t.TempDir(), "state"), "--nats", lacks.Info().NATSURL, "--providers", "verbs,tcp"),
		slog.New(slog.DiscardHandler), withVerbs(f.make))
	require.NoError(t, err)
	defer has.Close(context.Background())
	assert.Equal(t, []string{"verbs", "tcp"}, has.status().Providers)

	to := func(n *Node) xfer.PeerRef {
		return xfer.PeerRef{Node: n.info.Node, Epoch: n.info.Epoch, Addr: n.info.PeerAddr, Tenant: "default"}
	}
	link, err := lacks.links.Dial(t.Context(), to(has))
	require.NoError(t, err)
	name, reason := link.Provider()
	assert.Equal(t, []string{"tcp", "tcp: the only provider both nodes have; the accepting node has no shm; the dialing node has no verbs (no RDMA device)"}, []string{name, reason})
	link, err = has.links.Dial(t.Context(), to(lacks))
	require.NoError(t, err)
	_, reason = link.Provider()
	assert.Equal(t, "tcp: the only provider both nodes have; the accepting node has no verbs (no RDMA device)", reason)

	conn, err := net.Dial("tcp", has.info.PeerAddr)
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	_, err = conn.Write([]byte("KVXV"))
	require.NoError(t, err)
	assert.Equal(t, "KVXV", <-f.prefixes, "its connections come to it")
}
