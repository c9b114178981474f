package localapi

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/xfer"
)

func TestHello(t *testing.T) {
	e := newEngine(t)
	o := options(t, e)
	o.AllowTenants = map[string][]int{"team": nil, "mine": {7, unix.Getuid()}, "theirs": {unix.Getuid() + 1}}
	s := serve(t, o)
	c := dial(t, s)
	f := c.ask(wire.KindHello, &wire.Hello{MinVersion: 1, MaxVersion: 9, Tenant: "team", Process: "decode", Pid: 77, Software: "x 1"}, nil)
	require.Equal(t, wire.KindHelloOK, f.Kind)
	var h wire.Hello
	require.NoError(t, f.Decode(&h))
	assert.Equal(t, wire.Hello{MinVersion: 1, MaxVersion: 1, Version: 1, Tenant: "team", Software: "kvxfer test", Node: "node-0",
		Epoch: strings.Repeat("ab", 16), BootID: "boot", ProcessWatched: true}, h)
	assert.Equal(t, xfer.ClientInfo{Tenant: "team", Process: "decode", Pid: 77, Uid: unix.Getuid()}, e.info(1))

	c = dial(t, s)
	require.Equal(t, wire.KindHelloOK, c.ask(wire.KindHello, &wire.Hello{MinVersion: 1, MaxVersion: 1}, nil).Kind)
	assert.Equal(t, xfer.ClientInfo{Tenant: "default", Pid: unix.Getpid(), Uid: unix.Getuid()}, e.info(2))

	c = dial(t, s)
	require.Equal(t, wire.KindHelloOK, c.ask(wire.KindHello, &wire.Hello{MinVersion: 1, MaxVersion: 1, Tenant: "mine"}, nil).Kind)
	assert.Equal(t, "mine", e.info(3).Tenant)

	for name, h := range map[string]struct {
		hello    wire.Hello
		sentinel error
		field    string
	}{
		"version":             {wire.Hello{MinVersion: 5, MaxVersion: 9}, fault.ErrVersionMismatch, ""},
		"range":               {wire.Hello{}, fault.ErrProtocolViolation, "max_version"},
		"feature":             {wire.Hello{MinVersion: 1, MaxVersion: 1, Required: []string{"rings"}}, fault.ErrFeatureRequired, ""},
		"tenant":              {wire.Hello{MinVersion: 1, MaxVersion: 1, Tenant: "a b"}, fault.ErrInvalidArgument, "tenant"},
		"unknown tenant":      {wire.Hello{MinVersion: 1, MaxVersion: 1, Tenant: "nobody"}, fault.ErrPermissionDenied, "tenant"},
		"other users' tenant": {wire.Hello{MinVersion: 1, MaxVersion: 1, Tenant: "theirs"}, fault.ErrPermissionDenied, "tenant"},
		"pid":                 {wire.Hello{MinVersion: 1, MaxVersion: 1, Pid: -1}, fault.ErrInvalidArgument, "pid"},
	} {
		t.Run(name, func(t *testing.T) {
			c := dial(t, s)
			id := c.send(wire.KindHello, &h.hello, nil)
			c.refused(id, h.sentinel, h.field)
			c.ended()
		})
	}
	t.Run("draining", func(t *testing.T) {
		e.mu.Lock()
		e.addErr = fault.New(fault.Draining, "connect", "going")
		e.mu.Unlock()
		c := dial(t, s)
		id := c.send(wire.KindHello, hello(), nil)
		c.refused(id, fault.ErrDraining, "")
		c.ended()
	})
}

func TestHelloTimeout(t *testing.T) {
	o := options(t, newEngine(t))
	o.Limits.Hello = 10 * time.Millisecond
	s := serve(t, o)
	c := dial(t, s)
	c.refused(0, fault.ErrDeadlineExceeded, "")
	c.ended()
}

