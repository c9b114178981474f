package nodecmd

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/testseed"
	"github.com/kvxfer/kvxfer/internal/wire"
)

var update = flag.Bool("update", false, "rewrite the golden outputs")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	epoch    = "00112233445566778899aabbccddeeff"
	lease1   = "1e000000000000000000000000000001"
	transfer = "7f000000000000000000000000000002"
	ended    = "8a000000000000000000000000000003"
	ranked   = "8b000000000000000000000000000004"
	trace    = "4bf92f3577b34da6a3ce929d0e0e4736"
)

// fakeDaemon answers from rows that a test fixes.
type fakeDaemon struct {
	path string

	mu      sync.Mutex
	asked   []wire.Inspect
	drains  []wire.Drain
	hellos  []wire.Hello
	page    int // rows in an answer; 0: all
	stale   bool
	numa    *int
	left    []wire.DrainInfo // answers to DRAIN, one after another; the last one for ever
	refusal error
	rows    map[string][]json.RawMessage
	level   string
}

func serve(t *testing.T) *fakeDaemon {
	dir, err := os.MkdirTemp("", "kvx") // short: a socket's path is
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	d := &fakeDaemon{path: filepath.Join(dir, "s"), level: "info", rows: map[string][]json.RawMessage{}}
	ln, err := net.Listen("unix", d.path)
	require.NoError(t, err)
	var wg sync.WaitGroup
	t.Cleanup(func() { _ = ln.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			for {
				f, err := wire.ReadFrame(c, wire.LocalLimits)
				if err != nil {
					break
				}
				_, _ = c.Write(wire.Append(nil, d.answer(f)))
			}
			_ = c.Close()
		}
	})
	return d
}

func (d *fakeDaemon) answer(f wire.Frame) wire.Frame {
	d.mu.Lock()
	defer d.mu.Unlock()
	body, array, err := d.call(&f)
	kind := wire.KindOK
	if f.Kind == wire.KindHello {
		kind = wire.KindHelloOK
	}
	if err == nil {
		f, err = wire.NewFrame(kind, f.Request, body, array)
	}
	if err != nil {
		return wire.NewError(f.Request, err)
	}
	return f
}

func (d *fakeDaemon) call(f *wire.Frame) (body any, array []byte, err error) {
	switch f.Kind {
	case wire.KindHello:
		var h wire.Hello
		err = f.Decode(&h)
		d.hellos = append(d.hellos, h)
		return &wire.Hello{Version: 1, Node: "prefill-0", Epoch: epoch}, nil, err
	case wire.KindDrain:
		var q wire.Drain
		err = f.Decode(&q)
		d.drains = append(d.drains, q)
		i := min(len(d.drains), len(d.left)) - 1
		return &d.left[i], nil, err
	case wire.KindLogLevel:
		var q wire.LogLevel
		err = f.Decode(&q)
		was := d.level
		if q.Level != "" {
			d.level = q.Level
		}
		return &wire.LogLevelInfo{Level: d.level, Was: was}, nil, err
	}
	var q wire.Inspect
	if err := f.Decode(&q); err != nil {
		return nil, nil, err
	}
	d.asked = append(d.asked, q)
	if d.refusal != nil {
		return nil, nil, d.refusal
	}
	from := 0
	if q.After != "" {
		_, _ = fmt.Sscan(q.After, &from)
	}
	all := d.rows[q.What]
	to := min(len(all), from+int(q.Limit))
	if d.page > 0 {
		to = min(to, from+d.page)
	}
	info := wire.InspectInfo{Stale: d.stale}
	if to < len(all) {
		info.Next = fmt.Sprint(to)
	}
	if q.What == wire.InspectBlocks && from == 0 {
		info.Counts = &wire.BlockCounts{Total: 728, Free: 660, Leased: 3, Committed: 64, Revoking: 1, Held: 2}
	}
	array, err = wire.PackRows(all[from:to])
	return &info, array, err
}

func set[T any](t *testing.T, d *fakeDaemon, what string, rows ...T) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.rows[what] = nil
	for _, r := range rows {
		raw, err := json.Marshal(r)
		require.NoError(t, err)
		d.rows[what] = append(d.rows[what], raw)
	}
}

