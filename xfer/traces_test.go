package xfer_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/xfer"
)

const theTrace = "0123456789abcdef0123456789abcdef"

// spanMemory is a node's memory of one trace in a test: a line for each tenant, and the nodes that it names.
type spanMemory struct {
	own   string
	nodes map[string]string   // epochs by name
	lines map[string]string   // by tenant
	named map[string][]string // by tenant
	err   error
}

func (m *spanMemory) Find(w xfer.Whose, id string, most int) (xfer.FoundTrace, error) {
	if m.err != nil {
		return xfer.FoundTrace{}, m.err
	}
	f := xfer.FoundTrace{TraceID: theTrace}
	for _, tenant := range []string{"blue", "red"} {
		if line := m.lines[tenant]; line != "" && (w.All || w.Tenant == tenant) {
			f.Lines = append(f.Lines, line+"\n"...)
			for _, n := range m.named[tenant] {
				f.Named = append(f.Named, xfer.NamedNode{Node: n, Tenant: tenant})
			}
		}
	}
	if len(f.Lines) == 0 || !strings.HasPrefix(theTrace, id) {
		return xfer.FoundTrace{}, fault.New(fault.NotFound, "trace", "none")
	}
	if len(f.Lines) > most {
		f.Lines, f.LeftOff = nil, 1
	}
	return f, nil
}

func (m *spanMemory) Node(tenant, name string) (xfer.PeerRef, bool) {
	epoch, ok := m.nodes[name]
	return xfer.PeerRef{Node: name, Epoch: epoch, Tenant: tenant}, ok
}

func (m *spanMemory) Nodes(tenant string) (out []xfer.PeerRef) {
	for name := range m.nodes {
		if name != m.own {
			ref, _ := m.Node(tenant, name)
			out = append(out, ref)
		}
	}
	return out
}

// remembering makes a network whose nodes remember: of each node, by tenant, the nodes that its spans name.
func remembering(t *testing.T, what map[string]map[string][]string) (*network, map[string]*spanMemory) {
	memories := map[string]*spanMemory{}
	var names []string
	for name := range what {
		names = append(names, name)
		memories[name] = &spanMemory{lines: map[string]string{}, named: what[name]}
		for tenant := range what[name] {
			memories[name].lines[tenant] = name + "/" + tenant
		}
	}
	net := &network{nodes: map[string]*node{}, clock: func(string) xfer.Clock { return xfer.NewClock() }, caches: map[string]netCache{},
		traces: func(name string) xfer.Traces { return memories[name] }}
	t.Cleanup(net.close)
	epochs := map[string]string{}
	for i, name := range names {
		epochs[name] = fmt.Sprintf("%032x", i+1)
		net.nodes[name] = newNode(t, net, name, epochs[name])
		memories[name].own, memories[name].nodes = name, epochs
	}
	return net, memories
}

// asking attaches a client of a user who is not the daemon's.
func asking(tenant string, uid int) xfer.ClientInfo { return xfer.ClientInfo{Tenant: tenant, Uid: uid} }

func query(id string) wire.TraceQuery { return wire.TraceQuery{ID: id, TimeoutMillis: 30_000} }

func lineSet(b []byte) map[string]int {
	out := map[string]int{}
	for _, l := range strings.Fields(string(b)) {
		out[l]++
	}
	return out
}

const nobody = 1 << 30 // a user who is neither root nor the test's

func TestTraceFollowsTheNamedNodes(t *testing.T) {
	net, memories := remembering(t, map[string]map[string][]string{
		"a": {"red": {"b", "gone", "a"}, "blue": {"d"}},
		"b": {"red": {"a", "c"}},
		"c": {"red": {"b"}, "blue": {}},
		"d": {"blue": {"a"}},
		"e": {},
	})
	a := net.nodes["a"]
	for name, x := range map[string]struct {
		node, tenant string
		uid          int
		id           string
		want         []string
		unasked      []string
	}{
		"a tenant's own":          {"a", "red", nobody, theTrace, []string{"a/red", "b/red", "c/red"}, []string{"gone"}},
		"the other tenant":        {"a", "blue", nobody, theTrace[:3], []string{"a/blue", "d/blue"}, nil},
		"root sees all of a node": {"a", "red", 0, theTrace, []string{"a/red", "a/blue", "b/red", "c/red", "d/blue"}, []string{"gone"}},
		"not kept here":           {"e", "red", nobody, theTrace[:5], []string{"a/red", "b/red", "c/red"}, []string{"gone"}},
	} {
		t.Run(name, func(t *testing.T) {
			nd := net.nodes[x.node]
			info, lines, err := nd.engine.Trace(t.Context(), asking(x.tenant, x.uid), query(x.id))
			require.NoError(t, err)
			assert.Equal(t, theTrace, info.TraceID)
			assert.Equal(t, x.unasked, info.Unasked)
			want := map[string]int{}
			for _, w := range x.want {
				want[w] = 1
			}
			assert.Equal(t, want, lineSet(lines))
		})
	}
	local := query(theTrace)
	local.LocalOnly = true
	_, lines, err := a.engine.Trace(t.Context(), asking("red", nobody), local)
	require.NoError(t, err)
	assert.Equal(t, "a/red\n", string(lines))
	_, lines, err = a.engine.Trace(t.Context(), asking("red", nobody), query(""))
	require.NoError(t, err)
	assert.Equal(t, "a/red\n", string(lines), "of every trace, nobody else's")

	for _, x := range []struct {
		node, tenant, id string
		want             error
	}{
		{"a", "green", theTrace, fault.ErrNotFound}, {"a", "red", "ffff", fault.ErrNotFound}, {"e", "red", wire.TraceLatest, fault.ErrNotFound},
		{"a", "red", "X", fault.ErrInvalidArgument},
	} {
		nd := net.nodes[x.node]
		_, _, err := nd.engine.Trace(t.Context(), asking(x.tenant, nobody), query(x.id))
		require.ErrorIs(t, err, x.want, fmt.Sprint(x))
	}

	memories["b"].err = fault.New(fault.NotSupported, "trace", "it keeps nothing")
	info, lines, err := a.engine.Trace(t.Context(), asking("red", nobody), query(theTrace))
	require.NoError(t, err)
	assert.Equal(t, []string{"b", "gone"}, info.Unasked, "what a node that keeps nothing had is missing")
	assert.Equal(t, "a/red\n", string(lines))
}