func TestRequests(t *testing.T) {
	e := newEngine(t)
	o := options(t, e)
	o.Status = func() wire.Status { return wire.Status{Node: "node-0", Clients: 3} }
	e.blocks = wire.AppendBlockEntries(nil, []wire.BlockEntry{{Block: 1, State: 2, Generation: 3}})
	c := attach(t, serve(t, o))
	blocks := wire.AppendU32s(nil, []uint32{4, 5})

	assert.Empty(t, c.ask(wire.KindPing, nil, nil).JSON)
	assert.Equal(t, wire.Status{Node: "node-0", Clients: 3}, body[wire.Status](t, c.ask(wire.KindStatus, nil, nil)))
	fd := memfd(t, 8192)
	assert.Equal(t, wire.RegionInfo{Region: 7, MemoryKind: "host"}, body[wire.RegionInfo](t, c.ask(wire.KindRegisterRegion, region("kv", 8192), nil, fd)))
	require.NoError(t, unix.Close(fd))
	f := c.ask(wire.KindRegisterCache, cache("c"), wire.AppendVouches(nil, []wire.Vouch{{Block: 1, Generation: 2}}))
	assert.Equal(t, wire.CacheInfo{Cache: 3, BlockBytes: 4096}, body[wire.CacheInfo](t, f))
	assert.Equal(t, wire.AppendU32s(nil, []uint32{1, 2}), f.Array)
	f = c.ask(wire.KindBlocks, &wire.BlocksQuery{Cache: 3}, nil)
	assert.Equal(t, wire.BlocksInfo{Total: 9}, body[wire.BlocksInfo](t, f))
	assert.Equal(t, e.blocks, f.Array)
	assert.Equal(t, wire.LeaseInfo{Lease: 11, Ticket: "t", Generation: 5},
		body[wire.LeaseInfo](t, c.ask(wire.KindLease, &wire.LeaseRequest{Cache: 3, Mode: "write", TTLMillis: 1000}, blocks)))
	assert.Equal(t, wire.PushInfo{Transfer: 21}, body[wire.PushInfo](t, c.ask(wire.KindPush, &wire.PushRequest{Cache: 3, Ticket: "t", TimeoutMillis: 1}, blocks)))
	c.send(wire.KindPushLayer, nil, wire.AppendLayerPart(nil, wire.LayerPart{Transfer: 21, Layer: 1, First: 2, Count: 3}))
	c.send(wire.KindPushFinish, &wire.PushFinish{Transfer: 21}, []byte("token"))
	c.send(wire.KindPushCancel, &wire.PushCancel{Transfer: 22}, nil)
	assert.Equal(t, wire.KindOK, c.ask(wire.KindRevoke, &wire.Revoke{Lease: 11}, nil).Kind)
	assert.Equal(t, wire.KindOK, c.ask(wire.KindRenew, &wire.Renew{Lease: 11, TTLMillis: 5}, nil).Kind)
	assert.Equal(t, wire.LeaseInfo{Lease: 31, Ticket: "t"}, body[wire.LeaseInfo](t, c.ask(wire.KindAdvertise, &wire.Advertise{Region: 7, Mode: "read", TTLMillis: 1},
		wire.AppendRegionSpans(nil, []wire.RegionSpan{{Off: 1, Len: 2}}))))
	assert.Equal(t, wire.PushInfo{Transfer: 32}, body[wire.PushInfo](t, c.ask(wire.KindPull, &wire.PullRequest{Cache: 3, Ticket: "t", TimeoutMillis: 1, Notification: []byte("n")}, blocks)))
	assert.Equal(t, wire.PushInfo{Transfer: 33}, body[wire.PushInfo](t, c.ask(wire.KindScatter, &wire.ScatterRequest{Region: 7, Mode: "write", Ticket: "t", TimeoutMillis: 1},
		wire.AppendScatterRanges(nil, []wire.ScatterRange{{Local: 1, Remote: 2, Len: 3}}))))
	assert.Equal(t, wire.KindOK, c.ask(wire.KindEvict, &wire.Evict{Cache: 3}, blocks).Kind)
	assert.Equal(t, wire.KindOK, c.ask(wire.KindDeregisterRegion, &wire.DeregisterRegion{Region: 7}, nil).Kind)
	id := c.send(wire.KindDropCache, &wire.DropCache{Cache: 8}, nil)
	c.refused(id, fault.ErrNotFound, "")

	assert.Equal(t, []string{"add", "region kv 8192", "cache c [{1 2}]", "blocks 3", "lease 3 [4 5]", "push 3 [4 5]",
		"layer {21 1 2 3}", "finish 21 token", "cancel 22", "revoke 11", "renew 11 5", "advertise 7 read [{1 2}]", `pull 3 t [4 5] "n"`,
		"scatter 7 write t [{1 2 3}]", "evict 3 [4 5]", "deregister 7", "drop 8"}, e.log())
}