// fill gives a daemon one of everything that is shown in a way of its own.
func fill(t *testing.T, d *fakeDaemon) {
	set(t, d, wire.InspectNodes,
		wire.NodeRow{Node: "decode-0", Epoch: epoch, PeerAddr: "10.0.0.2:7420", Version: "0.1.0", MinProtocol: 1, MaxProtocol: 1, Providers: []string{"shm", "tcp"},
			MemoryKinds: []string{"host", "process"}, Draining: true, ToldMs: 4200},
		wire.NodeRow{Node: "prefill-0", Own: true, Epoch: epoch, PeerAddr: "10.0.0.1:7420", HTTPAddr: "127.0.0.1:7421", Version: "0.1.0", MinProtocol: 1, MaxProtocol: 2,
			Providers: []string{"tcp"}, MemoryKinds: []string{"host"}, ToldMs: 800})
	layout := json.RawMessage(`{"layers":30}`)
	set(t, d, wire.InspectCaches,
		wire.CacheRow{Node: "decode-0", Tenant: "default", Cache: "decode-0", Model: "smollm2", Layout: layout, LayoutText: "HND 30L x 3H x 64D x 32T float32 tp 0/1",
			MemoryKind: "host", Blocks: 728, Bytes: 1 << 30},
		wire.CacheRow{Node: "prefill-0", Tenant: "default", Cache: "rank-1", Model: "smollm2", Revision: "r1", Compat: "fp32", Layout: layout,
			LayoutText: "HND 30L x 3H x 64D x 32T float32 tp 1/2", MemoryKind: "process", NUMANode: d.numa, Blocks: 16, Bytes: 4096, Instance: "decode", Rank: 1, Ranks: 2})
	var blocks []wire.BlockRow
	for b := range uint32(64) {
		blocks = append(blocks, wire.BlockRow{Block: b, State: "COMMITTED", Generation: 13})
	}
	blocks = append(blocks, wire.BlockRow{Block: 64, State: "COMMITTED", Generation: 14, Key: strings.Repeat("0a", 32), Holds: 1},
		wire.BlockRow{Block: 70, State: "COMMITTED", Generation: 15, Key: "0b"}, wire.BlockRow{Block: 71, State: "COMMITTED", Generation: 15, Key: "0c"},
		wire.BlockRow{Block: 72, State: "LEASED", Generation: 16, Lease: lease1}, wire.BlockRow{Block: 73, State: "LEASED", Generation: 16, Lease: lease1},
		wire.BlockRow{Block: 80, State: "FREE", Holds: 2})
	set(t, d, wire.InspectBlocks, blocks...)
	gaps := []wire.LayerGap{{Layer: 1, Pieces: 3}, {Layer: 3, Pieces: 16}, {Layer: 4, Pieces: 16}, {Layer: 5, Pieces: 16}}
	set(t, d, wire.InspectLeases,
		wire.LeaseRow{LeaseID: lease1, Kind: "write", State: "BOUND", Tenant: "default", Memory: "decode-0", Mode: "write", Blocks: 16, Generation: 16, Peer: "decode-0",
			TransferID: transfer, TraceID: trace, Provider: "tcp", Pieces: 480, Arrived: 429, Bytes: 3 << 20, RemainingMs: 28_000, AgeMs: 2000, MovedMs: 1500, Process: "engine", Pid: 42,
			Waiting: &wire.Waiting{For: "pieces", Text: "51 of 480 pieces from decode-0 over tcp", Ms: 1500, Peer: "decode-0"}, Missing: gaps},
		wire.LeaseRow{LeaseID: "2e" + lease1[2:], Kind: "read", Part: ended, State: "OPEN", Tenant: "default", Memory: "rank-1", Mode: "read", Blocks: 4, RemainingMs: 61_000, Uses: 2, Used: 1,
			Peer: "decode-0", TransferID: ranked, Waiting: &wire.Waiting{For: "holder", Text: "RELEASE of decode-0's transfer", Ms: 10},
			Holders: []wire.HolderRow{{TransferID: ranked, Peer: "decode-0", Provider: "shm", State: "BOUND", MovedMs: 10}}},
		wire.LeaseRow{LeaseID: "3e" + lease1[2:], Kind: "advertise", State: "ENDING", Tenant: "default", Memory: "raw", Mode: "write", RemainingMs: -1, Used: 3,
			Waiting: &wire.Waiting{For: "fence", Text: "the fence of decode-0's window by this node's provider tcp (LeaseRevoked)", Ms: 3000}})
	set(t, d, wire.InspectTransfers,
		wire.TransferRow{TransferID: transfer, Attempt: 1, Kind: "push", Mode: "write", State: "OPEN", Tenant: "default", Memory: "prefill", Blocks: 16, Peer: "decode-0",
			PeerAddr: "10.0.0.2:7420", LeaseID: lease1, TraceID: trace, Provider: "tcp", Reason: "shm is not usable: \x1b[31mno such file", Pieces: 480, HandedOver: 429, Placed: 429,
			Bytes: 3 << 20, RemainingMs: 28_000, AgeMs: 2000, MovedMs: 1500, BusyMs: 400, Process: "engine", Pid: 41, Missing: gaps,
			Waiting: &wire.Waiting{For: "client", Text: "the client engine (pid 41) to hand over 51 of 480 pieces", Ms: 1500}},
		wire.TransferRow{TransferID: ended, Attempt: 2, Kind: "pull", Mode: "read", State: "ENDED", Tenant: "default", Memory: "prefill", Blocks: 4, Peer: "decode-0",
			PeerAddr: "10.0.0.2:7420", LeaseID: lease1, TraceID: trace, Instance: "decode", Provider: "shm", Reason: "one host", Pieces: 120, HandedOver: 120, Placed: 60, Bytes: 1 << 20,
			AgeMs: 350, EndedMs: 65_000, BusyMs: 20, Process: "engine", Pid: 41, Result: "PeerLost",
			Error: fault.ToWire(&fault.Error{Code: fault.PeerLost, Op: "pull", Peer: "decode-0", Detail: "no frame for 3 s"})})
}

