package node

import (
	"context"
	"os"
	"runtime"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/kvxfer/kvxfer/internal/telemetry"
	"github.com/kvxfer/kvxfer/internal/telemetry/instrument"
	"github.com/kvxfer/kvxfer/internal/version"
	"github.com/kvxfer/kvxfer/xfer/blockdb"
)

// lastExport bounds the export at the end, while the parts that are measured still live.
const lastExport = time.Second

func (n *Node) startMetrics(ctx context.Context) (err error) {
	n.met, err = telemetry.StartMetrics(ctx, telemetry.Options{NodeName: n.cfg.Node, Version: version.Version, NoEnvironment: n.cfg.NoEnvironment, Logger: n.log})
	if err != nil {
		return err
	}
	n.later(func() {
		ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
		defer cancel()
		n.logged("metrics", n.met.Shutdown(ctx))
	})
	n.later(n.tel.Measure(n.met.Meter()))
	return nil
}

// measure makes the metrics of the parts that do not measure themselves: registry and block store, which the engine's
// instruments do not know.
func (n *Node) measure(context.Context) error {
	m := n.met.Meter()
	connected, nodes := instrument.NewGauge(m, instrument.Connected), instrument.NewGauge(m, instrument.Nodes)
	heartbeat, view := instrument.NewAge(m, instrument.HeartbeatAge), instrument.NewAge(m, instrument.ViewAge)
	caches, committed := instrument.NewGauge(m, instrument.StoreCaches), instrument.NewGauge(m, instrument.StoreCommitted)
	leases, disk := instrument.NewGauge(m, instrument.StoreLeases), instrument.NewGauge(m, instrument.StoreDisk)
	writes, written := instrument.NewCounter(m, instrument.StoreWrites), instrument.NewCounter(m, instrument.StoreWritten)
	refused, trouble := instrument.NewCounter(m, instrument.StoreRefused), instrument.NewGauge(m, instrument.StoreTrouble)
	ready, build := instrument.NewGauge(m, instrument.Ready), instrument.NewGauge(m, instrument.Build)
	store := &reader[blockdb.Stats]{read: n.store.Stats, begin: n.wg.Go}

	n.later(instrument.Observe(m, func(_ context.Context, o metric.Observer) error {
		o.ObserveInt64(connected, truth(n.dir.View().Connected()))
		o.ObserveInt64(nodes, int64(len(n.dir.View().Nodes())))
		beat, heard := n.ages()
		o.ObserveFloat64(heartbeat, beat.Seconds())
		o.ObserveFloat64(view, heard.Seconds())

		s := store.get()
		o.ObserveInt64(caches, int64(s.Attached), label(instrument.KeyState, "attached"))
		o.ObserveInt64(caches, int64(s.Detached), label(instrument.KeyState, "detached"))
		o.ObserveInt64(committed, int64(s.Committed))
		o.ObserveInt64(leases, int64(s.OpenLeases))
		o.ObserveInt64(disk, int64(s.DiskBytes))
		o.ObserveInt64(writes, int64(s.LogWrites))
		o.ObserveInt64(written, int64(s.LogBytes))
		o.ObserveInt64(refused, int64(s.Refused))
		o.ObserveInt64(trouble, truth(s.DiskFull), label(instrument.KeyReason, "disk_full"))
		o.ObserveInt64(trouble, truth(s.Failed != ""), label(instrument.KeyReason, "log_failed"))
		o.ObserveInt64(trouble, truth(s.Voided), label(instrument.KeyReason, "voided"))

		o.ObserveInt64(ready, truth(n.readiness() == nil))
		o.ObserveInt64(build, 1, metric.WithAttributes(instrument.KeyVersion.String(version.Version), instrument.KeyGo.String(runtime.Version())))
		return nil
	}, connected, nodes, heartbeat, view, caches, committed, leases, disk, writes, written, refused, trouble, ready, build))
	n.later(measurePorts(m, os.DirFS("/"), n.wg.Go))
	return nil
}

func truth(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

func label(key attribute.Key, value string) metric.ObserveOption {
	return metric.WithAttributes(key.String(value))
}

// exportLast exports metrics while everything that is measured is still there.
func (n *Node) exportLast(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lastExport)
	defer cancel()
	if err := n.met.Flush(ctx); err != nil {
		n.log.Warn("metrics were not exported at the end", "error", err)
	}
}
