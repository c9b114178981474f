package node

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/kvxfer/kvxfer/internal/config"
	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/hostmem"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/shm"
	"github.com/kvxfer/kvxfer/rdma/tcp"
	"github.com/kvxfer/kvxfer/rdma/verbs"
	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
	"github.com/kvxfer/kvxfer/xfer"
)

// Pair is two providers of one name inside this process, each with memory, and a session from the near one to the far one, by the
// providers' own code and the kernel's, without a daemon. One goroutine uses it.
type Pair struct {
	near, far *half
	target    rdma.Target
	initiator rdma.Initiator
	bytes     uint64 // on each side
	ops       uint64 // operations posted
	events    [64]rdma.Event
	undo      []func()
}

// half is a provider and its memory.
type half struct {
	rdma.Provider
	addr string
	mem  *hostmem.Mapping
	reg  rdma.Region
}

func (h *half) bytes() []byte { return unsafe.Slice((*byte)(h.mem.Memory().Base), h.mem.Memory().Len) }

// OpenPair makes a pair with so many bytes of memory on each side, 1 or more. near and far are the settings of verbs on each side. It
// binds a port of 127.0.0.1 that the kernel chooses and makes sockets in a directory for temporary files; Close leaves nothing of
// either. Errors are those of the provider: NotSupported says why this host cannot use it.
func OpenPair(ctx context.Context, name string, near, far *config.RDMA, bytes uint64) (_ *Pair, err error) {
	p := &Pair{bytes: bytes}
	later := func(f func()) { p.undo = append(p.undo, f) }
	defer func() {
		if err != nil {
			p.Close()
		}
	}()
	dir, err := os.MkdirTemp("", "kvx")
	if err != nil {
		return nil, fault.Wrap(fault.Internal, "check", err)
	}
	later(func() { _ = os.RemoveAll(dir) })
	if p.near, err = newHalf(name, filepath.Join(dir, "near"), near, bytes, later); err != nil {
		return nil, err
	}
	if p.far, err = newHalf(name, filepath.Join(dir, "far"), far, bytes, later); err != nil {
		return nil, err
	}
	var params []byte
	if p.target, params, err = p.far.Accept(1); err != nil {
		return nil, err
	}
	later(func() { _ = p.target.Close() })
	if p.initiator, err = p.near.Connect(ctx, 2, p.far.addr, params); err != nil {
		return nil, err
	}
	later(func() { _ = p.initiator.Close() })
	// The far side's arrivals are taken as an engine takes them.
	arrivals, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		events := make([]rdma.Event, 64)
		for p.far.Wait(arrivals) == nil {
			p.far.Poll(events)
		}
	})
	later(func() { stop(); wg.Wait() })
	return p, nil
}

// Close ends the session and both providers.
func (p *Pair) Close() {
	for _, f := range slices.Backward(p.undo) {
		f()
	}
	p.undo = nil
}

// Port is a port that a side of a pair of verbs uses, as perftest's tools are told of it.
type Port struct {
	Device   string
	Port     int
	GIDIndex int // -1: none, of InfiniBand
	Gbps     float64
	MTU      int // bytes of payload in a packet
}

// Ports are the first ports that both sides use; false: the pair is not of verbs.
func (p *Pair) Ports() (near, far Port, ok bool) {
	n, a := p.near.Provider.(*verbs.Provider)
	f, b := p.far.Provider.(*verbs.Provider)
	if !a || !b {
		return near, far, false
	}
	return firstPort(n), firstPort(f), true
}

func firstPort(p *verbs.Provider) Port {
	r := p.Describe().Rails[0]
	out := Port{Device: r.Device, Port: r.Port, GIDIndex: -1, Gbps: r.Gbps, MTU: r.MTU}
	if len(r.GIDs) > 0 && r.LinkLayer == nic.Ethernet {
		out.GIDIndex = r.GIDs[0].Index
	}
	return out
}

// newHalf makes a provider with memory; what is passed to later undoes it, the last first, also where it fails.
func newHalf(name, path string, o *config.RDMA, size uint64, later func(func())) (*half, error) {
	h := &half{}
	clock, log := xfer.NewClock(), slog.New(slog.DiscardHandler)
	switch name {
	case "shm":
		p, err := shm.New(shm.Options{Path: path, Clock: clock, Logger: log})
		if err != nil {
			return nil, err
		}
		h.Provider = p
	case "tcp":
		p, err := tcp.New(tcp.Options{Clock: clock, Logger: log})
		if err != nil {
			return nil, err
		}
		h.Provider = p
		if h.addr, err = lanesOf(p.ServeLane, later); err != nil {
			_ = p.Close()
			return nil, err
		}
	case "verbs":
		p, err := verbs.New(verbsOptions(o, clock, log))
		if err != nil {
			return nil, err
		}
		h.Provider = p
		if h.addr, err = lanesOf(p.ServeSide, later); err != nil {
			_ = p.Close()
			return nil, err
		}
	default:
		return nil, fault.New(fault.NotSupported, "check", "no provider %q", name)
	}
	later(func() { _ = h.Close() })
	var err error
	if h.mem, err = hostmem.Allocate("check", size); err != nil {
		return nil, err
	}
	later(func() { _ = h.mem.Close() })
	if h.reg, err = h.Register(h.mem.Memory()); err != nil {
		return nil, err
	}
	later(func() { _ = h.reg.Close() })
	return h, nil
}

// lanesOf takes a provider's connections at a port of 127.0.0.1.
func lanesOf(serve func(conn net.Conn, prefix []byte) error, later func(func())) (addr string, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fault.Wrap(fault.Internal, "check", err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { _ = serve(c, nil) })
		}
	})
	later(func() { _ = l.Close(); wg.Wait() })
	return l.Addr().String(), nil
}

// move carries random bytes of the whole memory from one side to the other in one operation, and compares them.
func (p *Pair) move(ctx context.Context, kind rdma.OpKind) (time.Duration, error) {
	from, to := p.near.bytes(), p.far.bytes()
	if kind == rdma.OpRead {
		from, to = to, from
	}
	random(from)
	took, err := p.stream(ctx, kind, p.bytes, 1, 1, nil)
	if err == nil && !slices.Equal(from, to) {
		err = errOtherBytes
	}
	return took, err
}

var errOtherBytes error = fault.New(fault.Internal, "check", "the operation was reported as done, and its bytes are not those that were sent")

func random(b []byte) {
	var seed [32]byte
	for i := range seed {
		seed[i] = byte(rand.Uint32())
	}
	_, _ = rand.NewChaCha8(seed).Read(b)
}