func run(d *fakeDaemon, f func([]string, io.Writer, io.Writer) int, args ...string) (code int, stdout, stderr string) {
	var out, err bytes.Buffer
	code = f(append(args, "--socket", d.path), &out, &err)
	return code, out.String(), err.String()
}

func TestGoldenOutputs(t *testing.T) {
	for name, c := range map[string]struct {
		run   func([]string, io.Writer, io.Writer) int
		args  []string
		stale bool
		numa  int
	}{
		"nodes":       {run: Nodes},
		"nodes_stale": {run: Nodes, stale: true},
		"caches":      {run: Caches},
		"caches_all":  {run: Caches, args: []string{"--all-tenants"}, numa: 1},
		"blocks":      {run: Blocks, args: []string{"decode-0"}},
		"blocks_each": {run: Blocks, args: []string{"decode-0", "--each", "--limit", "2"}},
		"leases":      {run: Leases},
		"leases_id":   {run: Leases, args: []string{"1e"}},
		"transfers":   {run: Transfers, args: []string{"--all"}},
	} {
		for _, form := range []string{"txt", "json"} {
			t.Run(name+"."+form, func(t *testing.T) {
				d := serve(t)
				if d.stale = c.stale; c.numa > 0 {
					d.numa = &c.numa
				}
				fill(t, d)
				args := c.args
				if form == "json" {
					args = append([]string{"--json"}, args...)
				}
				code, stdout, stderr := run(d, c.run, args...)
				assert.Zero(t, code, stderr)
				assert.Empty(t, stderr)
				golden(t, name+"."+form, stdout)
			})
		}
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, string(want), got)
	assert.NotContains(t, got, "\x1b")
}

