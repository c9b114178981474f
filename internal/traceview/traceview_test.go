package traceview

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestGolden(t *testing.T) {
	failed := sample(2)
	failed[1].span(20, 4, "batch", 60_000, 60_001, kv{"kvxfer.layer": 2, "kvxfer.result": "PeerLost"})
	for name, files := range map[string][]*file{"push30": sample(30), "failed": failed, "one": sample(1)[:1]} {
		tl := readFiles(t, files).Timeline(sampleTrace)
		var svg, text bytes.Buffer
		require.NoError(t, SVG(&svg, tl, Options{}))
		golden(t, name+".svg", svg.String())
		require.NoError(t, Terminal(&text, tl, 120))
		golden(t, name+".txt", text.String())
	}
}

func TestRead(t *testing.T) {
	s := readFiles(t, sample(30))
	all := s.Traces()
	require.Len(t, all, 1)
	assert.Equal(t, Summary{TraceID: sampleTrace, Name: "kvxfer.lease", StartUnixNano: sampleStart - 3*ms,
		DurationNanos: 3*ms + (9000+30*21_000+14_000+900)*1000, Spans: 69, Processes: 4}, all[0])
	tl := s.Timeline(sampleTrace)
	require.Len(t, tl.Groups, 4)
	var order []string
	for _, g := range tl.Groups {
		order = append(order, g.Process.PID)
	}
	assert.Equal(t, []string{"4712", "4711", "101", "102"}, order, "callers before those they call")
	assert.Equal(t, 69, tl.Spans())
	var target *Group
	for i := range tl.Groups {
		if tl.Groups[i].Process == (Process{"kvxfer", "decode", "102"}) {
			target = &tl.Groups[i]
		}
	}
	require.NotNil(t, target)
	assert.EqualValues(t, 2_550_000, target.SkewNanos, "the place spans begin before the batches that cause them")
	write := s.traces[sampleTrace]
	assert.Len(t, write[0].Events, 30)
	assert.Equal(t, "7372800", write[0].Attr("kvxfer.bytes"))
	assert.Nil(t, s.Timeline("0"))

	twice, err := Read(bytes.NewReader(sample(3)[1].Bytes()), bytes.NewReader(sample(3)[1].Bytes()))
	require.NoError(t, err)
	assert.Equal(t, 7, twice.Traces()[0].Spans, "a span in two files counts once")
}

func TestFind(t *testing.T) {
	s := readFiles(t, sample(1))
	other := strings.ReplaceAll(sample(1)[0].String(), sampleTrace, "4bf00000000000000000000000000001")
	require.NoError(t, s.read(9, strings.NewReader(strings.ReplaceAll(other, `TimeUnixNano":"17`, `TimeUnixNano":"18`))))
	for name, want := range map[string]string{"latest": "4bf00000000000000000000000000001", "4BF9": sampleTrace, sampleTrace: sampleTrace} {
		got, err := s.Find(name)
		require.NoError(t, err)
		assert.Equal(t, want, got)
	}
	for _, bad := range []string{"4bf", "", "5"} {
		_, err := s.Find(bad)
		assert.Error(t, err, bad)
	}
	_, err := (&Set{}).Find("latest")
	assert.Error(t, err)
}

func TestReadToleratesDamage(t *testing.T) {
	good := sample(1)[0].String()
	newer := strings.Replace(good, `"name":"kvxfer.write"`, `"name":"later","spanId":"00000000000000ff","newField":{"a":[1]}`, 1)
	newer = strings.Replace(newer, `"spanId":"0000000000000003",`, "", 1)
	b64 := strings.Replace(good, `"0000000000000003"`, `"AAAAAAAAAP4="`, 1)
	noID := strings.Replace(good, `"0000000000000003"`, `"0000000000000000"`, 1)
	s, err := Read(strings.NewReader(good + "\n\r\n{\"resourceSpans\":[{\"reso\n" + newer + b64 + noID + good[:len(good)/2]))
	require.NoError(t, err)
	assert.Equal(t, 3, s.Skipped)
	assert.Contains(t, s.FirstSkipped, "source 1, line 4")
	assert.Equal(t, 3, s.Traces()[0].Spans)

	s, err = Read(strings.NewReader(strings.Repeat("x", MaxLine+1) + "\n" + good))
	require.NoError(t, err)
	assert.Equal(t, 1, s.Skipped)
	assert.Len(t, s.Traces(), 1)

	_, err = Read(iotest.ErrReader(errors.New("broken disk")))
	require.ErrorContains(t, err, "broken disk")
	s, err = Read(strings.NewReader(`{"resourceSpans":[{}, {"scopeSpans":[{"spans":[{}]}]}]}`))
	require.NoError(t, err)
	assert.Equal(t, 1, s.Skipped)
}