func TestFieldsOutOfRange(t *testing.T) {
	e := newEngine(t)
	c := attach(t, serve(t, options(t, e)))
	one := wire.AppendU32s(nil, []uint32{1})
	noName, noModel := cache(""), cache("c")
	noModel.Model = ""
	for name, r := range map[string]struct {
		kind  wire.Kind
		body  any
		array []byte
		field string
	}{
		"cache name":    {wire.KindRegisterCache, noName, nil, "name"},
		"cache model":   {wire.KindRegisterCache, noModel, nil, "model"},
		"lease mode":    {wire.KindLease, &wire.LeaseRequest{Mode: "peek", TTLMillis: 1}, one, "mode"},
		"lease ttl":     {wire.KindLease, &wire.LeaseRequest{Mode: "write"}, one, "ttl_ms"},
		"push time-out": {wire.KindPush, &wire.PushRequest{TimeoutMillis: -1}, one, "timeout_ms"},
		"push span":     {wire.KindPush, &wire.PushRequest{TimeoutMillis: 1, SpanID: "x"}, one, "span_id"},
	} {
		t.Run(name, func(t *testing.T) {
			id := c.send(r.kind, r.body, r.array)
			fe := c.refused(id, fault.ErrInvalidArgument, r.field)
			assert.Contains(t, fe.Detail, "allowed")
		})
	}
	for name, r := range map[string]struct {
		kind  wire.Kind
		body  any
		array []byte
		field string
	}{
		"body of wrong type": {wire.KindRevoke, map[string]any{"lease": "x"}, nil, "lease"},
		"no body":            {wire.KindLease, nil, one, "body"},
		"odd blocks":         {wire.KindEvict, &wire.Evict{}, []byte{1, 2, 3}, "blocks"},
		"odd vouches":        {wire.KindRegisterCache, cache("c"), []byte{1, 2, 3}, "vouched"},
		"array unasked":      {wire.KindPing, nil, []byte{1}, "array_length"},
		"no descriptor":      {wire.KindRegisterRegion, region("kv", 4096), nil, "fd_count"},
	} {
		t.Run(name, func(t *testing.T) {
			id := c.send(r.kind, r.body, r.array)
			c.refused(id, fault.ErrProtocolViolation, r.field)
		})
	}
	assert.Equal(t, wire.KindOK, c.ask(wire.KindPing, nil, nil).Kind, "the connection goes on")
	assert.Equal(t, []string{"add"}, e.log(), "nothing reached the engine")
}

func TestViolations(t *testing.T) {
	s := serve(t, options(t, newEngine(t)))
	frame := func(f wire.Frame) []byte { return wire.Append(nil, f) }
	bad := func(change func([]byte)) []byte {
		b := frame(wire.Frame{Kind: wire.KindPing, Request: 9})
		change(b)
		return b
	}
	layer := wire.AppendLayerPart(nil, wire.LayerPart{})
	for name, c := range map[string]struct {
		bytes    []byte
		sentinel error
		field    string
	}{
		"magic":                {bad(func(b []byte) { b[0] = 'X' }), fault.ErrProtocolViolation, "magic"},
		"frame version":        {bad(func(b []byte) { b[4] = 2 }), fault.ErrProtocolViolation, "version"},
		"JSON too long":        {bad(func(b []byte) { b[19] = 1 }), fault.ErrProtocolViolation, "json_length"},
		"array too long":       {bad(func(b []byte) { b[23] = 0xff }), fault.ErrProtocolViolation, "array_length"},
		"descriptors too many": {bad(func(b []byte) { b[24] = 17 }), fault.ErrProtocolViolation, "fd_count"},
		"descriptor missing":   {bad(func(b []byte) { b[24] = 1 }), fault.ErrProtocolViolation, "fd_count"},
		"unknown kind":         {frame(wire.Frame{Kind: 0x7f, Request: 9}), fault.ErrProtocolViolation, "kind"},
		"kind of peers":        {frame(wire.Frame{Kind: wire.KindBind, Request: 9}), fault.ErrProtocolViolation, "kind"},
		"kind of the daemon":   {frame(wire.Frame{Kind: wire.KindEventLease}), fault.ErrProtocolViolation, "kind"},
		"second HELLO":         {frame(wire.Frame{Kind: wire.KindHello, Request: 9}), fault.ErrProtocolViolation, "kind"},
		"request id 0":         {frame(wire.Frame{Kind: wire.KindPing}), fault.ErrProtocolViolation, "request_id"},
		"short layer part":     {frame(wire.Frame{Kind: wire.KindPushLayer, Array: layer[1:]}), fault.ErrProtocolViolation, "layer_part"},
		"finish without body":  {frame(wire.Frame{Kind: wire.KindPushFinish}), fault.ErrProtocolViolation, "body"},
		"cancel with array":    {frame(wire.Frame{Kind: wire.KindPushCancel, JSON: []byte("{}"), Array: layer}), fault.ErrProtocolViolation, "array_length"},
		"spans of wrong type":  {frame(wire.Frame{Kind: wire.KindSpans, JSON: []byte(`{"spans":1}`)}), fault.ErrProtocolViolation, "spans"},
		"large notification": {frame(wire.Frame{Kind: wire.KindPushFinish, JSON: []byte(`{"transfer":1}`),
			Array: make([]byte, wire.MaxNotification+1)}), fault.ErrInvalidArgument, "notification"},
	} {
		t.Run(name, func(t *testing.T) {
			cl := attach(t, s)
			cl.raw(c.bytes)
			cl.refused(0, c.sentinel, c.field)
			cl.ended()
		})
		t.Run(name+" instead of HELLO", func(t *testing.T) {
			cl := dial(t, s)
			cl.raw(c.bytes)
			f := cl.recv()
			assert.Equal(t, wire.KindError, f.Kind)
			cl.ended()
		})
	}
	t.Run("HELLO with id 0", func(t *testing.T) {
		cl := dial(t, s)
		cl.raw(frame(wire.Frame{Kind: wire.KindHello, JSON: []byte(`{"min_version":1,"max_version":1}`)}))
		cl.refused(0, fault.ErrProtocolViolation, "request_id")
		cl.ended()
	})
	t.Run("the client's own ERROR", func(t *testing.T) {
		cl := attach(t, s)
		cl.raw(frame(wire.NewError(0, errors.New("bye"))))
		cl.ended()
	})
}