func TestShow(t *testing.T) {
	d := serve(t)
	fill(t, d)
	keep := func(transfers, leases []int) {
		fill(t, d)
		d.mu.Lock()
		defer d.mu.Unlock()
		for what, list := range map[string][]int{wire.InspectTransfers: transfers, wire.InspectLeases: leases} {
			var some []json.RawMessage
			for _, i := range list {
				some = append(some, d.rows[what][i])
			}
			d.rows[what] = some
		}
	}
	keep([]int{0}, []int{0})
	code, stdout, stderr := run(d, Transfers, "show", "7f")
	assert.Zero(t, code, stderr)
	golden(t, "show.txt", stdout)
	code, stdout, _ = run(d, Transfers, "show", "7f", "--json")
	assert.Zero(t, code)
	golden(t, "show.json", stdout)
	keep([]int{1}, nil)
	code, stdout, _ = run(d, Transfers, "show", "8a")
	assert.Zero(t, code)
	golden(t, "show_ended.txt", stdout)
	keep(nil, []int{1})
	code, stdout, _ = run(d, Transfers, "show", "8b")
	assert.Zero(t, code)
	golden(t, "show_holder.txt", stdout)

	keep([]int{0, 1}, nil)
	code, stdout, stderr = run(d, Transfers, "show", "0")
	assert.Equal(t, 1, code, "what the daemon lists is looked at")
	assert.Empty(t, stdout)
	assert.Contains(t, stderr, "NotFound")
	keep([]int{1}, []int{1})
	code, _, stderr = run(d, Transfers, "show", "8")
	assert.Equal(t, 1, code)
	assert.Contains(t, stderr, ended)
	assert.Contains(t, stderr, ranked)
	for _, args := range [][]string{{"show"}, {"show", "XY"}, {"show", ""}, {"show", "7f", "8a"}} {
		code, _, _ = run(d, Transfers, args...)
		assert.Equal(t, 2, code, args)
	}
	assert.True(t, d.hellos[0].Observer)
}

func TestPagesAreFetched(t *testing.T) {
	d := serve(t)
	fill(t, d)
	d.page = 7
	code, stdout, _ := run(d, Blocks, "decode-0", "--json")
	require.Zero(t, code)
	var got struct {
		Blocks []wire.BlockRow
		More   bool
	}
	require.NoError(t, json.Unmarshal([]byte(stdout), &got))
	assert.Len(t, got.Blocks, 70)
	assert.False(t, got.More)
	assert.Len(t, d.asked, 10)
	d.asked = nil
	code, stdout, _ = run(d, Blocks, "decode-0", "--limit", "10", "--tenant", "blue", "--state", "HELD")
	assert.Zero(t, code)
	assert.Contains(t, stdout, "More than 10")
	require.Len(t, d.asked, 2)
	assert.Equal(t, wire.Inspect{What: "blocks", Cache: "decode-0", State: "HELD", Limit: 3, After: "7"}, d.asked[1])
	assert.Equal(t, "blue", d.hellos[1].Tenant)
	d.asked = nil
	_, _, _ = run(d, Leases, "1e", "--all-tenants", "--cache", "a/b")
	assert.Equal(t, wire.Inspect{What: "leases", ID: "1e", Detail: true, AllTenants: true, Cache: "a/b", Limit: wire.MaxInspectRows}, d.asked[0])
}

func TestUsage(t *testing.T) {
	for name, f := range map[string]func([]string, io.Writer, io.Writer) int{"nodes": Nodes, "caches": Caches, "blocks": Blocks, "leases": Leases,
		"transfers": Transfers, "drain": Drain, "log-level": LogLevel} {
		var out, err bytes.Buffer
		assert.Zero(t, f([]string{"--help"}, &out, &err), name)
		for _, want := range []string{"Usage:\n  kvxfer " + name, "Examples:", "Exit codes: 0", "--socket PATH", "--json"} {
			assert.Contains(t, out.String(), want, name)
		}
		assert.Empty(t, err.String())
		for _, args := range [][]string{{"--nope"}, {"a", "b", "c"}} {
			out.Reset()
			err.Reset()
			assert.Equal(t, 2, f(args, &out, &err), "%s %v", name, args)
			assert.Empty(t, out.String())
			assert.Contains(t, err.String(), "Usage:")
		}
	}
	d := serve(t)
	for _, c := range []struct {
		run  func([]string, io.Writer, io.Writer) int
		args []string
	}{{Blocks, nil}, {Blocks, []string{"a b"}}, {Blocks, []string{"a", "--state", "LOST"}}, {Blocks, []string{"a", "--limit", "-1"}}, {Leases, []string{"zz"}}, {Leases, []string{""}},
		{Drain, []string{"--timeout", "-1s"}}, {LogLevel, []string{"loud"}}, {LogLevel, []string{""}}, {Caches, []string{"--tenant", "a", "--all-tenants"}}} {
		code, _, _ := run(d, c.run, c.args...)
		assert.Equal(t, 2, code, c.args)
	}
	assert.Empty(t, d.hellos, "the daemon was not asked")
}

