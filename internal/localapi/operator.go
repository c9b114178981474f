package localapi

import (
	"context"
	"os"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// Operator answers what people ask of the daemon. Its methods may be called from any goroutine.
type Operator interface {
	// Inspect lists what is a tenant's; "": of all tenants.
	Inspect(tenant string, q wire.Inspect) (wire.InspectInfo, []byte, error)
	// Drain stops granting; with q.Wait it returns when nothing is left or ctx ends, which is no error.
	Drain(ctx context.Context, q wire.Drain) (wire.DrainInfo, error)
	// LogLevel sets the level, or with "" only tells it.
	LogLevel(level string) (wire.LogLevelInfo, error)
}

// spareObservers is how many connections beyond MaxClients operators may have, to look.
const spareObservers = 4

// operates says whether a user may look at other tenants and steer the daemon: root and the daemon's own user.
func operates(uid int) bool { return uid == 0 || uid == os.Geteuid() }

// observes says whether an observer may send a kind: those that are about the daemon, from STATUS on, and PING. It has no
// memory, and the engine does not know it.
func observes(k wire.Kind) bool { return k == wire.KindPing || k > wire.KindSpans && k < wire.KindBind }

// operate answers INSPECT, DRAIN and LOG_LEVEL.
func (c *client) operate(r *request) (body any, array []byte, err error) {
	op := c.s.o.Operator
	if op == nil {
		return nil, nil, fault.New(fault.NotSupported, "request", "%s", r.Kind)
	}
	switch r.Kind {
	case wire.KindInspect:
		var q wire.Inspect
		if err := decode(r, &q); err != nil {
			return nil, nil, err
		}
		tenant := c.info.Tenant
		if q.AllTenants {
			if tenant = ""; !operates(c.uid) {
				return nil, nil, c.forbidden("inspect", "all_tenants")
			}
		}
		info, rows, err := op.Inspect(tenant, q)
		return &info, rows, err
	case wire.KindDrain:
		var q wire.Drain
		if err := decode(r, &q); err != nil {
			return nil, nil, err
		}
		if !operates(c.uid) {
			return nil, nil, c.forbidden("drain", "")
		}
		ctx := c.ctx
		if q.Wait {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, time.Duration(q.TimeoutMillis)*time.Millisecond)
			defer cancel()
		}
		info, err := op.Drain(ctx, q)
		return &info, nil, err
	default:
		var q wire.LogLevel
		if err := decode(r, &q); err != nil {
			return nil, nil, err
		}
		if !operates(c.uid) {
			return nil, nil, c.forbidden("log_level", "")
		}
		info, err := op.LogLevel(q.Level)
		return &info, nil, err
	}
}

func (c *client) forbidden(op, field string) error {
	fe := fault.New(fault.PermissionDenied, op, "user %d may not, allowed are root and the daemon's own user, %d", c.uid, os.Geteuid())
	fe.Field = field
	return fe
}
