package peerlink

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/peertls"
	"github.com/kvxfer/kvxfer/internal/peertls/certtest"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// identityOf makes the identity of a node whose certificate names it and others.
func identityOf(t testing.TB, a *certtest.Authority, names ...string) *peertls.Identity {
	cert, key, ca, err := a.Write(t.TempDir(), certtest.Leaf{DNS: names})
	require.NoError(t, err)
	id, err := peertls.Load(peertls.Files{Cert: cert, Key: key, CA: ca}, names[0], slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	return id
}

func over(id *peertls.Identity) func(*Options) { return func(o *Options) { o.TLS = id } }

// rawOver is raw over TLS.
func rawOver(t testing.TB, n *node, id *peertls.Identity) *tls.Conn {
	t.Helper()
	c, err := id.Client(t.Context(), raw(t, n.addr), n.opt.Node)
	require.NoError(t, err)
	return c
}

func TestLinkOverTLS(t *testing.T) {
	ca := certtest.New("ca")
	a := newNode(t, "a", epochA, over(identityOf(t, ca, "a")))
	b := newNode(t, "b", epochB, over(identityOf(t, ca, "b")))
	l := dial(t, a, b.ref())
	m := accepted(t, b, 0)
	_, ok := l.conn.(secured)
	require.True(t, ok)

	large := bytes.Repeat([]byte("blocks "), 1<<20)
	require.NoError(t, l.Send(wire.Frame{Kind: wire.KindBind, Request: 7, JSON: []byte(`{}`)}))
	eventually(t, "the request", func() bool { return len(b.h.received(m)) == 1 })
	require.NoError(t, m.Send(wire.Frame{Kind: wire.KindOK, Request: 7, Array: large}))
	eventually(t, "the answer", func() bool { return len(a.h.received(l)) == 1 })
	assert.True(t, bytes.Equal(large, a.h.received(l)[0].Array))

	m.Close(fault.New(fault.Draining, "test", "the reason"))
	assert.ErrorIs(t, waitDown(t, a, l), fault.ErrDraining, "the reason arrives before the end")
}

func TestClearAndTLSDoNotMeet(t *testing.T) {
	secure := newNode(t, "s", epochA, over(identityOf(t, certtest.New("ca"), "s")))
	plain := newNode(t, "p", epochB)
	assert.Contains(t, dialFails(t, plain, secure.ref(), fault.ErrPermissionDenied).Error(), "requires TLS")
	assert.Contains(t, dialFails(t, secure, plain.ref(), fault.ErrPermissionDenied).Error(), "speaks without")
	assert.Empty(t, secure.h.links())
	assert.Empty(t, plain.h.links())
}

func TestWrongCertificates(t *testing.T) {
	ours, theirs := certtest.New("ours"), certtest.New("theirs")
	b := newNode(t, "b", epochB, over(identityOf(t, ours, "b")))
	stranger := newNode(t, "a", epochA, over(identityOf(t, theirs, "a")))
	assert.Contains(t, dialFails(t, stranger, b.ref(), fault.ErrPermissionDenied).Error(), "not accepted")

	// A node that says in HELLO to be another than its certificate names, and one that answers for another.
	liar := newNode(t, "victim", epochA, over(identityOf(t, ours, "a")))
	assert.Contains(t, dialFails(t, liar, b.ref(), fault.ErrPermissionDenied).Error(), `does not name node "victim"`)
	answers := liar.ref()
	assert.Contains(t, dialFails(t, b, answers, fault.ErrPermissionDenied).Error(), `does not name node "victim"`)

	// Two names in one certificate are two nodes that it may be.
	two := newNode(t, "second", epochA, over(identityOf(t, ours, "first", "second")))
	dial(t, two, b.ref())
}

// An acceptor that does not believe the dialer says so to it, although the dialer's handshake is over by then.
func TestDialerHearsThatItIsNotBelieved(t *testing.T) {
	ours, theirs := certtest.New("ours"), certtest.New("theirs")
	cert, key, ca, err := theirs.Write(t.TempDir(), certtest.Leaf{DNS: []string{"a"}}, theirs, ours)
	require.NoError(t, err)
	id, err := peertls.Load(peertls.Files{Cert: cert, Key: key, CA: ca}, "a", slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	b := newNode(t, "b", epochB, over(identityOf(t, ours, "b")))
	a := newNode(t, "a", epochA, over(id))
	assert.Contains(t, dialFails(t, a, b.ref(), fault.ErrPermissionDenied).Error(), "does not accept this node's certificate")
}

func TestLanesOverTLSAreHandedOn(t *testing.T) {
	ca := certtest.New("ca")
	lanes := newHallway()
	defer lanes.close()
	b := newNode(t, "b", epochB, over(identityOf(t, ca, "b")), func(o *Options) { o.Lanes = laneDoor(lanes) })
	send(t, rawOver(t, b, identityOf(t, ca, "a")), []byte("KVXLhello"))
	assert.Equal(t, "KVXL", <-lanes.prefixes)
	send(t, raw(t, b.addr), []byte("KVXLclear"))
	assert.Equal(t, "KVXL", <-lanes.prefixes)
	lanes.mu.Lock()
	defer lanes.mu.Unlock()
	_, first := lanes.conns[0].(*tls.Conn)
	_, second := lanes.conns[1].(*tls.Conn)
	assert.True(t, first && !second, "the provider sees which is which")
	got := make([]byte, 5)
	_, err := io.ReadFull(lanes.conns[0], got)
	require.NoError(t, err)
	assert.Equal(t, "hello", string(got))
}

// A handshake is under the time and the bound of every hello.
func TestSlowHandshake(t *testing.T) {
	id := identityOf(t, certtest.New("ca"), "b")
	b := newNode(t, "b", epochB, over(id), func(o *Options) { o.HelloTimeout = 50 * time.Millisecond })
	for _, s := range []string{"\x16\x03", "\x16\x03\x01\x02\x00", "\x16\x03\x01\xff\xff\x01\x00"} {
		c := raw(t, b.addr)
		send(t, c, []byte(s))
		ends(t, c)
	}
	c := rawOver(t, b, id) // and one that stops behind its handshake
	_, err := c.Read(make([]byte, 1))
	require.Error(t, err)
	require.False(t, isTimeout(err))

	a := newNode(t, "a", epochA, over(identityOf(t, certtest.New("ca"), "a")), func(o *Options) { o.HelloTimeout = 50 * time.Millisecond })
	ln := listen(t, "127.0.0.1:0")
	silent := b.ref()
	silent.Addr = ln.Addr().String()
	dialFails(t, a, silent, fault.ErrPeerUnreachable)

	crowded := newNode(t, "b", epochB, over(id), func(o *Options) { o.HelloTimeout = time.Hour; o.MaxHandshakes = 2 })
	first := raw(t, crowded.addr)
	send(t, first, []byte("\x16\x03\x01"))
	for range 2 {
		send(t, raw(t, crowded.addr), []byte("\x16\x03\x01"))
	}
	ends(t, first)
}

// A peer that reads nothing is lost within the heartbeat's bound, and nothing waits for a goodbye to it.
func TestTLSPeerThatDoesNotRead(t *testing.T) {
	ca := certtest.New("ca")
	for name, change := range map[string]func(*Options){"lost": quick, "closed": never} {
		t.Run(name, func(t *testing.T) {
			b := newNode(t, "b", epochB, over(identityOf(t, ca, "b")), change)
			c := rawOver(t, b, identityOf(t, ca, "raw"))
			h := helloTo(b)
			send(t, c, frame(t, wire.KindHello, 1, &h, nil))
			require.Equal(t, wire.KindHelloOK, receive(t, c).Kind)
			l := accepted(t, b, 0)
			stop := make(chan struct{})
			var wg sync.WaitGroup
			defer wg.Wait()
			defer close(stop)
			wg.Go(func() { // its own signs of life go on
				for {
					select {
					case <-stop:
						return
					case <-time.After(time.Millisecond):
					}
					if _, err := c.Write(wire.Append(nil, wire.Frame{Kind: wire.KindOK, Request: PingBit | 1})); err != nil {
						return
					}
				}
			})
			require.NoError(t, l.Send(wire.Frame{Kind: wire.KindDone, Array: make([]byte, 60<<20)}))
			if name == "closed" {
				l.Close(errors.New("test"))
				assert.EqualError(t, waitDown(t, b, l), "test")
				return
			}
			assert.ErrorIs(t, waitDown(t, b, l), fault.ErrPeerLost)
		})
	}
}

// FuzzVisitorOfATLSPort: whatever comes to a port that wants TLS, no link comes of it, and what goes back is an ERROR frame for what
// looks like frames, an alert for what looks like TLS, and nothing else.
func FuzzVisitorOfATLSPort(f *testing.F) {
	good := wire.Hello{MinVersion: 1, MaxVersion: 1, Node: "raw", Epoch: epochA, WantNode: "b", WantEpoch: epochB, Providers: []string{"tcp"}}
	f.Add(frame(f, wire.KindHello, 1, &good, nil))
	f.Add([]byte("KVXF"))
	f.Add([]byte("\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00"))
	f.Add([]byte("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Add([]byte{})
	b := newNode(f, "b", epochB, over(identityOf(f, certtest.New("ca"), "b")))
	f.Fuzz(func(t *testing.T, in []byte) {
		c := raw(t, b.addr)
		go func() {
			_, _ = c.Write(in)
			_ = c.(*net.TCPConn).CloseWrite()
		}()
		got, err := io.ReadAll(c)
		require.False(t, isTimeout(err), "the connection stays open")
		if len(got) > 0 {
			frames := strings.HasPrefix(string(in), controlPrefix) && strings.HasPrefix(string(got), controlPrefix)
			records := peertls.First(in) && (got[0] == 0x15 || got[0] == 0x16)
			require.True(t, frames || records, "%q is answered with %q", in, got)
		}
		_ = c.Close()
		require.Empty(t, b.h.links())
	})
}

// What the handshake of TLS needs of a node ends with the node.
func TestCloseEndsHandshakes(t *testing.T) {
	b := newNode(t, "b", epochB, over(identityOf(t, certtest.New("ca"), "b")), func(o *Options) { o.HelloTimeout = time.Hour })
	c := raw(t, b.addr)
	send(t, c, []byte("\x16\x03\x01"))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, b.Close(ctx))
	ends(t, c)
}