func TestFailures(t *testing.T) {
	d := serve(t)
	d.refusal = fault.New(fault.NotFound, "inspect", "no cache %q", "x")
	code, stdout, stderr := run(d, Blocks, "x")
	assert.Equal(t, 1, code)
	assert.Empty(t, stdout)
	assert.Contains(t, stderr, `kvxfer blocks: inspect: NotFound: no cache "x"`)
	code, _, stderr = run(d, Blocks, "x", "--json")
	assert.Equal(t, 1, code)
	var e struct{ Error fault.Wire }
	require.NoError(t, json.Unmarshal([]byte(stderr), &e))
	assert.Equal(t, fault.NotFound, e.Error.Code)
	d.refusal = nil
	code, _, _ = run(d, Leases, "1e")
	assert.Equal(t, 1, code, "no lease has that id")
	d.path += "no"
	code, _, stderr = run(d, Nodes)
	assert.Equal(t, 1, code)
	assert.Contains(t, stderr, "DaemonUnavailable")
}

func TestDrainSaysWhatIsLeft(t *testing.T) {
	d := serve(t)
	d.left = []wire.DrainInfo{{Leases: 2, Transfers: 1, Clients: 3}, {Leases: 2, Transfers: 1, Clients: 3}, {Leases: 1, Clients: 3}, {Clients: 3}}
	code, stdout, stderr := run(d, Drain)
	assert.Zero(t, code)
	assert.Equal(t, "idle: nothing is left to wait for; 3 clients are attached\n", stdout)
	assert.Equal(t, "draining: 2 leases and 1 transfers are left\ndraining: 1 leases and 0 transfers are left\n", stderr)
	assert.Equal(t, wire.Drain{}, d.drains[0])
	for _, q := range d.drains[1:] {
		assert.True(t, q.Wait)
		require.NoError(t, q.Validate())
	}

	d.left, d.drains = d.left[:1], nil
	code, stdout, _ = run(d, Drain, "--timeout", "0")
	assert.Equal(t, 1, code)
	assert.Equal(t, "not idle: 2 leases and 1 transfers are left\n", stdout)
	assert.Len(t, d.drains, 1)
	code, stdout, _ = run(d, Drain, "--timeout", "30ms", "--json")
	assert.Equal(t, 1, code)
	var got struct {
		Idle bool
		wire.DrainInfo
	}
	require.NoError(t, json.Unmarshal([]byte(stdout), &got))
	assert.Equal(t, d.left[0], got.DrainInfo)
	assert.False(t, got.Idle)
}

func TestLogLevel(t *testing.T) {
	d := serve(t)
	for _, c := range [][2]string{{"", "info\n"}, {"debug", "debug (was info)\n"}, {"", "debug\n"}} {
		args := []string{}
		if c[0] != "" {
			args = append(args, c[0])
		}
		code, stdout, stderr := run(d, LogLevel, args...)
		assert.Zero(t, code, stderr)
		assert.Equal(t, c[1], stdout)
	}
	code, stdout, _ := run(d, LogLevel, "warn", "--json")
	assert.Zero(t, code)
	assert.JSONEq(t, `{"level":"warn","was":"debug"}`, stdout)
}

// TestRangesAgreeWithTheBlocks takes ranges apart again.
func TestRangesAgreeWithTheBlocks(t *testing.T) {
	rng := testseed.New(t)
	for range 200 {
		var all []wire.BlockRow
		for b := range uint32(40) {
			if rng.IntN(4) == 0 {
				continue
			}
			row := wire.BlockRow{Block: b, State: []string{"LEASED", "COMMITTED"}[rng.IntN(2)], Generation: rng.Uint64N(2), Holds: rng.Uint32N(2)}
			if rng.IntN(2) == 0 {
				row.Key = fmt.Sprintf("%02x", b)
			}
			all = append(all, row)
		}
		assert.Len(t, ranges(all, true), len(all))
		i := 0
		for _, r := range ranges(all, false) {
			for b := r.Block; b <= r.last; b++ {
				want := r.BlockRow
				want.Block, want.Key = b, all[i].Key
				assert.Equal(t, want, all[i])
				assert.Equal(t, r.Key != "", all[i].Key != "")
				i++
			}
		}
		assert.Len(t, all, i)
	}
}
