package node

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"runtime/pprof"

	"github.com/kvxfer/kvxfer/internal/config"
	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/hostmem"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/xfer"
)

// What of the log is kept for who asks.
const (
	keptLines    = 1000
	keptLogBytes = 1 << 20
)

// scratch makes memory for probes.
func scratch(size uint64) (xfer.Mapping, error) {
	m, err := hostmem.Allocate("probe", size)
	if err != nil { // a nil *Mapping in the interface would not be nil
		return nil, err
	}
	return m, nil
}

// locate gives what the local view knows of a node.
func (d *directory) locate(name string) (ref xfer.PeerRef, providers []string, ok bool) {
	n, ok := d.reg.View().Node(name)
	return peerRef(&n, ""), n.Providers, ok
}

// report is what the daemon tells its operator about itself. Nothing in it is secret: the configuration leaves out what may
// hold passwords, logs never hold tickets or keys, and stacks are given without arguments.
func (n *Node) report(what string) ([]byte, error) {
	switch what {
	case wire.ReportConfiguration:
		return configurationJSON(&n.cfg)
	case wire.ReportLog:
		return n.ring.Text(), nil
	case wire.ReportGoroutines:
		var b bytes.Buffer
		// 1: without the arguments, which may be part of a secret.
		err := pprof.Lookup("goroutine").WriteTo(&b, 1)
		return b.Bytes(), fault.Wrap(fault.Internal, "report", err)
	}
	return nil, fault.New(fault.NotSupported, "report", "%s", what)
}

// configurationJSON writes down what Config.LogValue tells.
func configurationJSON(cfg *config.Config) ([]byte, error) {
	out := map[string]any{}
	for _, a := range cfg.LogValue().Group() {
		if out[a.Key] = a.Value.Any(); a.Value.Kind() == slog.KindDuration {
			out[a.Key] = a.Value.Duration().String()
		}
	}
	raw, err := json.MarshalIndent(out, "", "  ")
	return append(raw, '\n'), fault.Wrap(fault.Internal, "report", err)
}
