package localapi

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// fakeOperator notes which tenant was looked at; its drain waits.
type fakeOperator struct {
	mu      sync.Mutex
	tenants []string
}

func (o *fakeOperator) Inspect(tenant string, q wire.Inspect) (wire.InspectInfo, []byte, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.tenants = append(o.tenants, tenant)
	array, err := wire.PackRows([]wire.NodeRow{{Node: q.What}})
	return wire.InspectInfo{Next: "more"}, array, err
}

// asked lists the tenants of INSPECT so far.
func (o *fakeOperator) asked() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.tenants)
}

func (o *fakeOperator) Drain(ctx context.Context, q wire.Drain) (wire.DrainInfo, error) {
	if q.Wait {
		<-ctx.Done()
	}
	return wire.DrainInfo{Leases: 2}, ctx.Err()
}

func (o *fakeOperator) LogLevel(level string) (wire.LogLevelInfo, error) {
	return wire.LogLevelInfo{Level: level, Was: "info"}, nil
}

func observer(t testing.TB, s *Server) *testClient {
	t.Helper()
	c := dial(t, s)
	h := hello()
	h.Observer = true
	f := c.ask(wire.KindHello, h, nil)
	require.Equal(t, wire.KindHelloOK, f.Kind, "%s", f.JSON)
	return c
}

func TestObserver(t *testing.T) {
	e := newEngine(t)
	e.addErr = fault.New(fault.Draining, "connect", "the node is draining")
	o := options(t, e)
	op := &fakeOperator{}
	o.Operator = op
	s := serve(t, o)
	c := dial(t, s)
	c.refused(c.send(wire.KindHello, hello(), nil), fault.ErrDraining, "")

	c = observer(t, s)
	f := c.ask(wire.KindInspect, &wire.Inspect{What: wire.InspectNodes}, nil)
	assert.Equal(t, "more", body[wire.InspectInfo](t, f).Next)
	rows, err := wire.Rows[wire.NodeRow](f.Array)
	require.NoError(t, err)
	assert.Equal(t, []wire.NodeRow{{Node: "nodes"}}, rows)
	body[wire.Status](t, c.ask(wire.KindStatus, nil, nil))
	c.ask(wire.KindPing, nil, nil)
	assert.Equal(t, "debug", body[wire.LogLevelInfo](t, c.ask(wire.KindLogLevel, &wire.LogLevel{Level: "debug"}, nil)).Level)

	c.refused(c.send(wire.KindInspect, &wire.Inspect{What: "x"}, nil), fault.ErrInvalidArgument, "what")
	c.refused(c.send(wire.KindInspect, &wire.Inspect{What: wire.InspectNodes}, []byte("x")), fault.ErrProtocolViolation, "array_length")
	for _, k := range []wire.Kind{wire.KindRegisterRegion, wire.KindLease, wire.KindPush, wire.KindRevoke, wire.KindLookup} {
		fds := []int{}
		if k == wire.KindRegisterRegion {
			fds = append(fds, memfd(t, 4096))
		}
		c.refused(c.send(k, region("kv", 4096), nil, fds...), fault.ErrPermissionDenied, "")
		for _, fd := range fds {
			_ = os.NewFile(uintptr(fd), "").Close()
		}
	}
	noLeaks(t)
	c.send(wire.KindPushCancel, &wire.PushCancel{Transfer: 1}, nil)
	c.refused(0, fault.ErrProtocolViolation, "kind")
	c.ended()
	assert.Empty(t, e.log(), "the engine never heard of it")
}

// TestDrainIsWaitedForBesideTheQueue: it ends by its own time, and other requests of the connection do not wait for it.
func TestDrainIsWaitedForBesideTheQueue(t *testing.T) {
	o := options(t, newEngine(t))
	o.Operator = &fakeOperator{}
	s := serve(t, o)
	c := observer(t, s)
	assert.Equal(t, 2, body[wire.DrainInfo](t, c.ask(wire.KindDrain, &wire.Drain{}, nil)).Leases)
	long := c.send(wire.KindDrain, &wire.Drain{Wait: true, TimeoutMillis: wire.MaxMillis}, nil)
	c.ask(wire.KindInspect, &wire.Inspect{What: wire.InspectNodes}, nil)
	short := c.send(wire.KindDrain, &wire.Drain{Wait: true, TimeoutMillis: 1}, nil)
	f := c.recv()
	assert.Equal(t, short, f.Request, "the first one waits still")
	assert.NotEqual(t, long, f.Request)
	c.refused(c.send(wire.KindDrain, &wire.Drain{Wait: true}, nil), fault.ErrInvalidArgument, "timeout_ms")
}

func TestOperatorIsAskedForWhoMay(t *testing.T) {
	e := newEngine(t)
	c := observer(t, serve(t, options(t, e)))
	c.refused(c.send(wire.KindInspect, &wire.Inspect{What: wire.InspectNodes}, nil), fault.ErrNotSupported, "")

	o := options(t, e)
	op := &fakeOperator{}
	o.Operator = op
	require.NoError(t, os.Chmod(filepath.Dir(filepath.Dir(o.Path)), 0o711))
	const friend = 12345
	o.AllowUIDs = []int{friend}
	s := serve(t, o)
	own := observer(t, s)
	own.ask(wire.KindInspect, &wire.Inspect{What: wire.InspectNodes}, nil)
	own.ask(wire.KindInspect, &wire.Inspect{What: wire.InspectNodes, AllTenants: true}, nil)
	assert.Equal(t, []string{"default", ""}, op.asked())
	if os.Getuid() != 0 {
		t.Skip("only root can become other users")
	}
	conn, err := as(t, friend, o.Path)
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	c = &testClient{t: t, conn: conn}
	require.Equal(t, wire.KindHelloOK, c.ask(wire.KindHello, hello(), nil).Kind)
	c.ask(wire.KindInspect, &wire.Inspect{What: wire.InspectNodes}, nil)
	c.refused(c.send(wire.KindInspect, &wire.Inspect{What: wire.InspectNodes, AllTenants: true}, nil), fault.ErrPermissionDenied, "all_tenants")
	c.refused(c.send(wire.KindDrain, &wire.Drain{}, nil), fault.ErrPermissionDenied, "")
	c.refused(c.send(wire.KindLogLevel, &wire.LogLevel{}, nil), fault.ErrPermissionDenied, "")
	assert.Equal(t, []string{"default", "", "default"}, op.asked())
}
