package kvxfer

import (
	"context"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// request is what is asked of the daemon.
type request struct {
	op   string
	kind wire.Kind
	body any    // nil: none
	data []byte // not changed until it was sent
	fds  []int  // descriptors that go with the frame; they stay the caller's
	// onOK runs in the connection's reader before any later frame is looked at, so what it registers is there when the
	// first event for it comes. Its error ends the connection.
	onOK func(*wire.Frame) error
	// onLate runs behind onOK where the caller had gone meanwhile.
	onLate func()
	// onDone is for requests that nobody waits for: the error, or nil, behind onOK.
	onDone func(*fault.Error)
}

// call is a request and its answer.
type call struct {
	request
	done      chan struct{} // closed when settled
	err       *fault.Error  // before done is closed
	byDaemon  bool          // before done is closed: the daemon itself answered
	answered  bool          // under the connection's lock
	abandoned bool          // under the connection's lock
}

// settle ends the call; err is nil where onOK has run.
func (c *call) settle(err *fault.Error) {
	c.err = err
	close(c.done)
	if c.onDone != nil {
		c.onDone(err)
	}
	if c.abandoned && err == nil && c.onLate != nil {
		c.onLate()
	}
}

// bounded gives a context that ends after limit where ctx has no deadline of its own.
func bounded(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, limit)
}

// again is a copy of an error for one more caller, which says what was asked there.
func again(fe *fault.Error, op string) *fault.Error {
	e := *fe
	e.Op = op
	return &e
}

// contextEnded is the error of a caller whose context has ended. Its cause is the context's error, so that errors.Is finds it.
func contextEnded(ctx context.Context, op, detail string) *fault.Error {
	return &fault.Error{Code: codeOfContext(ctx, fault.DeadlineExceeded), Op: op, Detail: detail, Err: ctx.Err()}
}
