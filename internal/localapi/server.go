package localapi

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/pidfd"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/xfer"
)

// Defaults of Options and Limits.
const (
	DefaultMaxClients   = 256
	DefaultTenant       = "default"
	DefaultHello        = 10 * time.Second
	DefaultWrite        = 30 * time.Second
	DefaultLinger       = time.Second
	DefaultEventFrames  = 1 << 16
	DefaultEventBytes   = 8 << 20
	DefaultRequests     = 64
	DefaultRequestBytes = 64 << 20
)

// Options say what is served, where and to whom.
type Options struct {
	// Path of the socket; Serve says what it must be. Or Listener, which Close then closes.
	Path     string
	Listener *net.UnixListener

	Engine Engine
	// Node, Epoch, Software and BootID are what HELLO_OK tells.
	Node, Epoch, Software, BootID string
	// Tenant is the tenant of a client that names none; "" means "default".
	Tenant string

	// AllowTenants are the tenants that a client may name besides, and the users who may; nil: every user who may connect.
	AllowTenants map[string][]int

	// AllowUIDs are the users who may connect beside root and the daemon's own.
	AllowUIDs []int
	// MaxClients bounds the connections, 0 means 256.
	MaxClients int

	// Spans takes a client's finished span; nil discards it. Its error is logged: SPANS has no answer.
	Spans func(wire.ClientSpan, xfer.ClientInfo) error
	// Operator answers INSPECT, DRAIN and LOG_LEVEL; nil: NotSupported.
	Operator Operator
	// Status answers STATUS; nil tells Node, Epoch and Software only.
	Status func() wire.Status
	// Failed counts an error that a client is told, request by request; nil: nobody does.
	Failed func(fault.Code)
	// Report answers REPORT with a text for people; nil: NotSupported.
	Report func(what string) ([]byte, error)
	Limits Limits
	Logger *slog.Logger // nil: slog.Default

	ofPeer func(conn syscall.Conn, pid int) (*pidfd.Handle, error) // the tests'; nil: pidfd.OfPeer
}

// Limits bound what one client can make the daemon wait for and hold. Zero fields get the defaults.
type Limits struct {
	Hello        time.Duration // from the connection to HELLO
	Write        time.Duration // for the socket to take 256 KiB
	Linger       time.Duration // for a client to read its last ERROR
	EventFrames  int           // unread events
	EventBytes   int           // of unread events
	Requests     int           // requests that wait
	RequestBytes int           // of requests that wait
}

func (l Limits) withDefaults() Limits {
	pick(&l.Hello, DefaultHello)
	pick(&l.Write, DefaultWrite)
	pick(&l.Linger, DefaultLinger)
	pick(&l.EventFrames, DefaultEventFrames)
	pick(&l.EventBytes, DefaultEventBytes)
	pick(&l.Requests, DefaultRequests)
	pick(&l.RequestBytes, DefaultRequestBytes)
	return l
}

func pick[T int | time.Duration](v *T, def T) {
	if *v == 0 {
		*v = def
	}
}

// Server is the socket and its clients.
type Server struct {
	o      Options
	sock   *socket
	stop   func() bool // forgets the context of Serve
	closed sync.Once
	wg     sync.WaitGroup

	mu      sync.Mutex
	clients map[*client]struct{}
	refused int   // connections that are being told why they are not served
	ending  error // clients that are accepted from now on are told this
}

// maxRefused bounds the refused connections that are told why at one time; more are just closed.
const maxRefused = 32

// Serve listens and returns. When ctx ends, the server stops accepting and every client is told so and cut off; Close
// does it gently. A path that cannot be used is ConfigInvalid with Field socket; one that somebody serves, AlreadyExists.
func Serve(ctx context.Context, o Options) (*Server, error) {
	pick(&o.MaxClients, DefaultMaxClients)
	o.Limits = o.Limits.withDefaults()
	if o.Tenant == "" {
		o.Tenant = DefaultTenant
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.ofPeer == nil {
		o.ofPeer = pidfd.OfPeer
	}
	if o.Status == nil {
		st := wire.Status{Node: o.Node, Epoch: o.Epoch, Version: o.Software}
		o.Status = func() wire.Status { return st }
	}
	s := &Server{o: o, sock: &socket{l: o.Listener}, clients: map[*client]struct{}{}}
	if o.Listener == nil {
		var err error
		if s.sock, err = listen(o.Path, len(o.AllowUIDs) > 0); err != nil {
			return nil, err
		}
	}
	s.wg.Go(s.accept)
	s.stop = context.AfterFunc(ctx, func() {
		s.stopAccepting()
		s.EndClients(fault.New(fault.Draining, "serve", "node %s is shutting down", o.Node))
	})
	return s, nil
}

// Addr is the socket's address.
func (s *Server) Addr() net.Addr { return s.sock.l.Addr() }

// Clients is the number of connections.
func (s *Server) Clients() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.clients)
}

// Close stops accepting and waits until the clients have left. When ctx ends first, they are told and cut off. Close
// returns when every client is gone, which the engine then knows, and no goroutine is left.
func (s *Server) Close(ctx context.Context) error {
	s.stopAccepting()
	left := make(chan struct{})
	go func() {
		s.wg.Wait()
		close(left)
	}()
	select {
	case <-left:
	case <-ctx.Done():
		s.EndClients(fault.New(fault.Draining, "serve", "node %s is shutting down", s.o.Node))
		<-left
	}
	s.stop()
	return nil
}

