package benchcmd

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvxfer/kvxfer/internal/node"
	kvxfer "github.com/kvxfer/kvxfer/sdk/go"
	"github.com/kvxfer/kvxfer/xfer/layout"
)

// manyList is what a transfer moves where many are in flight.
var manyList = Case{Blocks: 16, BlockBytes: 4 << 10}

// ends are a client of each daemon with a cache of one name and size.
type ends struct {
	clients [2]*kvxfer.Client
	caches  [2]*kvxfer.Cache
	asking  chan struct{} // held by who waits for an answer: a daemon lets a client have 64 requests open
}

// open attaches a client to each daemon; the caches have blocks of so many bytes. Names are new each time: a daemon may yet be
// fencing the cache of a client that has gone.
func (m *many) open(ctx context.Context, name string, blockBytes, blocks int) (e *ends, err error) {
	e = &ends{asking: make(chan struct{}, 32)}
	m.made++
	name = fmt.Sprintf("%s-%d", name, m.made)
	for i, d := range m.daemons {
		if e.clients[i], err = kvxfer.Dial(ctx, d.socket); err == nil {
			e.caches[i], err = e.clients[i].AllocateCache(ctx, kvxfer.CacheSpec{Name: name, Model: "bench", Layout: layoutOf(blockBytes), NumBlocks: blocks})
		}
		if err != nil {
			e.close()
			return nil, err
		}
	}
	return e, nil
}

func (e *ends) close() {
	for _, c := range e.clients {
		if c != nil {
			_ = c.Close()
		}
	}
}

// job is blocks that are moved again and again, one transfer after the other.
type job struct {
	e   *ends
	ids []uint32
}

// jobs cuts a cache of n x list blocks, every second of which is used, into n jobs.
func (e *ends) jobs(n, list int) []job {
	out := make([]job, n)
	for i := range out {
		ids := make([]uint32, list)
		for k := range ids {
			ids[k] = uint32((i*list + k) * stride)
		}
		out[i] = job{e, ids}
	}
	return out
}

// move makes one transfer from the first daemon's cache to the other's and says how long it took, without the lease.
func (j *job) move(ctx context.Context) (time.Duration, error) {
	j.e.asking <- struct{}{}
	lease, err := j.e.caches[1].Lease(ctx, j.ids, kvxfer.LeaseOptions{TTL: 2 * patience})
	if err != nil {
		<-j.e.asking
		return 0, err
	}
	begun := time.Now()
	push, err := j.e.caches[0].Write(ctx, j.ids, lease.Ticket())
	<-j.e.asking
	if err != nil {
		return 0, err
	}
	if _, err = push.Wait(ctx); err != nil {
		return 0, err
	}
	took := time.Since(begun)
	_, err = lease.Wait(ctx)
	return took, err
}

