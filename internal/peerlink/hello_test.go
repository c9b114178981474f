package peerlink

import (
	"context"
	"encoding/binary"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/xfer"
)

func TestHello(t *testing.T) {
	a, b := newNode(t, "a", epochA), newNode(t, "b", epochB)
	l := dial(t, a, b.ref())
	assert.Equal(t, []xfer.Link{l}, a.h.links(), "the caller gets the link after LinkUp")
	m := accepted(t, b, 0)

	assert.Equal(t, xfer.PeerRef{Node: "b", Epoch: epochB, Addr: b.addr, Tenant: "blue"}, l.Peer())
	assert.Equal(t, xfer.PeerRef{Node: "a", Epoch: epochA, Addr: l.conn.LocalAddr().String(), Tenant: "blue"}, m.Peer())
	for _, x := range []xfer.Link{l, m} {
		name, reason := x.Provider()
		assert.Equal(t, "tcp", name)
		assert.Equal(t, "tcp: the only provider both nodes have", reason)
	}
	assert.NotNil(t, l.Initiator())
	assert.Nil(t, l.Target())
	assert.Nil(t, m.Initiator())
	assert.NotNil(t, m.Target())
	assert.Equal(t, []string{b.addr}, a.fab.addrs, "lanes go where the control connection went")
}

func TestHelloOverIPv6(t *testing.T) {
	b := newNode(t, "b", epochB)
	ln, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Skipf("no IPv6 loop-back: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- b.Serve(ctx, ln) }()
	defer func() {
		cancel()
		assert.NoError(t, <-served)
	}()
	ref := b.ref()
	ref.Addr = ln.Addr().String()
	l := dial(t, newNode(t, "a", epochA), ref)
	assert.Equal(t, ref.Addr, l.Peer().Addr)
	assert.NoError(t, l.Send(wire.Frame{Kind: wire.KindFin}))
	m := accepted(t, b, 0)
	eventually(t, "frame", func() bool { return len(b.h.received(m)) == 1 })
}

func TestTenantOfAConnectionThatNamesNone(t *testing.T) {
	a, b := newNode(t, "a", epochA), newNode(t, "b", epochB)
	ref := b.ref()
	ref.Tenant = ""
	assert.Equal(t, "green", dial(t, a, ref).Peer().Tenant, "the dialer's own")

	h := helloTo(b)
	h.Tenant = ""
	ok := body[wire.Hello](t, answers(t, b, frame(t, wire.KindHello, 9, &h, nil)))
	assert.Equal(t, "green", ok.Tenant, "the acceptor's own")
}

func TestHelloRefusals(t *testing.T) {
	b := newNode(t, "b", epochB)
	for _, c := range []struct {
		name   string
		change func(*wire.Hello)
		want   fault.Code
		field  string
		detail string
	}{
		{"version", func(h *wire.Hello) { h.MinVersion, h.MaxVersion = 7, 9 }, fault.VersionMismatch, "", "7..9"},
		{"range", func(h *wire.Hello) { h.MinVersion = 0 }, fault.ProtocolViolation, "max_version", "0..1"},
		{"feature", func(h *wire.Hello) { h.Required = []string{"time_travel"} }, fault.FeatureRequired, "", "time_travel"},
		{"node", func(h *wire.Hello) { h.Node = "" }, fault.InvalidArgument, "node", "1..64"},
		{"node's name", func(h *wire.Hello) { h.Node = "a b" }, fault.InvalidArgument, "node", "1..64"},
		{"epoch", func(h *wire.Hello) { h.Epoch = "" }, fault.InvalidArgument, "epoch", "32"},
		{"tenant", func(h *wire.Hello) { h.Tenant = "/" }, fault.InvalidArgument, "tenant", "1..64"},
		{"other epoch", func(h *wire.Hello) { h.WantEpoch = epochA }, fault.StaleEpoch, "", epochA},
		{"other node", func(h *wire.Hello) { h.WantNode = "c" }, fault.StaleEpoch, "", `"c"`},
		{"nobody", func(h *wire.Hello) { h.WantNode, h.WantEpoch = "", "" }, fault.StaleEpoch, "", ""},
		{"provider", func(h *wire.Hello) { h.Providers = []string{"pigeon"} }, fault.NotSupported, "", "pigeon"},
		{"no provider", func(h *wire.Hello) { h.Providers = nil }, fault.NotSupported, "", "tcp"},
		{"provider's name", func(h *wire.Hello) { h.Providers = []string{"\x00"} }, fault.InvalidArgument, "providers", "1..64"},
		{"providers", func(h *wire.Hello) { h.Providers = make([]string, 17) }, fault.InvalidArgument, "providers", "0..16"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := helloTo(b)
			c.change(&h)
			conn := raw(t, b.addr)
			send(t, conn, frame(t, wire.KindHello, 77, &h, nil))
			f := receive(t, conn)
			w := body[fault.Wire](t, f)
			assert.Equal(t, wire.KindError, f.Kind)
			assert.Equal(t, uint64(77), f.Request)
			assert.Equal(t, c.want, w.Code, w.Detail)
			assert.Equal(t, c.field, w.Field)
			assert.Contains(t, w.Detail, c.detail)
			ends(t, conn)
		})
	}
	assert.Empty(t, b.h.links())
}

