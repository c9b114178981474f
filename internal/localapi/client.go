package localapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/pidfd"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/xfer"
)

var (
	errLeft   = errors.New("the client closed the connection")
	errExited = errors.New("the client's process has exited")
)

// ending says why a connection ends.
type ending struct {
	err     error
	tell    bool   // with an ERROR of this request id, else nobody is there to read it
	request uint64 // 0: the connection's own
}

// client is one connection.
type client struct {
	s        *Server
	conn     *net.UnixConn
	pid, uid int // by SO_PEERCRED
	process  *pidfd.Handle
	watchErr error // why process is nil
	in       *frameReader
	out      *outQueue
	requests *requestQueue
	ctx      context.Context
	cancel   context.CancelFunc

	// Set by the handshake, before anybody else reads them.
	id       xfer.ClientID // 0: an observer
	info     xfer.ClientInfo
	observer bool
	spare    bool // beyond MaxClients: nobody but an observer

	longs   atomic.Int64   // requests that wait for other nodes
	longing sync.WaitGroup // their goroutines; begun by the queue's

	badSpans bool // the reader's: one was logged

	posting xfer.Poster // the reader's: of posts that came over the socket
	ring    ringServer

	mu    sync.Mutex
	ended *ending
}

func newClient(s *Server, conn *net.UnixConn, pid, uid int) *client {
	c := &client{s: s, conn: conn, pid: pid, uid: uid, in: newFrameReader(conn), requests: newRequestQueue(s.o.Limits)}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.out = newOutQueue(conn, s.o.Limits, func(err error) { c.end(ending{err: err}) })
	return c
}

// run serves the connection until it ends, and leaves nothing behind.
func (c *client) run() {
	var helpers sync.WaitGroup
	var writer sync.WaitGroup
	writer.Go(c.out.write)
	watched := c.watched()
	if watched {
		helpers.Go(c.watch)
	}

	hello, err := c.handshake(watched)
	if err == nil {
		helpers.Go(c.work)
		c.out.answer(hello, false)
		err = c.read()
	}
	c.end(c.judge(err))
	c.requests.close()
	helpers.Wait()
	c.longing.Wait()
	c.ring.close()
	if c.id != 0 {
		c.s.o.Engine.ClientGone(c.id)
	}
	e := c.ending()
	c.log(e)
	if e.tell {
		last := c.s.errorFrame(e.request, e.err)
		c.out.finish(&last, time.Now().Add(c.s.o.Limits.Linger))
		writer.Wait()
		linger(c.conn, c.s.o.Limits.Linger)
	} else {
		c.out.finish(nil, time.Now())
		writer.Wait()
	}
	_ = c.conn.Close()
	c.in.close()
}

// end begins the end of the connection, once; it never waits. It may come from the engine's goroutines.
func (c *client) end(e ending) {
	c.mu.Lock()
	first := c.ended == nil
	if first {
		c.ended = &e
	}
	c.mu.Unlock()
	if !first {
		return
	}
	c.out.stop() // before cancel, so that the calls that it cuts short queue no answers
	c.cancel()
	_ = c.conn.SetReadDeadline(time.Unix(1, 0))
	if !e.tell {
		_ = c.conn.SetWriteDeadline(time.Unix(1, 0))
	}
}

func (c *client) ending() ending {
	c.mu.Lock()
	defer c.mu.Unlock()
	return *c.ended
}

// judge turns what ended the reader into why the connection ends.
func (c *client) judge(err error) ending {
	var refused *refusal
	var fe *fault.Error
	switch {
	case errors.As(err, &refused):
		return ending{err: refused.err, tell: true, request: refused.request}
	case errors.As(err, &fe):
		return ending{err: err, tell: true}
	case errors.Is(err, io.EOF):
		return ending{err: errLeft}
	}
	return ending{err: err} // the stream broke; or end was there first and set the deadline
}

func (c *client) log(e ending) {
	l := c.s.o.Logger.With("client", uint64(c.id), "pid", c.pid, "uid", c.uid, "process", c.info.Process)
	switch {
	case errors.Is(e.err, errSlowEvents) || errors.Is(e.err, errSlowSocket):
		l.Warn("client cut off because it does not read", "reason", e.err)
	case e.tell:
		l.Warn("client cut off", "reason", e.err)
	case c.observer:
		l.Debug("observer detached", "reason", e.err)
	default:
		l.Info("client detached", "reason", e.err)
	}
}

// watched says whether the client's process is watched. Where not, the end of the connection alone tells of its death;
// HELLO_OK says so.
func (c *client) watched() bool {
	switch {
	case c.process != nil:
		return true
	case errors.Is(c.watchErr, pidfd.ErrGone):
		c.end(ending{err: errExited})
	default:
		c.s.o.Logger.Warn("client's process cannot be watched: only the end of its connection tells of its death", "pid", c.pid, "uid", c.uid, "error", c.watchErr)
	}
	return false
}

// watch ends the connection when the client's process exits: its children may hold the socket open.
func (c *client) watch() {
	defer func() { _ = c.process.Close() }()
	if err := c.process.Wait(c.ctx); err == nil {
		c.end(ending{err: errExited})
	}
}

// refusal is an error that answers HELLO and ends the connection.
type refusal struct {
	request uint64
	err     error
}

func (r *refusal) Error() string { return r.err.Error() }

