package localapi

import (
	"errors"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/hostmem"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/xfer"
)

// read acts upon frames until the connection ends; it returns why.
func (c *client) read() error {
	for {
		f, fds, err := c.in.next()
		if errors.Is(err, errLostFDs) && f.Request != 0 {
			c.refuse(f.Request, err)
			continue
		}
		if err != nil {
			return err
		}
		if err := c.dispatch(request{f, fds}); err != nil {
			return err
		}
	}
}

// dispatch acts upon one frame or queues it. An error ends the connection.
func (c *client) dispatch(r request) error {
	switch r.Kind {
	case wire.KindPushLayer, wire.KindPushFinish, wire.KindPushCancel, wire.KindSpans, wire.KindPost:
		err := shape(r.Frame, len(r.fds))
		closeAll(r.fds)
		if err == nil && c.observer {
			err = violation("kind", "%s is not for an observer", r.Kind)
		}
		if err == nil {
			err = c.noReply(&r.Frame)
		}
		return err
	case wire.KindPing, wire.KindStatus, wire.KindTrace, wire.KindRevoke, wire.KindRenew,
		wire.KindAdvertise, wire.KindPull, wire.KindScatter, wire.KindPublish, wire.KindLookup, wire.KindOpen,
		wire.KindProbe, wire.KindReport, wire.KindRegisterRegion, wire.KindDeregisterRegion, wire.KindRegisterCache, wire.KindDropCache,
		wire.KindBlocks, wire.KindEvict, wire.KindLease, wire.KindPush, wire.KindPrepare, wire.KindRing,
		wire.KindInspect, wire.KindDrain, wire.KindLogLevel:
	case wire.KindError:
		closeAll(r.fds)
		return errLeft // with id 0 its sender closes next, and it has no request of this side to answer
	default:
		closeAll(r.fds)
		return violation("kind", "%s is not for the daemon at this point", r.Kind)
	}
	if r.Request == 0 {
		closeAll(r.fds)
		return violation("request_id", "%s has id 0, allowed any other", r.Kind)
	}
	if err := shape(r.Frame, len(r.fds)); err != nil {
		closeAll(r.fds)
		c.refuse(r.Request, err)
		return nil
	}
	if c.observer && !observes(r.Kind) {
		closeAll(r.fds)
		c.refuse(r.Request, fault.New(fault.PermissionDenied, "request", "%s: an observer asks only about the daemon; connect as a client", r.Kind))
		return nil
	}
	switch r.Kind {
	case wire.KindPing, wire.KindStatus, wire.KindRevoke, wire.KindRenew: // none has descriptors
		if c.out.room() {
			c.run1(&r)
		}
		return nil
	}
	if err := c.requests.push(r); err != nil {
		closeAll(r.fds)
		c.refuse(r.Request, err)
	}
	return nil
}

// refuse answers beside the queue.
func (c *client) refuse(id uint64, err error) {
	if c.out.room() {
		c.out.answer(c.s.errorFrame(id, err), false)
	}
}

// shape checks descriptors and array of a frame by its kind alone.
func shape(f wire.Frame, nfds int) error {
	want := 0
	switch f.Kind {
	case wire.KindRegisterRegion:
		want = 1
	case wire.KindRing:
		want = ringFDs
	}
	if nfds != want {
		return violation("fd_count", "%s with %d, allowed %d", f.Kind, nfds, want)
	}
	switch f.Kind {
	case wire.KindRegisterCache, wire.KindEvict, wire.KindLease, wire.KindAdvertise, wire.KindPush, wire.KindPushLayer, wire.KindPushFinish,
		wire.KindPull, wire.KindScatter, wire.KindPublish, wire.KindLookup, wire.KindOpen,
		wire.KindPrepare, wire.KindPost:
		return nil
	}
	if len(f.Array) > 0 {
		return violation("array_length", "%s with %d bytes, allowed 0", f.Kind, len(f.Array))
	}
	return nil
}

