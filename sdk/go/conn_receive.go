package kvxfer

import (
	"bufio"
	"errors"
	"fmt"
	"io"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
)

func (c *connection) run() {
	c.end(c.read())
	if c.daemon != nil && c.listener.awaitsExit() {
		if exited, _ := c.daemonExited(c.ctx); exited {
			c.listener.onDaemonExit()
		}
	}
}

// lookAgain ends a lost connection's wait for the daemon's exit where nothing needs it any more.
func (c *connection) lookAgain() {
	if !c.listener.awaitsExit() {
		c.stop()
	}
}

func (c *connection) read() *fault.Error {
	in := bufio.NewReaderSize(&c.in, readBuffer)
	limits := wire.LocalLimits
	limits.FDs = 0 // no descriptor comes from a daemon
	for {
		f, err := wire.ReadFrame(in, limits)
		if err != nil {
			var fe *fault.Error
			switch {
			case errors.As(err, &fe):
				return fe
			case errors.Is(err, io.EOF):
				return c.brokenBy("the daemon closed the connection", nil)
			default:
				return c.brokenBy("the connection broke", err)
			}
		}
		if fe := c.take(&f); fe != nil {
			return fe
		}
	}
}

func (c *connection) brokenBy(detail string, err error) *fault.Error {
	return &fault.Error{Code: fault.DaemonUnavailable, Detail: fmt.Sprintf("%s (%s); %s", detail, c.path, hint), Err: err}
}

// take acts upon one frame; its error ends the connection.
func (c *connection) take(f *wire.Frame) *fault.Error {
	switch {
	case f.Kind == wire.KindError:
		var w fault.Wire
		if err := f.Decode(&w); err != nil {
			return fault.From("", err)
		}
		fe := fault.From("", fault.FromWire(&w))
		if f.Request == 0 {
			return fe
		}
		return c.answer(f, fe)
	case f.Kind == wire.KindOK || f.Kind == wire.KindHelloOK:
		return c.answer(f, nil)
	case f.Request == 0:
		return fault.From("", c.listener.onEvent(f))
	}
	return violated("kind", "%s answers no request", f.Kind)
}

func (c *connection) answer(f *wire.Frame, fe *fault.Error) *fault.Error {
	c.mu.Lock()
	call := c.calls[f.Request]
	delete(c.calls, f.Request)
	if call != nil {
		call.answered, call.byDaemon = true, true
	}
	c.mu.Unlock()
	if call == nil {
		return violated("request", "an answer to request %d, which is not open", f.Request)
	}
	if fe == nil && call.onOK != nil {
		if wrong := fault.From(call.op, call.onOK(f)); wrong != nil {
			call.settle(wrong)
			return wrong
		}
	} else if fe != nil && fe.Op == "" {
		fe.Op = call.op
	}
	call.settle(fe)
	return nil
}

// end gives everything that waits for this connection its error.
func (c *connection) end(fe *fault.Error) {
	c.mu.Lock()
	if c.closing {
		fe = fault.New(fault.Closed, "", "the client was closed")
	}
	closing := c.closing
	c.lost = fe
	calls := c.calls
	c.calls = map[uint64]*call{}
	for _, call := range calls {
		call.answered = true
	}
	c.dropQueue()
	c.mu.Unlock()
	if !closing {
		c.log.Warn("the connection to the daemon ended", "socket", c.path, "error", fe)
	}
	c.shutdown()
	for _, call := range calls {
		call.settle(again(fe, call.op))
	}
	c.listener.onLost(fe)
	close(c.ended)
}

// dispose waits for the goroutines' end behind close, and lets the daemon's handle go.
func (c *connection) dispose() {
	<-c.gone
	if c.daemon != nil {
		_ = c.daemon.Close()
	}
}

func violated(field, format string, args ...any) *fault.Error {
	e := fault.New(fault.ProtocolViolation, "frame", format, args...)
	e.Field = field
	return e
}
