package localapi

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
)

func lookup() *wire.Lookup {
	c := cache("c")
	return &wire.Lookup{Model: "m", Layout: c.Layout, KeyBytes: 2, TimeoutMillis: 1000}
}

func opening() *wire.Open {
	return &wire.Open{Node: "n", Epoch: strings.Repeat("ab", 16), Addr: "a:1", Cache: "c", Model: "m", Layout: cache("c").Layout, KeyBytes: 2,
		TTLMillis: 1, TimeoutMillis: 1}
}

func ofInstance() *wire.LeaseRequest {
	return &wire.LeaseRequest{Instance: "i", InstanceKey: make([]byte, 16), Mode: "write", TTLMillis: 1}
}

func TestKeysAndInstances(t *testing.T) {
	e := newEngine(t)
	c := attach(t, serve(t, options(t, e)))
	blocks := wire.AppendU32s(nil, []uint32{4, 5})
	assert.Equal(t, wire.PublishInfo{Generation: 6}, body[wire.PublishInfo](t, c.ask(wire.KindPublish, &wire.Publish{Cache: 3, KeyBytes: 2}, append(blocks, "aabb"...))))
	assert.Len(t, body[wire.LookupInfo](t, c.ask(wire.KindLookup, lookup(), []byte("aabb"))).Holders, 1)
	assert.Equal(t, wire.OpenInfo{Ticket: "o"}, body[wire.OpenInfo](t, c.ask(wire.KindOpen, opening(), []byte("aa"))))
	assert.Equal(t, wire.LeaseInfo{Lease: 12, Ticket: "i", Ranks: 2}, body[wire.LeaseInfo](t, c.ask(wire.KindLease, ofInstance(), blocks)))
	assert.Equal(t, wire.KindEventLayers, c.recv().Kind, "behind the answer")
	traced := c.ask(wire.KindTrace, &wire.TraceQuery{ID: wire.TraceLatest, TimeoutMillis: 1}, nil)
	assert.Equal(t, "{}\n", string(traced.Array))
	assert.Equal(t, strings.Repeat("ab", 16), body[wire.TraceInfo](t, traced).TraceID)
	assert.Equal(t, []string{"add", "publish 3 [4 5] [aa bb]", "lookup m aabb", "open n c aa", "lease of i [4 5]", "trace latest false"}, e.log())

	e.sink(1).Granted(wire.GrantedEvent{Lease: 5, Cache: 3, Mode: "write"}, []uint32{4, 5})
	f := c.recv()
	assert.Equal(t, wire.KindEventGranted, f.Kind)
	assert.Equal(t, blocks, f.Array)
	var ev wire.GrantedEvent
	require.NoError(t, f.Decode(&ev))
	assert.Equal(t, wire.GrantedEvent{Lease: 5, Cache: 3, Mode: "write"}, ev)

	for name, x := range map[string]struct {
		kind  wire.Kind
		body  any
		array string
		want  error
		field string
	}{
		"publish: half a pair":   {wire.KindPublish, &wire.Publish{Cache: 3, KeyBytes: 2}, "12345", fault.ErrProtocolViolation, "keys"},
		"publish: no key length": {wire.KindPublish, &wire.Publish{Cache: 3}, "", fault.ErrInvalidArgument, "key_bytes"},
		"lookup: half a key":     {wire.KindLookup, lookup(), "aab", fault.ErrProtocolViolation, "keys"},
		"lookup: no key":         {wire.KindLookup, lookup(), "", fault.ErrInvalidArgument, "keys"},
		"open: no time":          {wire.KindOpen, func() any { o := opening(); o.TTLMillis = 0; return o }(), "aa", fault.ErrInvalidArgument, "ttl_ms"},
		"trace: no id":           {wire.KindTrace, &wire.TraceQuery{ID: "x", TimeoutMillis: 1}, "", fault.ErrInvalidArgument, "id"},
		"trace: no time":         {wire.KindTrace, &wire.TraceQuery{ID: "1"}, "", fault.ErrInvalidArgument, "timeout_ms"},
		"lease: no key":          {wire.KindLease, func() any { l := ofInstance(); l.InstanceKey = nil; return l }(), "1234", fault.ErrInvalidArgument, "instance_key"},
		"lease: half an id":      {wire.KindLease, ofInstance(), "123", fault.ErrProtocolViolation, "blocks"},
	} {
		t.Run(name, func(t *testing.T) {
			c.refused(c.send(x.kind, x.body, []byte(x.array)), x.want, x.field)
		})
	}
}

// TestLongRequestsHoldUpNothing has requests that wait for other nodes: what comes behind them is answered, their number
// is bounded, and the client's end ends them before ClientGone.
func TestLongRequestsHoldUpNothing(t *testing.T) {
	e := newEngine(t)
	e.far = func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	}
	o := options(t, e)
	o.Limits.Requests = 3
	s := serve(t, o)
	c := attach(t, s)
	c.send(wire.KindLookup, lookup(), []byte("aa"))
	c.send(wire.KindLease, ofInstance(), wire.AppendU32s(nil, []uint32{1}))
	c.send(wire.KindLookup, lookup(), []byte("bb"))
	e.wait("lookup", 2)
	e.wait("lease of", 1)
	require.Equal(t, wire.KindOK, c.ask(wire.KindBlocks, &wire.BlocksQuery{Cache: 3}, nil).Kind)
	c.refused(c.send(wire.KindLookup, lookup(), []byte("cc")), fault.ErrResourceExhausted, "")
	require.NoError(t, c.conn.Close())
	e.wait("gone", 1)
	assert.Equal(t, 2, e.count("lookup"))
}