// TestTimelineRandom has parents at random: rings, parents in other processes, unknown parents.
func TestTimelineRandom(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if v := os.Getenv("KVXFER_SEED"); v != "" {
		seed, _ = strconv.ParseUint(v, 10, 64)
	}
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	for range 100 {
		n := 1 + rnd.IntN(40)
		files := []*file{{service: "a"}, {service: "b"}, {service: "c", node: "n"}}
		for i := range n {
			from := rnd.IntN(1000)
			files[rnd.IntN(3)].span(i+1, rnd.IntN(n+3), "s", from, from+rnd.IntN(100)-10, nil, rnd.IntN(2000))
		}
		tl := readFiles(t, files).Timeline(sampleTrace)
		require.Equal(t, n, tl.Spans())
		seen := map[string]bool{}
		for _, g := range tl.Groups {
			depth := map[string]int{}
			for _, r := range g.Rows {
				require.False(t, seen[r.Span.SpanID])
				seen[r.Span.SpanID] = true
				require.Equal(t, g.Process, r.Span.Process)
				if d, ok := depth[r.Span.ParentID]; ok && r.Span.ParentID != r.Span.SpanID {
					require.Equal(t, d+1, r.Depth)
				}
				depth[r.Span.SpanID] = r.Depth
			}
		}
		wellFormed(t, tl)
	}
}

func wellFormed(t testing.TB, tl *Timeline) {
	var b bytes.Buffer
	require.NoError(t, SVG(&b, tl, Options{}))
	d := xml.NewDecoder(&b)
	for {
		_, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
	}
	b.Reset()
	require.NoError(t, Terminal(&b, tl, 80))
	require.True(t, utf8.Valid(b.Bytes()))
	for line := range strings.Lines(b.String()) {
		require.LessOrEqual(t, utf8.RuneCountInString(line), 81, "%q", line)
	}
}

func TestSVGIsWellFormed(t *testing.T) {
	tl := readFiles(t, sample(3)).Timeline(sampleTrace)
	nasty := "<b>&\"'\x00\x1b[31m\u202e]]>\ufffe\xff\n" + strings.Repeat("wide", 100)
	for _, g := range tl.Groups {
		for _, r := range g.Rows {
			r.Span.Name, r.Span.Status, r.Span.Failed = nasty, nasty, true
			r.Span.Attributes = append(r.Span.Attributes, Attr{nasty, nasty}, Attr{keyBytes, nasty}, Attr{keyLayer, nasty})
			r.Span.Events = []Event{{Name: nasty, TimeUnixNano: 1, Attributes: []Attr{{nasty, nasty}}}}
		}
	}
	tl.Groups[0].Process = Process{nasty, nasty, nasty}
	wellFormed(t, tl)
	var b bytes.Buffer
	require.NoError(t, SVG(&b, tl, Options{Title: nasty, Width: 1}))
	assert.NotContains(t, b.String(), "<b>")
	assert.NotContains(t, b.String(), "\x1b")
}

func TestLongTraceIsBounded(t *testing.T) {
	f := &file{service: "a"}
	for i := range MaxRows + 5 {
		f.span(i+1, 0, "s", i, i+1, nil)
	}
	tl := readFiles(t, []*file{f}).Timeline(sampleTrace)
	var b bytes.Buffer
	require.NoError(t, SVG(&b, tl, Options{}))
	assert.Equal(t, MaxRows, strings.Count(b.String(), "<g>"))
	assert.Contains(t, b.String(), "5 more spans are not drawn")
}

func TestFormats(t *testing.T) {
	for ns, want := range map[int64]string{0: "0 ns", 999: "999 ns", 1000: "1.00 µs", 12_345: "12.3 µs", 999_999: "1000 µs", 1_250_000: "1.25 ms", 123_456_789: "123 ms", 3_100_000_000: "3.10 s", -5: "-5 ns"} {
		assert.Equal(t, want, duration(ns))
	}
	for in, want := range map[string]string{"5": "5 B", "245760": "240 KiB", "7372800": "7 MiB", "x": "x B"} {
		assert.Equal(t, want, size(in))
	}
	for _, span := range []int64{1, 7, 999, 1e6, 12_345_678, 1e12, 1 << 62} {
		step := ticks(span, 8)
		assert.Positive(t, step)
		assert.LessOrEqual(t, span/step, int64(8))
	}
	assert.Equal(t, "0.5", tick(500_000, 500_000))
	assert.Equal(t, "20", tick(20_000_000, 5_000_000))
	assert.Equal(t, " █▌", bar(1./3, 2.5/3, 3))
	assert.Equal(t, "  ▐", bar(1, 1, 3))
	assert.Equal(t, "▏  ", bar(0, 0, 3))
}

func FuzzRead(f *testing.F) {
	f.Add(sample(2)[1].Bytes())
	f.Add([]byte(fmt.Sprintf(`{"resourceSpans":[{"scopeSpans":[{"spans":[{"traceId":%q,"spanId":"0000000000000001","startTimeUnixNano":"18446744073709551615","endTimeUnixNano":1}]}]}]}`, sampleTrace)))
	f.Add([]byte("{\n{}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := Read(bytes.NewReader(b))
		require.NoError(t, err)
		for _, sum := range s.Traces() {
			tl := s.Timeline(sum.TraceID)
			require.Equal(t, sum.Spans, tl.Spans())
			wellFormed(t, tl)
		}
	})
}
