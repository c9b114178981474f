package peerlink

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// maxProviders bounds an offer: it is the other side's text, and a reason repeats it.
const maxProviders = 16

// helloLimits is what a connection may send before it is known. It is far below what a link may.
var helloLimits = wire.Limits{JSON: 64 << 10}

// helloRequest is the request id of every HELLO: nothing else is on its way.
const helloRequest = 1

func requireNode(op, node, epoch string) error {
	switch {
	case node == "":
		return fault.Invalid(op, "node", "empty, allowed 1..%d of [A-Za-z0-9_.-]", wire.MaxName)
	case epoch == "":
		return fault.Invalid(op, "epoch", "empty, allowed 32 lower-case hex digits")
	}
	return nil
}

// introduce puts this node into a HELLO or HELLO_OK.
func (s *Links) introduce(h wire.Hello, tenant string) wire.Hello {
	h.Tenant, h.Software, h.Node, h.Epoch = tenant, s.opt.Software, s.opt.Node, s.opt.Epoch
	return h
}

// checkHello judges a dialer's HELLO and gives the version of the connection.
func (s *Links) checkHello(h *wire.Hello) (version int, err error) {
	if version, err = wire.Negotiate(h); err != nil {
		return 0, err
	}
	if err = requireNode("hello", h.Node, h.Epoch); err != nil {
		return 0, err
	}
	if n := len(h.Providers); n > maxProviders {
		return 0, fault.Invalid("hello", "providers", "%d, allowed 0..%d", n, maxProviders)
	}
	if n := len(h.Absent); n > maxProviders {
		return 0, fault.Invalid("hello", "absent", "%d, allowed 0..%d", n, maxProviders)
	}
	for _, p := range h.Providers {
		if err = wire.CheckName("hello", "providers", p); err != nil {
			return 0, err
		}
	}
	if h.WantNode != s.opt.Node || h.WantEpoch != s.opt.Epoch {
		return 0, &fault.Error{Code: fault.StaleEpoch, Op: "hello", Peer: s.opt.Node,
			Detail: fmt.Sprintf("node %q, epoch %q was wanted; this is node %q, epoch %q", h.WantNode, h.WantEpoch, s.opt.Node, s.opt.Epoch)}
	}
	return version, nil
}

// checkAnswer judges the HELLO_OK to want.
func checkAnswer(h, want *wire.Hello) error {
	if _, err := wire.Negotiate(h); err != nil {
		return err
	}
	if h.Version < want.MinVersion || h.Version > want.MaxVersion {
		return fault.New(fault.VersionMismatch, "hello", "the other side chose version %d, this side speaks %d..%d", h.Version,
			want.MinVersion, want.MaxVersion)
	}
	if h.Node != want.WantNode || h.Epoch != want.WantEpoch {
		return fault.New(fault.StaleEpoch, "hello", "node %q, epoch %q was wanted; node %q, epoch %q answered", want.WantNode, want.WantEpoch,
			h.Node, h.Epoch)
	}
	if !slices.Contains(want.Providers, h.Provider) {
		return violation("provider", "%q was not offered", h.Provider)
	}
	if len(h.Reason) > wire.MaxText {
		return violation("provider_reason", "%d bytes, allowed 0..%d", len(h.Reason), wire.MaxText)
	}
	return nil
}

// tune prepares a control connection: small frames leave at once, and heartbeats take the place of keepalive.
func tune(conn net.Conn) {
	if c, ok := conn.(*net.TCPConn); ok {
		_ = c.SetNoDelay(true)
		_ = c.SetKeepAlive(false)
	}
}

// linger bounds how long a connection is kept that this side has finished with.
const linger = time.Second

// sayGoodbye sends a last frame and closes. It reads what the other side has still sent: closing on unread bytes
// resets the connection, and the frame would be lost with it.
func sayGoodbye(conn net.Conn, f wire.Frame) {
	_ = conn.SetDeadline(time.Now().Add(linger))
	if _, err := conn.Write(wire.Append(nil, f)); err == nil {
		finishWrites(conn)
		_, _ = io.Copy(io.Discard, io.LimitReader(conn, 1<<20))
	}
	_ = conn.Close()
}

// finishWrites shows the other side the end of the stream.
func finishWrites(conn net.Conn) {
	if c, ok := conn.(interface{ CloseWrite() error }); ok {
		_ = c.CloseWrite()
	}
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

func violation(field, format string, args ...any) error {
	e := fault.New(fault.ProtocolViolation, "frame", format, args...)
	e.Field = field
	return e
}
