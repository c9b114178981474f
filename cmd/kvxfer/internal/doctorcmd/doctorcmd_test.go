package doctorcmd

import (
	"bytes"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/kvxfer/kvxfer/internal/doctor"
	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/node"
	"github.com/kvxfer/kvxfer/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bare takes the settings out of the environment and gives the commands a place of their own.
func bare(t *testing.T) (dir string) {
	for _, kv := range os.Environ() {
		if name, _, _ := strings.Cut(kv, "="); strings.HasPrefix(name, "KVXFER_") {
			t.Setenv(name, "")
			require.NoError(t, os.Unsetenv(name))
		}
	}
	dir, err := os.MkdirTemp("", "kvx")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	t.Setenv("KVXFER_STATE_DIR", filepath.Join(dir, "state"))
	t.Setenv("KVXFER_SOCKET", filepath.Join(dir, "s"))
	t.Setenv("KVXFER_LISTEN", "127.0.0.1:0")
	t.Setenv("KVXFER_HTTP", "127.0.0.1:0")
	t.Setenv("KVXFER_NODE", "n0")
	return dir
}

func run(args ...string) (code int, stdout, stderr string) {
	var out, err bytes.Buffer
	code = Run(args, &out, &err)
	return code, out.String(), err.String()
}

func TestHostWithoutADaemon(t *testing.T) {
	bare(t)
	code, out, _ := run("--json")
	require.Zero(t, code, out)
	var r Report
	require.NoError(t, json.Unmarshal([]byte(out), &r))
	var ids []string
	for _, c := range r.Checks {
		if !strings.HasPrefix(c.ID, "port-") { // as many as this host has
			ids = append(ids, c.ID)
		}
	}
	assert.Equal(t, append(append([]string(nil), doctor.IDs...), "provider-shm", "provider-verbs", "provider-tcp"), ids)
	assert.Equal(t, doctor.Warn, r.Verdict, "there is no daemon")
	code, text, _ := run()
	require.Zero(t, code)
	for _, id := range ids {
		assert.Contains(t, text, " "+id+" ")
	}
	t.Setenv("KVXFER_PROVIDERS", "tcp")
	t.Setenv("KVXFER_LANES", "1000")
	code, text, _ = run()
	assert.Equal(t, 1, code)
	assert.Contains(t, text, "lanes")
	code, _, errs := run("--peer", "n1", "--json")
	assert.Equal(t, 1, code)
	assert.Contains(t, errs, "DaemonUnavailable")
	for _, args := range [][]string{{"x"}, {"--provider", "tcp"}, {"--peer", ""}, {"--peer", "x", "--timeout", "11s"}, {"--peer", "x", "--timeout", "0s"}, {"--what"}} {
		code, _, _ = run(args...)
		assert.Equal(t, 2, code, args)
	}
	code, text, _ = run("--help")
	assert.Zero(t, code)
	assert.Equal(t, help, text)
}

// TestVerdictsOfProviders: a host that cannot use an optional provider is as it may be, unless the provider is wanted; what the running
// daemon does without it is a warning, though this process can use it.
func TestVerdictsOfProviders(t *testing.T) {
	verbs := func(err error) *node.ProviderCheck {
		return &node.ProviderCheck{Provider: "verbs", Optional: true, Bytes: 1, Err: err}
	}
	none, closed := fault.New(fault.NotSupported, "verbs", "no RDMA device"), fault.New(fault.PermissionDenied, "verbs", "/dev/infiniband/uverbs0")
	for _, c := range []struct {
		check   *node.ProviderCheck
		named   bool
		st      wire.Status
		want    doctor.Verdict
		finding string
	}{
		{verbs(none), false, wire.Status{}, doctor.OK, "left out on this host: kvxfer: verbs: NotSupported: no RDMA device"},
		{verbs(none), true, wire.Status{}, doctor.Fail, "no RDMA device"},
		{verbs(closed), false, wire.Status{}, doctor.Warn, "uverbs0"},
		{verbs(closed), true, wire.Status{}, doctor.Fail, "uverbs0"},
		{&node.ProviderCheck{Provider: "tcp", Err: none}, false, wire.Status{}, doctor.Fail, "NotSupported"},
		{verbs(nil), false, wire.Status{}, doctor.OK, "1 B written in 0s, read in 0s, inside this process"},
		{verbs(nil), false, wire.Status{Absent: []wire.Absence{{Provider: "verbs", Why: "no RDMA device"}}}, doctor.Warn, "the daemon runs without it: no RDMA device"},
		{verbs(nil), false, wire.Status{Unregistered: []wire.Unregistered{{Provider: "verbs", Regions: 2, Why: "RLIMIT_MEMLOCK"}}}, doctor.Warn, "2 regions of clients without it: RLIMIT_MEMLOCK"},
		{verbs(nil), false, wire.Status{Unregistered: []wire.Unregistered{{Provider: "tcp", Regions: 2}}}, doctor.OK, "inside this process"},
	} {
		got := judgeProvider(c.check, c.named, &c.st)
		assert.Equal(t, c.want, got.Verdict, c.finding)
		assert.Contains(t, got.Finding, c.finding)
		assert.Equal(t, c.want == doctor.OK, got.Remedy == "", c.finding)
	}
}

func TestVerdictsOfSteps(t *testing.T) {
	for _, c := range []struct {
		provider string
		code     fault.Code
		want     doctor.Verdict
		remedy   string
	}{
		{"shm", fault.PeerUnreachable, doctor.Warn, "two hosts"},
		{"tcp", fault.PeerUnreachable, doctor.Fail, "from a to b"},
		{"verbs", fault.PeerUnreachable, doctor.Fail, "4791"},
		{"tcp", fault.DeadlineExceeded, doctor.Fail, "MTU"},
		{"tcp", fault.PermissionDenied, doctor.Fail, "--tls-ca"},
		{"tcp", fault.Internal, doctor.Fail, "Internal in docs/errors.md"},
		{"shm", fault.NotSupported, doctor.Warn, "--providers"},
		{"tcp", fault.StaleEpoch, doctor.Fail, "again"},
		{"tcp", fault.Draining, doctor.Fail, "again"},
		{"tcp", fault.VersionMismatch, doctor.Fail, "upgrade"},
		{"tcp", fault.ResourceExhausted, doctor.Fail, "again"},
	} {
		v, remedy := verdict(c.provider, "a", "b", fault.ToWire(&fault.Error{Code: c.code}))
		assert.Equal(t, c.want, v, c.code)
		assert.Contains(t, remedy, c.remedy)
	}
	v, remedy := verdict("tcp", "a", "b", nil)
	assert.Equal(t, doctor.OK, v)
	assert.Empty(t, remedy)
}

// answering is a daemon that answers from the given table, each request by its kind and, of a probe, its provider.
func answering(t *testing.T, st wire.Status, probes map[string]any) string {
	path := filepath.Join(bare(t), "s")
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	done := make(chan struct{})
	t.Cleanup(func() { _ = l.Close(); <-done })
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			for {
				q, err := wire.ReadFrame(c, wire.LocalLimits)
				if err != nil {
					break
				}
				kind, body := wire.KindOK, any(nil)
				switch q.Kind {
				case wire.KindHello:
					kind, body = wire.KindHelloOK, &wire.Hello{Node: "a", Version: 1}
				case wire.KindStatus:
					body = &st
				case wire.KindProbe:
					var p wire.Probe
					if q.Decode(&p) == nil && p.Validate() == nil {
						body = probes[p.Provider]
					}
				}
				f, err := wire.NewFrame(kind, q.Request, body, nil)
				if fe, is := body.(*fault.Error); is {
					f, err = wire.NewError(q.Request, fe), nil
				}
				if err == nil {
					_, _ = c.Write(wire.Append(nil, f))
				}
			}
			_ = c.Close()
		}
	}()
	return path
}

