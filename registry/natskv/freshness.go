package natskv

import (
	"sync/atomic"
	"time"
)

// freshness notes when the registry last did what it is for. The times are durations since made, so that they do not depend on
// the wall clock.
type freshness struct {
	made        time.Time
	beat, heard atomic.Int64
}

func (f *freshness) note(of *atomic.Int64) { of.Store(int64(time.Since(f.made))) }

// Ages says how long ago this node's heartbeat was last taken, and how long ago the view last heard from the directory, which
// tells it at least of that heartbeat; since Connect where neither has happened.
func (d *Directory) Ages() (heartbeat, view time.Duration) {
	now := time.Since(d.fresh.made)
	return now - time.Duration(d.fresh.beat.Load()), now - time.Duration(d.fresh.heard.Load())
}