func TestFirstFrameIsHello(t *testing.T) {
	b := newNode(t, "b", epochB)
	h := helloTo(b)
	good := frame(t, wire.KindHello, 1, &h, nil)
	long := append([]byte(nil), good...)
	binary.LittleEndian.PutUint32(long[16:], helloLimits.JSON+1)
	array := append([]byte(nil), good...)
	binary.LittleEndian.PutUint32(array[20:], 1)
	version := append([]byte(nil), good...)
	version[4] = 9
	for _, c := range []struct {
		name  string
		bytes []byte
		field string
	}{
		{"another kind", frame(t, wire.KindPing, 1, nil, nil), "kind"},
		{"no request id", frame(t, wire.KindHello, 0, &h, nil), "request_id"},
		{"long", long[:wire.HeaderSize], "json_length"},
		{"with an array", array[:wire.HeaderSize], "array_length"},
		{"another frame version", version, "version"},
		{"no JSON", wire.Append(nil, wire.Frame{Kind: wire.KindHello, Request: 1, JSON: []byte("{")}), "body"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := body[fault.Wire](t, answers(t, b, c.bytes))
			assert.Equal(t, fault.ProtocolViolation, w.Code)
			assert.Equal(t, c.field, w.Field)
		})
	}
}

func TestStaleEpoch(t *testing.T) {
	a, b := newNode(t, "a", epochA), newNode(t, "b", epochB)
	ref := b.ref()
	ref.Epoch = epochA
	err := dialFails(t, a, ref, fault.ErrStaleEpoch)
	assert.Equal(t, "b", err.Peer)
	assert.True(t, err.Retryable())
	assert.Empty(t, b.h.links())
}

// What answers must be what was wanted, whatever the other side thinks of that.
func TestAnotherNodeAnswers(t *testing.T) {
	a := newNode(t, "a", epochA)
	for _, c := range []struct {
		name   string
		change func(*wire.Hello)
		want   error
	}{
		{"epoch", func(h *wire.Hello) { h.Epoch = epochA }, fault.ErrStaleEpoch},
		{"node", func(h *wire.Hello) { h.Node = "c" }, fault.ErrStaleEpoch},
		{"range", func(h *wire.Hello) { h.MinVersion, h.MaxVersion, h.Version = 2, 3, 2 }, fault.ErrVersionMismatch},
		{"version", func(h *wire.Hello) { h.MaxVersion, h.Version = 3, 2 }, fault.ErrVersionMismatch},
		{"feature", func(h *wire.Hello) { h.Required = []string{"time_travel"} }, fault.ErrFeatureRequired},
		{"provider", func(h *wire.Hello) { h.Provider = "pigeon" }, fault.ErrProtocolViolation},
		{"params", func(h *wire.Hello) { h.Params = nil }, fault.ErrInvalidArgument},
		{"reason", func(h *wire.Hello) { h.Reason = string(make([]byte, 2000)) }, fault.ErrProtocolViolation},
	} {
		t.Run(c.name, func(t *testing.T) {
			addr := peer(t, func(h wire.Hello) []byte {
				ok := goodAnswer(h)
				c.change(&ok)
				return frame(t, wire.KindHelloOK, helloRequest, &ok, nil)
			}, func(c net.Conn) { ends(t, c) })
			dialFails(t, a, xfer.PeerRef{Node: "b", Epoch: epochB, Addr: addr}, c.want)
		})
	}
	for name, b := range map[string][]byte{
		"request": frame(t, wire.KindHelloOK, 5, &wire.Hello{}, nil),
		"kind":    frame(t, wire.KindOK, helloRequest, nil, nil),
		"body":    wire.Append(nil, wire.Frame{Kind: wire.KindHelloOK, Request: helloRequest, JSON: []byte("[]")}),
		"garbage": []byte("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"),
	} {
		t.Run(name, func(t *testing.T) {
			addr := peer(t, func(wire.Hello) []byte { return b }, nil)
			err := dialFails(t, a, xfer.PeerRef{Node: "b", Epoch: epochB, Addr: addr}, fault.ErrProtocolViolation)
			assert.Equal(t, "b", err.Peer)
		})
	}
	assert.Empty(t, a.h.links())
}

