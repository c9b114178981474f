package kvxfer

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/pidfd"
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
	scratch    [wire.HeaderSize + wire.LayerPartSize]byte
	out        outgoing

	work  chan struct{} // the queue has something
	ended chan struct{} // closed: everything that waited for this connection has its error
	gone  chan struct{} // closed: reader and writer have ended

	// The daemon's exit is waited for by one goroutine at a time, which closes exited.
	turn       chan struct{}
	exited     chan struct{}
	ctx        context.Context // of the wait of a lost connection's reader
	stop       context.CancelFunc
	goroutines sync.WaitGroup
}

// chunk is bytes that wait for the socket, with a duplicate of the descriptor that goes with their first byte (-1: none).
type chunk struct {
	data []byte
	fd   int
}

// outgoing is one attempt to send, kept here so that it costs no allocation.
type outgoing struct {
	head, data, oob []byte
	n               int
	err             error
	try             func(fd uintptr)
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
	return c, nil
}

// start starts the reader and the writer.
func (c *connection) start(l listener) {
	c.listener = l
	c.goroutines.Go(c.run)
	c.goroutines.Go(c.write)
	go func() { // the last who leaves closes what both used
		c.goroutines.Wait()
		_ = c.file.Close()
		close(c.gone)
	}()
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

// request asks and waits for the answer; answered says whether the daemon itself gave the error, and so knows that
// nothing of the request goes on.
func (c *connection) request(ctx context.Context, r request) (fe *fault.Error, answered bool) {
	if ctx.Err() != nil {
		return contextEnded(ctx, r.op, "the context had ended before the call"), true
	}
	call, fe := c.submit(r)
	if fe != nil {
		return fe, false
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
	return c.send(&f, -1)
}

// notifyLayer is notify of a PUSH_LAYER frame, without an allocation.
func (c *connection) notifyLayer(p wire.LayerPart) *fault.Error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if fe := c.checkAlive("send"); fe != nil {
		return fe
	}
	wire.PutHeader(c.scratch[:], wire.Header{Kind: wire.KindPushLayer, Flags: wire.FlagNoReply, Array: wire.LayerPartSize})
	return c.sendBytes(wire.AppendLayerPart(c.scratch[:wire.HeaderSize], p), nil, -1)
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

// Sending.

func (c *connection) submit(r request) (*call, *fault.Error) {
	f, err := wire.NewFrame(r.kind, 0, r.body, r.data)
	if err != nil {
		return nil, again(fault.From(r.op, err), r.op)
	}
	call := &call{request: r, done: make(chan struct{})}
	fd := -1
	if r.hasFD {
		fd, f.FDs = r.fd, 1
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if fe := c.checkAlive(r.op); fe != nil {
		return nil, fe
	}
	c.last++
	f.Request = c.last
	c.calls[f.Request] = call
	if fe := c.send(&f, fd); fe != nil {
		delete(c.calls, f.Request)
		return nil, again(fe, r.op)
	}
	return call, nil
}

// checkAlive is called with the lock held.
func (c *connection) checkAlive(op string) *fault.Error {
	switch {
	case c.closing:
		return fault.New(fault.Closed, op, "the client was closed")
	case c.lost != nil:
		return again(c.lost, op)
	}
	return nil
}

// send sends or queues a frame; the lock is held, so frames never mix.
func (c *connection) send(f *wire.Frame, fd int) *fault.Error {
	head := make([]byte, wire.HeaderSize, wire.HeaderSize+len(f.JSON)+joined)
	wire.PutHeader(head, wire.Header{Kind: f.Kind, Flags: f.Flags, Request: f.Request, JSON: uint32(len(f.JSON)), Array: uint32(len(f.Array)), FDs: f.FDs})
	head = append(head, f.JSON...)
	if len(f.Array) <= joined {
		return c.sendBytes(append(head, f.Array...), nil, fd)
	}
	return c.sendBytes(head, f.Array, fd)
}

func (c *connection) sendBytes(head, data []byte, fd int) *fault.Error {
	if c.queued+len(head)+len(data) > c.room {
		e := fault.New(fault.ResourceExhausted, "send", "%d bytes wait for a daemon that does not read", c.queued)
		e.Field = "queue"
		return e
	}
	sent := 0
	if len(c.queue) == 0 && !c.sendFailed {
		c.out.head, c.out.data, c.out.oob = head, data, nil
		if fd >= 0 {
			c.out.oob = unix.UnixRights(fd)
		}
		if err := c.raw.Control(c.out.try); err != nil {
			c.out.n, c.out.err = 0, err
		}
		sent = c.out.n
		c.out.head, c.out.data, c.out.oob = nil, nil, nil
		switch c.out.err {
		case nil, unix.EAGAIN, unix.EINTR:
		default: // the reader first reads what the daemon may have said about the reason
			c.sendFailed = true
			c.shutdown()
		}
		if sent > 0 {
			fd = -1
		}
	}
	if sent == len(head)+len(data) || c.sendFailed {
		return nil
	}
	if fd >= 0 {
		d, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return fault.New(fault.ResourceExhausted, "send", "no file descriptor: %v", err)
		}
		fd = d
	}
	// Copies: both may be the caller's or the next frame's before the daemon reads.
	if sent < len(head) {
		c.enqueue(head[sent:], fd)
		fd, sent = -1, len(head)
	}
	if rest := data[sent-len(head):]; len(rest) > 0 {
		c.enqueue(rest, fd)
	}
	select {
	case c.work <- struct{}{}:
	default:
	}
	return nil
}

// enqueue copies b into the queue; the lock is held. Small frames share a chunk, which costs neither an allocation nor a
// system call for each. What the writer is about to send of that chunk lies before what is appended.
func (c *connection) enqueue(b []byte, fd int) {
	c.queued += len(b)
	if n := len(c.queue); n > 0 && fd < 0 && len(c.queue[n-1].data)+len(b) <= chunkBytes {
		c.queue[n-1].data = append(c.queue[n-1].data, b...)
		return
	}
	c.queue = append(c.queue, chunk{bytes.Clone(b), fd})
}

// sendOnce hands the kernel what it takes without waiting.
func (c *connection) sendOnce(fd uintptr) {
	o := &c.out
	const flags = unix.MSG_DONTWAIT | unix.MSG_NOSIGNAL
	if len(o.data) == 0 {
		o.n, o.err = unix.SendmsgN(int(fd), o.head, o.oob, nil, flags)
	} else {
		o.n, o.err = unix.SendmsgBuffers(int(fd), [][]byte{o.head, o.data}, o.oob, nil, flags)
	}
	if o.err != nil {
		o.n = 0
	}
}

// write sends what is queued. Nobody else sends while there is something, and nobody else takes from the queue.
func (c *connection) write() {
	for {
		select {
		case <-c.work:
		case <-c.ended:
			return
		}
		for {
			c.mu.Lock()
			if len(c.queue) == 0 || c.lost != nil {
				c.mu.Unlock()
				break
			}
			ch := c.queue[0]
			c.mu.Unlock()
			n, err := c.writeChunk(ch)
			c.mu.Lock()
			if c.lost != nil { // the reader has closed everything
				c.mu.Unlock()
				break
			}
			if err != nil {
				c.sendFailed = true
				c.dropQueue()
				c.shutdown()
				c.mu.Unlock()
				break
			}
			if n > 0 && ch.fd >= 0 {
				_ = unix.Close(ch.fd)
				c.queue[0].fd = -1
			}
			c.queued -= n
			if c.queue[0].data = c.queue[0].data[n:]; len(c.queue[0].data) == 0 {
				c.queue[0] = chunk{}
				c.queue = c.queue[1:]
			}
			c.mu.Unlock()
		}
	}
}

// writeChunk waits until the socket takes something, or the connection ends.
func (c *connection) writeChunk(ch chunk) (n int, err error) {
	var oob []byte
	if ch.fd >= 0 {
		oob = unix.UnixRights(ch.fd)
	}
	waitErr := c.raw.Write(func(fd uintptr) bool {
		n, err = unix.SendmsgN(int(fd), ch.data, oob, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		return err != unix.EAGAIN && err != unix.EINTR
	})
	if err == nil {
		err = waitErr
	}
	return n, err
}

// dropQueue is called with the lock held.
func (c *connection) dropQueue() {
	for _, ch := range c.queue {
		if ch.fd >= 0 {
			_ = unix.Close(ch.fd)
		}
	}
	c.queue, c.queued = nil, 0
}

// The reader.

func (c *connection) run() {
	c.end(c.read())
	if c.daemon != nil && c.listener.awaitsExit() {
		if exited, _ := c.daemonExited(c.ctx); exited {
			c.listener.onDaemonExit()
		}
	}
}

// lookAgain ends a lost connection's wait for the daemon's exit where nothing needs it any more.
func (c *connection) lookAgain() {
	if !c.listener.awaitsExit() {
		c.stop()
	}
}

func (c *connection) read() *fault.Error {
	in := bufio.NewReaderSize(c.file, readBuffer)
	limits := wire.LocalLimits
	limits.FDs = 0 // no descriptor comes from a daemon
	for {
		f, err := wire.ReadFrame(in, limits)
		if err != nil {
			var fe *fault.Error
			switch {
			case errors.As(err, &fe):
				return fe
			case errors.Is(err, io.EOF):
				return c.brokenBy("the daemon closed the connection", nil)
			default:
				return c.brokenBy("the connection broke", err)
			}
		}
		if fe := c.take(&f); fe != nil {
			return fe
		}
	}
}

func (c *connection) brokenBy(detail string, err error) *fault.Error {
	return &fault.Error{Code: fault.DaemonUnavailable, Detail: fmt.Sprintf("%s (%s); %s", detail, c.path, hint), Err: err}
}

// take acts upon one frame; its error ends the connection.
func (c *connection) take(f *wire.Frame) *fault.Error {
	switch {
	case f.Kind == wire.KindError:
		var w fault.Wire
		if err := f.Decode(&w); err != nil {
			return fault.From("", err)
		}
		fe := fault.From("", fault.FromWire(&w))
		if f.Request == 0 {
			return fe
		}
		return c.answer(f, fe)
	case f.Kind == wire.KindOK || f.Kind == wire.KindHelloOK:
		return c.answer(f, nil)
	case f.Request == 0:
		return fault.From("", c.listener.onEvent(f))
	}
	return violated("kind", "%s answers no request", f.Kind)
}

func (c *connection) answer(f *wire.Frame, fe *fault.Error) *fault.Error {
	c.mu.Lock()
	call := c.calls[f.Request]
	delete(c.calls, f.Request)
	if call != nil {
		call.answered, call.byDaemon = true, true
	}
	c.mu.Unlock()
	if call == nil {
		return violated("request", "an answer to request %d, which is not open", f.Request)
	}
	if fe == nil && call.onOK != nil {
		if wrong := fault.From(call.op, call.onOK(f)); wrong != nil {
			call.settle(wrong)
			return wrong
		}
	} else if fe != nil && fe.Op == "" {
		fe.Op = call.op
	}
	call.settle(fe)
	return nil
}

// end gives everything that waits for this connection its error.
func (c *connection) end(fe *fault.Error) {
	c.mu.Lock()
	if c.closing {
		fe = fault.New(fault.Closed, "", "the client was closed")
	}
	closing := c.closing
	c.lost = fe
	calls := c.calls
	c.calls = map[uint64]*call{}
	for _, call := range calls {
		call.answered = true
	}
	c.dropQueue()
	c.mu.Unlock()
	if !closing {
		c.log.Warn("the connection to the daemon ended", "socket", c.path, "error", fe)
	}
	c.shutdown()
	for _, call := range calls {
		call.settle(again(fe, call.op))
	}
	c.listener.onLost(fe)
	close(c.ended)
}

// dispose waits for the goroutines' end behind close, and lets the daemon's handle go.
func (c *connection) dispose() {
	<-c.gone
	if c.daemon != nil {
		_ = c.daemon.Close()
	}
}

func violated(field, format string, args ...any) *fault.Error {
	e := fault.New(fault.ProtocolViolation, "frame", format, args...)
	e.Field = field
	return e
}
