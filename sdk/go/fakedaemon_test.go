package kvxfer

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// fakeDaemon speaks the local protocol as a test wants it to. It remembers every frame that it read.
type fakeDaemon struct {
	t        testing.TB
	socket   string
	listener *net.UnixListener
	hello    wire.Hello

	mu      sync.Mutex
	cond    *sync.Cond
	silent  map[wire.Kind]bool                                 // are not answered
	refuse  map[wire.Kind]*fault.Error                         // are answered with that
	special map[wire.Kind]func(wire.Frame) (any, []byte, bool) // body, array, and whether to answer at all
	frames  []wire.Frame
	fds     int   // descriptors that came
	keep    []int // the last three, where it has a ring
	rings   bool
	conn    *net.UnixConn
	paused  bool // it does not read
	drain   bool // it reads on and looks at nothing
	number  uint64
	closed  bool
}

func startFake(t testing.TB) *fakeDaemon {
	dir, err := os.MkdirTemp("", "kvx")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	d := &fakeDaemon{t: t, socket: filepath.Join(dir, "s"), silent: map[wire.Kind]bool{}, refuse: map[wire.Kind]*fault.Error{},
		special: map[wire.Kind]func(wire.Frame) (any, []byte, bool){},
		hello:   wire.Hello{MinVersion: 1, MaxVersion: 1, Version: 1, Node: "fake", Epoch: "00112233445566778899aabbccddeeff", BootID: "boot", Software: "fake"}}
	d.cond = sync.NewCond(&d.mu)
	d.listener, err = net.ListenUnix("unix", &net.UnixAddr{Name: d.socket, Net: "unix"})
	require.NoError(t, err)
	var served sync.WaitGroup
	served.Go(func() {
		for {
			c, err := d.listener.AcceptUnix()
			if err != nil {
				return
			}
			d.mu.Lock()
			d.conn = c
			d.mu.Unlock()
			served.Go(func() { d.serve(c) })
		}
	})
	t.Cleanup(func() {
		_ = d.listener.Close()
		d.mu.Lock()
		d.closed = true
		d.cond.Broadcast()
		d.mu.Unlock()
		d.hangUp()
		served.Wait()
	})
	return d
}

// attach is a client of the fake with a cache of 8 blocks.
func (d *fakeDaemon) attach(o ...Option) (*Client, *Cache) {
	c := dial(d.t, d.socket, o...)
	return c, allocate(d.t, c, "cache", 8)
}

// Read counts and closes descriptors.
func (d *fakeDaemon) Read(p []byte) (int, error) {
	d.mu.Lock()
	for d.paused && !d.closed {
		d.cond.Wait()
	}
	c := d.conn
	d.mu.Unlock()
	oob := make([]byte, unix.CmsgSpace(4*16))
	n, oobn, _, _, err := c.ReadMsgUnix(p, oob)
	if oobn > 0 {
		msgs, _ := unix.ParseSocketControlMessage(oob[:oobn])
		for i := range msgs {
			fds, _ := unix.ParseUnixRights(&msgs[i])
			for _, fd := range fds {
				d.mu.Lock()
				if d.fds++; d.rings && len(fds) == 3 {
					d.keep = append(d.keep, fd)
				} else {
					_ = unix.Close(fd)
				}
				d.mu.Unlock()
			}
		}
	}
	if n == 0 && err == nil {
		return 0, net.ErrClosed
	}
	return n, err
}

func (d *fakeDaemon) serve(c *net.UnixConn) {
	defer func() { _ = c.Close() }()
	for {
		d.mu.Lock()
		drain := d.drain
		d.mu.Unlock()
		if drain {
			b := make([]byte, 64<<10)
			for {
				if _, err := c.Read(b); err != nil {
					return
				}
			}
		}
		f, err := wire.ReadFrame(d, wire.LocalLimits)
		if err != nil {
			var fe *fault.Error
			assert.False(d.t, errors.As(err, &fe), "the client's frame: %v", err)
			return
		}
		d.mu.Lock()
		d.frames = append(d.frames, f)
		d.number++
		n, hello, refuse, silent, special := d.number, d.hello, d.refuse[f.Kind], d.silent[f.Kind], d.special[f.Kind]
		d.cond.Broadcast()
		d.mu.Unlock()
		switch {
		case silent || f.Flags&wire.FlagNoReply != 0:
		case refuse != nil:
			d.send(wire.NewError(f.Request, refuse))
		case special != nil:
			if body, array, answer := special(f); answer {
				d.reply(f.Request, wire.KindOK, body, array)
			}
		case f.Kind == wire.KindHello:
			d.reply(f.Request, wire.KindHelloOK, &hello, nil)
		default:
			d.answer(f, n)
		}
	}
}

// answer says yes to a request, with number n where it names something.
func (d *fakeDaemon) answer(f wire.Frame, n uint64) {
	var body any
	switch f.Kind {
	case wire.KindRegisterRegion:
		body = &wire.RegionInfo{Region: n}
	case wire.KindRegisterCache:
		body = &wire.CacheInfo{Cache: n, BlockBytes: uint64(testLayout.BlockBytes())}
	case wire.KindLease, wire.KindAdvertise:
		body = &wire.LeaseInfo{Lease: n, Ticket: "ticket", Generation: 7, LeaseID: "00112233445566778899aabbccddeeff"}
	case wire.KindPush, wire.KindPull, wire.KindScatter:
		body = &wire.PushInfo{Transfer: n, TransferID: "ffeeddccbbaa99887766554433221100", TraceID: "000102030405060708090a0b0c0d0e0f"}
	case wire.KindStatus:
		body = &wire.Status{Node: "fake"}
	case wire.KindOpen:
		body = &wire.OpenInfo{Ticket: "ticket"}
	case wire.KindPublish:
		body = &wire.PublishInfo{Generation: 5}
	}
	d.reply(f.Request, wire.KindOK, body, nil)
}

func (d *fakeDaemon) reply(request uint64, kind wire.Kind, body any, array []byte) {
	f, err := wire.NewFrame(kind, request, body, array)
	assert.NoError(d.t, err)
	d.send(f)
}

// event sends what nobody asked for.
func (d *fakeDaemon) event(kind wire.Kind, body any, array []byte) { d.reply(0, kind, body, array) }

func (d *fakeDaemon) send(f wire.Frame) { d.sendRaw(wire.Append(nil, f)) }

func (d *fakeDaemon) sendRaw(b []byte) {
	d.mu.Lock()
	c := d.conn
	d.mu.Unlock()
	_, _ = c.Write(b) // a client that has gone reads nothing
}

// hangUp ends the connection.
func (d *fakeDaemon) hangUp() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.conn != nil {
		_ = d.conn.Close()
	}
}

func (d *fakeDaemon) set(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
	d.cond.Broadcast()
}

func (d *fakeDaemon) count(kind wire.Kind) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := 0
	for _, f := range d.frames {
		if f.Kind == kind {
			n++
		}
	}
	return n
}

// got waits for the nth frame of a kind, from 1 on, and reads its body into v.
func (d *fakeDaemon) got(kind wire.Kind, nth int, v any) wire.Frame {
	d.t.Helper()
	var found wire.Frame
	require.Eventually(d.t, func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		n := 0
		for _, f := range d.frames {
			if f.Kind == kind {
				if n++; n == nth {
					found = f
					return true
				}
			}
		}
		return false
	}, patience, patience/10000, "frame %d of %s", nth, kind)
	if v != nil {
		require.NoError(d.t, json.Unmarshal(found.JSON, v))
	}
	return found
}
