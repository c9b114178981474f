package verbs

import (
	"fmt"
	"net"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
	"github.com/kvxfer/kvxfer/rdma/verbs/pick"
)

// stubQP takes requests and forgets them.
type stubQP struct{ nic.QP }

func (stubQP) Num() uint32                                         { return 7 }
func (stubQP) Post(wrs []nic.WR, _ []nic.SGE) (int, error)         { return len(wrs), nil }
func (stubQP) Reset() error                                        { return nil }
func (stubQP) Destroy() error                                      { return nil }
func (stubQP) Connect(nic.Path, nic.Connection) error              { return nil }
func (stubQP) PostRecv(ids []uint64, _ []nic.SGE) (n int, e error) { return len(ids), nil }

type stubMR struct{}

func (stubMR) LKey() uint32 { return 1 }
func (stubMR) RKey() uint32 { return 2 }
func (stubMR) Close() error { return nil }

// poster is an initiator with one lane over a device that sends no packets; complete ends what is posted. What is measured is the
// provider's own work for an operation: Post, its requests and its record, the completion, the event.
type poster struct {
	p   *Provider
	ini *initiator
	reg *region
}

func newPoster(t testing.TB) *poster {
	pr := unconnected(t, 64<<20, 1, Options{})
	p := pr.a.Provider
	i := newInitiator(p, 1)
	here, there := net.Pipe()
	t.Cleanup(func() { _, _ = here.Close(), there.Close() })
	i.side = newSide(here)
	d := p.devices[0]
	mem := mapped(t, slabLen)
	r := &initRail{near: p.rails[0], pair: pick.Pair{Local: p.rails[0].local}, rate: pick.NewRate(100)}
	l := &initLane{i: i, rail: r, gen: 1, state: laneUp, qp: stubQP{}, qpn: 7, tried: true, receives: recvDepth, slab: &slab{mem, stubMR{}}}
	i.rails, i.lanes = []*initRail{r}, []*initLane{l}
	require.NotNil(t, d)
	i.windows[1] = &farWindow{key: 1, known: true, access: rdma.AccessWrite, base: uint64(uintptr(unsafe.Pointer(&pr.dst[0]))), span: uint64(len(pr.dst)),
		rails: []uint32{9}}
	return &poster{p, i, pr.srcR.(*region)}
}

// complete says that everything that was posted has succeeded and was taken, until nothing is pending.
func (b *poster) complete(run []nic.Completion, events []rdma.Event) (n int) {
	l := b.ini.lanes[0]
	for len(b.ini.bySeq) > 0 {
		l.taken = l.sent
		run[0] = nic.Completion{ID: l.posted - 1, QPN: 7}
		l.completed(run)
	}
	for k := b.p.Poll(events); k > 0; k = b.p.Poll(events) {
		n += k
	}
	return n
}

func scattered(n int, size uint64) (out []rdma.Range) {
	for k := range uint64(n) {
		out = append(out, rdma.Range{Local: 2 * k * size, Remote: 2 * k * size, Len: size})
	}
	return out
}

func BenchmarkPost(b *testing.B) {
	for _, ranges := range []int{1, 16, 256} {
		b.Run(fmt.Sprintf("ranges=%d", ranges), func(b *testing.B) {
			p := newPoster(b)
			ops := []rdma.Op{{Kind: rdma.OpWrite, ID: 1, Local: p.reg, Remote: 1, Ranges: scattered(ranges, 16<<10)}}
			run, events := make([]nic.Completion, 1), make([]rdma.Event, 16)
			b.ReportAllocs()
			start := time.Now()
			for b.Loop() {
				n, err := p.ini.Post(ops)
				if n != 1 || err != nil || p.complete(run, events) != 1 {
					b.Fatal(n, err)
				}
			}
			b.ReportMetric(float64(time.Since(start).Nanoseconds())/float64(b.N*ranges), "ns/range")
		})
	}
}

// In the steady state neither an operation nor a range allocates.
func TestPostDoesNotAllocate(t *testing.T) {
	p := newPoster(t)
	run, events := make([]nic.Completion, 1), make([]rdma.Event, 16)
	for _, ranges := range []int{1, 16, 256} {
		ops := []rdma.Op{{Kind: rdma.OpWrite, ID: 1, Local: p.reg, Remote: 1, Ranges: scattered(ranges, 16<<10)}}
		round := func() {
			if n, err := p.ini.Post(ops); n != 1 || err != nil || p.complete(run, events) != 1 {
				t.Fatal(n, err)
			}
		}
		for range 100 {
			round()
		}
		// Under the race detector the pool of operations forgets some of them: a few allocations each, however many ranges.
		require.Less(t, testing.AllocsPerRun(500, round), 3.0, "%d ranges", ranges)
	}
}
