package kvxfer

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/pidfd"
	"github.com/kvxfer/kvxfer/internal/rawsock"
	"github.com/kvxfer/kvxfer/internal/wire"
)

const (
	// maxQueued bounds the bytes that wait for a daemon that does not read.
	maxQueued = 128 << 20
	// readBuffer holds a burst of events in one system call.
	readBuffer = 64 << 10
	// joined is the size in bytes up to which an array is copied behind its frame's head, to go in one call.
	joined = 4 << 10
	// chunkBytes bounds a chunk of small frames in the queue.
	chunkBytes = 256 << 10
)

// listener hears of what the daemon says unasked. All methods run in the connection's reader.
type listener interface {
	onEvent(*wire.Frame) error
	onLost(*fault.Error)
	onDaemonExit()
	awaitsExit() bool
}

// connection is one socket to a daemon: frames out, frames in, requests and their answers.
//
// Callers never block on the socket. What the kernel does not take at once is queued and sent by the connection's
// writer, so that a stopped daemon costs a caller no more than the deadline of its call.
type connection struct {
	path     string
	log      *slog.Logger
	file     *os.File
	raw      syscall.RawConn
	daemon   *pidfd.Handle // nil: its exit cannot be seen
	listener listener

	mu         sync.Mutex
	calls      map[uint64]*call
	last       uint64 // request id
	queue      []chunk
	queued     int // bytes
	room       int // bytes that queued may have
	sendFailed bool
	lost       *fault.Error // why nothing can be sent any more
	closing    bool
	scratch    [wire.HeaderSize + max(wire.LayerPartSize, wire.PostSize)]byte
	out        outgoing
	now        rawsock.Sender
	in         rawsock.Receiver // the reader's

	work  chan struct{} // the queue has something
	ended chan struct{} // closed: everything that waited for this connection has its error
	gone  chan struct{} // closed: reader and writer have ended

	// The daemon's exit is waited for by one goroutine at a time, which closes exited.
	turn    chan struct{}
	exited  chan struct{}
	ctx     context.Context // of the wait of a lost connection's reader
	stop    context.CancelFunc
	running atomic.Int32 // goroutines
}

func newConnection(path string, file *os.File, log *slog.Logger) (*connection, *fault.Error) {
	raw, err := file.SyscallConn()
	if err != nil {
		_ = file.Close()
		return nil, fault.From("connect", err)
	}
	c := &connection{path: path, log: log, file: file, raw: raw, daemon: openDaemon(file), calls: map[uint64]*call{}, room: maxQueued,
		work: make(chan struct{}, 1), ended: make(chan struct{}), gone: make(chan struct{}),
		turn: make(chan struct{}, 1), exited: make(chan struct{})}
	c.ctx, c.stop = context.WithCancel(context.Background())
	c.out.try = c.sendOnce
	if err := errors.Join(c.now.Init(file), c.in.Init(file)); err != nil {
		_ = file.Close()
		return nil, fault.From("connect", err)
	}
	return c, nil
}

// start starts the reader and the writer.
func (c *connection) start(l listener) {
	c.listener = l
	c.running.Store(2)
	go c.leave(c.run)
	go c.leave(c.write)
}

// leave runs the reader or the writer; the last of them closes what both used.
func (c *connection) leave(f func()) {
	f()
	if c.running.Add(-1) == 0 {
		_ = c.file.Close()
		close(c.gone)
	}
}

// alive says whether requests can be made.
func (c *connection) alive() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lost == nil && !c.closing
}

// lostError is why nothing can be sent any more; nil while it can.
func (c *connection) lostError() *fault.Error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.checkAlive("")
}

