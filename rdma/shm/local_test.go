package shm

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/fabrictest"
)

// inside is a session within one provider, and memory on both sides.
type inside struct {
	*node
	ini      *local
	tgt      *target
	src, dst *fabrictest.Memory
	srcR     rdma.Region
	dstR     rdma.Region
}

func newInside(t testing.TB, size int, o Options) *inside {
	x := &inside{node: newNode(t, o), src: fabrictest.Alloc(t, size, 0), dst: fabrictest.Alloc(t, size, 0)}
	x.ini, x.tgt = joined(t, x.node, 1)
	x.srcR, x.dstR = register(t, x.node, x.src.Host("src")), register(t, x.node, x.dst.Host("dst"))
	return x
}

func joined(t testing.TB, n *node, id rdma.SessionID) (*local, *target) {
	tgt, par, err := n.Accept(id)
	require.NoError(t, err)
	ini, err := n.Connect(t.Context(), id+1<<32, "", par)
	require.NoError(t, err)
	return ini.(*local), tgt.(*target)
}

func (x *inside) grant(t testing.TB, access rdma.Access, deadline rdma.Instant, spans ...rdma.Span) rdma.Key {
	size := x.dst.Host("").Len
	if len(spans) == 0 {
		spans = []rdma.Span{{Len: size}}
	}
	s, err := rdma.NewSpans(size, spans...)
	require.NoError(t, err)
	k, err := x.tgt.Grant(rdma.Window{Region: x.dstR, Access: access, Bounds: s, Deadline: deadline})
	require.NoError(t, err)
	return k
}

func (x *inside) do(t testing.TB, op rdma.Op) rdma.Event {
	n, err := x.ini.Post([]rdma.Op{op})
	require.NoError(t, err)
	require.Equal(t, 1, n)
	return x.next(t, rdma.EventCompletion)
}

// TestInsideTakesNoSocket: where both sides are one provider's there is no descriptor, no mapping and no goroutine for a session,
// whatever path the parameters have.
func TestInsideTakesNoSocket(t *testing.T) {
	n := newNode(t, Options{})
	fds, maps := openFDs(t), mapped(t)
	for id := rdma.SessionID(1); id < 50; id++ {
		tgt, raw, err := n.Accept(id)
		require.NoError(t, err)
		par, err := parseParams(raw)
		require.NoError(t, err)
		par.path = "/nowhere"
		ini, err := n.Connect(t.Context(), id+100, "", par.bytes())
		require.NoError(t, err)
		if id%2 == 0 {
			require.NoError(t, ini.Close())
			require.NoError(t, tgt.Close())
		}
	}
	assert.Equal(t, fds, openFDs(t))
	assert.Equal(t, maps, mapped(t))
}

// TestOneInitiatorInside: a session has one place, and only its secret opens it.
func TestOneInitiatorInside(t *testing.T) {
	n := newNode(t, Options{})
	tgt, raw, err := n.Accept(1)
	require.NoError(t, err)
	par, err := parseParams(raw)
	require.NoError(t, err)
	wrong := par
	wrong.secret[0] ^= 1
	_, err = n.Connect(t.Context(), 2, "", wrong.bytes())
	requireCode(t, fault.PeerUnreachable, err) // by the socket, which refuses it
	_, err = n.Connect(t.Context(), 3, "", raw)
	require.NoError(t, err)
	_, err = n.Connect(t.Context(), 4, "", raw)
	requireCode(t, fault.AlreadyExists, err)
	require.NoError(t, tgt.Close())
	_, err = n.Connect(t.Context(), 5, "", raw)
	requireCode(t, fault.PeerUnreachable, err)
}

// TestEndOfASessionInside: the end of one side is the loss of the peer to the other, and each side says so once.
func TestEndOfASessionInside(t *testing.T) {
	for _, byTarget := range []bool{true, false} {
		x := newInside(t, 1<<20, Options{})
		k := x.grant(t, rdma.AccessWrite, 0)
		require.Zero(t, x.do(t, write(k, 1, x.srcR, rdma.Range{Len: 5})).Status)
		if byTarget {
			require.NoError(t, x.tgt.Close())
		} else {
			require.NoError(t, x.ini.Close())
		}
		e := x.next(t, rdma.EventDown)
		assert.Equal(t, fault.PeerLost, e.Status)
		assert.Equal(t, map[bool]rdma.SessionID{true: x.ini.id, false: x.tgt.id}[byTarget], e.Session)
		n, err := x.ini.Post([]rdma.Op{write(k, 2, x.srcR, rdma.Range{Len: 5})})
		assert.Zero(t, n)
		want := map[bool]fault.Code{true: fault.PeerLost, false: fault.Closed}[byTarget]
		requireCode(t, want, err)
		n, st := x.ini.Move([]rdma.Op{write(k, 2, x.srcR, rdma.Range{Len: 5})})
		assert.Zero(t, n)
		assert.Equal(t, want, st)
		require.NoError(t, x.tgt.Close())
		require.NoError(t, x.ini.Close())
		for _, e := range append(x.queue, x.drain()...) {
			assert.NotEqual(t, rdma.EventDown, e.Kind, "once is enough")
		}
	}
}

func (n *node) drain() (all []rdma.Event) {
	var buf [32]rdma.Event
	for k := n.Poll(buf[:]); k > 0; k = n.Poll(buf[:]) {
		all = append(all, buf[:k]...)
	}
	return all
}

// TestKindsOfMemoryInside moves bytes between every two kinds, both ways, posted and moved.
func TestKindsOfMemoryInside(t *testing.T) {
	const size = 1<<20 + 77
	for _, far := range []bool{false, true} {
		for _, near := range []bool{false, true} {
			x := newInside(t, size, Options{})
			if near {
				x.srcR = register(t, x.node, asProcess(t, x.src))
			}
			if far {
				x.dstR = register(t, x.node, asProcess(t, x.dst))
			}
			ranges := []rdma.Range{{Len: size - 5000}, {Local: size - 5000, Remote: size - 5000, Len: 3}, {Local: size - 4997, Remote: size - 4997, Len: 4997}}
			kw, kr := x.grant(t, rdma.AccessWrite, 0), x.grant(t, rdma.AccessRead, 0)
			for seed, run := range []func(op rdma.Op){
				func(op rdma.Op) { require.Zero(t, x.do(t, op).Status) },
				func(op rdma.Op) {
					n, st := x.ini.Move([]rdma.Op{op})
					require.Equal(t, 1, n)
					require.Zero(t, st)
				},
			} {
				fabrictest.Fill(x.src.Bytes(), fabrictest.ClassSource, uint64(seed))
				run(write(kw, 1, x.srcR, ranges...))
				require.Empty(t, fabrictest.Diff(x.src.Bytes(), x.dst.Bytes()))
				fabrictest.Fill(x.dst.Bytes(), fabrictest.ClassSource, uint64(seed)+10)
				run(read(kr, 2, x.srcR, ranges...))
				require.Empty(t, fabrictest.Diff(x.dst.Bytes(), x.src.Bytes()))
			}
			require.NoError(t, x.src.GuardsIntact())
			require.NoError(t, x.dst.GuardsIntact())
		}
	}
}
