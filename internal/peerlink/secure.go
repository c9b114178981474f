package peerlink

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/peertls"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// secured is a control connection over TLS. Closing it does not wait: the close of tls.Conn first says goodbye, for up to five
// seconds where the peer does not read, and a link is closed by the heartbeat of all of them. Goodbyes are CloseWrite's.
type secured struct{ *tls.Conn }

func (c secured) Close() error { return c.NetConn().Close() }

// CloseWrite says goodbye within linger.
func (c secured) CloseWrite() error {
	late := time.AfterFunc(linger, func() { _ = c.NetConn().Close() })
	defer late.Stop()
	return c.Conn.CloseWrite()
}

// lowest is the connection that is closed to end conn without waiting.
func lowest(conn net.Conn) net.Conn {
	if c, ok := conn.(*tls.Conn); ok {
		return c.NetConn()
	}
	return conn
}

// secureChunk is the most that one write hands to TLS. A write that times out in the middle of a record cannot be
// continued, so "the peer takes something" is judged by pieces of this size instead of bytes.
const secureChunk = 4 << 10

// chunk is how much of a frame goes into one write to conn.
func chunk(conn net.Conn) int {
	if _, ok := conn.(secured); ok {
		return secureChunk
	}
	return writeChunk
}

// replay is a connection of which some bytes were read to see what it is.
type replay struct {
	net.Conn
	first []byte
}

func (c *replay) Read(b []byte) (int, error) {
	if len(c.first) > 0 {
		n := copy(b, c.first)
		c.first = c.first[n:]
		return n, nil
	}
	return c.Conn.Read(b)
}

// SyscallConn is for setting options; who read by it would miss the first bytes.
func (c *replay) SyscallConn() (syscall.RawConn, error) {
	sc, ok := c.Conn.(syscall.Conn)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	return sc.SyscallConn()
}

// identifySecured makes the handshake of a connection that opened as TLS does, and reads what is inside.
func (s *Links) identifySecured(ctx context.Context, conn net.Conn, first []byte, free func() bool) error {
	if s.opt.TLS == nil {
		err := fault.New(fault.PermissionDenied, "hello", "node %q speaks without TLS", s.opt.Node)
		sayGoodbye(conn, wire.NewError(0, err)) // in frames, which tells the dialer what this port speaks
		return err
	}
	tune(conn)
	c, err := s.opt.TLS.Server(ctx, &replay{conn, first})
	if err != nil {
		if errors.Is(err, fault.ErrPermissionDenied) {
			s.opt.Logger.Info("peer refused", "addr", addrOf(conn), "error", err)
		}
		discard(conn)
		return s.visitError(err)
	}
	header := make([]byte, wire.HeaderSize)
	if _, err := io.ReadFull(c, header[:prefixLen]); err != nil {
		return s.visitError(peertls.Explain(err))
	}
	if string(header[:prefixLen]) == controlPrefix {
		return s.acceptControl(secured{c}, header, free)
	}
	if lanes := s.opt.Lanes[string(header[:prefixLen])]; lanes != nil {
		return s.acceptLane(c, header[:prefixLen], lanes, free)
	}
	return violation("magic", "%q opens neither a control connection nor a lane of a provider here", header[:prefixLen])
}

// refuseClear answers a control connection in clear where TLS is required, in the frames that its dialer reads.
func (s *Links) refuseClear(conn net.Conn) error {
	err := fault.New(fault.PermissionDenied, "hello", "node %q requires TLS: dial it with a certificate (--tls-cert, --tls-key, --tls-ca)", s.opt.Node)
	s.opt.Logger.Info("peer refused", "addr", addrOf(conn), "error", err)
	sayGoodbye(conn, wire.NewError(0, err))
	return err
}

// discard shows the other side the end of the stream and reads what it has still sent: see sayGoodbye. The last that was said is
// an alert of TLS then.
func discard(conn net.Conn) {
	_ = conn.SetDeadline(time.Now().Add(linger))
	finishWrites(conn)
	_, _ = io.Copy(io.Discard, io.LimitReader(conn, 1<<20))
}

// secure makes the dialing side's handshake, where this node requires TLS.
func (s *Links) secure(ctx context.Context, conn net.Conn, node string) (net.Conn, error) {
	if s.opt.TLS == nil {
		return conn, nil
	}
	c, err := s.opt.TLS.Client(ctx, conn, node)
	if err != nil {
		return nil, err
	}
	return secured{c}, nil
}

// checkCertificate reports PermissionDenied where the peer is not the node that its HELLO says.
func checkCertificate(conn net.Conn, node string) error {
	if c, ok := conn.(secured); ok {
		return peertls.CheckNode(c.Conn, node)
	}
	return nil
}
