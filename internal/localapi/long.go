package localapi

import (
	"bytes"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// long says whether a request waits for other nodes. Such requests begin in their turn and end beside the queue.
func long(r *request) bool {
	switch r.Kind {
	case wire.KindLookup, wire.KindOpen, wire.KindTrace, wire.KindProbe, wire.KindDrain:
		return true
	case wire.KindLease:
		if !bytes.Contains(r.JSON, []byte(`"instance"`)) { // spares the common lease a second decoding
			return false
		}
		var q wire.LeaseRequest
		return r.Decode(&q) == nil && q.Instance != ""
	}
	return false
}

// startLong runs a long request beside the queue; as many as the queue may hold run at a time.
func (c *client) startLong(r *request) {
	if n := c.longs.Add(1); n > int64(c.s.o.Limits.Requests) {
		c.longs.Add(-1)
		c.out.answer(c.s.errorFrame(r.Request, fault.New(fault.ResourceExhausted, "request",
			"%d requests of this client wait for other nodes, allowed %d", n-1, c.s.o.Limits.Requests)), false)
		return
	}
	q := *r
	c.longing.Go(func() {
		defer c.longs.Add(-1)
		if q.Kind == wire.KindLease {
			c.leaseInstance(&q)
			return
		}
		body, array, err := c.callLong(&q)
		if c.out.room() {
			c.answer(&q, body, array, err, false)
		}
	})
}

func (c *client) callLong(r *request) (body any, array []byte, err error) {
	engine := c.s.o.Engine
	switch r.Kind {
	case wire.KindDrain:
		return c.operate(r)
	case wire.KindLookup:
		var q wire.Lookup
		if err := decode(r, &q); err != nil {
			return nil, nil, err
		}
		if err := wire.CheckKeys("lookup", r.Array, q.KeyBytes); err != nil {
			return nil, nil, err
		}
		info, err := engine.Lookup(c.ctx, c.id, q, r.Array)
		return &info, nil, err
	case wire.KindOpen:
		var q wire.Open
		if err := decode(r, &q); err != nil {
			return nil, nil, err
		}
		if err := wire.CheckKeys("open", r.Array, q.KeyBytes); err != nil {
			return nil, nil, err
		}
		info, err := engine.Open(c.ctx, c.id, q, r.Array)
		return &info, nil, err
	case wire.KindProbe:
		var q wire.Probe
		if err := decode(r, &q); err != nil {
			return nil, nil, err
		}
		info, err := engine.Probe(c.ctx, c.info.Tenant, q)
		return &info, nil, err
	case wire.KindTrace:
		var q wire.TraceQuery
		if err := decode(r, &q); err != nil {
			return nil, nil, err
		}
		info, lines, err := engine.Trace(c.ctx, c.info, q)
		return &info, lines, err
	}
	return nil, nil, fault.New(fault.NotSupported, "request", "%s", r.Kind)
}

// leaseInstance is LEASE of an instance. The engine says when the answer is to be queued: before the lease's first event.
func (c *client) leaseInstance(r *request) {
	err := func() error {
		var q wire.LeaseRequest
		if err := decode(r, &q); err != nil {
			return err
		}
		blocks, err := wire.U32s("blocks", r.Array)
		if err != nil {
			return err
		}
		return c.s.o.Engine.LeaseInstance(c.ctx, c.id, q, blocks, func(info wire.LeaseInfo) { c.answer(r, &info, nil, nil, false) })
	}()
	if err != nil {
		c.answer(r, nil, nil, err, false)
	}
}
