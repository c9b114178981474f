package xfer

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/testseed"
	"github.com/kvxfer/kvxfer/rdma"
)

// postbox takes up to room operations and remembers their ids.
type postbox struct {
	rdma.Initiator
	room      int
	ids       []uint64
	cancelled []uint64
}

func (b *postbox) Post(ops []rdma.Op) (int, error) {
	n := min(len(ops), max(0, b.room-len(b.ids)))
	for _, o := range ops[:n] {
		b.ids = append(b.ids, o.ID)
	}
	return n, nil
}

func (b *postbox) Cancel(ids ...uint64) { b.cancelled = append(b.cancelled, ids...) }

// first takes the oldest operation out.
func (b *postbox) first() uint64 {
	id := b.ids[0]
	copy(b.ids, b.ids[1:])
	b.ids = b.ids[:len(b.ids)-1]
	return id
}

// job is a source that is no transfer: n operations of bytes each, in order.
type job struct {
	sender
	client    *client
	bytes     uint64
	next, n   uint32 // the next one's number, and how many there are
	endings   []uint32
	lostOnes  []uint32
	givenBack []uint32
	forgets   bool // how it ended
}

func (j *job) place() *sender { return &j.sender }
func (j *job) payer() *client { return j.client }
func (j *job) Left() uint64   { return uint64(j.n-j.next) * j.bytes }
func (j *job) Next() uint64 {
	if j.next == j.n && len(j.givenBack) == 0 {
		return 0
	}
	return j.bytes
}

func (j *job) take(dst []rdma.Range) (rdma.Op, outPart) {
	i := j.next
	if n := len(j.givenBack); n > 0 {
		i, j.givenBack = j.givenBack[n-1], j.givenBack[:n-1]
	} else {
		j.next++
	}
	return rdma.Op{Ranges: append(dst, rdma.Range{Len: j.bytes})}, outPart{first: i}
}

func (j *job) giveBack(p outPart) { j.givenBack = append(j.givenBack, p.first) }
func (j *job) waiting() int       { return int(j.n-j.next) + len(j.givenBack) }
func (j *job) drop() (out []outPart) {
	for ; j.next < j.n; j.next++ {
		out = append(out, outPart{first: j.next})
	}
	return out
}
func (j *job) ended(p outPart, _ *rdma.Event) {
	if !j.forgets {
		j.endings = append(j.endings, p.first)
	}
}
func (j *job) lost(p outPart, _ fault.Code) { j.lostOnes = append(j.lostOnes, p.first) }

func newJob(c *client, n uint32, bytes uint64) *job {
	j := &job{client: c, n: n, bytes: bytes}
	j.src = j
	return j
}

var wide = rdma.Caps{MaxRanges: 256, MaxOpBytes: 1 << 30, MaxInFlight: 1024, MaxInFlightLen: 64 << 20}

func newTestQueue(room int, caps rdma.Caps) (*outQueue, *postbox) {
	box := &postbox{room: room, ids: make([]uint64, 0, room)}
	return newOutQueue(&Engine{o: Options{Logger: slog.New(slog.DiscardHandler)}}, nil, box, caps), box
}

func (q *outQueue) begin(j *job) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.post(&j.sender)
}

// TestOrderInsideASource: whatever the provider takes, a source's operations are posted in its order, each once.
func TestOrderInsideASource(t *testing.T) {
	rng := testseed.New(t)
	q, box := newTestQueue(1, wide)
	jobs := []*job{newJob(&client{}, 300, 1<<20), newJob(&client{}, 300, 1<<20), newJob(&client{}, 300, 100)}
	for _, j := range jobs {
		q.begin(j)
	}
	for len(box.ids) > 0 {
		box.room = 1 + rng.IntN(20)
		q.completed(&rdma.Event{Op: box.first()})
	}
	for _, j := range jobs {
		require.Len(t, j.endings, 300)
		for i, n := range j.endings {
			require.EqualValues(t, i, n)
		}
	}
	assert.Empty(t, q.senders)
}

// TestCancelTakesItsOwn: among many, a source's operations in flight are cancelled and no others.
func TestCancelTakesItsOwn(t *testing.T) {
	q, box := newTestQueue(1024, wide)
	var jobs []*job
	for range 100 {
		jobs = append(jobs, newJob(&client{}, 5, 1000))
		q.begin(jobs[len(jobs)-1])
	}
	require.Len(t, box.ids, 500)
	q.mu.Lock()
	parts := q.abandon(&jobs[50].sender)
	q.mu.Unlock()
	assert.Empty(t, parts)
	assert.ElementsMatch(t, box.ids[250:255], box.cancelled)
	for len(box.ids) > 0 {
		q.completed(&rdma.Event{Op: box.first()})
	}
	assert.Empty(t, q.senders)
	ops, cost := q.order.Flying()
	assert.Zero(t, ops)
	assert.Zero(t, cost)
}

// TestCompletionAllocatesNothing: neither for the operation that ended nor for the one that is posted in its place.
func TestCompletionAllocatesNothing(t *testing.T) {
	q, box := newTestQueue(1024, wide)
	jobs := make([]*job, 64)
	for i := range jobs {
		jobs[i] = newJob(&client{}, 1<<30, 64<<10)
		jobs[i].forgets = true
		q.begin(jobs[i])
	}
	var ev rdma.Event
	assert.Zero(t, testing.AllocsPerRun(10000, func() {
		ev.Op = box.first()
		q.completed(&ev)
	}))
}

// BenchmarkCompletion is what an operation costs the queue, with so many sources on the link.
func BenchmarkCompletion(b *testing.B) {
	for _, c := range []struct {
		name    string
		sources int
	}{{"sources=1", 1}, {"sources=1000", 1000}} {
		b.Run(c.name, func(b *testing.B) {
			q, box := newTestQueue(1024, wide)
			for i := range c.sources {
				j := newJob(&client{}, 1<<30, 64<<10<<(i%3))
				j.forgets = true
				q.begin(j)
			}
			var ev rdma.Event
			b.ReportAllocs()
			for b.Loop() {
				ev.Op = box.first()
				q.completed(&ev)
			}
		})
	}
}