func steps(errs [4]*fault.Error) []wire.ProbeStep {
	out := make([]wire.ProbeStep, 4)
	for i := range out {
		out[i] = wire.ProbeStep{Op: []string{"write", "read"}[i%2], From: []string{"a", "b"}[i/2], ByPeer: i >= 2, Bytes: ProbeBytes, Nanos: int64(time.Millisecond), Reason: "best"}
		if errs[i] != nil {
			out[i].Error = fault.ToWire(errs[i])
		}
	}
	return out
}

func TestPeerReport(t *testing.T) {
	blocked := &fault.Error{Code: fault.PeerUnreachable, Op: "dial", Peer: "a", Detail: "refused\x1b[2J"}
	info := func(errs [4]*fault.Error) *wire.ProbeInfo {
		return &wire.ProbeInfo{Node: "b", Addr: "10.0.0.2:7420", Providers: []string{"tcp", "verbs"}, Steps: steps(errs)}
	}
	path := answering(t, wire.Status{Node: "a", Providers: []string{"shm", "tcp"}, Nodes: []string{"a", "b"}},
		map[string]any{"shm": info([4]*fault.Error{}), "tcp": info([4]*fault.Error{2: blocked, 3: blocked}), "none": fault.New(fault.NotFound, "probe", "no node")})
	code, out, _ := run("--peer", "b", "--socket", path, "--json")
	assert.Equal(t, 1, code)
	var r PeerReport
	require.NoError(t, json.Unmarshal([]byte(out), &r))
	assert.Equal(t, doctor.Fail, r.Verdict)
	require.Len(t, r.Providers, 3)
	shm, tcp, verbs := r.Providers[0], r.Providers[1], r.Providers[2]
	assert.Equal(t, PeerProvider{Provider: "shm", Verdict: doctor.Warn, Here: true, Remedy: shm.Remedy}, shm)
	assert.Contains(t, shm.Remedy, "node b has no shm")
	assert.Equal(t, PeerProvider{Provider: "verbs", Verdict: doctor.Warn, There: true, Remedy: verbs.Remedy}, verbs)
	assert.Contains(t, verbs.Remedy, "node a has no verbs")
	assert.Equal(t, PeerStep{From: "b", To: "a", BegunBy: "a", Op: "read", Verdict: doctor.OK, Bytes: ProbeBytes, Nanos: 1e6, Reason: "best"}, tcp.Steps[1])
	last := tcp.Steps[3]
	assert.Equal(t, []string{"a", "b", "b", "read", "fail"}, []string{last.From, last.To, last.BegunBy, last.Op, string(last.Verdict)})
	assert.Contains(t, last.Remedy, "from b to a")

	code, text, _ := run("--peer", "b", "--socket", path)
	assert.Equal(t, 1, code)
	assert.Equal(t, 2, strings.Count(text, "\nok "))
	assert.Equal(t, 2, strings.Count(text, "\nfail"))
	assert.Contains(t, text, "write by b: ")
	assert.NotContains(t, text, "\x1b")
	code, _, errs := run("--peer", "b", "--socket", path, "--provider", "none")
	assert.Equal(t, 1, code)
	assert.Contains(t, errs, "it knows a, b")
	code, text, _ = run("--peer", "b", "--socket", path, "--provider", "shm")
	assert.Equal(t, 1, code, "one that was asked for by name, and moved nothing")
	assert.Contains(t, text, "node b has no shm")
}

