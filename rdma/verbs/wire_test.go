package verbs

import (
	"encoding/binary"
	"encoding/hex"
	"flag"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/testseed"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
	"github.com/kvxfer/kvxfer/rdma/verbs/pick"
)

var update = flag.Bool("update", false, "rewrite testdata/side-v1.txt")

// framed is a message as the side channel carries it.
func framed(m message) []byte {
	var w writer
	w.u32(0)
	w.u8(uint8(kindOf(m)))
	m.bytes(&w)
	binary.LittleEndian.PutUint32(w.b, uint32(len(w.b)-4))
	return w.b
}

func sampleGID(last byte) [16]byte {
	return [16]byte{10: 0xff, 11: 0xff, 12: 10, 13: 7, 14: 0, 15: last}
}

func sampleParams() params {
	p := params{tls: true, session: 0x1122334455667788, rails: []pick.PeerRail{
		{Name: "mlx5_0:1", LinkLayer: nic.Ethernet, NUMA: -1, MTU: 4096, Gbps: 2.3, GIDs: []nic.GIDInfo{{GID: sampleGID(2), Type: nic.RoCEv2}}},
		{Name: "mlx5_1:2", LinkLayer: nic.InfiniBand, NUMA: 1, MTU: 2048, Gbps: 400, LID: 9},
	}}
	for k := range p.secret {
		p.secret[k] = byte(k + 1)
	}
	return p
}

// sampleMessages are one of each kind, in the order of the kinds.
func sampleMessages() map[string]message {
	ref := laneRef{lane: 3, gen: 5}
	return map[string]message{
		"lane-open": &laneOpen{laneRef: ref, rail: 1, toGID: sampleGID(2), fromGID: sampleGID(1), fromLID: 9, mtu: 4096, qpn: 0x123456,
			psn: 0xabcdef, readInit: 16},
		"lane-shut":         &laneShut{ref},
		"clean":             &cleanMsg{key: 7, lanes: []laneCount{{ref, 1000}, {laneRef{4, 1}, 0}}},
		"query":             &queryMsg{7},
		"records":           &recordsMsg{laneRef: ref, records: [][]byte{sampleRecord()}},
		"lane-ready":        &laneReady{laneRef: ref, qpn: 0x654321, psn: 0xfedcba, mtu: 1024, readResp: 16, receives: 64},
		"lane-dead":         &laneDead{laneRef: ref},
		"lane-dead-refused": &laneDead{laneRef: ref, taken: 40, code: fault.ResourceExhausted, text: "no room"},
		"window": &windowMsg{key: 7, access: rdma.AccessWrite, base: 0x7f0000001000, size: 0x100000, off: 0x1000, span: 0x2000,
			rails: []uint32{0xdead, 0}, keys: []laneKey{{ref, 0xbeef}}},
		"keys":   &keysMsg{laneRef: ref, keys: []windowKey{{7, 0xbeef}, {8, 0xcafe}}},
		"revoke": &revokeMsg{7},
		"credit": &creditMsg{ref, 48},
	}
}

func sampleRecord() []byte {
	b := make([]byte, recordLen)
	putEntry(b, 0, &entry{key: 7, tag: 0xabc, op: 1, bytes: 4096, parts: 1})
	putEntry(b, 1, &entry{key: 7, tag: 0xdef, op: 2, bytes: 1 << 20, part: 1, parts: 2})
	return b[:putRecord(b, 5, 2)]
}

// golden is one of everything that travels, in a fixed order.
func golden() (names []string, frames [][]byte) {
	add := func(name string, b []byte) { names, frames = append(names, name), append(frames, b) }
	p := sampleParams()
	add("params", p.bytes())
	add("hello", (&hello{minVersion: 1, maxVersion: 1, session: p.session, secret: p.secret}).bytes())
	add("answer", (&answer{version: 1}).bytes())
	add("answer-refused", (&answer{version: 1, status: fault.PermissionDenied}).bytes())
	m := sampleMessages()
	for _, n := range []string{"lane-open", "lane-shut", "clean", "query", "records", "lane-ready", "lane-dead", "lane-dead-refused", "window", "keys", "revoke", "credit"} {
		add(n, framed(m[n]))
	}
	add("record", sampleRecord())
	return names, frames
}

// What travels does not change within a version: testdata/side-v1.txt is what daemons that were released say.
func TestGoldenFrames(t *testing.T) {
	const file = "testdata/side-v1.txt"
	names, frames := golden()
	require.Len(t, names, 5+len(sampleMessages()))
	var b strings.Builder
	for i, n := range names {
		b.WriteString(n + "\n")
		for line := range strings.SplitSeq(strings.TrimRight(hex.Dump(frames[i]), "\n"), "\n") {
			b.WriteString("\t" + strings.TrimRight(line[10:58], " ") + "\n")
		}
	}
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(b.String()), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), b.String())
}

