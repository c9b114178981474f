package gcfloor

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// goDefault is GOGC where nobody set it.
const goDefault = 100

// Set makes the collector wait until the heap has about so many bytes. It is for the process as a whole and for its life, and
// reports false where the user has set GOGC or GOMEMLIMIT.
func Set(bytes uint64) bool {
	if os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" {
		return false
	}
	f := &floor{bytes: bytes, share: goDefault, live: []metrics.Sample{{Name: "/gc/heap/live:bytes"}}}
	f.adjust()
	f.watch()
	return true
}

type floor struct {
	bytes uint64
	share int
	live  []metrics.Sample
}

// watch has every collection look at the heap anew, by an object that nothing refers to.
func (f *floor) watch() {
	runtime.SetFinalizer(&sentinel{f}, func(s *sentinel) {
		s.f.adjust()
		s.f.watch()
	})
}

type sentinel struct{ f *floor }

// adjust sets the share by what lives. It stops the world, so it is left out where little would change.
func (f *floor) adjust() {
	metrics.Read(f.live)
	var live uint64
	if f.live[0].Value.Kind() == metrics.KindUint64 {
		live = f.live[0].Value.Uint64()
	}
	want := shareFor(f.bytes, live)
	if d := want - f.share; d > f.share/8 || -d > f.share/8 {
		debug.SetGCPercent(want)
		f.share = want
	}
}

// shareFor is the share by which a heap of live bytes may grow until it has floor bytes, in percent; at least Go's own.
func shareFor(floor, live uint64) int {
	const least = 1 << 20 // before the first collection nothing is known
	live = max(live, least)
	if floor <= 2*live {
		return goDefault
	}
	return int((floor - live) * 100 / live)
}
