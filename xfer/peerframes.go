package xfer

import "github.com/kvxfer/kvxfer/internal/wire"

// requestFrames are the frames between daemons that no transfer is behind: instances and keys. bySource says which side
// sends them.
var requestFrames = map[wire.Kind]struct {
	bySource bool
	f        func(*linkState, wire.Frame) error
}{
	wire.KindFind: {true, (*linkState).onFind},
}
