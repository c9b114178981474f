package peertls

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// protocol is the ALPN name of the peer port.
const protocol = "kvxfer/1"

// First reports whether b, the first bytes of a connection, can only be the beginning of TLS. It needs two.
func First(b []byte) bool { return len(b) >= 2 && b[0] == 0x16 && b[1] == 0x03 }

// Client makes the dialing side's handshake with node. Errors: PermissionDenied (one of the two does not believe the other, or the
// other side speaks in clear), or what the connection failed with.
func (i *Identity) Client(ctx context.Context, conn net.Conn, node string) (*tls.Conn, error) {
	s := i.current()
	c := tls.Client(conn, &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{s.cert}, NextProtos: []string{protocol}, Time: i.now,
		// The standard check is of host names; nodes are dialed by addresses. VerifyConnection checks the whole chain and the
		// node's name instead, and runs in every handshake.
		InsecureSkipVerify: true,
		VerifyConnection: func(st tls.ConnectionState) error {
			if err := s.believe(st, x509.ExtKeyUsageServerAuth, i.now()); err != nil {
				return err
			}
			return checkNode(st, node)
		},
	})
	return finish(ctx, c)
}

// Server makes the accepting side's handshake. Which node the peer may be is CheckNode's to say, once it has told its name.
func (i *Identity) Server(ctx context.Context, conn net.Conn) (*tls.Conn, error) {
	s := i.current()
	c := tls.Server(conn, &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{s.cert}, NextProtos: []string{protocol}, Time: i.now,
		SessionTicketsDisabled: true, ClientAuth: tls.RequireAnyClientCert,
		VerifyConnection: func(st tls.ConnectionState) error { return s.believe(st, x509.ExtKeyUsageClientAuth, i.now()) },
	})
	return finish(ctx, c)
}

// CheckNode reports PermissionDenied when the peer's certificate does not name the node that the peer says it is.
func CheckNode(c *tls.Conn, node string) error { return checkNode(c.ConnectionState(), node) }

func checkNode(st tls.ConnectionState, node string) error {
	leaf := st.PeerCertificates[0]
	if namesNode(leaf, node) {
		return nil
	}
	return &fault.Error{Code: fault.PermissionDenied, Op: "tls", Peer: node,
		Detail: fmt.Sprintf("the peer's certificate does not name node %q: it names %.200q", node, names(leaf))}
}

// believe judges the peer's chain and that it speaks this port's protocol.
func (s *set) believe(st tls.ConnectionState, use x509.ExtKeyUsage, now time.Time) error {
	if st.NegotiatedProtocol != protocol {
		return fault.New(fault.PermissionDenied, "tls", "the peer offered no protocol %q", protocol)
	}
	if err := s.verify(st.PeerCertificates, use, now); err != nil {
		return &fault.Error{Code: fault.PermissionDenied, Op: "tls", Detail: "the peer's certificate is not accepted", Err: err}
	}
	return nil
}

func finish(ctx context.Context, c *tls.Conn) (*tls.Conn, error) {
	if err := c.HandshakeContext(ctx); err != nil {
		return nil, Explain(err)
	}
	return c, nil
}

// Explain gives errors of TLS their type: a refusal by either side is PermissionDenied. The dialing side may hear of the other's refusal
// in its first read, since its handshake ends before the other side has seen its certificate. Other errors come back as
// they are.
func Explain(err error) error {
	var typed *fault.Error
	var header tls.RecordHeaderError
	var remote *net.OpError
	switch {
	case err == nil || errors.As(err, &typed):
		return err
	case errors.As(err, &header) && string(header.RecordHeader[:4]) == "KVXF":
		// A node without TLS answers in frames.
		return fault.New(fault.PermissionDenied, "tls", "this node requires TLS and the peer speaks without: give the peer certificates too (--tls-cert, --tls-key, --tls-ca)")
	case errors.As(err, &header):
		return fault.New(fault.PermissionDenied, "tls", "this node requires TLS and the other side does not speak it")
	case errors.As(err, &remote) && remote.Op == "remote error":
		return &fault.Error{Code: fault.PermissionDenied, Op: "tls", Detail: "the peer does not accept this node's certificate", Err: err}
	}
	return err
}

// peerKey is where a context carries the node that a connection is for.
type peerKey struct{}

// WithPeer says in ctx which node the connections made under it lead to. A provider dials its lanes by an address alone; who must
// answer there travels beside its contract, which knows no nodes.
func WithPeer(ctx context.Context, node string) context.Context {
	return context.WithValue(ctx, peerKey{}, node)
}

// LaneClient is Client for the node that WithPeer has named.
func (i *Identity) LaneClient(ctx context.Context, conn net.Conn) (*tls.Conn, error) {
	node, ok := ctx.Value(peerKey{}).(string)
	if !ok {
		return nil, fault.New(fault.Internal, "tls", "nobody said which node a lane leads to")
	}
	return i.Client(ctx, conn, node)
}
