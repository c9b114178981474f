package tcp

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

// A round of the property test: windows over disjoint parts of the target, and operations that each own slots of both
// sides which no other touches. Windows are fenced and operations cancelled at random moments; whoever took memory
// back writes it again at once, as an allocator would. At the end every byte has one or two values it may have.
type round struct {
	*pair
	t       *testing.T
	rng     *rand.Rand
	windows []*grantedWindow
	ops     []*postedOp
	dst     []byte // what the target's memory was, then what it must be
	src     []byte // the same for the initiator's
}

type grantedWindow struct {
	key    rdma.Key
	access rdma.Access
	span   rdma.Span
	reused bool
}

type postedOp struct {
	rdma.Op
	w      *grantedWindow
	ended  *rdma.Event
	reused bool // the local ranges are overwritten since
}

const (
	slot    = 3000 // not a divisor of anything
	slots   = 400
	windows = 6
)

func TestRandomOpsChangeExactlyWhatTheyMay(t *testing.T) {
	rng := newRand(t)
	for n := range 12 {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			o := Options{Lanes: 1 + rng.IntN(4), SocketBuffer: []int{16 << 10, small, 4 << 20}[rng.IntN(3)], MaxInFlight: 1 + rng.IntN(40)}
			p, x := newProxied(t, slot*slots*windows, o, o)
			r := &round{pair: p, t: t, rng: rng}
			r.run(x)
		})
	}
}

func (r *round) run(x *proxy) {
	pattern(r.pair.src, r.rng.Uint64())
	pattern(r.pair.dst, r.rng.Uint64())
	r.src, r.dst = bytes.Clone(r.pair.src), bytes.Clone(r.pair.dst)
	for i := range windows {
		w := &grantedWindow{access: rdma.Access(1 + i%2), span: rdma.Span{Off: uint64(i * slot * slots), Len: slot * slots}}
		s, err := rdma.NewSpans(uint64(len(r.dst)), w.span)
		require.NoError(r.t, err)
		w.key, err = r.tgt.Grant(rdma.Window{Region: r.dstR, Access: w.access, Bounds: s})
		require.NoError(r.t, err)
		r.windows = append(r.windows, w)
	}
	local, used := r.rng.Perm(slots*windows), make([][]int, windows)
	for i := range used {
		used[i] = r.rng.Perm(slots)
	}
	pending := 0
	for step := 0; step < 400 || pending > 0; step++ {
		if step >= 400 {
			x.valve.set(-1)
		}
		switch c := r.rng.IntN(20); {
		case c < 9 && step < 400:
			i := r.rng.IntN(windows)
			n := min(r.rng.IntN(12), len(used[i]), len(local))
			op := &postedOp{w: r.windows[i], Op: rdma.Op{Kind: rdma.OpKind(r.windows[i].access), ID: uint64(len(r.ops)), Local: r.srcR, Remote: r.windows[i].key, Tag: uint64(len(r.ops))}}
			for k := range n {
				op.Ranges = append(op.Ranges, rdma.Range{Local: uint64(local[k] * slot), Remote: op.w.span.Off + uint64(used[i][k]*slot), Len: r.rng.Uint64N(slot + 1)})
			}
			took, err := r.ini.Post([]rdma.Op{op.Op})
			require.NoError(r.t, err)
			if took == 1 {
				local, used[i] = local[n:], used[i][n:]
				r.ops = append(r.ops, op)
				pending++
			}
		case c < 11:
			x.valve.set(r.rng.Int64N(200_000))
		case c == 11:
			x.valve.set(-1)
		case c == 12 && len(r.ops) > 0:
			r.ini.Cancel(uint64(r.rng.IntN(len(r.ops))))
		case c == 13 && r.rng.IntN(8) == 0:
			w := r.windows[r.rng.IntN(windows)]
			require.NoError(r.t, r.tgt.Fence(w.key))
			if !w.reused { // write windows; what a fenced READ had read before is its own matter
				w.reused = true
				pattern(r.pair.dst[w.span.Off:w.span.Off+w.span.Len], r.rng.Uint64())
				copy(r.dst[w.span.Off:], r.pair.dst[w.span.Off:w.span.Off+w.span.Len])
			}
		default:
			if step >= 400 {
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				require.NoError(r.t, r.a.Wait(ctx))
				cancel()
			}
			pending -= r.collect()
		}
	}
	for _, w := range r.windows { // what was cancelled on its way may arrive until then
		require.NoError(r.t, r.tgt.Fence(w.key))
	}
	r.check()
}

// collect takes completions and gives the released local memory to somebody else.
func (r *round) collect() (n int) {
	for _, e := range r.a.drain() {
		require.Equal(r.t, rdma.EventCompletion, e.Kind, "%+v", e)
		op := r.ops[e.Op]
		require.Nil(r.t, op.ended, "op %d ends twice", e.Op)
		op.ended = &e
		n++
		if e.Status != 0 {
			op.reused = true
			for _, x := range op.Ranges {
				pattern(r.pair.src[x.Local:x.Local+x.Len], r.rng.Uint64())
				copy(r.src[x.Local:], r.pair.src[x.Local:x.Local+x.Len])
			}
		}
	}
	return n
}

func (r *round) check() {
	t := r.t
	arrived := map[uint64]bool{}
	for _, e := range r.b.drain() {
		require.Equal(t, rdma.EventArrival, e.Kind)
		arrived[e.Tag] = true
	}
	for _, op := range r.ops {
		e := *op.ended
		require.Contains(t, []fault.Code{0, fault.Cancelled, fault.StaleKey}, e.Status)
		if op.Kind == rdma.OpWrite && e.Status == 0 {
			require.True(t, arrived[op.Tag], "op %d", op.ID)
		}
		if e.Status == 0 {
			require.Equal(t, op.Bytes(), e.Bytes)
		}
		for _, x := range op.Ranges {
			local, remote := r.src[x.Local:x.Local+x.Len], r.dst[x.Remote:x.Remote+x.Len]
			haveL, haveR := r.pair.src[x.Local:x.Local+x.Len], r.pair.dst[x.Remote:x.Remote+x.Len]
			switch {
			case op.Kind == rdma.OpRead && e.Status == 0 && !op.w.reused:
				require.Equal(t, remote, haveL, "op %d", op.ID)
				copy(local, haveL)
			case op.Kind == rdma.OpRead && e.Status == 0:
				copy(local, haveL)
			case op.Kind == rdma.OpWrite && !op.w.reused && e.Status == 0:
				require.Equal(t, local, haveR, "op %d", op.ID)
				copy(remote, haveR)
			case op.Kind == rdma.OpWrite && !op.w.reused && e.Wrote:
				copy(remote, haveR) // old, new or filler: the caller was told
			}
		}
	}
	// Everything else, and all that somebody took back, is exactly as its owner left it.
	require.True(t, bytes.Equal(r.src, r.pair.src), "the initiator's memory")
	require.True(t, bytes.Equal(r.dst, r.pair.dst), "the target's memory")
}