// handshake reads HELLO, attaches the client to the engine and returns the answer; watched says that the client's
// process is.
func (c *client) handshake(watched bool) (wire.Frame, error) {
	_ = c.conn.SetReadDeadline(time.Now().Add(c.s.o.Limits.Hello))
	if c.ctx.Err() != nil { // end was there first; its deadline must stay
		_ = c.conn.SetReadDeadline(time.Unix(1, 0))
	}
	f, fds, err := c.in.next()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return wire.Frame{}, fault.New(fault.DeadlineExceeded, "hello", "no HELLO came within %v", c.s.o.Limits.Hello)
	}
	if err != nil {
		return wire.Frame{}, err
	}
	closeAll(fds)
	switch {
	case f.Kind != wire.KindHello:
		return wire.Frame{}, violation("kind", "%s came before HELLO", f.Kind)
	case f.Request == 0:
		return wire.Frame{}, violation("request_id", "HELLO has id 0, allowed any other")
	}
	answer, err := c.hello(f, len(fds), watched)
	if err != nil {
		return wire.Frame{}, &refusal{f.Request, err}
	}
	_ = c.conn.SetReadDeadline(time.Time{})
	if c.ctx.Err() != nil {
		_ = c.conn.SetReadDeadline(time.Unix(1, 0))
	}
	return answer, nil
}

func (c *client) hello(f wire.Frame, nfds int, watched bool) (wire.Frame, error) {
	if err := shape(f, nfds); err != nil {
		return wire.Frame{}, err
	}
	var h wire.Hello
	if err := f.Decode(&h); err != nil {
		return wire.Frame{}, err
	}
	version, err := wire.Negotiate(&h)
	if err != nil {
		return wire.Frame{}, err
	}
	if h.Pid < 0 || h.Pid > math.MaxInt32 {
		return wire.Frame{}, fault.Invalid("hello", "pid", "%d, allowed 0..%d", h.Pid, math.MaxInt32)
	}
	if c.spare && !h.Observer {
		return wire.Frame{}, fault.New(fault.ResourceExhausted, "connect", "%d clients are connected, allowed %d", c.s.o.MaxClients, c.s.o.MaxClients)
	}
	if h.Tenant == "" {
		h.Tenant = c.s.o.Tenant
	}
	if !c.s.mayUse(h.Tenant, c.uid) {
		return wire.Frame{}, &fault.Error{Code: fault.PermissionDenied, Op: "hello", Field: "tenant",
			Detail: fmt.Sprintf("%q is no tenant that user %d may use on this daemon: allowed are its own, which is used where none is named, and those of --allow-tenants", h.Tenant, c.uid)}
	}
	// The pid in HELLO is the client's own word, for traces: it may live in another pid namespace.
	info := xfer.ClientInfo{Tenant: h.Tenant, Process: h.Process, Pid: h.Pid, Uid: c.uid}
	if info.Pid == 0 {
		info.Pid = c.pid
	}
	ok := wire.NewHelloOK(&h, version)
	ok.Tenant, ok.Software, ok.Node, ok.Epoch = h.Tenant, c.s.o.Software, c.s.o.Node, c.s.o.Epoch
	ok.BootID, ok.ProcessWatched = c.s.o.BootID, watched
	answer, err := wire.NewFrame(wire.KindHelloOK, f.Request, &ok, nil)
	if err != nil {
		return wire.Frame{}, err
	}
	c.info = info
	if c.observer = h.Observer; c.observer {
		c.s.o.Logger.Debug("observer attached", "pid", c.pid, "uid", c.uid, "process", info.Process, "tenant", info.Tenant)
		return answer, nil
	}
	if c.id, err = c.s.o.Engine.AddClient(info, sink{c}); err != nil {
		c.id = 0
		return wire.Frame{}, err
	}
	c.s.o.Logger.Info("client attached", "client", uint64(c.id), "pid", c.pid, "uid", c.uid, "process", info.Process,
		"tenant", info.Tenant, "software", h.Software)
	return answer, nil
}

// sink is how the engine tells the client; its methods never wait.
type sink struct{ c *client }

func (s sink) LayersVisible(v wire.LayersVisible) { s.c.out.layers(v) }

func (s sink) LeaseEnded(ev wire.LeaseEvent, notification []byte) {
	s.event(wire.KindEventLease, &ev, notification)
}

func (s sink) Granted(ev wire.GrantedEvent, blocks []uint32) {
	s.event(wire.KindEventGranted, &ev, wire.AppendU32s(nil, blocks))
}

func (s sink) Prepared(ev wire.PreparedEvent) { s.event(wire.KindEventPrepared, &ev, nil) }

func (s sink) TransferEnded(ev wire.TransferEvent) { s.event(wire.KindEventTransfer, &ev, nil) }

func (s sink) HolderEnded(ev wire.HolderEvent, notification []byte) {
	s.event(wire.KindEventHolder, &ev, notification)
}

func (s sink) Released(ev wire.Released) { s.event(wire.KindEventReleased, &ev, nil) }

// event ends the connection when an event does not fit into a frame: without it the client would wait for ever.
func (s sink) event(kind wire.Kind, body any, array []byte) {
	f, err := wire.NewFrame(kind, 0, body, array)
	if err != nil {
		s.c.end(ending{err: err, tell: true})
		return
	}
	s.c.out.event(f)
}
