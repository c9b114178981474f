package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/testseed"
)

func randomBytes(rng *rand.Rand, n int) []byte {
	if n == 0 {
		return nil
	}
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

func randomFrame(rng *rand.Rand) Frame {
	size := func() int { return rng.IntN(1 << rng.IntN(13)) }
	return Frame{Kind: Kind(rng.Uint32()), Flags: uint16(rng.Uint32()), Request: rng.Uint64(),
		JSON: randomBytes(rng, size()), Array: randomBytes(rng, size()), FDs: uint16(rng.IntN(int(LocalLimits.FDs) + 1))}
}

func TestFrameRoundTrip(t *testing.T) {
	rng := testseed.New(t)
	var sent []Frame
	var stream []byte
	for range 200 {
		f := randomFrame(rng)
		sent = append(sent, f)
		stream = Append(stream, f)
	}
	// Larger than growStep, so that the buffer grows, and exactly a multiple of it.
	for _, n := range []int{growStep, growStep + 1, 5*growStep - 3} {
		f := Frame{Kind: KindLease, Request: 1, Array: randomBytes(rng, n)}
		sent = append(sent, f)
		stream = Append(stream, f)
	}
	for name, r := range map[string]io.Reader{
		"whole":       bytes.NewReader(stream),
		"halves":      iotest.HalfReader(bytes.NewReader(stream)),
		"data+err":    iotest.DataErrReader(bytes.NewReader(stream)),
		"byte by one": iotest.OneByteReader(bytes.NewReader(stream)),
	} {
		for i, want := range sent {
			got, err := ReadFrame(r, LocalLimits)
			require.NoError(t, err, "%s, frame %d", name, i)
			require.Equal(t, want, got, "%s, frame %d", name, i)
		}
		_, err := ReadFrame(r, LocalLimits)
		assert.Equal(t, io.EOF, err, "%s: the end between frames comes back unchanged", name)
	}
}

func TestReadFrameEnds(t *testing.T) {
	raw := Append(nil, Frame{Kind: KindLease, Request: 7, JSON: []byte(`{"cache":1}`), Array: []byte{1, 2, 3, 4}})
	for n := range raw {
		_, err := ReadFrame(bytes.NewReader(raw[:n]), LocalLimits)
		if n == 0 {
			assert.Equal(t, io.EOF, err)
		} else {
			assert.Equal(t, io.ErrUnexpectedEOF, err, "after %d bytes", n)
		}
	}
	broken := errors.New("reset")
	_, err := ReadFrame(io.MultiReader(bytes.NewReader(raw[:40]), iotest.ErrReader(broken)), LocalLimits)
	assert.ErrorIs(t, err, broken)
}

func TestHeaderRefuses(t *testing.T) {
	for field, change := range map[string]func(b []byte){
		"magic":        func(b []byte) { b[0] = 'X' },
		"version":      func(b []byte) { b[4] = FrameVersion + 1 },
		"json_length":  func(b []byte) { PutHeader(b, Header{JSON: LocalLimits.JSON + 1}) },
		"array_length": func(b []byte) { PutHeader(b, Header{Array: LocalLimits.Array + 1}) },
		"fd_count":     func(b []byte) { PutHeader(b, Header{FDs: LocalLimits.FDs + 1}) },
	} {
		b := make([]byte, HeaderSize)
		PutHeader(b, Header{Kind: KindPing})
		change(b)
		_, err := ReadFrame(bytes.NewReader(b), LocalLimits)
		require.ErrorIs(t, err, fault.ErrProtocolViolation, field)
		assert.Equal(t, field, fault.From("", err).Field)
	}
	_, err := ParseHeader(make([]byte, HeaderSize-1), LocalLimits)
	assert.ErrorIs(t, err, fault.ErrProtocolViolation)

	b := make([]byte, HeaderSize)
	PutHeader(b, Header{Kind: KindRegisterRegion, FDs: 1})
	_, err = ParseHeader(b, PeerLimits)
	assert.ErrorIs(t, err, fault.ErrProtocolViolation, "no descriptor crosses a peer connection")

	// Reserved bytes, unknown flags and unknown kinds are not the framing's business.
	PutHeader(b, Header{Kind: 0xEE, Flags: 0xFFFF})
	b[26], b[31] = 1, 1
	h, err := ParseHeader(b, LocalLimits)
	require.NoError(t, err)
	assert.Equal(t, "KIND_238", h.Kind.String())
}

// allocated gives the bytes of heap that f takes in all, whether freed or not.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func TestFalseLengthCostsLittle(t *testing.T) {
	// slack is for the test's own allocations and those of the runtime.
	const slack = 256 << 10
	header := make([]byte, HeaderSize)
	PutHeader(header, Header{Kind: KindLease, Request: 1, Array: LocalLimits.Array})
	for _, sent := range []int{0, 1000, growStep, 3 * growStep} {
		raw := append(bytes.Clone(header), make([]byte, sent)...)
		var err error
		n := allocated(func() { _, err = ReadFrame(bytes.NewReader(raw), LocalLimits) })
		assert.Equal(t, io.ErrUnexpectedEOF, err)
		// Doubling costs what was sent twice over, once more for the next buffer, and a quarter of rounding.
		assert.LessOrEqual(t, n, uint64(5*max(sent, growStep)+slack), "%d bytes sent of 64 MiB claimed", sent)
	}
	PutHeader(header, Header{Kind: KindLease, Request: 1, JSON: LocalLimits.JSON, Array: LocalLimits.Array})
	n := allocated(func() { _, _ = ReadFrame(bytes.NewReader(header), LocalLimits) })
	assert.LessOrEqual(t, n, uint64(LocalLimits.JSON+slack))
}