func TestPeerRefuses(t *testing.T) {
	a := newNode(t, "a", epochA)
	addr := peer(t, func(wire.Hello) []byte {
		return wire.Append(nil, wire.NewError(helloRequest, fault.New(fault.PermissionDenied, "hello", "tenant blue is not served here")))
	}, nil)
	err := dialFails(t, a, xfer.PeerRef{Node: "b", Epoch: epochB, Addr: addr}, fault.ErrPermissionDenied)
	assert.Equal(t, "b", err.Peer)
	assert.False(t, err.Retryable())

	silent := peer(t, func(wire.Hello) []byte { return nil }, nil)
	dialFails(t, a, xfer.PeerRef{Node: "b", Epoch: epochB, Addr: silent}, fault.ErrPeerLost)
}

func TestChoice(t *testing.T) {
	for _, c := range []struct {
		offer, have  []string
		name, reason string
	}{
		{[]string{"tcp"}, []string{"tcp"}, "tcp", "tcp: the only provider both nodes have"},
		{[]string{"verbs", "tcp"}, []string{"tcp"}, "tcp", "tcp: the only provider both nodes have; the accepting node has no verbs"},
		{[]string{"verbs", "tcp"}, []string{"tcp", "verbs"}, "verbs", "verbs: the dialer's first choice of verbs, tcp"},
		{[]string{"shm", "verbs", "tcp"}, []string{"tcp", "verbs"}, "verbs",
			"verbs: the dialer's first choice of verbs, tcp; the accepting node has no shm"},
	} {
		name, reason, err := choose(side{names: c.offer}, side{names: c.have})
		require.NoError(t, err)
		assert.Equal(t, c.name, name)
		assert.Equal(t, c.reason, reason)
	}
	_, _, err := choose(side{names: []string{"verbs"}}, side{names: []string{"tcp"}})
	assert.ErrorIs(t, err, fault.ErrNotSupported)
}

func TestChosenProviderCarriesTheSession(t *testing.T) {
	fast := newFabric("fast")
	a := newNode(t, "a", epochA, func(o *Options) { o.Providers = append([]rdma.Provider{newFabric("verbs"), fast}, o.Providers...) })
	fastB := newFabric("fast")
	b := newNode(t, "b", epochB, func(o *Options) { o.Providers = append(o.Providers, fastB) })
	name, reason := dial(t, a, b.ref()).Provider()
	assert.Equal(t, "fast", name)
	assert.Contains(t, reason, "no verbs")
	assert.Len(t, fast.initiators, 1)
	assert.Len(t, fastB.targets, 1)
	assert.Empty(t, b.fab.targets)
}

func TestOptionsAreChecked(t *testing.T) {
	good := Options{Node: "a", Epoch: epochA, Providers: []rdma.Provider{newFabric("tcp")}, Handler: newRecorder(t)}
	for _, c := range []struct {
		field  string
		change func(*Options)
	}{
		{"node", func(o *Options) { o.Node = "" }},
		{"node", func(o *Options) { o.Node = "a b" }},
		{"epoch", func(o *Options) { o.Epoch = "12" }},
		{"epoch", func(o *Options) { o.Epoch = "" }},
		{"tenant", func(o *Options) { o.Tenant = "a b" }},
		{"Providers", func(o *Options) { o.Providers = nil }},
		{"Providers", func(o *Options) { o.Providers = append(o.Providers, newFabric("tcp")) }},
		{"Providers", func(o *Options) { o.Providers = []rdma.Provider{newFabric("")} }},
		{"Handler", func(o *Options) { o.Handler = nil }},
		{"HeartbeatEvery", func(o *Options) { o.HeartbeatEvery = time.Microsecond }},
		{"HeartbeatMisses", func(o *Options) { o.HeartbeatMisses = 1 }},
		{"HelloTimeout", func(o *Options) { o.HelloTimeout = -1 }},
		{"MaxLinks", func(o *Options) { o.MaxLinks = -1 }},
		{"MaxHandshakes", func(o *Options) { o.MaxHandshakes = -1 }},
		{"MaxQueue", func(o *Options) { o.MaxQueue = -1 }},
		{"MaxQueueBytes", func(o *Options) { o.MaxQueueBytes = -1 }},
	} {
		o := good
		c.change(&o)
		_, err := New(o)
		require.ErrorIs(t, err, fault.ErrInvalidArgument)
		assert.Equal(t, c.field, fault.From("", err).Field)
	}
}