// noReply acts upon a frame that gets no answer; so what is wrong with it ends the connection.
func (c *client) noReply(f *wire.Frame) error {
	engine := c.s.o.Engine
	switch f.Kind {
	case wire.KindPushLayer:
		p, err := wire.ParseLayerPart(f.Array)
		if err != nil {
			return err
		}
		engine.PushLayer(c.id, p)
	case wire.KindPushFinish:
		var p wire.PushFinish
		if err := f.Decode(&p); err != nil {
			return err
		}
		if err := wire.CheckNotification("push_finish", f.Array); err != nil {
			return err
		}
		engine.PushFinish(c.id, p.Transfer, f.Array)
	case wire.KindPushCancel:
		var p wire.PushCancel
		if err := f.Decode(&p); err != nil {
			return err
		}
		engine.CancelTransfer(c.id, p.Transfer)
	case wire.KindPost:
		return c.post(f.Array)
	case wire.KindSpans:
		var p wire.Spans
		if err := f.Decode(&p); err != nil {
			return err
		}
		c.spans(p.Spans)
	}
	return nil
}

// spans hands spans on. A wrong one costs only itself: a mistake in tracing must not cost a transfer.
func (c *client) spans(all []wire.ClientSpan) {
	if c.s.o.Spans == nil {
		return
	}
	for i := range all {
		if err := c.s.o.Spans(all[i], c.info); err != nil && !c.badSpans {
			c.badSpans = true
			c.s.o.Logger.Warn("client's span refused, further ones are not logged", "client", uint64(c.id), "process", c.info.Process, "error", err)
		}
	}
}

// work runs the queue.
func (c *client) work() {
	for {
		r, ok := c.requests.pop()
		if !ok {
			return
		}
		if !c.out.room() {
			closeAll(r.fds)
			continue
		}
		if long(&r) {
			c.startLong(&r)
			continue
		}
		c.run1(&r)
	}
}

// run1 runs one request and queues its answer.
func (c *client) run1(r *request) {
	hold := false // events of what the request begins come behind its answer
	switch r.Kind {
	case wire.KindLease, wire.KindAdvertise, wire.KindPush, wire.KindPull, wire.KindScatter, wire.KindPrepare:
		hold = true
	}
	if hold {
		c.out.hold()
	}
	body, array, err := c.call(r)
	c.answer(r, body, array, err, hold)
}

func (c *client) answer(r *request, body any, array []byte, err error, release bool) {
	var f wire.Frame
	if err == nil {
		f, err = wire.NewFrame(wire.KindOK, r.Request, body, array)
	}
	if err != nil {
		f = c.s.errorFrame(r.Request, err)
	}
	c.out.answer(f, release)
}

