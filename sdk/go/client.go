package kvxfer

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/socketpath"
	"github.com/kvxfer/kvxfer/internal/version"
	"github.com/kvxfer/kvxfer/internal/wire"
)

const (
	// closeTimeout is how long closing a client waits for the fences of adopted memory.
	closeTimeout = 5 * time.Second
	// flushTimeout is how long it waits for a daemon that does not read.
	flushTimeout = 500 * time.Millisecond
	// spanDelay is after what time finished spans are sent.
	spanDelay = time.Second
	// maxProcess bounds a process's name in traces, in bytes.
	maxProcess = 128
)

// Option is an option of [Dial].
type Option func(*Client)

// WithTenant acts for a tenant, 1..64 of [A-Za-z0-9_.-], one that the daemon lets this user name. The default is the daemon's
// own.
func WithTenant(name string) Option { return func(c *Client) { c.tenant, c.namesTenant = name, true } }

// WithProcess is this process's name in traces; the default is the program's name.
func WithProcess(name string) Option { return func(c *Client) { c.process = name } }

// WithLogger takes the client's few warnings; the default is slog.Default().
func WithLogger(log *slog.Logger) Option { return func(c *Client) { c.log = log } }

// WithTimeout is how long the daemon has for its answer to a request that has no deadline of its own, and to the start of a
// transfer, whose deadline may be far, 1 ms to 24 h; the default is 5 seconds.
func WithTimeout(d time.Duration) Option { return func(c *Client) { c.timeout = d } }

// WithSampling is the share of the traces that begin in this client which are recorded, 0..1. The default is what
// OTEL_TRACES_SAMPLER and OTEL_TRACES_SAMPLER_ARG say when Dial is called, which is all of them where they say nothing. A call
// under a span of its context's is recorded as that is.
func WithSampling(share float64) Option {
	return func(c *Client) { c.sampling, c.samples = share, ratioSampler(share) }
}

// WithoutRing keeps posts of prepared transfers to the socket. The default is memory that client and daemon share, see
// [Prepared.Way].
func WithoutRing() Option { return func(c *Client) { c.ringless = true } }

// Client is one process attached to its node's daemon, from [Dial].
//
// Calls that ask the daemon return with its answer, which takes well below a millisecond where the daemon is well, and end
// by their context's deadline, or after a time that each says. What takes long has a Done channel.
//
// Losing the daemon ends everything pending with DaemonUnavailable, or with Draining where it said that it shuts down
// (Released false); see Reconnect. A client that is not needed any more has to be closed.
//
// Its methods may be called from any goroutine.
type Client struct {
	socket      string
	tenant      string
	namesTenant bool
	process     string
	timeout     time.Duration
	log         *slog.Logger
	completed   *completed
	spans       *spans
	sampling    float64 // 0..1, as given
	samples     sampler
	ringless    bool
	flushTimer  *time.Timer

	coming sync.Mutex // one Reconnect at a time

	mu      sync.Mutex // of everything below
	session *session
	old     []*session // lost ones whose daemon may still touch memory
	places  []place    // caches and regions
	closed  bool
	closing chan struct{} // closed with closed
}

