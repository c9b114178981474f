package protocol_test

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/testseed"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/xfer/layout"
	"github.com/kvxfer/kvxfer/xfer/protocol"
)

// machine is what TestKeysMeanTheFuture needs of one: E are its events, F its effects.
type machine[M, E, F any] struct {
	make   func(now rdma.Instant) M
	clone  func(M) M
	key    func(M, rdma.Instant) []byte
	step   func(M, E) []F
	events func(now rdma.Instant) []E // at now
}

// keysMeanTheFuture walks a machine through random histories, each at a time of its own. A state whose key was seen before
// must answer every event with the same effects and the same next key; a clone is stepped, so the original must not notice.
func keysMeanTheFuture[M, E, F any](t *testing.T, rng *rand.Rand, m machine[M, E, F], later rdma.Instant) {
	type answer struct {
		effects []F
		next    string
	}
	seen, met := map[string][]answer{}, 0
	for range 1500 {
		now := rdma.Instant(rng.IntN(1_000_000))
		x := m.make(now)
		for range 12 {
			key := string(m.key(x, now))
			var answers []answer
			for _, e := range m.events(now) {
				c := m.clone(x)
				a := answer{effects: m.step(c, e)}
				a.next = string(m.key(c, now))
				answers = append(answers, a)
			}
			require.Equal(t, key, string(m.key(x, now)), "stepping a clone changed the original")
			if before, ok := seen[key]; ok {
				met++
				require.Equal(t, before, answers)
			}
			seen[key] = answers
			events := m.events(now)
			m.step(x, events[rng.IntN(len(events))])
			if rng.IntN(6) == 0 {
				now += later
			}
		}
	}
	t.Logf("%d states, met again %d times", len(seen), met)
	require.Greater(t, met, 1000)
}

// TestKeysMeanTheFuture: machines with the same key behave alike (effects' times taken relative to now).
func TestKeysMeanTheFuture(t *testing.T) {
	rng := testseed.New(t)
	ms := func(n int) rdma.Instant { return rdma.Instant(n) * 1_000_000 }
	t.Run("lease", func(t *testing.T) {
		var at rdma.Instant
		keysMeanTheFuture(t, rng, machine[*protocol.Lease, protocol.LeaseEvent, protocol.LeaseEffect]{
			make:  func(now rdma.Instant) *protocol.Lease { return protocol.NewLease(2, 1, pieceBytes, now+ms(20)) },
			clone: (*protocol.Lease).Clone,
			key:   func(l *protocol.Lease, now rdma.Instant) []byte { return l.AppendKey(nil, now) },
			step: func(l *protocol.Lease, e protocol.LeaseEvent) []protocol.LeaseEffect {
				out := l.Step(nil, e)
				for i := range out {
					if out[i].Deadline != 0 {
						out[i].Deadline -= at
					}
				}
				return out
			},
			events: func(now rdma.Instant) (es []protocol.LeaseEvent) {
				at = now
				for k := protocol.LeaseBind; k <= protocol.LeaseRenew; k++ {
					es = append(es, protocol.LeaseEvent{Kind: k, Now: now, Deadline: now + ms(30), Tag: layout.NewTag(0, 0, 1), Bytes: pieceBytes, Pieces: 2,
						Code: fault.Cancelled, OK: true})
				}
				second := es[protocol.LeaseArrival-1]
				second.Tag = layout.NewTag(1, 0, 1)
				return append(es, second, protocol.LeaseEvent{Kind: protocol.LeaseFenced, Now: now})
			},
		}, ms(10))
	})
	t.Run("offer", func(t *testing.T) {
		var at rdma.Instant
		keysMeanTheFuture(t, rng, machine[*protocol.Offer, protocol.OfferEvent, protocol.OfferEffect]{
			make:  func(now rdma.Instant) *protocol.Offer { return protocol.NewOffer(rdma.AccessWrite, 2, now+ms(20)) },
			clone: (*protocol.Offer).Clone,
			key:   func(o *protocol.Offer, now rdma.Instant) []byte { return o.AppendKey(nil, now) },
			step: func(o *protocol.Offer, e protocol.OfferEvent) []protocol.OfferEffect {
				out := o.Step(nil, e)
				for i := range out {
					if out[i].Deadline != 0 {
						out[i].Deadline -= at
					}
					out[i].Bytes = 0 // a report
				}
				slices.SortStableFunc(out, func(a, b protocol.OfferEffect) int {
					return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Holder, b.Holder))
				})
				return out
			},
			events: func(now rdma.Instant) (es []protocol.OfferEvent) {
				at = now
				for holder := range uint64(2) {
					for k := protocol.OfferBind; k <= protocol.OfferTick; k++ {
						es = append(es, protocol.OfferEvent{Kind: k, Now: now, Holder: holder, Deadline: now + ms(30), Bytes: 1, Pieces: 1, Code: fault.Cancelled, OK: holder == 0})
					}
				}
				return es
			},
		}, ms(10))
	})
	for _, kind := range []protocol.TransferKind{protocol.TransferWrite, protocol.TransferRead} {
		var at rdma.Instant
		keysMeanTheFuture(t, rng, machine[*protocol.Transfer, protocol.TransferEvent, protocol.TransferEffect]{
			make:  func(now rdma.Instant) *protocol.Transfer { return protocol.NewTransfer(kind, 2, 1, now+ms(60)) },
			clone: (*protocol.Transfer).Clone,
			key:   func(p *protocol.Transfer, now rdma.Instant) []byte { return p.AppendKey(nil, now) },
			step: func(p *protocol.Transfer, e protocol.TransferEvent) []protocol.TransferEffect {
				out := p.Step(nil, e)
				for i := range out {
					if out[i].At != 0 {
						out[i].At -= at
					}
					out[i].Detail = "" // a report
				}
				return out
			},
			events: func(now rdma.Instant) (es []protocol.TransferEvent) {
				at = now
				for k := protocol.TransferBound; k <= protocol.TransferTick; k++ {
					code := fault.Code(0)
					if k != protocol.TransferCompletion {
						code = fault.Cancelled
					}
					es = append(es, protocol.TransferEvent{Kind: k, Now: now, Count: 1, Code: code})
				}
				second := es[protocol.TransferLayer-1]
				second.Layer = 1
				return append(es, second, protocol.TransferEvent{Kind: protocol.TransferCompletion, Now: now, Count: 1, Code: fault.StaleKey})
			},
		}, ms(30))
	}
}