// request asks and waits for the answer; over says that nothing of the request goes on: the daemon itself gave the error, or
// never got the request.
func (c *connection) request(ctx context.Context, r request) (fe *fault.Error, over bool) {
	if ctx.Err() != nil {
		return contextEnded(ctx, r.op, "the context had ended before the call"), true
	}
	call, fe := c.submit(r)
	if fe != nil {
		return fe, true
	}
	select {
	case <-call.done:
	case <-ctx.Done():
		if c.abandon(call) {
			return contextEnded(ctx, r.op, "the daemon did not answer in time"), false
		}
		<-call.done // the answer is here, and onOK, which never blocks, is about to end
	}
	return call.err, call.byDaemon
}

// abandon gives a call up, unless its answer is here already.
func (c *connection) abandon(call *call) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	call.abandoned = !call.answered
	return call.abandoned
}

// requestLater asks without waiting.
func (c *connection) requestLater(r request) *fault.Error {
	_, fe := c.submit(r)
	return fe
}

// notify sends a frame that has no answer. It never blocks.
func (c *connection) notify(kind wire.Kind, body any, data []byte) *fault.Error {
	f, err := wire.NewFrame(kind, 0, body, data)
	if err != nil {
		return fault.From("send", err)
	}
	f.Flags = wire.FlagNoReply
	c.mu.Lock()
	defer c.mu.Unlock()
	if fe := c.checkAlive("send"); fe != nil {
		return fe
	}
	return c.send(&f, nil)
}

// notifyLayer is notify of a PUSH_LAYER frame, without an allocation.
func (c *connection) notifyLayer(p wire.LayerPart) *fault.Error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if fe := c.checkAlive("send"); fe != nil {
		return fe
	}
	wire.PutHeader(c.scratch[:], wire.Header{Kind: wire.KindPushLayer, Flags: wire.FlagNoReply, Array: wire.LayerPartSize})
	return c.sendBytes(wire.AppendLayerPart(c.scratch[:wire.HeaderSize], p), nil, nil)
}

// notifyPost is notify of a POST frame with one post, without an allocation.
func (c *connection) notifyPost(p wire.Post) *fault.Error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if fe := c.checkAlive("send"); fe != nil {
		return fe
	}
	wire.PutHeader(c.scratch[:], wire.Header{Kind: wire.KindPost, Flags: wire.FlagNoReply, Array: wire.PostSize})
	return c.sendBytes(wire.AppendPost(c.scratch[:wire.HeaderSize], p), nil, nil)
}

// flush waits until everything was sent, the connection is lost, or ctx has ended.
func (c *connection) flush(ctx context.Context) {
	c.mu.Lock()
	empty := len(c.queue) == 0 || c.lost != nil || c.closing
	c.mu.Unlock()
	if empty {
		return
	}
	// An answer says that what was sent before was read. Its own end needs no look: there is nothing more to wait for.
	_, _ = c.request(ctx, request{op: "close", kind: wire.KindPing})
}

// close ends the connection; its goroutines end soon, see gone.
func (c *connection) close() {
	c.mu.Lock()
	c.closing = true
	c.mu.Unlock()
	c.stop()
	c.shutdown()
}

// shutdown ends the socket's both directions for everybody who has it open. What the daemon said before is still read.
func (c *connection) shutdown() {
	_ = c.raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) })
}

// daemonExited says whether the daemon's process has ended, waiting until ctx ends; known is false where that cannot be
// seen.
func (c *connection) daemonExited(ctx context.Context) (exited, known bool) {
	if c.daemon == nil {
		return false, false
	}
	if gone, err := c.daemon.Exited(); err == nil && gone {
		return true, true
	}
	select {
	case <-c.exited:
		return true, true
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
		if c.daemon.Wait(ctx) != nil {
			return false, true
		}
		c.sawExit()
		return true, true
	case <-ctx.Done():
		return false, true
	}
}

// sawExit is called by who has the turn.
func (c *connection) sawExit() {
	select {
	case <-c.exited:
	default:
		close(c.exited)
	}
}

// hasExited is daemonExited without waiting.
func (c *connection) hasExited() (exited, known bool) {
	if c.daemon == nil {
		return false, false
	}
	exited, err := c.daemon.Exited()
	return exited, err == nil
}