// Dial attaches this process to its node's daemon. socket "" is KVXFER_SOCKET; else /run/kvxfer/kvxfer.sock for root,
// $XDG_RUNTIME_DIR/kvxfer/kvxfer.sock where that is set, /tmp/kvxfer-<uid>/kvxfer.sock. ctx bounds the call, with the
// client's time-out where it has no deadline; its end later ends nothing.
//
// Errors: DaemonUnavailable, nobody listens there, or no answer in time; VersionMismatch, FeatureRequired, PermissionDenied,
// the daemon and this client cannot work together.
func Dial(ctx context.Context, socket string, options ...Option) (*Client, error) {
	const op = "connect"
	c := &Client{socket: socket, process: filepath.Base(os.Args[0]), timeout: defaultTimeout, log: slog.Default(), completed: newCompleted(),
		spans: &spans{}, closing: make(chan struct{})}
	for _, o := range options {
		o(c)
	}
	if c.namesTenant {
		if err := checkName(op, "tenant", c.tenant); err != nil {
			return nil, err
		}
	}
	if c.timeout < time.Millisecond || c.timeout > maxDuration {
		return nil, invalid(op, "timeout", "%s, allowed 1ms..24h", c.timeout)
	}
	if !(c.sampling >= 0 && c.sampling <= 1) { // not a number is neither
		return nil, invalid(op, "sampling", "%g, allowed 0..1", c.sampling)
	}
	if c.samples == nil {
		c.samples = environmentSampler()
	}
	if c.socket == "" {
		c.socket = socketpath.Client(os.Getuid(), os.Getenv)
	}
	c.process = clipText(c.process, maxProcess)
	ctx, cancel := bounded(ctx, c.timeout)
	defer cancel()
	s, fe := c.greet(ctx)
	if fe != nil {
		return nil, newError(fe, true, nil)
	}
	c.session = s
	if s.hello.Tenant != "" { // what Reconnect will ask for
		c.tenant = s.hello.Tenant
	}
	return c, nil
}

// greet makes a session.
func (c *Client) greet(ctx context.Context) (*session, *fault.Error) {
	file, fe := dialSocket(ctx, c.socket)
	if fe != nil {
		return nil, fe
	}
	conn, fe := newConnection(c.socket, file, c.log)
	if fe != nil {
		return nil, fe
	}
	s := newSession(conn, c)
	fe = s.greet(ctx, &wire.Hello{MinVersion: wire.MinVersion, MaxVersion: wire.MaxVersion, Optional: []string{wire.FeaturePrepared}, Tenant: c.tenant, Software: "kvxfer-go " + version.Version,
		Process: c.process, Pid: os.Getpid()})
	if fe == nil {
		return s, nil
	}
	conn.close()
	conn.dispose()
	if fe.Code == fault.DeadlineExceeded {
		fe.Code, fe.Detail = fault.DaemonUnavailable, "the daemon at "+c.socket+" accepted the connection and does not answer (is it stopped?)"
	}
	return nil, fe
}

// now is the session in use.
func (c *Client) now() *session {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.session
}

// use is the session in use, or Closed.
func (c *Client) use(op string) (*session, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, newError(fault.New(fault.Closed, op, "the client was closed"), true, nil)
	}
	return c.session, nil
}

// ask is a request on no memory.
func (c *Client) ask(ctx context.Context, r request) error {
	s, err := c.use(r.op)
	if err != nil {
		return err
	}
	ctx, cancel := bounded(ctx, c.timeout)
	defer cancel()
	if fe, _ := s.conn.request(ctx, r); fe != nil {
		return newError(fe, true, nil)
	}
	return nil
}

// Node is the name of the daemon's node.
func (c *Client) Node() string { return c.now().hello.Node }

// Epoch is the daemon's incarnation, 32 hex digits: another one after a restart.
func (c *Client) Epoch() string { return c.now().hello.Epoch }

// Version is the protocol version in use.
func (c *Client) Version() int { return c.now().hello.Version }

// BootID is the kernel's boot id as the daemon sees it.
func (c *Client) BootID() string { return c.now().hello.BootID }

// Tenant is the tenant that the client acts for.
func (c *Client) Tenant() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tenant
}

// Socket is the path of the daemon's socket.
func (c *Client) Socket() string { return c.socket }

// ProcessWatched says whether the daemon notices the exit of this process. False where the kernel does not let it (before
// Linux 6.5, from another pid namespace): the end of the connection alone tells it then, so a child that holds the socket
// open keeps the leases.
func (c *Client) ProcessWatched() bool { return c.now().hello.ProcessWatched }

// Completed is everything that has ended since the last call, each thing once: leases, advertisements and transfers. Until
// the first call only the newest 4,096 are kept, so that a program that never asks does not grow.
func (c *Client) Completed() []Ended { return c.completed.take() }

