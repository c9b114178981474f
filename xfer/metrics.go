package xfer

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/telemetry/instrument"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/xfer/protocol"
)

// metrics is what the engine counts. What is counted for each operation is an atomic of its own and is read when metrics are
// collected: an instrument of the SDK would look its attributes up each time. Histograms are for what happens once a transfer, lease or fence.
type metrics struct {
	fabrics []*fabricMetrics                      // in the order of Options.Providers; at last those of transfers without a link
	errors  [2]codeCells                          // by errorPlace
	leases  [leaseKinds][leaseStates]atomic.Int64 // by leaseState
	ended   [leaseKinds]codeCells

	heldBlocks, heldBytes, quarantined atomic.Int64

	fences pendingFences

	transferTime, firstByte, leaseTime, fenceTime metric.Float64Histogram
	leaseOpts                                     [leaseKinds][]metric.RecordOption
	stop                                          func()
}

// fabricMetrics is what is counted by provider.
type fabricMetrics struct {
	name           string
	sent, received atomic.Uint64 // payload bytes
	transfers      [len(transferKinds)]codeCells
	transferOpts   [len(transferKinds)][2][]metric.RecordOption // by outcome
	firstOpts      [len(transferKinds)][]metric.RecordOption
	fenceOpts      [2][]metric.RecordOption // by outcome
}

// codeCells counts by fault.Code, 0 for none; codes are far smaller, and what is not is no code.
type codeCells [128]atomic.Uint64

func (c *codeCells) add(code fault.Code) {
	if code != 0 && !code.Known() || int(code) >= len(c) {
		code = fault.Internal
	}
	c[code].Add(1)
}

// observe tells the codes that have come and, with done, 0 also before it has, so that a rate begins with the first success.
func (c *codeCells) observe(o metric.Observer, i metric.Int64Observable, done bool, key attribute.Key, of ...attribute.KeyValue) {
	for code := range c {
		n := c[code].Load()
		if n == 0 && !(done && code == 0) {
			continue
		}
		name := instrument.Done
		if code != 0 {
			name = fault.Code(code).String()
		}
		o.ObserveInt64(i, int64(n), metric.WithAttributes(append(of[:len(of):len(of)], key.String(name))...))
	}
}

// errorPlace says who was answered with an error.
type errorPlace int

const (
	errorToClient errorPlace = iota
	errorToPeer
)

var (
	errorPlaces   = [...]string{errorToClient: "request", errorToPeer: "peer"}
	transferKinds = [...]string{kindPush: "push", kindPull: "pull", kindScatter: "scatter"}
	leaseNames    = [leaseKinds]string{"write", "read", "raw_write", "raw_read"}
	stateNames    = [leaseStates]string{leaseGranted: "granted", leaseBound: "bound", leaseFencing: "fencing"}
	outcomes      = [2]string{"done", "failed"}
)

// leaseKinds is how many kinds of permissions there are, see permit.kind.
const leaseKinds = 4

// leaseState is where a permission stands, as metrics have it.
type leaseState int8

const (
	leaseUncounted leaseState = iota // not granted yet, or ended
	leaseGranted                     // nobody has bound it
	leaseBound
	leaseFencing
	leaseStates
)

func newMetrics(e *Engine, meter metric.Meter) *metrics {
	if meter == nil {
		meter = noop.Meter{}
	}
	m := &metrics{
		transferTime: instrument.NewHistogram(meter, instrument.TransferTime), firstByte: instrument.NewHistogram(meter, instrument.FirstByte),
		leaseTime: instrument.NewHistogram(meter, instrument.LeaseTime), fenceTime: instrument.NewHistogram(meter, instrument.FenceTime),
		fences: pendingFences{since: map[uint64]rdma.Instant{}},
	}
	for _, p := range e.o.Providers {
		m.fabrics = append(m.fabrics, newFabricMetrics(p.Name()))
	}
	m.fabrics = append(m.fabrics, newFabricMetrics(instrument.NoLink))
	for k, name := range leaseNames {
		m.leaseOpts[k] = recordOpts(instrument.KeyKind.String(name))
	}
	m.stop = m.register(e, meter)
	return m
}

func newFabricMetrics(name string) *fabricMetrics {
	f, provider := &fabricMetrics{name: name}, instrument.KeyProvider.String(name)
	for i, outcome := range outcomes {
		o := instrument.KeyOutcome.String(outcome)
		f.fenceOpts[i] = recordOpts(provider, o)
		for k, kind := range transferKinds {
			f.transferOpts[k][i] = recordOpts(provider, o, instrument.KeyKind.String(kind))
			f.firstOpts[k] = recordOpts(provider, instrument.KeyKind.String(kind))
		}
	}
	return f
}

func recordOpts(kv ...attribute.KeyValue) []metric.RecordOption {
	return []metric.RecordOption{metric.WithAttributeSet(attribute.NewSet(kv...))}
}

// fabric gives a provider's counters; those for no link where there is no such provider.
func (m *metrics) fabric(name string) *fabricMetrics {
	for _, f := range m.fabrics {
		if f.name == name {
			return f
		}
	}
	return m.fabrics[len(m.fabrics)-1]
}

func outcomeOf(failed bool) int {
	if failed {
		return 1
	}
	return 0
}

// completed counts an operation of an own transfer. It is called for every one.
func (f *fabricMetrics) completed(p *transfer, ev *rdma.Event) {
	switch {
	case ev.Status != 0:
	case p.write:
		f.sent.Add(ev.Bytes)
	default:
		f.received.Add(ev.Bytes)
	}
}

