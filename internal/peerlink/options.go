package peerlink

import (
	"context"
	"log/slog"
	"math"
	"net"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/peertls"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/xfer"
)

// Handler uses the links. For one link: LinkUp first, then LinkFrame in the order of arrival from one goroutine, then
// LinkDown once. A LinkFrame that waits holds up its own link only.
type Handler interface {
	LinkUp(l xfer.Link)
	// LinkFrame gets every frame but heartbeats and the hello: what docs/protocol.md has from source to target where the
	// peer dialed, the reverse where this side did, BYE, OK and ERROR on both. The frame is the handler's to keep.
	LinkFrame(l xfer.Link, f wire.Frame)
	// LinkDown comes after the session's Close. reason is never nil.
	LinkDown(l xfer.Link, reason error)
}

// LaneServer takes a provider's connections, of which prefix was read; rdma/tcp is one. ServeLane returns when the connection's
// hello is over and closes it on an error. Over TLS conn is a *tls.Conn.
type LaneServer interface {
	ServeLane(conn net.Conn, prefix []byte) error
}

// LaneFunc is a LaneServer.
type LaneFunc func(conn net.Conn, prefix []byte) error

// ServeLane calls f.
func (f LaneFunc) ServeLane(conn net.Conn, prefix []byte) error { return f(conn, prefix) }

// Options sets Links up. Node, Epoch, Providers and Handler are required; the zero value of others means the default.
type Options struct {
	Node     string
	Epoch    string // 32 lower-case hex digits
	Tenant   string // of connections and PeerRefs that name none
	Software string // for people: "kvxfer 0.1.0"

	Providers []rdma.Provider // best first, 1 to 16 of different names
	// Lanes takes the providers' connections, by the 4 bytes that they open with: "KVXL" is rdma/tcp's. Others are closed like
	// garbage.
	Lanes map[string]LaneServer
	// Absent are providers that this node would have and cannot use, and why: peers that have them say it in their reasons.
	Absent      []wire.Absence
	Handler     Handler
	NextSession func() rdma.SessionID // never the same twice in the process; default: a counter of its own

	// Resolve gives what the directory knows of a node, from memory: it must not wait. An address of the wanted epoch
	// is tried before the ticket's.
	Resolve func(node string) (addr, epoch string, ok bool)

	HeartbeatEvery  time.Duration // 1 ms to 1 h, default 1 s
	HeartbeatMisses int           // 2 to 1000, default 3
	HelloTimeout    time.Duration // for connecting, and again for the hello; of every address. 1 ms to 1 h, default 5 s

	// RetryProvider is for how long a provider that could not reach a peer is not offered to it again. 1 ms to 24 h, default
	// 1 min.
	RetryProvider time.Duration

	MaxLinks      int // dialed and accepted, 1 to 2^20, default 1024
	MaxHandshakes int // connections in their hello, and again lanes in theirs; 1 to 2^16, default 128
	MaxQueue      int // frames that wait to be sent on a link, 1 to 2^24, default 16384
	MaxQueueBytes int // their bytes, at which no more is taken; 1 to 2^40, default 128 MiB, two of the largest frames

	// TLS is this node's certificate and whom it believes. With it every control connection is over TLS, of both directions,
	// and one in clear is refused; nil: the other way round. Which lanes are taken is the provider's affair.
	TLS *peertls.Identity

	// Dial connects; default net.Dialer without keepalive.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)

	Logger *slog.Logger // default: silent
}

func (o *Options) ensureDefaults() {
	def(&o.HeartbeatEvery, time.Second)
	def(&o.HeartbeatMisses, 3)
	def(&o.HelloTimeout, 5*time.Second)
	def(&o.RetryProvider, time.Minute)
	def(&o.MaxLinks, 1024)
	def(&o.MaxHandshakes, 128)
	def(&o.MaxQueue, 16384)
	def(&o.MaxQueueBytes, 128<<20)
	if o.Dial == nil {
		o.Dial = (&net.Dialer{KeepAlive: -1}).DialContext
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
	const op = "peer links"
	h := wire.Hello{Tenant: o.Tenant, Software: o.Software, Node: o.Node, Epoch: o.Epoch}
	if err := h.Validate(); err != nil {
		return err
	}
	if err := requireNode(op, o.Node, o.Epoch); err != nil {
		return err
	}
	if n := len(o.Providers); n < 1 || n > maxProviders {
		return fault.Invalid(op, "Providers", "%d, allowed 1..%d", n, maxProviders)
	}
	for i, p := range o.Providers {
		if err := wire.CheckName(op, "Providers", p.Name()); err != nil {
			return err
		}
		for _, q := range o.Providers[:i] {
			if p.Name() == q.Name() {
				return fault.Invalid(op, "Providers", "two are called %q, allowed are different names", p.Name())
			}
		}
	}
	for prefix, lanes := range o.Lanes {
		if len(prefix) != prefixLen || prefix == controlPrefix || peertls.First([]byte(prefix)) || lanes == nil {
			return fault.Invalid(op, "Lanes", "%q, allowed are %d bytes that open neither a control connection nor TLS, with a server", prefix, prefixLen)
		}
	}
	h.Absent = o.Absent
	if err := h.Validate(); err != nil {
		return err
	}
	if n := len(o.Absent); n > maxProviders {
		return fault.Invalid(op, "Absent", "%d, allowed 0..%d", n, maxProviders)
	}
	if o.Handler == nil {
		return fault.Invalid(op, "Handler", "nil, want a handler")
	}
	for _, f := range [...]struct {
		name      string
		v         int64
		low, high int64
	}{
		{"HeartbeatEvery", int64(o.HeartbeatEvery), int64(time.Millisecond), int64(time.Hour)},
		{"HeartbeatMisses", int64(o.HeartbeatMisses), 2, 1000},
		{"HelloTimeout", int64(o.HelloTimeout), int64(time.Millisecond), int64(time.Hour)},
		{"RetryProvider", int64(o.RetryProvider), int64(time.Millisecond), int64(24 * time.Hour)},
		{"MaxLinks", int64(o.MaxLinks), 1, 1 << 20},
		{"MaxHandshakes", int64(o.MaxHandshakes), 1, 1 << 16},
		{"MaxQueue", int64(o.MaxQueue), 1, 1 << 24},
		{"MaxQueueBytes", int64(o.MaxQueueBytes), 1, min(1<<40, math.MaxInt)},
	} {
		if f.v < f.low || f.v > f.high {
			return fault.Invalid(op, f.name, "%d, allowed %d..%d", f.v, f.low, f.high)
		}
	}
	return nil
}

// silence is how long a peer may show no progress.
func (o *Options) silence() time.Duration { return time.Duration(o.HeartbeatMisses) * o.HeartbeatEvery }