// CompletedReady gets a word when Completed has something to report. It is one channel for all who wait.
func (c *Client) CompletedReady() <-chan struct{} { return c.completed.ready }

// DaemonExited says whether the daemon's process has really ended, waiting for it until ctx ends; without a deadline it
// does not wait. A lost connection does not tell: a stopped daemon may go on and write. After its exit nothing of it can.
//
// NotSupported: the daemon's process cannot be seen from here (it lives in another pid namespace, or inside this process),
// or the client is closed.
func (c *Client) DaemonExited(ctx context.Context) (bool, error) {
	conn := c.now().conn
	var exited, known bool
	if _, ok := ctx.Deadline(); ok {
		exited, known = conn.daemonExited(ctx)
	} else {
		exited, known = conn.hasExited()
	}
	if !known {
		return false, newError(fault.New(fault.NotSupported, "daemon_exited", "the daemon's process cannot be watched from here"), true, nil)
	}
	return exited, nil
}

// Span begins a step of the program's own in the same trace, for programs without OpenTelemetry: calls with the returned
// context become its children. End it.
func (c *Client) Span(ctx context.Context, name string) (context.Context, *Span) {
	return newSpan(ctx, name, c.samples, c.endSpan)
}

// endSpan takes a finished span; it is sent within a second.
func (c *Client) endSpan(sp *span, err error) {
	if !c.spans.end(sp, err) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	if c.flushTimer == nil {
		c.flushTimer = time.AfterFunc(spanDelay, c.flushSpans)
	} else {
		c.flushTimer.Reset(spanDelay)
	}
}

// flushSpans sends the spans that wait; where the connection is lost, they are too.
func (c *Client) flushSpans() {
	conn := c.now().conn
	c.spans.flush(func(body *wire.Spans) error {
		if fe := conn.notify(wire.KindSpans, body, nil); fe != nil {
			return fe
		}
		return nil
	})
}

// Close detaches from the daemon, which revokes and fences everything of this client. A second call does nothing.
//
// What is pending ends with Closed (Released false): use [Cache.Drop] first to know that everything is fenced. Memory that
// the SDK allocated is unmapped: slices of it must not be used any more. Adopted memory is given back and fenced first; the
// error is DeadlineExceeded where the daemon has not done that within 5 seconds: its owner must not hand such memory to
// anything else then.
func (c *Client) Close() error {
	err := c.giveAdoptedBack()
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	close(c.closing)
	places, sessions := c.places, append([]*session{c.session}, c.old...)
	c.places, c.old = nil, nil
	if c.flushTimer != nil {
		c.flushTimer.Stop()
	}
	c.mu.Unlock()
	exited := true // before the connections are let go
	for _, s := range sessions {
		gone, known := s.conn.hasExited()
		exited = exited && gone && known
	}
	c.flushSpans()
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	sessions[0].conn.flush(ctx)
	for _, s := range sessions {
		s.conn.close()
	}
	for _, s := range sessions {
		s.conn.dispose()
	}
	held := false
	for _, p := range places {
		b := p.base()
		b.attach(nil)
		if exited {
			err = errors.Join(err, b.mem.close())
		} else if b.mem.giveUp() {
			held = true
			c.log.Warn("memory stays HELD: its daemon did not say that it is fenced", "region", b.name)
		}
	}
	if held {
		return newError(fault.New(fault.DeadlineExceeded, "close", "adopted memory is not fenced"), false, nil)
	}
	return err
}

// giveAdoptedBack fences, before the end, memory that others may get next, as far as the daemon answers.
func (c *Client) giveAdoptedBack() error {
	c.mu.Lock()
	places := slices.Clone(c.places)
	conn := c.session.conn
	c.mu.Unlock()
	if !conn.alive() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	for _, p := range places {
		if !p.base().mem.isAdopted() {
			continue
		}
		if p.base().giveBack(ctx, "close", p) != nil { // Close gives the rest up and says so
			return nil
		}
	}
	return nil
}
