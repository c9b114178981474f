package tcp

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

// scatter cuts [0, size) into pieces of up to piece bytes and permutes a part of them on both sides.
func scatter(rng *rand.Rand, size, piece uint64, n int) []rdma.Range {
	slots := int(size / piece)
	l, r := rng.Perm(slots), rng.Perm(slots)
	var out []rdma.Range
	for i := range min(n, slots) {
		k := rng.Uint64N(piece + 1)
		out = append(out, rdma.Range{Local: uint64(l[i])*piece + rng.Uint64N(piece-k+1), Remote: uint64(r[i])*piece + rng.Uint64N(piece-k+1), Len: k})
	}
	return out
}

func apply(to, from []byte, ranges []rdma.Range, read bool) {
	for _, x := range ranges {
		if x.Len == 0 {
			continue // its offsets are not looked at
		}
		if read {
			copy(to[x.Local:x.Local+x.Len], from[x.Remote:x.Remote+x.Len])
		} else {
			copy(to[x.Remote:x.Remote+x.Len], from[x.Local:x.Local+x.Len])
		}
	}
}

func TestTransfersLandByteByByte(t *testing.T) {
	rng := newRand(t)
	const size = 65 << 20
	p := newPair(t, size, Options{}, Options{})
	kw, kr := p.grant(t, rdma.AccessWrite, 0), p.grant(t, rdma.AccessRead, 0)
	fresh := make([]byte, size+8192)
	const tile = 1<<20 + 7 // the pattern is dear under the race detector; of an odd length it still tells ranges apart
	pattern(fresh[:tile], rng.Uint64())
	for at := tile; at < len(fresh); at += tile {
		copy(fresh[at:], fresh[:tile])
	}
	const most = 12 << 20 // what all but one case use
	whole := func(n uint64) []rdma.Range { return []rdma.Range{{Local: 3, Remote: 5, Len: n}} }
	cases := map[string][]rdma.Range{
		"no range":   nil,
		"empty ones": {{Local: 1, Remote: 2}, {Local: size, Remote: size}},
		"1 B":        whole(1),
		"4 KiB":      whole(4096),
		"1 MiB":      whole(1 << 20),
		"1 MiB + 1":  whole(1<<20 + 1),
		"64 MiB":     whole(64 << 20),
		"256":        scatter(rng, most, 4096, 256),
		"257":        scatter(rng, most, 4096, 257),
		"5000":       scatter(rng, most, 2048, 5000),
		"tiny":       scatter(rng, most, 3, 65536),
		"big pieces": scatter(rng, most, 3<<20, 20),
	}
	id := uint64(0)
	for name, ranges := range cases {
		for _, kind := range []rdma.OpKind{rdma.OpWrite, rdma.OpRead} {
			t.Run(fmt.Sprintf("%s/%d", name, kind), func(t *testing.T) {
				id++
				n := most
				if name == "64 MiB" {
					n = size
				}
				src, dst := p.src[:n], p.dst[:n]
				copy(src, fresh[rng.Uint64N(4096):])
				copy(dst, fresh[4096+rng.Uint64N(4096):])
				op := rdma.Op{Kind: kind, ID: id, Local: p.srcR, Remote: kw, Ranges: ranges, Tag: id}
				have, want := dst, bytes.Clone(dst)
				if kind == rdma.OpRead {
					op.Remote, have, want = kr, src, bytes.Clone(src)
					apply(want, dst, ranges, true)
				} else {
					apply(want, src, ranges, false)
				}
				p.post(t, op)
				e := p.a.next(t, rdma.EventCompletion)
				require.Equal(t, rdma.Event{Kind: rdma.EventCompletion, Session: 2, Op: id, Bytes: op.Bytes()}, e)
				require.True(t, bytes.Equal(want, have))
				if kind == rdma.OpWrite {
					require.Equal(t, rdma.Event{Kind: rdma.EventArrival, Session: 1, Bytes: op.Bytes(), Key: kw, Tag: id}, p.b.next(t, rdma.EventArrival))
				}
			})
		}
	}
	require.Empty(t, p.a.drain())
	require.Empty(t, p.b.drain())
}

func TestManySmallOps(t *testing.T) {
	p := newPair(t, 1<<20, Options{}, Options{})
	kw := p.grant(t, rdma.AccessWrite, 0)
	pattern(p.src, 1)
	const n = 20000
	sent, ended := uint64(0), 0
	var buf [64]rdma.Event
	for ended < n {
		if sent < n {
			off := sent * 64 % (1 << 20)
			k, err := p.ini.Post([]rdma.Op{write(kw, sent, p.srcR, rdma.Range{Local: off, Remote: off, Len: 64})})
			require.NoError(t, err)
			sent += uint64(k)
		}
		for _, e := range buf[:p.a.Poll(buf[:])] {
			require.Zero(t, e.Status)
			ended++
		}
		if sent == n && ended < n {
			p.a.queue = nil
			p.a.queue = append(p.a.queue, p.a.next(t, rdma.EventCompletion))
			ended += len(p.a.drain())
		}
	}
	require.True(t, bytes.Equal(p.src, p.dst))
	seen := map[uint64]bool{}
	for range n {
		e := p.b.next(t, rdma.EventArrival)
		require.False(t, seen[e.Tag])
		seen[e.Tag] = true
	}
}

