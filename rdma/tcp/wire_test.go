package tcp

import (
	"bytes"
	"encoding/hex"
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
)

var update = flag.Bool("update", false, "rewrite testdata/frames-v1.txt")

// golden lists one of everything that travels on a lane, by name.
func golden() (names []string, frames [][]byte) {
	add := func(name string, b []byte) { names, frames = append(names, name), append(frames, b) }
	var s secret
	for i := range s {
		s[i] = byte(i + 1)
	}
	none := ^fault.Code(0)
	add("params", (&params{lanes: 4, session: 0x1122334455667788, secret: s}).bytes())
	add("hello", (&hello{minVersion: 1, maxVersion: 1, lane: 3, session: 0x1122334455667788, secret: s}).bytes())
	add("answer", (&answer{version: 1}).bytes())
	add("answer-refused", (&answer{version: 1, status: fault.PermissionDenied}).bytes())
	add("write", frame(header{kind: kindWrite, seq: 7, key: 3, tag: 0xabcdef, total: 13, offset: 0},
		[]desc{{0x1000, 5}, {0x2000, 3}}, []byte("kvxferkv"), 0))
	add("write-last-aborted", frame(header{kind: kindWrite, seq: 7, key: 3, tag: 0xabcdef, total: 13, offset: 8},
		[]desc{{0x3000, 5}}, make([]byte, 5), fault.Cancelled))
	add("write-empty", frame(header{kind: kindWrite, seq: 8, key: 3, tag: 1}, nil, nil, 0))
	res := make([]byte, headerLen+2*resultLen)
	(&header{kind: kindResult, count: 2}).put(res)
	(&result{seq: 7, bytes: 13}).put(res[headerLen:])
	(&result{seq: 8, status: fault.StaleKey, bytes: 4, wrote: true}).put(res[headerLen+resultLen:])
	add("result", res)
	add("request", frame(header{kind: kindRequest, seq: 9, key: 4, total: 0x300000}, []desc{{0x1000, 0x300000}}, nil, none))
	add("data", frame(header{kind: kindData, seq: 9, total: 3}, nil, []byte("kvx"), 0))
	return names, frames
}

func TestGoldenFrames(t *testing.T) {
	const file = "testdata/frames-v1.txt"
	names, frames := golden()
	var b strings.Builder
	for i, n := range names {
		b.WriteString(n + "\n")
		for _, line := range strings.Split(strings.TrimRight(hex.Dump(frames[i]), "\n"), "\n") {
			b.WriteString("\t" + line[10:58] + "\n")
		}
	}
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(b.String()), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), b.String())
}

func TestHeaderSurvivesTheWire(t *testing.T) {
	for _, h := range []header{
		{kind: kindWrite, count: 2, payload: 8, seq: 1, key: 2, tag: 3, total: 9, offset: 1},
		{kind: kindWrite, seq: ^uint64(0), key: ^uint64(0), tag: ^uint64(0)},
		{kind: kindRequest, count: 256, seq: 1, key: 2, total: ^uint64(0), offset: 5},
		{kind: kindData, payload: maxPayload, seq: 1, total: maxPayload},
		{kind: kindResult, count: 1},
	} {
		b := make([]byte, headerLen)
		h.put(b)
		got, err := parseHeader(b)
		require.NoError(t, err)
		require.Equal(t, h, got)
	}
}

func FuzzFrame(f *testing.F) {
	_, frames := golden()
	for _, b := range frames {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < headerLen {
			return
		}
		h, err := parseHeader(b)
		if err != nil {
			require.Equal(t, fault.ProtocolViolation, fault.CodeOf(err))
			return
		}
		back := make([]byte, headerLen)
		h.put(back)
		require.Equal(t, b[:headerLen], back)
		require.LessOrEqual(t, h.count, uint16(maxCount))
		require.LessOrEqual(t, h.payload, uint32(maxPayload))
		b = b[headerLen:]
		if h.kind == kindResult {
			for ; len(b) >= resultLen; b = b[resultLen:] {
				if r, err := parseResult(b); err == nil {
					x := make([]byte, resultLen)
					r.put(x)
					require.Equal(t, b[:resultLen], x)
				}
			}
			return
		}
		if len(b) < int(h.count)*descLen {
			return
		}
		descs, sum, err := parseDescs(nil, b, &h)
		if err != nil {
			return
		}
		var total uint64
		for _, d := range descs {
			require.NotZero(t, d.len)
			total += d.len
		}
		require.Equal(t, sum, total)
		require.LessOrEqual(t, sum, h.total-h.offset)
		if h.kind == kindWrite {
			require.Equal(t, uint64(h.payload), sum)
		}
		if len(b) >= trailerLen {
			if st, err := parseTrailer(b); err == nil {
				x := make([]byte, trailerLen)
				putTrailer(x, st)
				require.Equal(t, b[:trailerLen], x)
			}
		}
	})
}

func FuzzHello(f *testing.F) {
	_, frames := golden()
	for _, b := range frames {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) == helloLen {
			if h, err := parseHello(b); err == nil {
				require.True(t, bytes.Equal(b, h.bytes()))
			}
		}
		if len(b) == answerLen {
			if a, err := parseAnswer(b); err == nil {
				require.True(t, bytes.Equal(b, a.bytes()))
			}
		}
		if p, err := parseParams(b); err == nil {
			require.LessOrEqual(t, p.lanes, uint16(maxLanes))
			require.Len(t, b, paramsLen)
		}
	})
}
