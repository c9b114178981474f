package tcp

import (
	"context"
	"io"
	"log/slog"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/peertls"
	"github.com/kvxfer/kvxfer/internal/peertls/certtest"
	"github.com/kvxfer/kvxfer/rdma"
)

// laneNode is the node that every lane of these tests leads to.
const laneNode = "target"

func newIdentity(t testing.TB) *peertls.Identity {
	cert, key, ca, err := certtest.New("lanes").Write(t.TempDir(), certtest.Leaf{DNS: []string{laneNode}})
	require.NoError(t, err)
	id, err := peertls.Load(peertls.Files{Cert: cert, Key: key, CA: ca}, laneNode, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	return id
}

// overTLS gives options whose lanes carry TLS; with a nil identity they stay as they are.
func overTLS(id *peertls.Identity, o Options) Options {
	if id != nil {
		o.TLS, o.TLSLanes = id.LaneClient, true
	}
	return o
}

// serveLane hands a connection over as a listener does that has read the first bytes of it.
func serveLane(p *Provider, id *peertls.Identity, c net.Conn, first int) error {
	if id != nil {
		secure, err := id.Server(context.Background(), c)
		if err != nil {
			_ = c.Close()
			return err
		}
		c = secure
	}
	b := make([]byte, first)
	if _, err := io.ReadFull(c, b); err != nil {
		_ = c.Close()
		return err
	}
	return p.ServeLane(c, b)
}

type makePair func(t testing.TB, size int, oa, ob Options) *pair

// clearAndTLS runs a test over both kinds of lanes.
func clearAndTLS(t *testing.T, test func(*testing.T, makePair)) {
	t.Run("clear", func(t *testing.T) { test(t, newPair) })
	t.Run("tls", func(t *testing.T) { test(t, newSecurePair) })
}

func newSecurePair(t testing.TB, size int, oa, ob Options) *pair {
	id := newIdentity(t)
	p := &pair{src: mapped(t, size), dst: mapped(t, size)}
	p.a, p.b = newNode(t, overTLS(id, oa), "127.0.0.1:0"), newServedNode(t, overTLS(id, ob), "127.0.0.1:0", id)
	p.connect(t, p.b.addr)
	p.srcR, p.dstR = register(t, p.a.Provider, p.src, "src"), register(t, p.b.Provider, p.dst, "dst")
	return p
}

// Both sides say why when one wants TLS and the other does not.
func TestLanesAgreeOnTLS(t *testing.T) {
	id := newIdentity(t)
	plain, able := newNode(t, Options{}, "127.0.0.1:0"), newNode(t, Options{TLS: id.LaneClient}, "127.0.0.1:0")
	strict := newServedNode(t, overTLS(id, Options{}), "127.0.0.1:0", id)
	ctx := peertls.WithPeer(t.Context(), laneNode)
	var sessions rdma.SessionID
	accept := func(to *node) (rdma.SessionID, []byte) {
		sessions++
		_, params, err := to.Accept(sessions)
		require.NoError(t, err)
		return sessions, params
	}
	connect := func(from, to *node) error {
		id, params := accept(to)
		_, err := from.Connect(ctx, id, to.addr, params)
		return err
	}
	requireCode(t, fault.PermissionDenied, connect(plain, strict))
	requireCode(t, fault.PermissionDenied, connect(strict, plain))
	require.NoError(t, connect(able, plain))
	require.NoError(t, connect(able, strict), "a node with certificates follows its target")

	// A lane that does otherwise than the parameters say is told so, whatever its hello says.
	sid, params := accept(plain)
	params[4] |= paramTLS
	done := make(chan error, 1)
	port, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer port.Close()
	go func() {
		for {
			c, err := port.Accept()
			if err != nil {
				return
			}
			done <- serveLane(plain.Provider, id, c, 0)
		}
	}()
	_, err = able.Connect(ctx, sid, port.Addr().String(), params)
	requireCode(t, fault.PermissionDenied, err)
	requireCode(t, fault.PermissionDenied, <-done)

	raw := newServedNode(t, overTLS(id, Options{}), "127.0.0.1:0", nil) // a port that lets clear lanes through to a provider that wants none
	_, params, err = raw.Accept(1)
	require.NoError(t, err)
	require.Equal(t, fault.PermissionDenied, dialRaw(t, raw.addr, helloBytes(t, params)).answer())
}

// A lane says its secret to the node that is meant and to no other.
func TestLaneOfAnotherNode(t *testing.T) {
	id := newIdentity(t)
	a, b := newNode(t, overTLS(id, Options{}), "127.0.0.1:0"), newServedNode(t, overTLS(id, Options{}), "127.0.0.1:0", id)
	_, params, err := b.Accept(1)
	require.NoError(t, err)
	_, err = a.Connect(peertls.WithPeer(t.Context(), "somebody-else"), 1, b.addr, params)
	requireCode(t, fault.PermissionDenied, err)
	_, err = a.Connect(t.Context(), 2, b.addr, params)
	requireCode(t, fault.Internal, err)
}

func helloBytes(t testing.TB, params []byte) []byte {
	h := helloFor(t, params, 0)
	return h.bytes()
}
