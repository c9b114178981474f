package health

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// Options says what is served. Listener and Status are required. The functions are called from several goroutines.
type Options struct {
	Listener net.Listener // Serve closes it
	Live     func() error // nil: alive as long as it can answer
	Ready    func() error // nil: always. The error's text is shown
	Status   func() any   // marshalled as JSON
	// Metrics makes the page for a scraper, of the form that its Accept header asks for; nil: there is none. An error that
	// is DeadlineExceeded or Cancelled says that the page was not ready when ctx ended.
	Metrics func(ctx context.Context, accept string) (contentType string, body []byte, err error)
	// Profiles are served below /debug/pprof/: what this process runs and holds, by function names.
	Profiles bool
	Timeout  time.Duration // for a request to arrive, and again for its answer to leave. Default 5 s
	MaxConns int           // connections at a time; more wait in the kernel. Default 128
	Logger   *slog.Logger  // default: silent
}

// maxHeader bounds a request's header in bytes; the answers need nothing of it.
const maxHeader = 8 << 10

// endTimeout is how long requests in progress have at the end. Answers take no time; what remains are connections that
// have said nothing, which Shutdown alone would wait for.
const endTimeout = 500 * time.Millisecond

// Serve answers until ctx ends, then lets requests in progress finish. It returns when nothing of it is left: nil
// after ctx ended, else why the listener failed.
func Serve(ctx context.Context, o Options) error {
	const op = "serve http"
	switch {
	case o.Listener == nil:
		return fault.Invalid(op, "Listener", "nil, want a listener")
	case o.Status == nil:
		return fault.Invalid(op, "Status", "nil, want a function")
	case o.Timeout < 0:
		return fault.Invalid(op, "Timeout", "%s, allowed 0 and above", o.Timeout)
	case o.MaxConns < 0:
		return fault.Invalid(op, "MaxConns", "%d, allowed 0 and above", o.MaxConns)
	}
	if o.Timeout == 0 {
		o.Timeout = 5 * time.Second
	}
	if o.MaxConns == 0 {
		o.MaxConns = 128
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	srv := &http.Server{
		Handler:           handler(&o),
		ReadHeaderTimeout: o.Timeout,
		ReadTimeout:       o.Timeout,
		WriteTimeout:      2 * o.Timeout, // counts from the end of the header
		IdleTimeout:       o.Timeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(o.Logger.Handler(), slog.LevelDebug),
	}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(newBounded(o.Listener, o.MaxConns)) }()
	select {
	case err := <-done:
		_ = srv.Close()
		return fault.Wrap(fault.Internal, op, err)
	case <-ctx.Done():
	}
	sctx, cancel := context.WithTimeout(context.Background(), min(o.Timeout, endTimeout))
	defer cancel()
	if err := srv.Shutdown(sctx); err != nil {
		_ = srv.Close() // a client that does not take its answer
	}
	if err := <-done; !errors.Is(err, http.ErrServerClosed) {
		return fault.Wrap(fault.Internal, op, err)
	}
	return nil
}

func handler(o *Options) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if o.Profiles && strings.HasPrefix(r.URL.Path, profilesPath) {
			profile(o, w, r)
			return
		}
		var answer func() (code int, kind, text string)
		switch path := r.URL.Path; {
		case path == "/healthz":
			answer = verdict(o.Live)
		case path == "/readyz":
			answer = verdict(o.Ready)
		case path == "/status":
			answer = func() (int, string, string) { return status(o) }
		case path == "/metrics" && o.Metrics != nil:
			answer = func() (int, string, string) { return page(o, r) }
		default:
			write(w, r, http.StatusNotFound, plain, "not found\n")
			return
		}
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			write(w, r, http.StatusMethodNotAllowed, plain, "only GET and HEAD\n")
			return
		}
		code, kind, text := answer()
		write(w, r, code, kind, text)
	})
}

const (
	plain = "text/plain; charset=utf-8"
	js    = "application/json"
)

func verdict(f func() error) func() (int, string, string) {
	return func() (int, string, string) {
		if f != nil {
			if err := f(); err != nil {
				return http.StatusServiceUnavailable, plain, strings.TrimRight(err.Error(), "\n") + "\n"
			}
		}
		return http.StatusOK, plain, "ok\n"
	}
}

func status(o *Options) (int, string, string) {
	raw, err := json.MarshalIndent(o.Status(), "", "  ")
	if err != nil {
		o.Logger.Error("status cannot be shown", "error", err)
		return http.StatusInternalServerError, plain, "the status cannot be shown\n"
	}
	return http.StatusOK, js, string(raw) + "\n"
}

// write answers. The headers keep a browser from guessing types, showing the answer in a frame or keeping it.
func write(w http.ResponseWriter, r *http.Request, code int, kind, text string) {
	h := w.Header()
	h.Set("Content-Type", kind)
	h.Set("Content-Length", strconv.Itoa(len(text)))
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	w.WriteHeader(code)
	if r.Method != http.MethodHead {
		_, _ = io.WriteString(w, text)
	}
}