func TestNewFrameRefusesWhatNoReaderAccepts(t *testing.T) {
	_, err := NewFrame(KindOK, 1, nil, make([]byte, maxArray+1))
	assert.ErrorIs(t, err, fault.ErrNotSupported)
	_, err = NewFrame(KindOK, 1, strings.Repeat("x", maxJSON), nil)
	assert.ErrorIs(t, err, fault.ErrNotSupported)
	_, err = NewFrame(KindOK, 1, func() {}, nil)
	assert.ErrorIs(t, err, fault.ErrInternal)

	f, err := NewFrame(KindOK, 1, strings.Repeat("x", maxJSON-2), make([]byte, maxArray))
	require.NoError(t, err)
	b := make([]byte, HeaderSize)
	PutHeader(b, Header{JSON: uint32(len(f.JSON)), Array: uint32(len(f.Array))})
	_, err = ParseHeader(b, LocalLimits)
	assert.NoError(t, err)
}

func TestErrorsStaySmall(t *testing.T) {
	f := Frame{Kind: KindLease, JSON: []byte(`{"cache":` + strings.Repeat("9", 1<<19) + `}`)}
	err := f.Decode(&LeaseRequest{})
	require.ErrorIs(t, err, fault.ErrProtocolViolation)
	assert.Less(t, len(err.Error()), 2*maxEcho, "a number of half a megabyte is not repeated")

	long := fault.New(fault.Internal, strings.Repeat("o", 1<<20), "%s", strings.Repeat("\x00", 1<<20))
	e := NewError(9, long)
	assert.Less(t, len(e.JSON), maxJSON)
	var w fault.Wire
	require.NoError(t, e.Decode(&w))
	assert.Equal(t, fault.Internal, w.Code)
	assert.Equal(t, uint64(9), e.Request)

	e = NewError(0, errors.New("plain"))
	require.NoError(t, e.Decode(&w))
	assert.Equal(t, "plain", w.Detail)
}

func TestDecodeIgnoresUnknownFields(t *testing.T) {
	f := Frame{Kind: KindLease, JSON: []byte(`{"cache":3,"mode":"write","ttl_ms":5,"from_the_future":{"a":[1]}}`)}
	var r LeaseRequest
	require.NoError(t, f.Decode(&r))
	assert.Equal(t, LeaseRequest{Cache: 3, Mode: "write", TTLMillis: 5}, r)
	for _, bad := range []string{"", "[]", `{"cache":-1}`, `{"cache":"1"}`, `{"cache":1}{}`} {
		assert.ErrorIs(t, (&Frame{Kind: KindLease, JSON: []byte(bad)}).Decode(&r), fault.ErrProtocolViolation, bad)
	}
}

func TestDecodeNamesTheField(t *testing.T) {
	for _, c := range []struct {
		body, field, allowed string
		to                   any
	}{
		{`{"cache":-1}`, "cache", "0..2^64-1", &LeaseRequest{}},
		{`{"cache":"1"}`, "cache", "0..2^64-1", &LeaseRequest{}},
		{`{"mode":1}`, "mode", "a string", &LeaseRequest{}},
		{`{"ttl_ms":1.5}`, "ttl_ms", "an integer of 64 bits", &LeaseRequest{}},
		{`{"layout":{"kv_heads":4294967296}}`, "layout.kv_heads", "0..2^32-1", &RegisterCache{}},
		{`{"layout":7}`, "layout", "an object", &RegisterCache{}},
		{`{"layerwise":1}`, "layerwise", "true or false", &PushRequest{}},
		{`{"spans":1}`, "spans", "a list", &Spans{}},
		{`[]`, "body", "an object", &LeaseRequest{}},
		{`{"cache":1`, "body", "", &LeaseRequest{}},
	} {
		err := (&Frame{Kind: KindLease, JSON: []byte(c.body)}).Decode(c.to)
		var e *fault.Error
		require.ErrorAs(t, err, &e, c.body)
		assert.Equal(t, c.field, e.Field, c.body)
		assert.Contains(t, e.Detail, c.allowed, c.body)
		assert.NotContains(t, e.Detail, "Go ", c.body)
	}
}

func FuzzReadFrame(f *testing.F) {
	for _, c := range goldenCases() {
		f.Add(Append(nil, c.frame))
	}
	f.Add([]byte{})
	f.Add(bytes.Repeat([]byte{0xFF}, HeaderSize))
	f.Fuzz(func(t *testing.T, raw []byte) {
		r := bytes.NewReader(raw)
		for {
			fr, err := ReadFrame(r, LocalLimits)
			if err != nil {
				return
			}
			again, err := ReadFrame(bytes.NewReader(Append(nil, fr)), LocalLimits)
			require.NoError(t, err)
			require.Equal(t, fr, again)
			decodeAny(t, fr)
		}
	})
}

// decodeAny feeds a frame's body to every struct and its array to every parser. Nothing may panic, and what was read
// must encode again.
func decodeAny(t *testing.T, fr Frame) {
	for _, s := range wireStructs {
		v := s.new()
		if fr.Decode(v) != nil {
			continue
		}
		if c, ok := v.(interface{ Validate() error }); ok {
			_ = c.Validate()
		}
		_, err := json.Marshal(v)
		require.NoError(t, err)
	}
	var h Hello
	if fr.Decode(&h) == nil {
		if v, err := Negotiate(&h); err == nil {
			require.True(t, v >= MinVersion && v <= MaxVersion && v >= h.MinVersion && v <= h.MaxVersion)
		}
	}
	parseArrays(t, fr.Array)
}