// posted counts what a post of a prepared transfer has moved by copying.
// quiet: no arrival counts what the target, which is this node too, has received.
func (f *fabricMetrics) posted(p *transfer, bytes uint64, quiet bool) {
	if p.write {
		f.sent.Add(bytes)
		if quiet {
			f.received.Add(bytes)
		}
	} else {
		f.received.Add(bytes)
	}
}

// arrived counts what a peer has written here. It is called for every operation.
func (f *fabricMetrics) arrived(ev *rdma.Event) { f.received.Add(ev.Bytes) }

// transferEnded counts a transfer's result.
func (m *metrics) transferEnded(p *transfer, code fault.Code) {
	f := m.fabrics[len(m.fabrics)-1]
	if p.ls != nil {
		f = p.ls.metrics
	}
	ctx := context.Background()
	f.transfers[p.kind].add(code)
	m.transferTime.Record(ctx, seconds(p.e.o.Clock.Now()-p.begun), f.transferOpts[p.kind][outcomeOf(code != 0)]...)
	if p.flight.first != 0 {
		m.firstByte.Record(ctx, seconds(p.flight.first-p.begun), f.firstOpts[p.kind]...)
	}
}

func seconds(d rdma.Instant) float64 { return time.Duration(d).Seconds() }

// kind is an index of leaseNames.
func (p *permit) kind() int {
	k := 0
	if p.mode == wire.ModeRead {
		k = 1
	}
	if p.cache == nil {
		k += 2
	}
	return k
}

// inState counts a permission in the state that it is in now. The caller holds its lock.
func (p *permit) inState(s leaseState) {
	if p.state == s || p.state == leaseUncounted {
		return
	}
	of := &p.e.metrics.leases[p.kind()]
	of[p.state].Add(-1)
	if p.state = s; s != leaseUncounted {
		of[s].Add(1)
	}
}

// countIn counts a permission. The caller holds its lock.
func (p *permit) countIn() {
	p.state = leaseGranted
	p.e.metrics.leases[p.kind()][leaseGranted].Add(1)
}

// over counts the end of a permission: 0, it did what it was for.
func (p *permit) over(code fault.Code) {
	p.inState(leaseUncounted)
	m, k := p.e.metrics, p.kind()
	m.ended[k].add(code)
	m.leaseTime.Record(context.Background(), seconds(p.e.o.Clock.Now()-p.granted), m.leaseOpts[k]...)
}

func leaseStateOf(p protocol.LeasePhase) leaseState {
	switch p {
	case protocol.LeaseGranted:
		return leaseGranted
	case protocol.LeaseBound:
		return leaseBound
	case protocol.LeaseFencing:
		return leaseFencing
	}
	return leaseUncounted
}

func offerStateOf(o *protocol.Offer) leaseState {
	switch {
	case o.Phase() == protocol.OfferEnding:
		return leaseFencing
	case o.Phase().Ended():
		return leaseUncounted
	case o.Holders() > 0:
		return leaseBound
	}
	return leaseGranted
}

// served counts what a reader says that it got when it asks RELEASE; nothing else tells this side of reads. It is bounded by
// what one transfer can move.
func (o *offer) served(h *holder, f protocol.OfferEffect) {
	if o.access == rdma.AccessRead && f.Code == 0 {
		most := uint64(protocol.MaxOfferOps * opBytes) // raw memory may be read more than once
		if o.cache != nil {
			most = o.size()
		}
		h.bind.ls.metrics.sent.Add(min(f.Bytes, most))
	}
}

// held counts blocks that became HELD, or less than none that are no more.
func (m *metrics) held(ca *cache, blocks int) {
	m.heldBlocks.Add(int64(blocks))
	m.heldBytes.Add(int64(blocks) * int64(ca.spec.Layout.BlockBytes()))
}

// spoil counts memory of a region that a failed fence has made useless: once, although leases may share blocks.
func (r *region) spoil(e *Engine, bytes uint64) {
	r.usage.mu.Lock()
	defer r.usage.mu.Unlock()
	bytes = min(bytes, r.mapping.Memory().Len-r.spoilt)
	r.spoilt += bytes
	e.metrics.quarantined.Add(int64(bytes))
}

// size is how much memory a permission is about, in bytes.
func (p *permit) size() uint64 {
	if p.cache != nil {
		return uint64(len(p.blocks)) * p.cache.spec.Layout.BlockBytes()
	}
	return p.region.mapping.Memory().Len
}

// pendingFences knows when the fences that have not ended began.
type pendingFences struct {
	mu    sync.Mutex
	next  uint64
	since map[uint64]rdma.Instant
}

// begin notes a fence; the returned function ends it and says how long it took.
func (p *pendingFences) begin(clock rdma.Clock) (end func() rdma.Instant) {
	now := clock.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	id := p.next
	p.next++
	p.since[id] = now
	return func() rdma.Instant {
		p.mu.Lock()
		delete(p.since, id)
		p.mu.Unlock()
		return clock.Now() - now
	}
}

func (p *pendingFences) oldest(now rdma.Instant) (count int, age rdma.Instant) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, at := range p.since {
		age = max(age, now-at)
	}
	return len(p.since), age
}

// fencing notes a window's fence; the returned function counts how it ended.
func (m *metrics) fencing(e *Engine, f *fabricMetrics) func(error) {
	end := m.fences.begin(e.o.Clock)
	return func(err error) {
		m.fenceTime.Record(context.Background(), seconds(end()), f.fenceOpts[outcomeOf(err != nil)]...)
	}
}

// RequestFailed counts an error that a client's request was answered with.
func (e *Engine) RequestFailed(code fault.Code) { e.metrics.errors[errorToClient].add(code) }
