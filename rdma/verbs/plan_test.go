package verbs

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/testseed"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
)

// naive maps every byte of a range list: which local one goes to which remote one, in order.
func naive(ranges []rdma.Range) (local, remote []uint64) {
	for _, r := range ranges {
		for k := range r.Len {
			local, remote = append(local, r.Local+k), append(remote, r.Remote+k)
		}
	}
	return local, remote
}

// In any split, each byte is moved once, from and to where the list says; a request is contiguous at the peer, within the limits
// of size and entries, and ends only where it must.
func TestRequestsMoveEachByteOnce(t *testing.T) {
	rng := testseed.New(t)
	for round := range 1000 {
		var ranges []rdma.Range
		var total uint64
		at := rdma.Range{Local: rng.Uint64N(1 << 20), Remote: rng.Uint64N(1 << 20)}
		for range 1 + rng.IntN(12) {
			at.Len = 1 + rng.Uint64N(40)
			ranges = append(ranges, at)
			total += at.Len
			at.Local, at.Remote = at.Local+at.Len, at.Remote+at.Len // contiguous on both sides, or on one, or on none
			if rng.IntN(3) == 0 {
				at.Local += 1 + rng.Uint64N(100)
			}
			if rng.IntN(3) == 0 {
				at.Remote += 1 + rng.Uint64N(100)
			}
		}
		local, remote := naive(ranges)
		g := geometry{local: 1 << 40, remote: 1 << 41, lkey: 5, rkey: 6, maxSGE: 1 + rng.IntN(4), maxBytes: 1 + rng.Uint64N(200)}
		parts := 1 + rng.IntN(int(min(total, 5)))
		o := op{ranges: ranges, total: total}
		o.parts = make([]part, parts)
		var start cursor
		left, done := total, 0
		for k := range o.parts { // as op.split does
			size := left / uint64(parts-k)
			o.parts[k] = part{start: start, bytes: size}
			start = skip(ranges, start, size)
			left -= size
		}
		require.Zero(t, left)
		require.Equal(t, cursor{i: len(ranges)}, start)
		for k := range o.parts {
			c, rest := o.parts[k].start, o.parts[k].bytes
			for rest > 0 {
				before := rest
				wr, sges := nextRequest(ranges, &c, &rest, &g, make([]nic.SGE, 3)) // behind what others left
				sges = sges[3:]
				require.EqualValues(t, 3, wr.First)
				require.Len(t, sges, int(wr.Count))
				require.LessOrEqual(t, len(sges), g.maxSGE, "round %d", round)
				require.EqualValues(t, g.rkey, wr.RKey)
				n := before - rest
				require.Positive(t, n)
				require.LessOrEqual(t, n, g.maxBytes)
				sum := uint64(0)
				for _, s := range sges {
					require.EqualValues(t, g.lkey, s.LKey)
					require.Positive(t, s.Len)
					for b := range uint64(s.Len) {
						if g.local+local[done] != s.Addr+b || g.remote+remote[done] != wr.Remote+sum+b {
							t.Fatalf("round %d: byte %d goes from %#x to %#x", round, done, s.Addr+b, wr.Remote+sum+b)
						}
						done++
					}
					sum += uint64(s.Len)
				}
				require.Equal(t, n, sum)
				if rest > 0 && n < g.maxBytes && len(sges) < g.maxSGE {
					require.NotEqual(t, remote[done-1]+1, remote[done], "round %d: neighbours at the peer were not joined", round)
				}
				for s := 1; s < len(sges); s++ {
					require.NotEqual(t, sges[s-1].Addr+uint64(sges[s-1].Len), sges[s].Addr, "neighbours here are one entry")
				}
			}
		}
		require.Len(t, local, done)
	}
}

func TestSplitInto(t *testing.T) {
	for _, c := range []struct {
		total      uint64
		ways, want int
	}{
		{0, 8, 1}, {stripeFrom - 1, 8, 1}, {stripeFrom, 1, 1}, {stripeFrom, 0, 1}, {stripeFrom, 8, 2}, {3 * stripe, 8, 3}, {3 * stripe, 2, 2},
		{1 << 30, 8, 8}, {1 << 40, 1000, maxParts},
	} {
		require.Equal(t, c.want, splitInto(c.total, c.ways), "%+v", c)
	}
}

func TestSplitKeepsEveryByte(t *testing.T) {
	rng := testseed.New(t)
	for range 500 {
		o := &op{}
		for range 1 + rng.IntN(50) {
			n := 1 + rng.Uint64N(300<<10)
			o.ranges = append(o.ranges, rdma.Range{Len: n})
			o.total += n
		}
		o.split(rng.IntN(20))
		require.Equal(t, len(o.parts), o.left)
		sum, at := uint64(0), cursor{}
		for k := range o.parts {
			p := &o.parts[k]
			require.Equal(t, at, p.start)
			require.Equal(t, k, p.index)
			if len(o.parts) > 1 {
				require.GreaterOrEqual(t, p.bytes, uint64(stripe))
			}
			at = skip(o.ranges, at, p.bytes)
			sum += p.bytes
		}
		require.Equal(t, o.total, sum)
	}
}