func TestPeerReportTellsOfWays(t *testing.T) {
	way := wire.ProbeWay{Local: "mlx5_0:1", Peer: "rxe0:1", LocalAddr: "10.0.0.1", PeerAddr: "10.0.0.2", MTU: 4096, Shared: true, Why: "both in 10.0.0.0/24\x1b[2J"}
	bare := wire.ProbeWay{Local: "a:1", Peer: "b:1"}
	path := answering(t, wire.Status{Node: "a", Providers: []string{"verbs"}, Nodes: []string{"a", "b"}}, map[string]any{"verbs": &wire.ProbeInfo{Node: "b", Addr: "10.0.0.2:7420",
		Providers: []string{"verbs"}, Steps: steps([4]*fault.Error{}), Ways: []wire.ProbeWay{way, bare}, Unused: []string{"mlx5_1:1: no route"}}})
	code, out, _ := run("--peer", "b", "--socket", path, "--json")
	require.Zero(t, code)
	var r PeerReport
	require.NoError(t, json.Unmarshal([]byte(out), &r))
	assert.Equal(t, []PeerWay{PeerWay(way), PeerWay(bare)}, r.Providers[0].Ways)
	assert.Equal(t, []string{"mlx5_1:1: no route"}, r.Providers[0].Unused)
	code, text, _ := run("--peer", "b", "--socket", path)
	require.Zero(t, code)
	assert.Contains(t, text, "\n      mlx5_0:1 (10.0.0.1) with rxe0:1 (10.0.0.2), MTU 4096, shared: both in 10.0.0.0/24?[2J\n")
	assert.Contains(t, text, "\n      a:1 () with b:1 (), MTU not known: \n      not used: mlx5_1:1: no route\n")
}
