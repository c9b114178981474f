package shm

import (
	"log/slog"
	"runtime"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/shm/internal/copykernel"
)

// Options sets a provider up. Path is required; the zero value of every other field means its default.
type Options struct {
	// Path is where the provider listens for peers of the same host; a socket that is left there is replaced. A path of
	// more than 107 bytes, which no socket can have, is replaced by one in a directory of its own below os.TempDir.
	Path string

	Clock  rdma.Clock   // deadlines of windows are read on it; default: time since New
	Logger *slog.Logger // default: silent

	// Monotonic gives what the host's CLOCK_MONOTONIC shows at an instant of Clock, in nanoseconds; 0: that cannot be said, and then a
	// timer alone ends a READ window that an initiator is reading. Default: Clock runs as fast as real time.
	Monotonic func(rdma.Instant) int64

	Workers    int    // goroutines that copy, 1 to 256; default GOMAXPROCS
	StreamFrom uint64 // bytes of an operation from which it is copied past the caches; default 256 KiB, see package copykernel

	MaxInFlight    int    // operations posted and not completed, a session; 1 to 16384, default 1024
	MaxInFlightLen uint64 // bytes posted and not completed, a session; default 64 MiB
	MaxOpBytes     uint64 // default 1 GiB
	MaxRanges      int    // default 65536

	DialTimeout  time.Duration // for all of Connect; default 5 s
	HelloTimeout time.Duration // for a peer to say its hello after it connected; default 5 s

	// Grace is how long taking memory back waits for a peer process that is reading it; default 50 ms. Only a peer that is
	// stopped reaches it, and what that one has read is void (doc.go).
	Grace time.Duration
}

func (o *Options) ensureDefaults() {
	def(&o.Workers, runtime.GOMAXPROCS(0))
	def(&o.StreamFrom, copykernel.StreamFrom)
	def(&o.MaxInFlight, 1024)
	def(&o.MaxInFlightLen, 64<<20)
	def(&o.MaxOpBytes, 1<<30)
	def(&o.MaxRanges, 1<<16)
	def(&o.DialTimeout, 5*time.Second)
	def(&o.HelloTimeout, 5*time.Second)
	def(&o.Grace, 50*time.Millisecond)
	if o.Clock == nil {
		o.Clock = startClock{time.Now()}
	}
	if o.Monotonic == nil {
		clock := o.Clock
		o.Monotonic = func(at rdma.Instant) int64 {
			now := hostMonotonic()
			if now == 0 {
				return 0
			}
			return now + int64(at-clock.Now())
		}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

func def[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

func (o *Options) validate() error {
	if o.Path == "" {
		return fault.Invalid("shm provider", "Path", "empty, want the path of a socket")
	}
	for _, f := range [...]struct {
		name      string
		v         int64
		low, high int64
	}{
		{"Workers", int64(o.Workers), 1, 256},
		{"StreamFrom", int64(min(o.StreamFrom, 1<<62)), 1, 1 << 62},
		{"MaxInFlight", int64(o.MaxInFlight), 1, maxSlots},
		{"MaxInFlightLen", int64(min(o.MaxInFlightLen, 1<<62)), 1, 1 << 40},
		{"MaxOpBytes", int64(min(o.MaxOpBytes, 1<<62)), 1, 1 << 40},
		{"MaxRanges", int64(o.MaxRanges), 1, 1 << 24},
		{"DialTimeout", int64(o.DialTimeout), 1, int64(time.Hour)},
		{"HelloTimeout", int64(o.HelloTimeout), 1, int64(time.Hour)},
		{"Grace", int64(o.Grace), 1, int64(time.Minute)},
	} {
		if f.v < f.low || f.v > f.high {
			return fault.Invalid("shm provider", f.name, "%d, want %d to %d", f.v, f.low, f.high)
		}
	}
	return nil
}

// startClock counts from its own making; Go's monotonic reading carries it.
type startClock struct{ start time.Time }

func (c startClock) Now() rdma.Instant { return rdma.Instant(time.Since(c.start)) }
