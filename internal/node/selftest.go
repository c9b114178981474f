package node

import (
	"context"
	"errors"
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
	"github.com/kvxfer/kvxfer/xfer"
)

// ProviderCheck is what became of moving bytes through a provider between two halves inside this process.
type ProviderCheck struct {
	Provider string
	Bytes    uint64        // of each direction
	Write    time.Duration // of the WRITE, from Post to its completion
	Read     time.Duration
	Err      error // nil: both arrived as they were sent
	Optional bool  // a daemon runs without it where the host cannot use it, unless it is named
}

// CheckProviders moves bytes (1 or more) through each provider of a configuration, by its own code and the kernel's, without a
// daemon. It binds a port of 127.0.0.1 that the kernel chooses and makes sockets in a directory for temporary files; nothing is
// left of either.
func CheckProviders(ctx context.Context, cfg *config.Config, bytes uint64) []ProviderCheck {
	out := make([]ProviderCheck, len(cfg.Providers))
	for i, name := range cfg.Providers {
		out[i] = ProviderCheck{Provider: name, Bytes: bytes, Optional: !required[name]}
		out[i].Err = out[i].run(ctx, &cfg.RDMA)
	}
	return out
}

// half is a provider and a session's place of arrival there.
type half struct {
	rdma.Provider
	addr string
	mem  *hostmem.Mapping
	reg  rdma.Region
}

func (h *half) bytes() []byte { return unsafe.Slice((*byte)(h.mem.Memory().Base), h.mem.Memory().Len) }

func (c *ProviderCheck) run(ctx context.Context, o *config.RDMA) (err error) {
	dir, err := os.MkdirTemp("", "kvx")
	if err != nil {
		return fault.Wrap(fault.Internal, "check", err)
	}
	var undo []func()
	later := func(f func()) { undo = append(undo, f) }
	later(func() { _ = os.RemoveAll(dir) })
	defer func() {
		for _, f := range slices.Backward(undo) {
			f()
		}
	}()
	near, err := newHalf(c.Provider, filepath.Join(dir, "near"), o, c.Bytes, later)
	if err != nil {
		return err
	}
	far, err := newHalf(c.Provider, filepath.Join(dir, "far"), o, c.Bytes, later)
	if err != nil {
		return err
	}
	target, params, err := far.Accept(1)
	if err != nil {
		return err
	}
	later(func() { _ = target.Close() })
	initiator, err := near.Connect(ctx, 2, far.addr, params)
	if err != nil {
		return err
	}
	later(func() { _ = initiator.Close() })
	m := mover{near: near, far: far, target: target, initiator: initiator}
	if c.Write, err = m.move(ctx, rdma.OpWrite, rdma.AccessWrite); err != nil {
		return err
	}
	c.Read, err = m.move(ctx, rdma.OpRead, rdma.AccessRead)
	return err
}

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

// mover makes operations of one session.
type mover struct {
	near, far *half
	target    rdma.Target
	initiator rdma.Initiator
	ops       uint64
}

// move carries random bytes from one half to the other and compares them.
func (m *mover) move(ctx context.Context, kind rdma.OpKind, access rdma.Access) (time.Duration, error) {
	from, to := m.near.bytes(), m.far.bytes()
	if kind == rdma.OpRead {
		from, to = to, from
	}
	var seed [32]byte
	for i := range seed {
		seed[i] = byte(rand.Uint32())
	}
	_, _ = rand.NewChaCha8(seed).Read(from)
	size := uint64(len(from))
	key, err := m.target.Grant(rdma.Window{Region: m.far.reg, Access: access, Bounds: rdma.Spans{{Len: size}}})
	if err != nil {
		return 0, err
	}
	m.ops++
	begun := time.Now()
	n, err := m.initiator.Post([]rdma.Op{{Kind: kind, ID: m.ops, Local: m.near.reg, Remote: key, Ranges: []rdma.Range{{Len: size}}}})
	if err == nil && n != 1 {
		err = errors.New("a first operation was not taken")
	}
	if err != nil {
		return 0, fault.From("check", err)
	}
	took, err := m.completion(ctx, begun)
	if err != nil {
		return 0, err
	}
	if err := m.target.Fence(key); err != nil {
		return 0, err
	}
	if !slices.Equal(from, to) {
		return 0, fault.New(fault.Internal, "check", "the operation was reported as done, and its bytes are not those that were sent")
	}
	return took, nil
}

func (m *mover) completion(ctx context.Context, begun time.Time) (time.Duration, error) {
	var events [4]rdma.Event
	for {
		for _, ev := range events[:m.near.Poll(events[:])] {
			switch {
			case ev.Kind == rdma.EventCompletion && ev.Op == m.ops && ev.Status == 0:
				return time.Since(begun), nil
			case ev.Kind == rdma.EventCompletion && ev.Op == m.ops:
				return 0, fault.New(ev.Status, "check", "the operation failed")
			case ev.Kind == rdma.EventDown:
				return 0, fault.New(ev.Status, "check", "the session ended")
			}
		}
		if err := m.near.Wait(ctx); err != nil {
			return 0, fault.From("check", err)
		}
	}
}