func TestRefusals(t *testing.T) {
	p := newPair(t, 1<<20, Options{}, Options{})
	kw, kr := p.grant(t, rdma.AccessWrite, 0), p.grant(t, rdma.AccessRead, 0)
	part, err := rdma.NewSpans(1<<20, rdma.Span{Off: 100, Len: 100})
	require.NoError(t, err)
	kp, err := p.tgt.Grant(rdma.Window{Region: p.dstR, Access: rdma.AccessWrite, Bounds: part})
	require.NoError(t, err)
	fenced := p.grant(t, rdma.AccessWrite, 0)
	require.NoError(t, p.tgt.Fence(fenced))
	require.NoError(t, p.tgt.Fence(fenced))
	require.NoError(t, p.tgt.Fence(4711))
	pattern(p.src, 1)
	in := rdma.Range{Local: 0, Remote: 100, Len: 100}
	for name, c := range map[string]struct {
		op   rdma.Op
		want fault.Code
	}{
		"fenced":       {write(fenced, 1, p.srcR, in), fault.StaleKey},
		"fenced empty": {write(fenced, 1, p.srcR), fault.StaleKey},
		"unknown":      {read(4711, 1, p.srcR, in), fault.StaleKey},
		"read empty":   {read(4711, 1, p.srcR), fault.StaleKey},
		"write a read": {write(kr, 1, p.srcR, in), fault.PermissionDenied},
		"read a write": {read(kw, 1, p.srcR, in), fault.PermissionDenied},
		"before":       {write(kp, 1, p.srcR, in, rdma.Range{Remote: 99, Len: 1}), fault.OutOfBounds},
		"behind":       {write(kp, 1, p.srcR, in, rdma.Range{Remote: 199, Len: 2}), fault.OutOfBounds},
		"region":       {write(kw, 1, p.srcR, rdma.Range{Remote: 1<<20 - 1, Len: 2}), fault.OutOfBounds},
		"wraps":        {read(kr, 1, p.srcR, rdma.Range{Remote: ^uint64(0) - 1, Len: 4}), fault.OutOfBounds},
	} {
		t.Run(name, func(t *testing.T) {
			p.post(t, c.op)
			require.Equal(t, rdma.Event{Kind: rdma.EventCompletion, Status: c.want, Session: 2, Op: 1}, p.a.next(t, rdma.EventCompletion))
			require.True(t, bytes.Equal(p.dst, make([]byte, len(p.dst))))
		})
	}
	other := register(t, p.b.Provider, p.src, "other")
	for name, c := range map[string]struct {
		op   rdma.Op
		want fault.Code
	}{
		"local bounds": {write(kw, 1, p.srcR, rdma.Range{Local: 1<<20 - 1, Len: 2}), fault.OutOfBounds},
		"local wraps":  {write(kw, 1, p.srcR, rdma.Range{Local: ^uint64(0), Len: 2}), fault.OutOfBounds},
		"kind":         {rdma.Op{Kind: 9, Local: p.srcR}, fault.InvalidArgument},
		"no region":    {rdma.Op{Kind: rdma.OpRead}, fault.InvalidArgument},
		"other's":      {write(kw, 1, other, in), fault.InvalidArgument},
		"ranges":       {write(kw, 1, p.srcR, make([]rdma.Range, 1<<16+1)...), fault.InvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			n, err := p.ini.Post([]rdma.Op{write(kw, 7, p.srcR, in), c.op})
			require.Equal(t, 1, n)
			requireCode(t, c.want, err)
			require.Zero(t, p.a.next(t, rdma.EventCompletion).Status)
		})
	}
	_, err = p.ini.Post([]rdma.Op{write(kw, 7, p.srcR, in), write(kw, 7, p.srcR, in)})
	requireCode(t, fault.InvalidArgument, err)
}

// Once warm, an operation allocates nothing for its blocks. The bound leaves room for what else runs in the process
// and for the pool, which the race detector empties at random.
func TestNoAllocationPerBlock(t *testing.T) { clearAndTLS(t, testNoAllocationPerBlock) }

func testNoAllocationPerBlock(t *testing.T, newPair makePair) {
	const blocks = 8192
	p := newPair(t, blocks*512, Options{}, Options{})
	for _, access := range []rdma.Access{rdma.AccessWrite, rdma.AccessRead} {
		op := []rdma.Op{{Kind: rdma.OpKind(access), ID: 1, Local: p.srcR, Remote: p.grant(t, access, 0), Ranges: make([]rdma.Range, blocks)}}
		for i := range op[0].Ranges {
			op[0].Ranges[i] = rdma.Range{Local: uint64(i) * 512, Remote: uint64(blocks-1-i) * 512, Len: 512}
		}
		per := testing.AllocsPerRun(10, func() {
			p.post(t, op...)
			require.Zero(t, p.a.next(t, rdma.EventCompletion).Status)
		})
		require.Less(t, per, blocks/16.0)
	}
}