// call decodes a request, checks its fields and makes the engine's call; body and array are the answer's.
func (c *client) call(r *request) (body any, array []byte, err error) {
	engine := c.s.o.Engine
	switch r.Kind {
	case wire.KindPing:
		return nil, nil, nil
	case wire.KindStatus:
		st := c.s.o.Status()
		return &st, nil, nil
	case wire.KindInspect, wire.KindLogLevel:
		return c.operate(r)
	case wire.KindRevoke:
		var q wire.Revoke
		if err := r.Decode(&q); err != nil {
			return nil, nil, err
		}
		return nil, nil, engine.Revoke(c.id, q.Lease)
	case wire.KindRenew:
		var q wire.Renew
		if err := decode(r, &q); err != nil {
			return nil, nil, err
		}
		return nil, nil, engine.Renew(c.id, q)
	case wire.KindRegisterRegion:
		return c.registerRegion(r)
	case wire.KindDeregisterRegion:
		var q wire.DeregisterRegion
		if err := r.Decode(&q); err != nil {
			return nil, nil, err
		}
		return nil, nil, engine.DeregisterRegion(c.ctx, c.id, q.Region)
	case wire.KindRegisterCache:
		var q wire.RegisterCache
		if err := decode(r, &q); err != nil {
			return nil, nil, err
		}
		vouched, err := wire.Vouches(r.Array)
		if err != nil {
			return nil, nil, err
		}
		info, served, err := engine.RegisterCache(c.ctx, c.id, q, vouched)
		return &info, wire.AppendU32s(nil, served), err
	case wire.KindDropCache:
		var q wire.DropCache
		if err := r.Decode(&q); err != nil {
			return nil, nil, err
		}
		return nil, nil, engine.DropCache(c.ctx, c.id, q.Cache)
	case wire.KindBlocks:
		var q wire.BlocksQuery
		if err := r.Decode(&q); err != nil {
			return nil, nil, err
		}
		info, entries, err := engine.Blocks(c.id, q.Cache)
		return &info, entries, err
	case wire.KindEvict:
		var q wire.Evict
		if err := r.Decode(&q); err != nil {
			return nil, nil, err
		}
		blocks, err := wire.U32s("blocks", r.Array)
		if err != nil {
			return nil, nil, err
		}
		return nil, nil, engine.Evict(c.ctx, c.id, q.Cache, blocks)
	case wire.KindPublish:
		var q wire.Publish
		if err := decode(r, &q); err != nil {
			return nil, nil, err
		}
		blocks, keys, err := wire.KeyedBlocks(r.Array, q.KeyBytes)
		if err != nil {
			return nil, nil, err
		}
		info, err := engine.Publish(c.id, q, blocks, keys)
		return &info, nil, err
	case wire.KindLease:
		var q wire.LeaseRequest
		if err := decode(r, &q); err != nil {
			return nil, nil, err
		}
		blocks, err := wire.U32s("blocks", r.Array)
		if err != nil {
			return nil, nil, err
		}
		info, err := engine.Lease(c.ctx, c.id, q, blocks)
		return &info, nil, err
	case wire.KindAdvertise:
		var q wire.Advertise
		if err := decode(r, &q); err != nil {
			return nil, nil, err
		}
		spans, err := wire.RegionSpans(r.Array)
		if err != nil {
			return nil, nil, err
		}
		info, err := engine.Advertise(c.ctx, c.id, q, spans)
		return &info, nil, err
	case wire.KindPull:
		var q wire.PullRequest
		if err := decode(r, &q); err != nil {
			return nil, nil, err
		}
		blocks, err := wire.U32s("blocks", r.Array)
		if err != nil {
			return nil, nil, err
		}
		info, err := engine.Pull(c.id, q, blocks)
		return &info, nil, err
	case wire.KindScatter:
		var q wire.ScatterRequest
		if err := decode(r, &q); err != nil {
			return nil, nil, err
		}
		ranges, err := wire.ScatterRanges(r.Array)
		if err != nil {
			return nil, nil, err
		}
		info, err := engine.Scatter(c.id, q, ranges)
		return &info, nil, err
	case wire.KindPrepare:
		var q wire.Prepare
		if err := decode(r, &q); err != nil {
			return nil, nil, err
		}
		info, err := engine.Prepare(c.id, q, r.Array)
		return &info, nil, err
	case wire.KindRing:
		return nil, nil, c.openRing(r)
	case wire.KindReport:
		return c.report(r)
	case wire.KindPush:
		var q wire.PushRequest
		if err := decode(r, &q); err != nil {
			return nil, nil, err
		}
		blocks, err := wire.U32s("blocks", r.Array)
		if err != nil {
			return nil, nil, err
		}
		info, err := engine.Push(c.id, q, blocks)
		return &info, nil, err
	}
	return nil, nil, fault.New(fault.NotSupported, "request", "%s", r.Kind)
}

func (c *client) registerRegion(r *request) (any, []byte, error) {
	var q wire.RegisterRegion
	if err := decode(r, &q); err != nil {
		closeAll(r.fds)
		return nil, nil, err
	}
	m, err := handOver(r.fds[0], &q)
	if err != nil {
		return nil, nil, err
	}
	info, err := c.s.o.Engine.RegisterRegion(c.ctx, c.id, q, m)
	if err != nil {
		_ = m.Close()
		return nil, nil, err
	}
	return &info, nil, nil
}

// handOver makes a mapping of what the client sent; fd is the mapping's or closed.
func handOver(fd int, q *wire.RegisterRegion) (xfer.Mapping, error) {
	if q.Kind == wire.RegionProcess {
		p, err := hostmem.OpenProcess(fd, q.Name, q.Addr, q.Size)
		if err != nil { // a nil *Process in the interface would not be nil
			return nil, err
		}
		return p, nil
	}
	m, err := hostmem.MapAt(fd, q.Name, q.Offset, q.Size)
	if err != nil {
		return nil, err
	}
	return m, nil
}

// decode reads a body and checks its fields.
func decode(r *request, v interface{ Validate() error }) error {
	if err := r.Decode(v); err != nil {
		return err
	}
	return v.Validate()
}
