package daemon

import (
	"bufio"
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/socketpath"
	"github.com/kvxfer/kvxfer/internal/version"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// Conn is a connection to a daemon, for one goroutine.
type Conn struct {
	Path  string
	Hello wire.Hello // the daemon's: node, epoch, software
	conn  net.Conn
	in    *bufio.Reader
	last  uint64
}

// DefaultTimeout bounds a call whose context has no deadline.
const DefaultTimeout = 10 * time.Second

// Dial connects to the daemon at path; "" is $KVXFER_SOCKET or the default path. tenant "" is the daemon's own.
func Dial(ctx context.Context, path, tenant string) (*Conn, error) {
	const op = "connect"
	if path == "" {
		path = socketpath.Client(os.Getuid(), os.Getenv)
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	nc, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err != nil {
		fe := fault.From(op, ctx.Err())
		if fe == nil {
			fe = &fault.Error{Code: fault.DaemonUnavailable, Op: op}
		}
		fe.Field, fe.Detail, fe.Err = "socket", path, err
		return nil, fe
	}
	c := &Conn{Path: path, conn: nc, in: bufio.NewReader(nc)}
	_, err = c.Call(ctx, wire.KindHello, &wire.Hello{MinVersion: wire.MinVersion, MaxVersion: wire.MaxVersion, Tenant: tenant,
		Software: "kvxfer " + version.Version, Process: "kvxfer", Pid: os.Getpid(), Observer: true}, nil, &c.Hello)
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// PID is the daemon's process, as the kernel has it for the connection; 0 where it does not say, or where that process is of
// another namespace.
func (c *Conn) PID() int {
	u, is := c.conn.(*net.UnixConn)
	if !is {
		return 0
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return 0
	}
	pid := 0
	_ = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(cred.Pid)
		}
	})
	return pid
}

// Call sends a request and reads its answer's body into out (nil: it has none) and returns its array. Events in
// between are passed over. After an error that the daemon did not answer itself the connection is of no use.
func (c *Conn) Call(ctx context.Context, kind wire.Kind, body any, array []byte, out any) ([]byte, error) {
	op := strings.ToLower(kind.String()) // as the daemon's own errors have it
	ctx, cancel := bounded(ctx)
	defer cancel()
	c.last++
	f, err := wire.NewFrame(kind, c.last, body, array)
	if err != nil {
		return nil, err
	}
	_ = c.conn.SetDeadline(time.Time{})
	stop := context.AfterFunc(ctx, func() { _ = c.conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, err := c.conn.Write(wire.Append(nil, f)); err != nil {
		return nil, c.lost(ctx, op, err)
	}
	for {
		f, err := wire.ReadFrame(c.in, wire.LocalLimits)
		if err != nil {
			return nil, c.lost(ctx, op, err)
		}
		switch {
		case f.Kind == wire.KindError && (f.Request == c.last || f.Request == 0):
			var w fault.Wire
			if err := f.Decode(&w); err != nil {
				return nil, err
			}
			return nil, fault.FromWire(&w)
		case f.Request != c.last:
		case f.Kind == wire.KindOK || f.Kind == wire.KindHelloOK:
			if out != nil {
				if err := f.Decode(out); err != nil {
					return nil, err
				}
			}
			return f.Array, nil
		default:
			return nil, fault.New(fault.ProtocolViolation, op, "the daemon answered with %s", f.Kind)
		}
	}
}

func (c *Conn) lost(ctx context.Context, op string, err error) error {
	if cause := ctx.Err(); cause != nil {
		fe := fault.From(op, cause)
		fe.Detail = c.Path
		if errors.Is(cause, context.DeadlineExceeded) {
			fe.Detail += ": the daemon took the connection and has not answered in time; is its process stopped or stuck?"
		}
		return fe
	}
	var fe *fault.Error
	if errors.As(err, &fe) {
		return fe
	}
	return &fault.Error{Code: fault.DaemonUnavailable, Op: op, Field: "socket", Detail: c.Path, Err: err}
}

// Close ends the connection.
func (c *Conn) Close() { _ = c.conn.Close() }

func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, DefaultTimeout)
}
