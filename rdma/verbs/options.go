package verbs

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/verbs/internal/ibv"
	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
	"github.com/kvxfer/kvxfer/rdma/verbs/pick"
	"github.com/kvxfer/kvxfer/rdma/verbs/route"
)

// Options sets a provider up. The zero value of every field means its default.
type Options struct {
	Clock  rdma.Clock   // kept for windows' deadlines, which the device does not look at; default: time since New
	Logger *slog.Logger // default: silent
	Host   nic.Host     // the RDMA stack; default: libibverbs of this host

	Devices, NoDevices []string // allowed and forbidden: "mlx5_0", "mlx5_0:1" for a port, globs; no Devices: all
	GID                string   // an address: only ports that have it; "": what reaches the peer
	TrafficClass       int      // of RoCE and of global InfiniBand packets, 0 to 255
	ServiceLevel       int      // 0 to 15
	PKey               uint16   // partition key; default 0xffff
	Timeout            int      // until a packet is sent again: 4.096 us x 2^Timeout, 1 to 31; default 16 (268 ms)
	Retries            int      // of a packet before its lane is given up, 0 to 6; -1: none; default 6. 7 would mean for ever on some devices

	LanesPerRail      int           // queue pairs per pair of NICs, 1 to 64; default 4
	NoWindows         bool          // no memory windows: a fence resets queue pairs
	NoRelaxedOrdering bool          // strict PCIe ordering also for payload
	Spin              time.Duration // how long the poller looks before it sleeps, at most 10 ms; default 50 us, or not at all (-1) with fewer than four processors: it would take one from those it waits for
	Drain             time.Duration // how long a fence waits for what is under way before it ends it by force; default 50 ms
	LostAfter         time.Duration // without any usable lane the session is down; default 10 s

	stall time.Duration // without any completion a lane is ended; default stallAfter

	MaxInFlight    int    // operations posted and not completed, a session; default 1024
	MaxInFlightLen uint64 // bytes posted and not completed, a session; default 64 MiB
	MaxOpBytes     uint64 // default 1 GiB
	MaxRanges      int    // default 65536

	DialTimeout  time.Duration // for all of Connect; default 10 s
	HelloTimeout time.Duration // for a peer to say its hello after it connected; default 5 s

	// Networks are the addresses of this network namespace's interfaces, Reach whether a route leads from a GID of a rail to an
	// address; defaults: package route asks the kernel.
	Networks func() map[string][]netip.Prefix
	Reach    pick.Reach

	// Dial connects the side channel; default net.Dialer.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// TLS makes the client's side of TLS on the side channel. With it every side channel is over TLS, of both directions, because
	// keys and queue pairs travel on it; nil: none is.
	TLS func(ctx context.Context, conn net.Conn) (*tls.Conn, error)
}

func (o *Options) ensureDefaults() {
	def(&o.PKey, 0xffff)
	def(&o.Timeout, 16)
	def(&o.Retries, 6)
	def(&o.LanesPerRail, 4)
	if o.Spin == 0 && runtime.NumCPU() >= 4 {
		o.Spin = 50 * time.Microsecond
	}
	def(&o.Drain, 50*time.Millisecond)
	def(&o.LostAfter, 10*time.Second)
	def(&o.MaxInFlight, 1024)
	def(&o.MaxInFlightLen, 64<<20)
	def(&o.MaxOpBytes, 1<<30)
	def(&o.MaxRanges, 1<<16)
	def(&o.DialTimeout, 10*time.Second)
	def(&o.HelloTimeout, 5*time.Second)
	if o.Retries == -1 {
		o.Retries = 0
	}
	if o.Spin == -1 {
		o.Spin = 0
	}
	def(&o.stall, o.stallAfter())
	if o.Clock == nil {
		o.Clock = startClock{time.Now()}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Host == nil {
		o.Host = ibv.New()
	}
	if o.Networks == nil {
		o.Networks = func() map[string][]netip.Prefix {
			n, _ := route.Networks() // nil where the kernel does not say: then every GID may be used
			return n
		}
	}
	if o.Reach == nil {
		o.Reach = route.Reach
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
	const op = "verbs provider"
	for _, f := range [...]struct {
		name      string
		v         int64
		low, high int64
	}{
		{"TrafficClass", int64(o.TrafficClass), 0, 255},
		{"ServiceLevel", int64(o.ServiceLevel), 0, 15},
		{"Timeout", int64(o.Timeout), 1, 31},
		{"Retries", int64(o.Retries), 0, 6},
		{"LanesPerRail", int64(o.LanesPerRail), 1, 64},
		{"Spin", int64(o.Spin), 0, int64(10 * time.Millisecond)},
		{"Drain", int64(o.Drain), 1, int64(time.Minute)},
		{"LostAfter", int64(o.LostAfter), int64(time.Millisecond), int64(time.Hour)},
		{"MaxInFlight", int64(o.MaxInFlight), 1, 1 << 20},
		{"MaxInFlightLen", int64(min(o.MaxInFlightLen, 1<<62)), 1, 1 << 40},
		{"MaxOpBytes", int64(min(o.MaxOpBytes, 1<<62)), 1, 1 << 40},
		{"MaxRanges", int64(o.MaxRanges), 1, 1 << 24},
		{"DialTimeout", int64(o.DialTimeout), 1, int64(time.Hour)},
		{"HelloTimeout", int64(o.HelloTimeout), 1, int64(time.Hour)},
	} {
		if f.v < f.low || f.v > f.high {
			return fault.Invalid(op, f.name, "%d, want %d to %d", f.v, f.low, f.high)
		}
	}
	if o.GID != "" {
		if _, err := netip.ParseAddr(o.GID); err != nil {
			return fault.Invalid(op, "GID", "%q, want an IPv4 or IPv6 address", o.GID)
		}
	}
	return nil
}

// startClock counts from its own making; Go's monotonic reading carries it.
type startClock struct{ start time.Time }

func (c startClock) Now() rdma.Instant { return rdma.Instant(time.Since(c.start)) }
