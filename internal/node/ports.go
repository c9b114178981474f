package node

import (
	"context"
	"io/fs"
	"math"
	"strconv"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/kvxfer/kvxfer/internal/telemetry/instrument"
	"github.com/kvxfer/kvxfer/rdma/verbs/sysfs"
)

// portAccount is one port of an RDMA device as it was read.
type portAccount struct {
	sysfs.PortState
	sysfs.Traffic
}

// measurePorts shows the hardware counters of all RDMA devices, those that kvxfer does not use too: who looks for lost packets
// wants to see the whole card. Without devices it costs one look into a directory that is not there.
func measurePorts(m metric.Meter, root fs.FS, begin func(func())) (stop func()) {
	active, traffic := instrument.NewGauge(m, instrument.PortActive), instrument.NewCounter(m, instrument.PortTraffic)
	packets, events := instrument.NewCounter(m, instrument.PortPackets), instrument.NewCounter(m, instrument.PortEvents)
	ports := &reader[[]portAccount]{begin: begin, read: func() (out []portAccount) {
		for _, p := range sysfs.Ports(root) {
			out = append(out, portAccount{p, sysfs.ReadTraffic(root, p.Device, p.Port)})
		}
		return out
	}}
	return instrument.Observe(m, func(_ context.Context, o metric.Observer) error {
		for _, p := range ports.get() {
			with := func(more ...attribute.KeyValue) metric.ObserveOption {
				return metric.WithAttributes(append(more, instrument.KeyDevice.String(p.Device), instrument.KeyPort.String(strconv.Itoa(p.Port)))...)
			}
			sent, received := with(instrument.KeyDirection.String("sent")), with(instrument.KeyDirection.String("received"))
			o.ObserveInt64(active, truth(p.Active), with())
			if p.BytesKnown {
				o.ObserveInt64(traffic, clamped(p.SentBytes), sent)
				o.ObserveInt64(traffic, clamped(p.ReceivedBytes), received)
			}
			if p.PacketsKnown {
				o.ObserveInt64(packets, clamped(p.SentPackets), sent)
				o.ObserveInt64(packets, clamped(p.ReceivedPackets), received)
			}
			for event, n := range p.Events {
				o.ObserveInt64(events, clamped(n), with(instrument.KeyEvent.String(string(event))))
			}
		}
		return nil
	}, active, traffic, packets, events)
}

func clamped(n uint64) int64 { return int64(min(n, math.MaxInt64)) }
