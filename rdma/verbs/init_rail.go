package verbs

import (
	"time"

	"github.com/kvxfer/kvxfer/rdma/verbs/pick"
)

// initRail is a pair of NICs, of this node and of the peer.
type initRail struct {
	near    *rail
	far     int // the peer's, in the order of its parameters
	pair    pick.Pair
	suspect bool // its lanes broke for want of an answer: used only where there is no other
	stalls  int  // since something came through
	late    bool // a lane of it is found stalled
	load    uint64
	rate    pick.Rate
	busy    time.Time // since when it has had something to move, or the last of it came through
}

func (r *initRail) name() string {
	return r.pair.Local.Name() + " (" + r.pair.LocalGID.Addr().String() + " to " + r.pair.PeerGID.Addr().String() + ")"
}

// moved takes in that bytes came through.
func (r *initRail) moved(bytes uint64) {
	now := time.Now()
	r.rate.Observe(bytes, now.Sub(r.busy), now)
	r.busy = now
}
