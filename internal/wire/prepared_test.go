package wire

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/testseed"
)

func preparedCases(add func(string, Kind, uint64, any, []byte) *golden, noReply func(string, Kind, any, []byte)) {
	add("hello_prepared", KindHello, 1, &Hello{MinVersion: 1, MaxVersion: 1, Optional: []string{FeaturePrepared}, Tenant: "default"}, nil)
	add("prepare", KindPrepare, 23, &Prepare{Cache: 2, Mode: ModeWrite, Ticket: sampleTicket().Encode(), TimeoutMillis: 30_000,
		Traceparent: sampleTraceparent, SpanID: sampleSpan}, AppendU32s(nil, []uint32{4, 1, 9}))
	add("prepare_region", KindPrepare, 24, &Prepare{Region: 1, Mode: ModeRead, Ticket: sampleTicket().Encode(), TimeoutMillis: 30_000,
		TransferIdentity: TransferIdentity{TransferID: sampleTransfer, Attempt: 2, Instance: "prefill", Provider: "tcp"}},
		AppendScatterRanges(nil, []ScatterRange{{Local: 0, Remote: 4096, Len: 64}}))
	add("ok_prepare", KindOK, 23, &PushInfo{Transfer: 7, TransferID: sampleTransfer, TraceID: sampleTrace, ParentID: sampleSpan, Sampled: true}, nil)
	noReply("post", KindPost, nil, AppendPost(AppendPost(nil, Post{Prepared: 7, Cookie: 1, TimeoutNanos: 1_000_000_000}),
		Post{Prepared: 7, Cookie: 1 << 63, TimeoutNanos: MaxPostNanos}))
	add("event_prepared", KindEventPrepared, 0, &PreparedEvent{Transfer: 7, Provider: "tcp", Reason: "the only one on both sides",
		Operations: 2, Bytes: 4_423_680}, nil)
	add("event_posted", KindEventPosted, 0, nil, AppendPosted(AppendPosted(nil, Posted{Cookie: 1, Bytes: 4_423_680, Nanos: 2_000}),
		Posted{Cookie: 1 << 63, Code: uint32(fault.LeaseRevoked), Flags: PostedWrote, Bytes: 100, Nanos: 3_000}))
	add("ring", KindRing, 25, &Ring{Entries: 256}, nil).frame.FDs = 3
	add("ok_ring", KindOK, 25, nil, nil)
}

func TestPostsRoundTrip(t *testing.T) {
	rng := testseed.New(t)
	for n := 1; n < 20; n++ {
		posts, ends := make([]Post, n), make([]Posted, n)
		var p, e []byte
		for i := range n {
			posts[i] = Post{Prepared: rng.Uint64(), Cookie: rng.Uint64(), TimeoutNanos: rng.Uint64()}
			ends[i] = Posted{Cookie: rng.Uint64(), Code: rng.Uint32(), Flags: rng.Uint32(), Bytes: rng.Uint64(), Nanos: rng.Uint64()}
			p, e = AppendPost(p, posts[i]), AppendPosted(e, ends[i])
		}
		gotP, err := Posts(p)
		require.NoError(t, err)
		assert.Equal(t, posts, gotP)
		gotE, err := PostedList(e)
		require.NoError(t, err)
		assert.Equal(t, ends, gotE)
	}
	for n := range 100 {
		_, err := Posts(make([]byte, n))
		assert.Equal(t, n > 0 && n%PostSize == 0, err == nil, n)
		_, err = PostedList(make([]byte, n))
		assert.Equal(t, n > 0 && n%PostedSize == 0, err == nil, n)
	}
}

func TestPreparedNamesFieldAndRange(t *testing.T) {
	good := Prepare{Cache: 1, Mode: ModeWrite, TimeoutMillis: 1}
	require.NoError(t, good.Validate())
	for field, change := range map[string]func(p *Prepare){
		"region":     func(p *Prepare) { p.Region = 1 },
		"mode":       func(p *Prepare) { p.Mode = "" },
		"timeout_ms": func(p *Prepare) { p.TimeoutMillis = MaxMillis + 1 },
		"span_id":    func(p *Prepare) { p.SpanID = "x" },
		"provider":   func(p *Prepare) { p.Provider = "\n" },
	} {
		p := good
		change(&p)
		err := p.Validate()
		require.ErrorIs(t, err, fault.ErrInvalidArgument, field)
		assert.Equal(t, field, fault.From("", err).Field)
		assert.ErrorContains(t, err, "allowed")
	}
	for _, n := range []uint32{0, 8, 15, 17, 48, MaxRingEntries + 1, 2 * MaxRingEntries} {
		err := (&Ring{Entries: n}).Validate()
		require.ErrorIs(t, err, fault.ErrInvalidArgument, n)
		assert.Equal(t, "entries", fault.From("", err).Field)
		assert.ErrorContains(t, err, "allowed powers of 2")
	}
	for n := uint32(MinRingEntries); n <= MaxRingEntries; n *= 2 {
		require.NoError(t, (&Ring{Entries: n}).Validate())
	}
	for n, want := range map[uint64]fault.Code{0: fault.InvalidArgument, 1: 0, MaxPostNanos: 0, MaxPostNanos + 1: fault.InvalidArgument} {
		assert.Equal(t, want, (&Post{TimeoutNanos: n}).Check(), n)
	}
}
