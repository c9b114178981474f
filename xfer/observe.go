package xfer

import (
	"context"

	"go.opentelemetry.io/otel/metric"

	"github.com/kvxfer/kvxfer/internal/telemetry/instrument"
)

// register makes the instruments that are read when metrics are collected. Collecting takes the engine's lock and then each
// out queue's for a moment, and waits for nothing else.
func (m *metrics) register(e *Engine, meter metric.Meter) (stop func()) {
	payload, transfers := instrument.NewCounter(meter, instrument.Payload), instrument.NewCounter(meter, instrument.Transfers)
	operations, running := instrument.NewGauge(meter, instrument.Operations), instrument.NewGauge(meter, instrument.Running)
	leases, ended := instrument.NewGauge(meter, instrument.Leases), instrument.NewCounter(meter, instrument.LeasesEnded)
	pending, age := instrument.NewGauge(meter, instrument.FencesPending), instrument.NewAge(meter, instrument.FenceAge)
	heldBlocks, heldMemory := instrument.NewGauge(meter, instrument.HeldBlocks), instrument.NewGauge(meter, instrument.HeldMemory)
	quarantined, errors := instrument.NewGauge(meter, instrument.Quarantined), instrument.NewCounter(meter, instrument.Errors)
	clients, caches := instrument.NewGauge(meter, instrument.Clients), instrument.NewGauge(meter, instrument.Caches)
	links := instrument.NewGauge(meter, instrument.Links)

	observe := func(_ context.Context, o metric.Observer) error {
		for i, f := range m.fabrics {
			provider, linked := instrument.KeyProvider.String(f.name), i < len(m.fabrics)-1
			for kind := range f.transfers {
				f.transfers[kind].observe(o, transfers, linked, instrument.KeyResult, provider, instrument.KeyKind.String(transferKinds[kind]))
			}
			if !linked {
				break // nothing moves
			}
			o.ObserveInt64(payload, int64(f.sent.Load()), metric.WithAttributes(provider, instrument.KeyDirection.String("sent")))
			o.ObserveInt64(payload, int64(f.received.Load()), metric.WithAttributes(provider, instrument.KeyDirection.String("received")))
		}
		for kind, name := range leaseNames {
			k := instrument.KeyKind.String(name)
			for state := leaseGranted; state < leaseStates; state++ {
				o.ObserveInt64(leases, m.leases[kind][state].Load(), metric.WithAttributes(k, instrument.KeyState.String(stateNames[state])))
			}
			m.ended[kind].observe(o, ended, true, instrument.KeyResult, k)
		}
		for place, name := range errorPlaces {
			m.errors[place].observe(o, errors, false, instrument.KeyCode, instrument.KeyWhere.String(name))
		}
		o.ObserveInt64(heldBlocks, m.heldBlocks.Load())
		o.ObserveInt64(heldMemory, m.heldBytes.Load())
		o.ObserveInt64(quarantined, m.quarantined.Load())
		count, oldest := m.fences.oldest(e.o.Clock.Now())
		o.ObserveInt64(pending, int64(count))
		o.ObserveFloat64(age, seconds(oldest))

		s := e.Stats()
		o.ObserveInt64(clients, int64(s.Clients))
		o.ObserveInt64(caches, int64(s.Caches))
		o.ObserveInt64(running, int64(s.Transfers))
		up, queues := m.linked(e)
		for i, f := range m.fabrics[:len(m.fabrics)-1] {
			provider := instrument.KeyProvider.String(f.name)
			o.ObserveInt64(links, int64(up[i].out), metric.WithAttributes(provider, instrument.KeyDirection.String("out")))
			o.ObserveInt64(links, int64(up[i].in), metric.WithAttributes(provider, instrument.KeyDirection.String("in")))
			var outstanding, queued int
			for _, q := range queues[i] {
				posted, waiting := q.depth()
				outstanding, queued = outstanding+posted, queued+waiting
			}
			o.ObserveInt64(operations, int64(outstanding), metric.WithAttributes(provider, instrument.KeyState.String("outstanding")))
			o.ObserveInt64(operations, int64(queued), metric.WithAttributes(provider, instrument.KeyState.String("queued")))
		}
		return nil
	}
	return instrument.Observe(meter, observe, payload, transfers, operations, running, leases, ended, pending, age, heldBlocks, heldMemory,
		quarantined, errors, clients, caches, links)
}

// linkCount counts links that are up by who dialed them.
type linkCount struct{ out, in int }

// linked counts the links and lists the out queues, each by provider as in m.fabrics. Of a link that is down operations may be
// outstanding yet.
func (m *metrics) linked(e *Engine) (up []linkCount, queues [][]*outQueue) {
	up, queues = make([]linkCount, len(m.fabrics)), make([][]*outQueue, len(m.fabrics))
	e.mu.Lock()
	defer e.mu.Unlock()
	for i, f := range m.fabrics {
		for _, ls := range e.links {
			switch {
			case ls.metrics != f:
			case ls.out != nil:
				up[i].out++
			default:
				up[i].in++
			}
		}
		for _, ls := range e.sessions {
			if ls.metrics == f && ls.out != nil {
				queues[i] = append(queues[i], ls.out)
			}
		}
	}
	return up, queues
}
