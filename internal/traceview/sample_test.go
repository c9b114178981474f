package traceview

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "rewrite the golden files")

const (
	sampleTrace = "4bf92f3577b34da6a3ce929d0e0e4736"
	sampleStart = 1_700_000_000_000_000_000
	ms          = 1_000_000
)

// file builds OTLP JSON lines of one process, one line a span, in the file format's own words.
type file struct {
	bytes.Buffer
	service, node string
	pid           int
}

type kv map[string]any

func (f *file) attributes(a kv) []any {
	var out []any
	for _, k := range []string{"service.name", "kvxfer.node", "process.pid", "kvxfer.layer", "kvxfer.provider", "kvxfer.provider.reason", "kvxfer.bytes", "kvxfer.blocks", "kvxfer.result"} {
		switch v := a[k].(type) {
		case string:
			out = append(out, kv{"key": k, "value": kv{"stringValue": v}})
		case int:
			out = append(out, kv{"key": k, "value": kv{"intValue": fmt.Sprint(v)}})
		}
	}
	return out
}

// span appends a span; times are microseconds after the sample's start. events are the times of layers.
func (f *file) span(id, parent int, name string, from, to int, a kv, events ...int) {
	s := kv{"traceId": sampleTrace, "spanId": fmt.Sprintf("%016x", id), "name": name, "kind": 1,
		"startTimeUnixNano": fmt.Sprint(sampleStart + from*1000), "endTimeUnixNano": fmt.Sprint(sampleStart + to*1000), "attributes": f.attributes(a)}
	if parent != 0 {
		s["parentSpanId"] = fmt.Sprintf("%016x", parent)
	}
	if r, ok := a["kvxfer.result"].(string); ok && r != "DONE" {
		s["status"] = kv{"code": 2, "message": r}
	}
	var es []any
	for i, at := range events {
		es = append(es, kv{"timeUnixNano": fmt.Sprint(sampleStart + at*1000), "name": "layer", "attributes": f.attributes(kv{"kvxfer.layer": i})})
	}
	if es != nil {
		s["events"] = es
	}
	line, err := json.Marshal(kv{"resourceSpans": []any{kv{
		"resource":   kv{"attributes": f.attributes(kv{"service.name": f.service, "kvxfer.node": f.node, "process.pid": f.pid})},
		"scopeSpans": []any{kv{"spans": []any{s}}}}}})
	if err != nil {
		panic(err)
	}
	f.Write(append(line, '\n'))
}

// sample is a push of the given layers: both clients and both daemons. The decode host's clock is 3 ms behind.
func sample(layers int) []*file {
	prefill := &file{service: "python-sdk", node: "prefill", pid: 4711}
	source := &file{service: "kvxfer", node: "prefill", pid: 101}
	decode := &file{service: "python-sdk", node: "decode", pid: 4712}
	target := &file{service: "kvxfer", node: "decode", pid: 102}
	const skew = -3000
	decode.span(1, 0, "kvxfer.lease", skew, skew+2900, kv{"kvxfer.blocks": 20})
	target.span(2, 1, "lease", skew+400, skew+2500, kv{"kvxfer.blocks": 20})
	var handed []int
	at := 9000
	const every = 21_000
	for l := range layers {
		handed = append(handed, at+(l+1)*every)
	}
	end := at + layers*every + 14_000
	prefill.span(3, 1, "kvxfer.write", at, end+900, kv{"kvxfer.bytes": layers * 245760, "kvxfer.result": "DONE"}, handed...)
	source.span(4, 3, "push", at+300, end+600, kv{"kvxfer.bytes": layers * 245760, "kvxfer.provider": "tcp", "kvxfer.provider.reason": "no RDMA device on this host", "kvxfer.result": "DONE"})
	source.span(5, 4, "plan", at+320, at+700, nil)
	source.span(6, 4, "bind", at+750, at+2300, nil)
	target.span(7, 6, "bind", at+1200+skew, at+1900+skew, nil)
	for l, h := range handed {
		took := 4000 + (l*7919)%9000
		source.span(100+l, 4, "batch", h+200, h+200+took, kv{"kvxfer.layer": l, "kvxfer.bytes": 245760})
		target.span(200+l, 100+l, "place", h+700+skew, h+100+took+skew, kv{"kvxfer.layer": l, "kvxfer.bytes": 245760})
	}
	source.span(8, 4, "fin", end-2600, end+500, nil)
	target.span(9, 8, "commit", end-2100+skew, end+100+skew, kv{"kvxfer.blocks": 20})
	return []*file{prefill, source, decode, target}
}

func readFiles(t testing.TB, files []*file) *Set {
	t.Helper()
	s := &Set{traces: map[string][]*Span{}, seen: map[[2]string]bool{}}
	for i, f := range files {
		require.NoError(t, s.read(i+1, bytes.NewReader(f.Bytes())))
	}
	require.Zero(t, s.Skipped, s.FirstSkipped)
	return s
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err, "run with -update")
	require.Equal(t, strings.Split(string(want), "\n"), strings.Split(got, "\n"))
}