// flood runs all jobs at once, each over and over, for the run's time but at least twice, and makes the record. bytes is what one of
// them moves.
func (m *many) flood(ctx context.Context, r ManyRecord, bytes int, jobs []func(context.Context) (time.Duration, error)) error {
	ctx, cancel := context.WithTimeout(ctx, m.limit+patience)
	defer cancel()
	var mu sync.Mutex
	var took []time.Duration
	var failed error
	var wg sync.WaitGroup
	for _, j := range jobs { // one that does not count
		wg.Go(func() {
			if _, err := j(ctx); err != nil {
				mu.Lock()
				failed = err
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if failed != nil {
		return failed
	}
	before, err := m.look()
	if err != nil {
		return err
	}
	begun := time.Now()
	for _, j := range jobs {
		wg.Go(func() {
			for i := 0; i < 2 || time.Since(begun) < m.limit; i++ {
				d, err := j(ctx)
				mu.Lock()
				if err != nil && failed == nil {
					failed = err
				}
				took = append(took, d)
				stop := failed != nil
				mu.Unlock()
				if stop {
					cancel()
					return
				}
			}
		})
	}
	wg.Wait()
	all := time.Since(begun)
	if failed != nil {
		return failed
	}
	after, err := m.look()
	if err != nil {
		return err
	}
	m.add(r.of(took, all, bytes, others(before, after)))
	return nil
}

func moves(jobs []job) (out []func(context.Context) (time.Duration, error)) {
	for i := range jobs {
		out = append(out, jobs[i].move)
	}
	return out
}

// blocks: one transfer at a time of so many blocks.
func (m *many) blocks(ctx context.Context) error {
	const block = 1 << 10
	for _, n := range m.counts["blocks"] {
		e, err := m.open(ctx, "blocks", block, n*stride)
		if err != nil {
			return err
		}
		err = m.flood(ctx, ManyRecord{Part: "blocks", N: n}, n*block, moves(e.jobs(1, n)))
		e.close()
		if err != nil {
			return err
		}
		r := &m.records[len(m.records)-1]
		r.NsBlock = rounded(*r.P50*1e3/float64(n), 3)
	}
	m.best("blocks")
	return nil
}

// queued: transfers that have begun and of which nothing was handed over; what they take of both daemons' memory.
func (m *many) queued(ctx context.Context) error {
	const transfers, each = 8, 100_000
	e, err := m.open(ctx, "queued", 8, transfers*each*stride)
	if err != nil {
		return err
	}
	defer e.close()
	before, err := m.rss()
	if err != nil {
		return err
	}
	var pushes []*kvxfer.Push
	for _, j := range e.jobs(transfers, each) {
		lease, err := e.caches[1].Lease(ctx, j.ids, kvxfer.LeaseOptions{TTL: 2 * patience})
		if err != nil {
			return err
		}
		p, err := e.caches[0].Write(ctx, j.ids, lease.Ticket(), kvxfer.Layerwise())
		if err != nil {
			return err
		}
		pushes = append(pushes, p)
	}
	after, err := m.rss()
	if err != nil {
		return err
	}
	for _, p := range pushes {
		p.Cancel()
		_, _ = p.Wait(ctx) // it ends with Cancelled
	}
	m.add(ManyRecord{Part: "queued", N: transfers * each, Samples: transfers, RSSEach: rounded(max(0, float64(after)-float64(before))/(transfers*each), 3)})
	return nil
}

// inFlight: volleys of so many transfers between two clients. All are bound before the clock runs and handed over at once, so that
// they are in flight together, however slowly leases are granted.
func (m *many) inFlight(ctx context.Context) error {
	for _, n := range m.counts["in-flight"] {
		err := func() error {
			e, err := m.open(ctx, "in-flight", manyList.BlockBytes, n*manyList.slots())
			if err != nil {
				return err
			}
			defer e.close()
			return m.volleys(ctx, ManyRecord{Part: "in-flight", N: n}, e.jobs(n, manyList.Blocks))
		}()
		if err != nil {
			return err
		}
	}
	m.best("in-flight")
	return nil
}

// volleys makes the record of volleys: of the first, which does not count, and of those that the run's time has room for.
func (m *many) volleys(ctx context.Context, r ManyRecord, jobs []job) error {
	var took []time.Duration
	var all time.Duration
	var before instant
	begun := time.Now()
	for i := 0; i < 3 || time.Since(begun) < m.limit; i++ {
		if i == 1 {
			took, all = nil, 0
			var err error
			if before, err = m.look(); err != nil {
				return err
			}
		}
		each, whole, err := volley(ctx, jobs)
		if err != nil {
			return err
		}
		took, all = append(took, each...), all+whole
	}
	after, err := m.look()
	if err != nil {
		return err
	}
	m.add(r.of(took, all, manyList.Bytes(), others(before, after)))
	return nil
}

// volley makes one transfer of each job, all at once, and gives the times of each and of all, from the first one's handing over.
func volley(ctx context.Context, jobs []job) (took []time.Duration, all time.Duration, err error) {
	leases, pushes := make([]*kvxfer.Lease, len(jobs)), make([]*kvxfer.Push, len(jobs))
	for i, j := range jobs {
		if leases[i], err = j.e.caches[1].Lease(ctx, j.ids, kvxfer.LeaseOptions{TTL: 2 * patience}); err != nil {
			return nil, 0, err
		}
		if pushes[i], err = j.e.caches[0].Write(ctx, j.ids, leases[i].Ticket(), kvxfer.Layerwise()); err != nil {
			return nil, 0, err
		}
	}
	begun := time.Now()
	for _, p := range pushes {
		if err = p.Layer(0); err == nil {
			err = p.Finish(nil)
		}
		if err != nil {
			return nil, 0, err
		}
	}
	for _, p := range pushes {
		if _, err = p.Wait(ctx); err != nil {
			return nil, 0, err
		}
		took = append(took, time.Since(begun)) // at most: the ones before were waited for
	}
	all = time.Since(begun)
	for _, l := range leases {
		if _, err = l.Wait(ctx); err != nil {
			return nil, 0, err
		}
	}
	return took, all, nil
}

// of fills a record in from its samples.
func (r ManyRecord) of(took []time.Duration, all time.Duration, bytes int, others float64) ManyRecord {
	r.Samples, r.OtherCPU = len(took), *rounded(others, 2)
	r.GBps = rounded(float64(bytes)*float64(len(took))/all.Seconds()/1e9, 4)
	r.PerSecond = rounded(float64(len(took))/all.Seconds(), 4)
	r.P50, r.P99 = rounded(quantile(took, 0.5)*1e6, 4), rounded(quantile(took, 0.99)*1e6, 4)
	return r
}

// clients: 64 transfers at a time between so many clients of each daemon.
func (m *many) clients(ctx context.Context) error {
	const flying = 64
	for _, n := range m.counts["clients"] {
		var jobs []job
		var all []*ends
		err := func() error {
			for i := range n {
				each := (flying + n - 1 - i) / n
				e, err := m.open(ctx, "client", manyList.BlockBytes, max(1, each)*manyList.slots())
				if err != nil {
					return err
				}
				all = append(all, e)
				jobs = append(jobs, e.jobs(each, manyList.Blocks)...)
			}
			return m.flood(ctx, ManyRecord{Part: "clients", N: n}, manyList.Bytes(), moves(jobs))
		}()
		for _, e := range all {
			e.close()
		}
		if err != nil {
			return err
		}
	}
	m.best("clients")
	return nil
}

// peers: so many are linked, and eight at a time push to the first daemon's client, each in its turn.
func (m *many) peers(ctx context.Context) error {
	const flying = 8
	l := layoutOf(manyList.BlockBytes)
	shape := layout.Layout{Layers: uint32(l.Layers), KVHeads: uint32(l.KVHeads), HeadDim: uint32(l.HeadDim), DType: l.DType, BlockTokens: uint32(l.BlockTokens),
		Order: layout.Order(l.Order), TPSize: 1}
	e, err := m.open(ctx, "peers", manyList.BlockBytes, flying*manyList.slots())
	if err != nil {
		return err
	}
	defer e.close()
	lists := e.jobs(flying, manyList.Blocks)
	for _, n := range m.counts["peers"] {
		err := func() error {
			idle := make(chan *node.Speaker, n)
			defer func() {
				close(idle)
				for s := range idle {
					s.Close()
				}
			}()
			before, err := m.daemons[0].rss()
			if err != nil {
				return err
			}
			for i := range n {
				s, err := node.OpenSpeaker(ctx, fmt.Sprintf("peer-%d", i), m.info, uint64(manyList.Bytes()))
				if err != nil {
					return err
				}
				idle <- s
			}
			after, err := m.daemons[0].rss()
			if err != nil {
				return err
			}
			var turns []func(context.Context) (time.Duration, error)
			for i := range min(flying, n) {
				turns = append(turns, func(ctx context.Context) (time.Duration, error) {
					lease, err := e.caches[0].Lease(ctx, lists[i].ids, kvxfer.LeaseOptions{TTL: 2 * patience})
					if err != nil {
						return 0, err
					}
					s := <-idle
					defer func() { idle <- s }()
					begun := time.Now()
					if err := s.Push(ctx, lease.Ticket(), "bench", shape); err != nil {
						return 0, err
					}
					took := time.Since(begun)
					_, err = lease.Wait(ctx)
					return took, err
				})
			}
			return m.flood(ctx, ManyRecord{Part: "peers", N: n, RSSEach: rounded(max(0, float64(after)-float64(before))/float64(n), 3)}, manyList.Bytes(), turns)
		}()
		if err != nil {
			return err
		}
	}
	m.best("peers")
	return nil
}

// small: transfers of 1 x 4 KiB alone, and while a large one is under way without a pause: of another client, and of their own.
func (m *many) small(ctx context.Context) error {
	one := Case{Blocks: 1, BlockBytes: 4 << 10}
	own, err := m.open(ctx, "small", one.BlockBytes, 8)
	if err != nil {
		return err
	}
	defer own.close()
	if err := m.flood(ctx, ManyRecord{Part: "small", N: 1, How: "alone"}, one.Bytes(), moves(own.jobs(1, 1))); err != nil {
		return err
	}
	for _, how := range []string{"behind-other", "behind-own"} {
		if err := m.smallBehind(ctx, how, own, one); err != nil {
			return err
		}
	}
	return nil
}

func (m *many) smallBehind(ctx context.Context, how string, own *ends, one Case) error {
	bulk, err := m.open(ctx, "bulk", 1<<20, m.bulk)
	if err != nil {
		return err
	}
	defer bulk.close()
	if how == "behind-own" { // another cache of the clients that have the large one
		own = &ends{clients: bulk.clients, asking: bulk.asking}
		for i, c := range bulk.clients {
			if own.caches[i], err = c.AllocateCache(ctx, kvxfer.CacheSpec{Name: "small-own", Model: "bench", Layout: layoutOf(one.BlockBytes), NumBlocks: 8}); err != nil {
				return err
			}
		}
	}
	large := job{bulk, make([]uint32, m.bulk)}
	for i := range large.ids {
		large.ids[i] = uint32(i)
	}
	background, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	var moved atomic.Int64
	var failed error
	wg.Go(func() {
		for background.Err() == nil {
			if _, err := large.move(ctx); err != nil {
				failed = err
				return
			}
			moved.Add(1)
		}
	})
	begun := time.Now()
	err = m.flood(ctx, ManyRecord{Part: "small", N: m.bulk, How: how}, one.Bytes(), moves(own.jobs(1, 1)))
	stop()
	wg.Wait()
	if err == nil {
		err = failed
	}
	if err == nil { // how fast the large one was meanwhile
		r := &m.records[len(m.records)-1]
		r.GBps = rounded(float64(moved.Load())*float64(m.bulk)*(1<<20)/time.Since(begun).Seconds()/1e9, 4)
	}
	return err
}