func TestMessagesSurviveTheWire(t *testing.T) {
	for name, m := range sampleMessages() {
		b := framed(m)
		got, err := parseMessage(kind(b[4]), b[5:])
		require.NoError(t, err, name)
		require.Equal(t, m, got, name)
		for n := range b[5:] { // every truncation, and one byte more
			_, err = parseMessage(kind(b[4]), b[5:5+n])
			requireCode(t, fault.ProtocolViolation, err)
		}
		_, err = parseMessage(kind(b[4]), append(b[5:], 0))
		requireCode(t, fault.ProtocolViolation, err)
	}
	p := sampleParams()
	got, err := parseParams(p.bytes())
	require.NoError(t, err)
	require.Equal(t, p, got)
	for n := range p.bytes() {
		_, err = parseParams(p.bytes()[:n])
		requireCode(t, fault.InvalidArgument, err)
	}
	newer := p.bytes()
	newer[0]++
	_, err = parseParams(newer)
	requireCode(t, fault.VersionMismatch, err)

	rec := sampleRecord()
	es, err := parseRecord(nil, rec, 5)
	require.NoError(t, err)
	require.Equal(t, []entry{{key: 7, tag: 0xabc, op: 1, bytes: 4096, parts: 1}, {key: 7, tag: 0xdef, op: 2, bytes: 1 << 20, part: 1, parts: 2}}, es)
	_, err = parseRecord(nil, rec, 6)
	requireCode(t, fault.ProtocolViolation, err)
}

// A long text is cut, a list of many keys is sent in several messages, and both are read.
func TestLimitsOfMessages(t *testing.T) {
	b := framed(&laneDead{code: fault.Internal, text: strings.Repeat("x", 5000)})
	m, err := parseMessage(kind(b[4]), b[5:])
	require.NoError(t, err)
	require.Len(t, m.(*laneDead).text, maxText)
	require.Less(t, len(framed(&keysMsg{keys: make([]windowKey, maxKeys)})), maxMessage)
	require.Less(t, len(framed(&cleanMsg{lanes: make([]laneCount, maxLanes)})), maxMessage)
	require.Less(t, len(framed(&windowMsg{access: 1, rails: make([]uint32, maxRails), keys: make([]laneKey, maxLanes)})), maxMessage)
}

func FuzzMessage(f *testing.F) {
	_, frames := golden()
	for _, b := range frames {
		if len(b) > 4 {
			f.Add(b[4], b[5:])
		}
	}
	f.Fuzz(func(t *testing.T, k uint8, body []byte) {
		m, err := parseMessage(kind(k), body)
		if err != nil {
			require.Equal(t, fault.ProtocolViolation, fault.CodeOf(err))
			return
		}
		require.Equal(t, body, framed(m)[5:])
		require.Equal(t, kind(k), kindOf(m))
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
				require.Equal(t, b, h.bytes())
			}
		}
		if len(b) == answerLen {
			if a, err := parseAnswer(b); err == nil {
				require.Equal(t, b, a.bytes())
			}
		}
		p, err := parseParams(b)
		if err != nil {
			return
		}
		require.LessOrEqual(t, len(p.rails), maxRails)
		again, err := parseParams(p.bytes())
		require.NoError(t, err)
		require.Equal(t, p, again)
	})
}

func FuzzRecord(f *testing.F) {
	f.Add(sampleRecord(), uint32(5))
	f.Add([]byte{}, uint32(0))
	f.Fuzz(func(t *testing.T, b []byte, gen uint32) {
		es, err := parseRecord(nil, b, gen)
		if err != nil {
			require.Equal(t, fault.ProtocolViolation, fault.CodeOf(err))
			return
		}
		require.LessOrEqual(t, len(es), recordEntries)
		back := make([]byte, recordLen)
		for k := range es {
			require.Less(t, es[k].part, es[k].parts)
			require.LessOrEqual(t, es[k].parts, uint16(maxParts))
			putEntry(back, k, &es[k])
		}
		back = back[:putRecord(back, gen, len(es))]
		require.Equal(t, b, back)
	})
}

func FuzzParseCPUs(f *testing.F) {
	for _, s := range []string{"0-3,8,10-11\n", "", "7", "3-1", "-1", "0-99999999", "0,,1", "a"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, c := range parseCPUs(s) {
			require.True(t, c >= 0 && c < maxCPU)
		}
	})
}

func TestParseCPUs(t *testing.T) {
	require.Equal(t, []int{0, 1, 2, 3, 8, 10, 11}, parseCPUs("0-3,8,10-11\n"))
	for _, s := range []string{"", "x", "1-", "-1", "3-1", "0,,1", "0-8192"} {
		require.Nil(t, parseCPUs(s), s)
	}
}

// Garbage of every length gives a typed error and never more than it says.
func TestGarbageIsRefused(t *testing.T) {
	rng := testseed.New(t)
	for range 5000 {
		b := make([]byte, rng.IntN(100))
		for k := range b {
			b[k] = byte(rng.Uint32())
		}
		if _, err := parseMessage(kind(rng.IntN(24)), b); err != nil {
			requireCode(t, fault.ProtocolViolation, err)
		}
		if _, err := parseParams(b); err != nil {
			require.Contains(t, []fault.Code{fault.InvalidArgument, fault.VersionMismatch}, fault.CodeOf(err))
		}
		_, _ = parseRecord(nil, b, rand.Uint32())
	}
}

func requireCode(t testing.TB, want fault.Code, err error) {
	t.Helper()
	require.Error(t, err)
	require.Equal(t, want.String(), fault.CodeOf(err).String(), "%v", err)
}