// TestTraceAnswersAreBounded: one question a client at a time, lines of a node and of all of them together.
func TestTraceAnswersAreBounded(t *testing.T) {
	many := map[string]map[string][]string{"a": {"red": nil}}
	const others = 30
	for i := range others {
		name := fmt.Sprint("n", i)
		many["a"]["red"] = append(many["a"]["red"], name)
		many[name] = map[string][]string{"red": {}}
	}
	net, memories := remembering(t, many)
	for i := range others {
		memories[fmt.Sprint("n", i)].lines["red"] = strings.Repeat("x", wire.MaxTraceLines-1)
	}
	a := net.nodes["a"]
	id := asking("red", nobody)
	info, lines, err := a.engine.Trace(t.Context(), id, query(theTrace))
	require.NoError(t, err)
	assert.LessOrEqual(t, len(lines), 48<<20)
	assert.NotEmpty(t, info.Unasked)

	var wg sync.WaitGroup
	var mu sync.Mutex
	refused, answered := 0, 0
	for range 16 {
		wg.Go(func() {
			_, _, err := a.engine.Trace(t.Context(), id, query(theTrace))
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				answered++
			} else {
				assert.ErrorIs(t, err, fault.ErrResourceExhausted)
				refused++
			}
		})
	}
	wg.Wait()
	assert.Positive(t, answered)
	assert.Equal(t, 16, answered+refused)
}

// TestTraceOfWrongPeers: what a peer answers is checked; then, and where it says nothing in time, what it keeps is missing.
func TestTraceOfWrongPeers(t *testing.T) {
	for name, answer := range map[string]func(l *fakeLink, request uint64){
		"silent": func(*fakeLink, uint64) {},
		"another trace": func(l *fakeLink, r uint64) {
			l.receive(wire.KindOK, r, &wire.TraceOfInfo{TraceID: strings.Repeat("a", 32)}, []byte("x\n"))
		},
		"no id": func(l *fakeLink, r uint64) { l.receive(wire.KindOK, r, &wire.TraceOfInfo{}, []byte("x\n")) },
		"no name": func(l *fakeLink, r uint64) {
			l.receive(wire.KindOK, r, &wire.TraceOfInfo{TraceID: theTrace, Peers: []string{"a/b"}}, []byte("x\n"))
		},
		"too long": func(l *fakeLink, r uint64) {
			l.receive(wire.KindOK, r, &wire.TraceOfInfo{TraceID: theTrace}, make([]byte, wire.MaxTraceLines+1))
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := &spanMemory{own: "n", nodes: map[string]string{"b": strings.Repeat("b", 32)}, lines: map[string]string{"red": "n/red"}, named: map[string][]string{"red": {"b"}}}
			n := newFakeNode(t, func(o *xfer.Options) { o.Traces = m })
			l := n.source(8)
			q := query(theTrace)
			if name == "silent" {
				q.TimeoutMillis = 20
			}
			n.wg.Go(func() { answer(l, l.take(wire.KindTraceOf).Request) })
			info, lines, err := n.engine.Trace(t.Context(), asking("red", nobody), q)
			require.NoError(t, err)
			assert.Equal(t, []string{"b"}, info.Unasked)
			assert.Equal(t, "n/red\n", string(lines))
		})
	}
}

// TestTraceOfIsChecked: a peer that asks wrongly is refused, or has broken the protocol.
func TestTraceOfIsChecked(t *testing.T) {
	m := &spanMemory{own: "n", lines: map[string]string{"red": "n/red"}}
	n := newFakeNode(t, func(o *xfer.Options) { o.Traces = m })
	l := n.target()
	l.receive(wire.KindTraceOf, 1, &wire.TraceOf{ID: "latest"}, nil)
	assert.EqualValues(t, 1, l.take(wire.KindError).Request)
	l.receive(wire.KindTraceOf, 2, &wire.TraceOf{ID: theTrace}, nil) // the link is of another tenant
	refused := l.take(wire.KindError)
	var w fault.Wire
	require.NoError(t, refused.Decode(&w))
	assert.Equal(t, "NotFound", w.Name)
	l.receive(wire.KindTraceOf, 3, &wire.TraceOf{ID: theTrace}, []byte("x"))
	n.until(l.down.Load)

	without := newFakeNode(t, nil)
	l = without.target()
	l.receive(wire.KindTraceOf, 1, &wire.TraceOf{ID: theTrace}, nil)
	refused = l.take(wire.KindError)
	require.NoError(t, refused.Decode(&w))
	assert.Equal(t, "NotSupported", w.Name)
	_, _, err := without.engine.Trace(t.Context(), asking("red", nobody), query(theTrace))
	require.ErrorIs(t, err, fault.ErrNotSupported)
}
