package localapi

import (
	"errors"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// exhausted says whether a call failed because this process or the host has no descriptor left.
func exhausted(err error) bool { return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) }

// errExhausted is what a client hears of it.
func errExhausted(op string) error {
	return fault.New(fault.ResourceExhausted, op, "the daemon has no descriptor left")
}

// spare is a descriptor that is kept so that a client can be told why it is not served when there is none left: without
// it the client would wait in the kernel's queue until its own time is over. Nobody is served while it is missing.
type spare struct{ f *os.File }

// open takes it, if it is missing; false where there is none left.
func (s *spare) open() bool {
	if s.f == nil {
		s.f, _ = os.Open(os.DevNull)
	}
	return s.f != nil
}

func (s *spare) close() {
	if s.f != nil {
		_ = s.f.Close()
		s.f = nil
	}
}

// moment is how long accept waits for a connection (without descriptors it fails also where nobody comes), and how long
// its socket, which is empty, may take to hold an ERROR.
const moment = 20 * time.Millisecond

// accept takes the next connection of l, if there is one, in the place of the spare descriptor. It is nil where not.
func (s *spare) accept(l *net.UnixListener) *net.UnixConn {
	if !s.open() {
		return nil
	}
	s.close()
	_ = l.SetDeadline(time.Now().Add(moment))
	conn, err := l.AcceptUnix()
	_ = l.SetDeadline(time.Time{})
	if err != nil {
		s.open()
		return nil
	}
	return conn
}

// tellExhausted refuses a connection at once: lingering would keep its descriptor.
func tellExhausted(conn *net.UnixConn) {
	_ = conn.SetWriteDeadline(time.Now().Add(moment))
	_, _ = conn.Write(wire.Append(nil, wire.NewError(0, errExhausted("connect"))))
	_ = conn.Close()
}
