package tracecmd

import (
	"bytes"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/telemetry"
	"github.com/kvxfer/kvxfer/internal/telemetry/attr"
	"github.com/kvxfer/kvxfer/internal/traceview"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// record writes the trace files of two nodes: a client's span and the source's on the first, the target's on the
// second. It returns the files and the trace id.
func record(t *testing.T) (source, target, id string) {
	dir := t.TempDir()
	source, target = filepath.Join(dir, "a.jsonl"), filepath.Join(dir, "b.jsonl")
	id = "4bf92f3577b34da6a3ce929d0e0e4736"
	a, err := telemetry.Start(t.Context(), telemetry.Options{NodeName: "a", TraceFile: source})
	require.NoError(t, err)
	b, err := telemetry.Start(t.Context(), telemetry.Options{NodeName: "b", TraceFile: target})
	require.NoError(t, err)
	ctx, err := telemetry.ContextWithRemote(t.Context(), "00-"+id+"-00f067aa0ba902b7-01", "")
	require.NoError(t, err)
	ctx, push := a.Tracer().Start(ctx, attr.SpanPush)
	_, batch := a.Tracer().Start(ctx, attr.SpanBatch, trace.WithAttributes(attr.KeyLayer.Int(7)))
	batch.SetStatus(codes.Error, "PeerLost")
	batch.End()
	remote, state := telemetry.Carry(ctx)
	there, err := telemetry.ContextWithRemote(t.Context(), remote, state)
	require.NoError(t, err)
	_, commit := b.Tracer().Start(there, attr.SpanCommit)
	commit.End()
	push.End()
	require.Equal(t, id, push.SpanContext().TraceID().String())
	require.NoError(t, a.RecordClientSpan(telemetry.ClientSpan{TraceID: id, SpanID: "00f067aa0ba902b7", Name: attr.SpanClientWrite,
		StartUnixNano: 1_700_000_000_000_000_000, EndUnixNano: 1_700_000_000_100_000_000, Service: "python-sdk", PID: 9}))
	require.NoError(t, a.Shutdown(t.Context()))
	require.NoError(t, b.Shutdown(t.Context()))
	return source, target, id
}

func TestShowsWhatTelemetryWrites(t *testing.T) {
	source, target, id := record(t)
	svg := filepath.Join(t.TempDir(), "t.svg")
	var out, errOut bytes.Buffer
	require.Equal(t, 0, Run([]string{"show", "latest", "--file", source, "--svg", svg, "--title", "a push", "--file", target, "--json"}, &out, &errOut), errOut.String())
	var tl traceview.Timeline
	require.NoError(t, json.Unmarshal(out.Bytes(), &tl))
	assert.Equal(t, id, tl.TraceID)
	require.Len(t, tl.Groups, 3)
	assert.Equal(t, traceview.Process{Service: "python-sdk", Node: "a", PID: "9"}, tl.Groups[0].Process)
	assert.Equal(t, "a", tl.Groups[1].Process.Node)
	assert.Equal(t, "b", tl.Groups[2].Process.Node)
	require.Len(t, tl.Groups[1].Rows, 2)
	assert.Equal(t, 1, tl.Groups[1].Rows[1].Depth)
	assert.Equal(t, "PeerLost", tl.Groups[1].Rows[1].Span.Status)
	assert.Equal(t, tl.Groups[1].Rows[0].Span.SpanID, tl.Groups[2].Rows[0].Span.ParentID)
	picture, err := os.ReadFile(svg)
	require.NoError(t, err)
	assert.Contains(t, string(picture), "a push")
	assert.Contains(t, errOut.String(), "wrote "+svg)

	out.Reset()
	require.Equal(t, 0, Run([]string{"list", "--json", "--file", source, "--file", target}, &out, &errOut))
	var all []traceview.Summary
	require.NoError(t, json.Unmarshal(out.Bytes(), &all))
	require.Len(t, all, 1)
	assert.Equal(t, 4, all[0].Spans)
	assert.Equal(t, 1, all[0].Failed)
	assert.Equal(t, "kvxfer.write", all[0].Name)
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

func TestRun(t *testing.T) {
	source, _, id := record(t)
	damaged := filepath.Join(t.TempDir(), "d.jsonl")
	b, err := os.ReadFile(source)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(damaged, append(b, `{"resour`...), 0o600))
	empty := filepath.Join(t.TempDir(), "e.jsonl")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	for name, tc := range map[string]struct {
		args        []string
		code        int
		out, errOut string // what each must hold; "" means nothing at all
	}{
		"help":             {[]string{"--help"}, 0, "Usage:", ""},
		"help of show":     {[]string{"show", "--help"}, 0, "Usage:", ""},
		"no command":       {nil, 2, "", "say list or show"},
		"unknown command":  {[]string{"draw"}, 2, "", `unknown command "draw"`},
		"unknown flag":     {[]string{"list", "--nope"}, 2, "", "nope"},
		"no daemon":        {[]string{"list", "--socket", source}, 1, "", "DaemonUnavailable"},
		"file and daemon":  {[]string{"list", "--socket", source, "--file", source}, 2, "", "asks no daemon"},
		"timeout":          {[]string{"show", "latest", "--timeout", "0s"}, 2, "", "1ms to 1h"},
		"empty file name":  {[]string{"list", "--file", ""}, 2, "", "must name a file"},
		"list with name":   {[]string{"list", "x", "--file", source}, 2, "", "no argument"},
		"show of two":      {[]string{"show", "a", "--file", source, "b"}, 2, "", "one trace id"},
		"empty id":         {[]string{"show", ""}, 2, "", "ID is empty"},
		"failure as JSON":  {[]string{"list", "--json", "--file", source + ".no"}, 1, "", `{"error":{`},
		"width":            {[]string{"show", "latest", "--file", source, "--width", "9"}, 2, "", "60 to 400"},
		"svg with list":    {[]string{"list", "--file", source, "--svg", "x"}, 2, "", "svg"},
		"missing file":     {[]string{"list", "--file", source + ".no"}, 1, "", "no such file"},
		"not found":        {[]string{"show", "ffff", "--file", source}, 1, "", `no trace "ffff" among 1`},
		"nothing in there": {[]string{"show", "latest", "--file", empty}, 1, "", "no trace"},
		"svg not writable": {[]string{"show", "latest", "--file", source, "--svg", filepath.Join(source, "x")}, 1, "", "not a directory"},
		"list":             {[]string{"list", "--file", source}, 0, id, ""},
		"list of nothing":  {[]string{"list", "--file", empty, "--json"}, 0, "[]", ""},
		"show by prefix":   {[]string{"show", "--file", source, id[:6]}, 0, "batch · layer 7", ""},
		"damaged":          {[]string{"show", "--file", damaged, "latest"}, 0, "batch · layer 7", "skipped 1"},
	} {
		t.Run(name, func(t *testing.T) {
			var out, errOut bytes.Buffer
			require.Equal(t, tc.code, Run(tc.args, &out, &errOut), errOut.String())
			for want, got := range map[string]string{"o" + tc.out: out.String(), "e" + tc.errOut: errOut.String()} {
				if want = want[1:]; want == "" {
					assert.Empty(t, got)
				} else {
					assert.Contains(t, got, want)
				}
			}
		})
	}
	var errOut bytes.Buffer
	assert.Equal(t, 1, Run([]string{"list", "--file", source}, brokenPipe{}, &errOut))
}

// TestAsksTheDaemon has a daemon that answers from memory: list, show by a transfer's id, and what is missing.
func TestAsksTheDaemon(t *testing.T) {
	source, target, id := record(t)
	kept, err := os.ReadFile(source)
	require.NoError(t, err)
	far, err := os.ReadFile(target)
	require.NoError(t, err)
	var asked []wire.TraceQuery
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", path)
	require.NoError(t, err)
	done := make(chan struct{})
	t.Cleanup(func() { _ = listener.Close(); <-done })
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			for {
				f, err := wire.ReadFrame(conn, wire.LocalLimits)
				if err != nil {
					break
				}
				var answer wire.Frame
				var q wire.TraceQuery
				switch _ = f.Decode(&q); {
				case f.Kind == wire.KindHello:
					answer, _ = wire.NewFrame(wire.KindHelloOK, f.Request, &wire.Hello{Node: "a", Version: 1}, nil)
				case q.ID == "ffff":
					answer = wire.NewError(f.Request, fault.New(fault.NotFound, "trace", "none"))
				case q.ID == "":
					asked = append(asked, q)
					answer, _ = wire.NewFrame(wire.KindOK, f.Request, &wire.TraceInfo{}, kept)
				default:
					asked = append(asked, q)
					answer, _ = wire.NewFrame(wire.KindOK, f.Request, &wire.TraceInfo{TraceID: id, Unasked: []string{"c"}, LeftOff: 2}, append(kept[:len(kept):len(kept)], far...))
				}
				_, _ = conn.Write(wire.Append(nil, answer))
			}
			_ = conn.Close()
		}
	}()
	var out, errOut bytes.Buffer
	require.Equal(t, 0, Run([]string{"show", "AB", "--socket", path, "--json", "--timeout", "3s", "--local"}, &out, &errOut), errOut.String())
	var tl traceview.Timeline
	require.NoError(t, json.Unmarshal(out.Bytes(), &tl))
	assert.Equal(t, id, tl.TraceID)
	assert.Len(t, tl.Groups, 3)
	assert.Contains(t, errOut.String(), "missing: c")
	assert.Contains(t, errOut.String(), "2 spans are left off")
	assert.Equal(t, []wire.TraceQuery{{ID: "ab", LocalOnly: true, TimeoutMillis: 3000}}, asked)
	out.Reset()
	require.Equal(t, 0, Run([]string{"list", "--socket", path}, &out, &errOut), errOut.String())
	assert.Contains(t, out.String(), id)
	for _, json := range []string{"--json", "--json=false"} {
		errOut.Reset()
		require.Equal(t, 1, Run([]string{"show", "ffff", "--socket", path, json}, &out, &errOut))
		assert.Contains(t, errOut.String(), "NotFound")
	}
	require.Equal(t, 1, Run([]string{"show", "no id", "--socket", path}, &out, &errOut))
	assert.Contains(t, errOut.String(), "hex digits")
}
