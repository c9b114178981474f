package verbs

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/peertls"
	"github.com/kvxfer/kvxfer/internal/peertls/certtest"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/verbs/internal/softnic"
)

// peerName is what the certificate of these tests is for.
const peerName = "target"

func newIdentity(t testing.TB) *peertls.Identity {
	cert, key, ca, err := certtest.New("sides").Write(t.TempDir(), certtest.Leaf{DNS: []string{peerName}})
	require.NoError(t, err)
	id, err := peertls.Load(peertls.Files{Cert: cert, Key: key, CA: ca}, peerName, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	return id
}

// secureNode is a host with a provider whose port speaks TLS where there is an identity.
func secureNode(t testing.TB, h *softnic.Host, id *peertls.Identity, secure bool) *suiteNode {
	opt := open(Options{Host: h, LanesPerRail: 1})
	if id != nil {
		opt.TLS = id.LaneClient
	}
	p, err := New(opt)
	require.NoError(t, err)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				if secure {
					s, err := id.Server(context.Background(), c)
					if err != nil {
						_ = c.Close()
						return
					}
					c = s
				}
				_ = p.ServeSide(c, nil)
			})
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		require.NoError(t, p.Close())
		wg.Wait()
	})
	return &suiteNode{p, ln.Addr().String()}
}

// Keys travel over TLS where the node has certificates, to the node that is meant and to no other; both sides say why when one wants
// TLS and the other does not.
func TestSideChannelsOverTLS(t *testing.T) {
	id := newIdentity(t)
	f := softnic.New(softnic.Options{Seed: 1})
	a := secureNode(t, f.Host("a", softDevices(1)[:1]...), id, true)
	b := secureNode(t, f.Host("b", softDevices(2)[:1]...), id, true)
	plain := secureNode(t, f.Host("c", softDevices(3)[:1]...), nil, false)
	lax := secureNode(t, f.Host("d", softDevices(4)[:1]...), id, false) // a port that lets clear channels through
	ctx := peertls.WithPeer(t.Context(), peerName)
	var ids rdma.SessionID
	connect := func(ctx context.Context, from, to *suiteNode) (rdma.Initiator, rdma.Target, error) {
		ids++
		tgt, par, err := to.Accept(ids)
		require.NoError(t, err)
		ini, err := from.Connect(ctx, ids, to.addr, par)
		return ini, tgt, err
	}
	_, _, err := connect(ctx, plain, b)
	requireCode(t, fault.PermissionDenied, err)
	_, _, err = connect(ctx, a, plain)
	requireCode(t, fault.PermissionDenied, err)
	_, _, err = connect(peertls.WithPeer(t.Context(), "somebody-else"), a, b)
	requireCode(t, fault.PermissionDenied, err)
	_, par, err := lax.Accept(1)
	require.NoError(t, err)
	h := helloFor(t, par)
	require.Equal(t, fault.PermissionDenied, dialRaw(t, lax.addr, h.bytes()).answer())

	ini, tgt, err := connect(ctx, a, b)
	require.NoError(t, err)
	src, dst := mapped(t, 64<<10), mapped(t, 64<<10)
	pattern(src, 1)
	bounds, err := rdma.NewSpans(64<<10, rdma.Span{Len: 64 << 10})
	require.NoError(t, err)
	key, err := tgt.Grant(rdma.Window{Region: register(t, b.Provider, dst, "dst"), Access: rdma.AccessWrite, Bounds: bounds})
	require.NoError(t, err)
	_, err = ini.Post([]rdma.Op{{Kind: rdma.OpWrite, ID: 1, Local: register(t, a.Provider, src, "src"), Remote: key, Ranges: []rdma.Range{{Len: 64 << 10}}}})
	require.NoError(t, err)
	wait, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, a.Wait(wait))
	var e [1]rdma.Event
	require.Equal(t, 1, a.Poll(e[:]))
	require.Zero(t, e[0].Status)
	require.NoError(t, tgt.Fence(key))
	require.Equal(t, bytes.Clone(src), bytes.Clone(dst))
}
