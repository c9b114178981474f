package embedded

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/registry/natsaccess"
)

const (
	maxMemory    = 64 << 20 // bytes of all entries; a thousand nodes with ten caches each need a few
	maxStore     = 16 << 20 // bytes on disk; nothing is stored there
	maxPayload   = 1 << 20  // bytes of one message; an entry is at most 256 KiB
	maxConns     = 4096
	readyTimeout = 10 * time.Second
	tlsTimeout   = 5 * time.Second // a busy host's handshakes, when all nodes come back at once
)

// Options say where the server lives.
type Options struct {
	// StoreDir is the server's own directory; it is made when missing. Required.
	StoreDir string
	// Listen is "host:port" for other nodes' connections, port 0 for a free one; "" for none.
	Listen string
	// Access is what clients must show and what the listener shows them: a user with password or a token, a certificate, and the
	// authorities of clients' certificates. Connections inside the process prove themselves by the same secret, without TLS.
	Access natsaccess.Files
	// ServerName in the server's listings; "" lets the server choose.
	ServerName string
	// Logger is slog.Default when nil.
	Logger *slog.Logger
}

// Server is a running NATS server.
type Server struct {
	srv    *natsserver.Server
	listen bool
}

// Start runs a server and returns when it accepts connections. InvalidArgument names a wrong option; anything else
// that keeps the server from starting (a taken port) is RegistryUnavailable.
func Start(opts Options) (*Server, error) {
	const op = "registry server start"
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	o := &natsserver.Options{
		ServerName: opts.ServerName,
		DontListen: opts.Listen == "",
		NoSigs:     true,
		// Statistics of a server nobody watches would be all that wakes an idle daemon here.
		NoSystemAccount:        true,
		JetStream:              true,
		StoreDir:               opts.StoreDir,
		JetStreamMaxMemory:     maxMemory,
		JetStreamMaxStore:      maxStore,
		DisableJetStreamBanner: true,
		MaxPayload:             maxPayload,
		MaxConn:                maxConns,
	}
	if err := opts.Access.Check(); err != nil {
		return nil, err
	}
	if opts.Access.Creds != "" {
		return nil, &fault.Error{Code: fault.ConfigInvalid, Op: op, Field: "nats-creds", Detail: "the embedded server has no accounts; allowed: nats-token-file, nats-user with nats-password-file, or certificates"}
	}
	if opts.Listen != "" {
		host, port, err := net.SplitHostPort(opts.Listen)
		p, perr := strconv.Atoi(port)
		if err != nil || perr != nil || p < 0 || p > 65535 || host == "" {
			return nil, fault.Invalid(op, "listen", "%.80q: allowed is host:port with a port of 0 to 65535, or nothing", opts.Listen)
		}
		o.Host, o.Port = host, p
		if p == 0 {
			o.Port = natsserver.RANDOM_PORT
		}
		if ip := net.ParseIP(host); !opts.Access.Authenticates() && host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			opts.Logger.Warn("registry server is open to the network without credentials", "listen", opts.Listen)
		}
	}
	if opts.StoreDir == "" || !filepath.IsAbs(opts.StoreDir) {
		return nil, fault.Invalid(op, "store_dir", "%.200q: allowed is an absolute path", opts.StoreDir)
	}
	if err := os.MkdirAll(opts.StoreDir, 0o700); err != nil {
		return nil, fault.Wrap(fault.RegistryUnavailable, op, err)
	}
	var err error
	if o.Username, o.Password, o.Authorization, err = opts.Access.Secrets(); err != nil {
		return nil, err
	}
	if o.TLSConfig, err = opts.Access.ServerTLS(opts.Logger); err != nil {
		return nil, err
	}
	o.TLSVerify = o.TLSConfig != nil && opts.Access.CA != ""
	o.TLSTimeout = tlsTimeout.Seconds()
	srv, err := natsserver.NewServer(o)
	if err != nil {
		return nil, fault.Wrap(fault.RegistryUnavailable, op, err)
	}
	log := newLogger(opts.Logger)
	srv.SetLogger(log, false, false)
	s := &Server{srv: srv, listen: opts.Listen != ""}
	started := make(chan struct{})
	go func() {
		defer close(started)
		srv.Start()
	}()
	// A fatal message is the server's only word on a start that failed: it neither returns an error nor exits.
	deadline := time.NewTimer(readyTimeout)
	defer deadline.Stop()
	var cause string
	select {
	case cause = <-log.fatal:
	case <-started:
		select {
		case cause = <-log.fatal:
		default:
			if srv.ReadyForConnections(readyTimeout) {
				return s, nil
			}
			cause = "it does not accept connections"
		}
	case <-deadline.C:
		cause = fmt.Sprintf("it was not ready after %s", readyTimeout)
	}
	srv.Shutdown()
	srv.WaitForShutdown()
	return nil, fault.New(fault.RegistryUnavailable, op, "%s", cause)
}

// Connect makes a connection inside the process; it uses no port. It fits natskv.Options.Dial.
func (s *Server) Connect(opts ...nats.Option) (*nats.Conn, error) {
	return nats.Connect("", append(opts, nats.InProcessServer(s.srv))...)
}

// ClientURL is the address for other processes; "" when the server does not listen.
func (s *Server) ClientURL() string {
	if !s.listen {
		return ""
	}
	return s.srv.ClientURL()
}

// Shutdown ends the server and waits for it, bounded by ctx; DeadlineExceeded or Cancelled when ctx ended first.
func (s *Server) Shutdown(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.srv.Shutdown()
		s.srv.WaitForShutdown()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fault.From("registry server shutdown", ctx.Err())
	}
}
