package xfer

import "github.com/kvxfer/kvxfer/internal/wire"

// requestFrames are the frames between daemons that no transfer is behind: instances, keys and probes. bySource says which side
// sends them.
var requestFrames = map[wire.Kind]struct {
	bySource bool
	f        func(*linkState, wire.Frame) error
}{
	wire.KindGrant:       {true, (*linkState).onGrant},
	wire.KindGrantRenew:  {true, (*linkState).onGrantRenew},
	wire.KindGrantRevoke: {true, (*linkState).onGrantRevoke},
	wire.KindClaimed:     {true, (*linkState).onClaimed},
	wire.KindFind:        {true, (*linkState).onFind},
	wire.KindOpenBlock:   {true, (*linkState).onOpen},
	wire.KindTraceOf:     {true, (*linkState).onTraceOf},

	wire.KindProbeOpen: {true, (*linkState).onProbeOpen},
	wire.KindProbeRun:  {true, (*linkState).onProbeRun},

	wire.KindGrantLayers: {false, (*linkState).onGrantLayers},
	wire.KindGrantEnded:  {false, (*linkState).onGrantEnded},
	wire.KindClaim:       {false, (*linkState).onClaim},
}