// EndClients cuts every client off, now and in future; each gets an ERROR with reason first.
func (s *Server) EndClients(reason error) {
	s.mu.Lock()
	if s.ending == nil {
		s.ending = reason
	}
	all := make([]*client, 0, len(s.clients))
	for c := range s.clients {
		all = append(all, c)
	}
	s.mu.Unlock()
	for _, c := range all {
		c.end(ending{err: reason, tell: true})
	}
}

func (s *Server) stopAccepting() { s.closed.Do(s.sock.close) }

// accept pauses after a failure instead of asking in a loop.
func (s *Server) accept() {
	const maxPause = time.Second
	var pause time.Duration
	var kept spare
	kept.open()
	defer kept.close()
	for {
		conn, err := s.sock.l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if exhausted(err) {
			if c := kept.accept(s.sock.l); c != nil {
				conn, err = c, nil
			}
		}
		if err != nil {
			if pause == 0 {
				pause = 5 * time.Millisecond
				s.o.Logger.Error("client could not be accepted", "error", err)
			}
			time.Sleep(pause)
			pause = min(2*pause, maxPause)
			continue
		}
		pause = 0
		if !kept.open() {
			s.o.Logger.Warn("client refused", "reason", "no descriptor is left")
			tellExhausted(conn)
			kept.open()
			continue
		}
		s.admit(conn)
	}
}

// admit serves a connection or refuses it.
func (s *Server) admit(conn *net.UnixConn) {
	pid, uid, err := peer(conn)
	if err != nil {
		s.refuse(conn, fault.Wrap(fault.Internal, "connect", err))
		return
	}
	if !s.allowed(uid) {
		s.o.Logger.Warn("client refused", "reason", "user is not allowed", "pid", pid, "uid", uid)
		s.refuse(conn, fault.New(fault.PermissionDenied, "connect", "user %d is not allowed to use this daemon", uid))
		return
	}
	// Here, not beside the accept loop: it takes a descriptor, and the loop knows when there is none left.
	process, watchErr := s.o.ofPeer(conn, pid)
	if exhausted(watchErr) {
		s.o.Logger.Warn("client refused", "reason", "no descriptor is left", "pid", pid, "uid", uid)
		tellExhausted(conn) // served now it would be unwatched for good
		return
	}
	s.mu.Lock()
	err = s.ending
	n := len(s.clients)
	spare := n >= s.o.MaxClients // for an observer alone: who looks why everything is in use must get in
	if err == nil && spare && (!operates(uid) || n >= s.o.MaxClients+spareObservers) {
		err = fault.New(fault.ResourceExhausted, "connect", "%d clients are connected, allowed %d", n, s.o.MaxClients)
	}
	if err != nil {
		s.mu.Unlock()
		if process != nil {
			_ = process.Close()
		}
		s.refuse(conn, err)
		return
	}
	c := newClient(s, conn, pid, uid)
	c.process, c.watchErr, c.spare = process, watchErr, spare
	s.clients[c] = struct{}{}
	s.mu.Unlock()
	s.wg.Go(func() {
		c.run()
		s.mu.Lock()
		delete(s.clients, c)
		s.mu.Unlock()
	})
}

func (s *Server) allowed(uid int) bool {
	if uid == 0 || uid == os.Geteuid() {
		return true
	}
	for _, u := range s.o.AllowUIDs {
		if u == uid {
			return true
		}
	}
	return false
}

// mayUse says whether a user's client may act for a tenant. A bound is a bound: root and the daemon's own user are in it when they
// are listed.
func (s *Server) mayUse(tenant string, uid int) bool {
	if tenant == s.o.Tenant {
		return true
	}
	uids, ok := s.o.AllowTenants[tenant]
	return ok && (uids == nil || slices.Contains(uids, uid))
}

// errorFrame is the ERROR that tells a client of err.
func (s *Server) errorFrame(request uint64, err error) wire.Frame {
	if s.o.Failed != nil {
		s.o.Failed(fault.CodeOf(err))
	}
	return wire.NewError(request, err)
}

// refuse tells a connection why it is not served, beside the accept loop.
func (s *Server) refuse(conn *net.UnixConn, reason error) {
	s.mu.Lock()
	tell := s.refused < maxRefused
	if tell {
		s.refused++
	}
	s.mu.Unlock()
	if !tell {
		_ = conn.Close()
		return
	}
	s.wg.Go(func() {
		_ = conn.SetWriteDeadline(time.Now().Add(s.o.Limits.Linger))
		if _, err := conn.Write(wire.Append(nil, s.errorFrame(0, reason))); err == nil {
			linger(conn, s.o.Limits.Linger)
		}
		_ = conn.Close()
		s.mu.Lock()
		s.refused--
		s.mu.Unlock()
	})
}

// linger reads what the other side still sends until it has closed too. Without that a client that is sending gets
// EPIPE and may never read the ERROR that waits for it. Descriptors that come are dropped by the kernel, as this read
// has no room for them.
func linger(conn *net.UnixConn, d time.Duration) {
	_ = conn.CloseWrite()
	_ = conn.SetReadDeadline(time.Now().Add(d))
	var buf [4096]byte
	for {
		if _, err := conn.Read(buf[:]); err != nil {
			return
		}
	}
}
