package tcp

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

// Options sets a provider up. The zero value of every field means its default.
type Options struct {
	Clock  rdma.Clock   // deadlines of windows are read on it; default: time since New
	Logger *slog.Logger // default: silent

	Lanes        int // connections a session, 1 to 64; default 4. The smaller of both sides' counts
	SocketBuffer int // bytes a direction that the kernel is asked for, at least 4096; default 4 MiB; over loop-back at most 1 MiB

	MaxInFlight    int    // operations posted and not completed, a session; default 1024
	MaxInFlightLen uint64 // bytes posted and not completed, a session; default 64 MiB
	MaxOpBytes     uint64 // default 1 GiB
	MaxRanges      int    // default 65536

	DialTimeout  time.Duration // for all of Connect; default 10 s
	HelloTimeout time.Duration // for a peer to say its lane hello after it connected; default 5 s

	// Dial connects; default net.Dialer. The connection must give its file descriptor (syscall.Conn).
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)

	// TLS makes the client's side of TLS on a lane that was dialed; ctx is Connect's. nil: a target that takes lanes over
	// TLS cannot be dialed. Whoever passes accepted connections to ServeLane makes the server's side.
	TLS func(ctx context.Context, conn net.Conn) (*tls.Conn, error)
	// TLSLanes makes a target take lanes over TLS and no others, and Connect refuse targets that take them in clear.
	// Without it a target takes none over TLS; what a node dials is as its target wants it.
	TLSLanes bool
}

func (o *Options) ensureDefaults() {
	def(&o.Lanes, 4)
	def(&o.SocketBuffer, 4<<20)
	def(&o.MaxInFlight, 1024)
	def(&o.MaxInFlightLen, 64<<20)
	def(&o.MaxOpBytes, 1<<30)
	def(&o.MaxRanges, 1<<16)
	def(&o.DialTimeout, 10*time.Second)
	def(&o.HelloTimeout, 5*time.Second)
	if o.Clock == nil {
		o.Clock = startClock{time.Now()}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Dial == nil {
		o.Dial = (&net.Dialer{}).DialContext
	}
}

func def[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

func (o *Options) validate() error {
	for _, f := range [...]struct {
		name      string
		v         int64
		low, high int64
	}{
		{"Lanes", int64(o.Lanes), 1, maxLanes},
		{"SocketBuffer", int64(o.SocketBuffer), 4096, 1 << 30},
		{"MaxInFlight", int64(o.MaxInFlight), 1, 1 << 20},
		{"MaxInFlightLen", int64(min(o.MaxInFlightLen, 1<<62)), 1, 1 << 40},
		{"MaxOpBytes", int64(min(o.MaxOpBytes, 1<<62)), 1, 1 << 40},
		{"MaxRanges", int64(o.MaxRanges), 1, 1 << 24},
		{"DialTimeout", int64(o.DialTimeout), 1, int64(time.Hour)},
		{"HelloTimeout", int64(o.HelloTimeout), 1, int64(time.Hour)},
	} {
		if f.v < f.low || f.v > f.high {
			return fault.Invalid("tcp provider", f.name, "%d, want %d to %d", f.v, f.low, f.high)
		}
	}
	if o.TLSLanes && o.TLS == nil {
		return fault.Invalid("tcp provider", "TLS", "nil with TLSLanes, want a handshake")
	}
	return nil
}

// startClock counts from its own making; Go's monotonic reading carries it.
type startClock struct{ start time.Time }

func (c startClock) Now() rdma.Instant { return rdma.Instant(time.Since(c.start)) }