func TestQuickKindsOvertake(t *testing.T) {
	e := newEngine(t)
	release := make(chan struct{})
	e.evict = func(ctx context.Context) error {
		select {
		case <-release:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	c := attach(t, serve(t, options(t, e)))
	slow := c.send(wire.KindEvict, &wire.Evict{Cache: 1}, wire.AppendU32s(nil, []uint32{9}))
	e.wait("evict", 1)
	after := c.send(wire.KindLease, &wire.LeaseRequest{Cache: 1, Mode: "write", TTLMillis: 1}, wire.AppendU32s(nil, []uint32{9}))
	c.send(wire.KindPushLayer, nil, wire.AppendLayerPart(nil, wire.LayerPart{Transfer: 5}))
	ping := c.send(wire.KindPing, nil, nil)
	assert.Equal(t, ping, c.recv().Request)
	e.wait("layer", 1)
	assert.Equal(t, []string{"add", "evict 1 [9]", "layer {5 0 0 0}"}, e.log(), "LEASE waits for EVICT")
	close(release)
	assert.Equal(t, slow, c.recv().Request)
	assert.Equal(t, after, c.recv().Request)
}

func TestRequestQueueIsBounded(t *testing.T) {
	e := newEngine(t)
	e.evict = func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	}
	o := options(t, e)
	o.Limits.Requests = 3
	o.Limits.RequestBytes = 1000
	s := serve(t, o)
	t.Run("count", func(t *testing.T) {
		c := attach(t, s)
		c.send(wire.KindEvict, &wire.Evict{}, nil)
		e.wait("evict", 1)
		for range 3 {
			c.send(wire.KindBlocks, &wire.BlocksQuery{}, nil)
		}
		id := c.send(wire.KindBlocks, &wire.BlocksQuery{}, nil)
		c.refused(id, fault.ErrResourceExhausted, "")
		assert.Equal(t, wire.KindOK, c.ask(wire.KindPing, nil, nil).Kind)
	})
	t.Run("bytes and descriptors", func(t *testing.T) {
		c := attach(t, s)
		c.send(wire.KindEvict, &wire.Evict{}, nil)
		e.wait("evict", 2)
		c.send(wire.KindEvict, &wire.Evict{}, make([]byte, 4000)) // one is taken whatever its size
		fd := memfd(t, 4096)
		id := c.send(wire.KindRegisterRegion, region("kv", 4096), nil, fd)
		require.NoError(t, unix.Close(fd))
		c.refused(id, fault.ErrResourceExhausted, "")
		fds, _ := leaks(t)
		assert.Zero(t, fds)
	})
}

func TestSpans(t *testing.T) {
	e := newEngine(t)
	o := options(t, e)
	type got struct {
		span wire.ClientSpan
		info xfer.ClientInfo
	}
	spans := make(chan got, 8)
	o.Spans = func(s wire.ClientSpan, i xfer.ClientInfo) error {
		spans <- got{s, i}
		return fault.Invalid("record_span", "name", "wrong")
	}
	c := attach(t, serve(t, o))
	c.send(wire.KindSpans, &wire.Spans{Spans: []wire.ClientSpan{{Name: "a"}, {Name: "b"}}}, nil)
	assert.Equal(t, wire.KindOK, c.ask(wire.KindPing, nil, nil).Kind, "a wrong span costs no connection")
	assert.Equal(t, "a", (<-spans).span.Name)
	b := <-spans
	assert.Equal(t, "b", b.span.Name)
	assert.Equal(t, 42, b.info.Pid)
}
