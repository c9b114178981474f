package tcp

import (
	"io"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

// lying counts the sockets that have no thread.
func (n *node) lying() int {
	n.rest.mu.Lock()
	defer n.rest.mu.Unlock()
	return len(n.rest.here)
}

// A lane with nothing to read gives its thread back, on both sides, and the next operation finds it.
func TestQuietLanesRest(t *testing.T) {
	const lanes = 3
	p := newPair(t, 4096, Options{Lanes: lanes}, Options{Lanes: lanes})
	k := p.grant(t, rdma.AccessWrite, 0)
	for id := range uint64(2) {
		p.post(t, write(k, id, p.srcR, rdma.Range{Len: 4096}))
		require.Zero(t, p.a.next(t, rdma.EventCompletion).Status)
		eventually(t, "all lanes rest", func() bool { return p.a.lying() == lanes && p.b.lying() == lanes })
	}
	require.NoError(t, p.ini.Close())
	eventually(t, "the lanes are gone", func() bool { return p.a.lying()+p.b.lying() == 0 })
}

// What is fetched by Progress wakes nobody: its completions are brought from inside Progress. Behind Detach completions come by themselves, at once and when the lane has come to rest.
func TestProgressFetches(t *testing.T) {
	p := &pair{src: mapped(t, 1<<20), dst: mapped(t, 1<<20)}
	p.a, p.b = newNode(t, Options{}, "127.0.0.1:0"), newNode(t, Options{}, "127.0.0.1:0")
	var inside, all, fetched, down atomic.Int64
	p.a.Deliver(func(evs []rdma.Event) {
		for _, e := range evs {
			switch {
			case e.Kind == rdma.EventDown:
				down.Add(1)
				continue
			case e.Status != 0:
				t.Errorf("an operation ended with %v", e.Status)
			}
			fetched.Add(inside.Load())
			all.Add(1)
		}
	})
	p.connect(t, p.b.addr)
	p.srcR, p.dstR = register(t, p.a.Provider, p.src, "src"), register(t, p.b.Provider, p.dst, "dst")
	kw, kr := p.grant(t, rdma.AccessWrite, 0), p.grant(t, rdma.AccessRead, 0)
	i := p.ini.(*initiator)
	i.Attach()
	i.Attach()
	i.Detach()
	const n = 200
	for id := range uint64(n) {
		op := write(kw, id, p.srcR, rdma.Range{Len: 4096})
		if id%2 == 1 {
			op = read(kr, id, p.srcR, rdma.Range{Len: 4096})
		}
		p.post(t, op)
		eventually(t, "a completion", func() bool {
			inside.Store(1)
			defer inside.Store(0)
			for range 1000 {
				if i.Progress() > 0 {
					return true
				}
			}
			return false
		})
	}
	require.Equal(t, int64(n), all.Load())
	// A reader that was about to read when somebody attached reads one frame.
	require.GreaterOrEqual(t, fetched.Load(), int64(n-len(i.lanes)))

	i.Detach()
	require.Zero(t, i.Progress(), "nobody is attached")
	for id := range uint64(2) {
		p.post(t, write(kw, id, p.srcR, rdma.Range{Len: 4096}))
		eventually(t, "a completion that nobody fetched", func() bool { return all.Load() == n+1+int64(id) })
		eventually(t, "all lanes rest", func() bool { return p.a.lying() == len(i.lanes) })
	}

	// A session that ends with nothing pending is noticed by whoever makes progress.
	i.Attach()
	require.NoError(t, p.tgt.Close())
	eventually(t, "the end of the session", func() bool {
		i.Progress()
		return down.Load() == 1
	})
	_, err := p.ini.Post([]rdma.Op{write(kw, 9, p.srcR)})
	requireCode(t, fault.PeerLost, err)
	i.Detach()
	require.NoError(t, p.ini.Close())
	require.Zero(t, i.Progress())
}

// Several results travel in one frame where one WRITE follows another without a pause, and none is kept back when nothing follows.
func TestResultsOfABurst(t *testing.T) {
	n, _, _, l, k := lone(t)
	var b []byte
	const burst = 40
	for seq := uint64(1); seq <= burst; seq++ {
		b = append(b, frame(header{kind: kindWrite, seq: seq, key: uint64(k), tag: seq, total: 8}, []desc{{8 * seq, 8}}, make([]byte, 8), 0)...)
	}
	_, err := l.Write(b)
	require.NoError(t, err)
	require.NoError(t, l.SetReadDeadline(time.Now().Add(patience)))
	frames, results := 0, 0
	for results < burst {
		h := make([]byte, headerLen)
		_, err := io.ReadFull(l, h)
		require.NoError(t, err)
		x, err := parseHeader(h)
		require.NoError(t, err)
		require.LessOrEqual(t, int(x.count), maxPlaced)
		_, err = io.ReadFull(l, make([]byte, int(x.count)*resultLen))
		require.NoError(t, err)
		frames, results = frames+1, results+int(x.count)
	}
	require.Equal(t, burst, results)
	t.Logf("%d frames", frames)
	for seq := uint64(1); seq <= burst; seq++ {
		require.Equal(t, seq, n.next(t, rdma.EventArrival).Tag)
	}
}
