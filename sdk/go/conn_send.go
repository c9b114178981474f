package kvxfer

import (
	"bytes"

	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// chunk is bytes that wait for the socket, with duplicates of the descriptors that go with their first byte.
type chunk struct {
	data []byte
	fds  []int
}

// outgoing is one attempt to send, kept here so that it costs no allocation.
type outgoing struct {
	head, data, oob []byte
	n               int
	err             error
	try             func(fd uintptr)
}

// submit sends or queues a request; where it fails nothing of it was sent.
func (c *connection) submit(r request) (*call, *fault.Error) {
	f, err := wire.NewFrame(r.kind, 0, r.body, r.data)
	if err != nil {
		return nil, again(fault.From(r.op, err), r.op)
	}
	call := &call{request: r, done: make(chan struct{})}
	f.FDs = uint16(len(r.fds))
	c.mu.Lock()
	defer c.mu.Unlock()
	if fe := c.checkAlive(r.op); fe != nil {
		return nil, fe
	}
	c.last++
	f.Request = c.last
	c.calls[f.Request] = call
	if fe := c.send(&f, r.fds); fe != nil {
		delete(c.calls, f.Request)
		return nil, again(fe, r.op)
	}
	return call, nil
}

// checkAlive is called with the lock held.
func (c *connection) checkAlive(op string) *fault.Error {
	switch {
	case c.closing:
		return fault.New(fault.Closed, op, "the client was closed")
	case c.lost != nil:
		return again(c.lost, op)
	}
	return nil
}

// send sends or queues a frame; the lock is held, so frames never mix.
func (c *connection) send(f *wire.Frame, fds []int) *fault.Error {
	head := make([]byte, wire.HeaderSize, wire.HeaderSize+len(f.JSON)+joined)
	wire.PutHeader(head, wire.Header{Kind: f.Kind, Flags: f.Flags, Request: f.Request, JSON: uint32(len(f.JSON)), Array: uint32(len(f.Array)), FDs: f.FDs})
	head = append(head, f.JSON...)
	if len(f.Array) <= joined {
		return c.sendBytes(append(head, f.Array...), nil, fds)
	}
	return c.sendBytes(head, f.Array, fds)
}

func (c *connection) sendBytes(head, data []byte, fds []int) *fault.Error {
	if c.queued+len(head)+len(data) > c.room {
		e := fault.New(fault.ResourceExhausted, "send", "%d bytes wait for a daemon that does not read", c.queued)
		e.Field = "queue"
		return e
	}
	sent := 0
	switch {
	case len(c.queue) > 0 || c.sendFailed:
	case len(fds) == 0 && len(data) == 0:
		var err error
		if sent, err = c.now.Send(head); err != nil { // as below
			c.sendFailed = true
			c.shutdown()
		}
	default:
		c.out.head, c.out.data, c.out.oob = head, data, nil
		if len(fds) > 0 {
			c.out.oob = unix.UnixRights(fds...)
		}
		if err := c.raw.Control(c.out.try); err != nil {
			c.out.n, c.out.err = 0, err
		}
		sent = c.out.n
		c.out.head, c.out.data, c.out.oob = nil, nil, nil
		switch c.out.err {
		case nil, unix.EAGAIN, unix.EINTR:
		default: // the reader first reads what the daemon may have said about the reason
			c.sendFailed = true
			c.shutdown()
		}
		if sent > 0 {
			fds = nil
		}
	}
	if sent == len(head)+len(data) || c.sendFailed {
		return nil
	}
	fds, err := duplicate(fds)
	if err != nil {
		return fault.New(fault.ResourceExhausted, "send", "no file descriptor: %v", err)
	}
	// Copies: both may be the caller's or the next frame's before the daemon reads.
	if sent < len(head) {
		c.enqueue(head[sent:], fds)
		fds, sent = nil, len(head)
	}
	if rest := data[sent-len(head):]; len(rest) > 0 {
		c.enqueue(rest, fds)
	}
	select {
	case c.work <- struct{}{}:
	default:
	}
	return nil
}

// enqueue copies b into the queue; the lock is held. Small frames share a chunk, which costs neither an allocation nor a
// system call for each. What the writer is about to send of that chunk lies before what is appended.
func (c *connection) enqueue(b []byte, fds []int) {
	c.queued += len(b)
	if n := len(c.queue); n > 0 && len(fds) == 0 && len(c.queue[n-1].data)+len(b) <= chunkBytes {
		c.queue[n-1].data = append(c.queue[n-1].data, b...)
		return
	}
	c.queue = append(c.queue, chunk{bytes.Clone(b), fds})
}

// sendOnce hands the kernel what it takes without waiting.
func (c *connection) sendOnce(fd uintptr) {
	o := &c.out
	const flags = unix.MSG_DONTWAIT | unix.MSG_NOSIGNAL
	if len(o.data) == 0 {
		o.n, o.err = unix.SendmsgN(int(fd), o.head, o.oob, nil, flags)
	} else {
		o.n, o.err = unix.SendmsgBuffers(int(fd), [][]byte{o.head, o.data}, o.oob, nil, flags)
	}
	if o.err != nil {
		o.n = 0
	}
}

// write sends what is queued. Nobody else sends while there is something, and nobody else takes from the queue.
func (c *connection) write() {
	for {
		select {
		case <-c.work:
		case <-c.ended:
			return
		}
		for {
			c.mu.Lock()
			if len(c.queue) == 0 || c.lost != nil {
				c.mu.Unlock()
				break
			}
			ch := c.queue[0]
			c.mu.Unlock()
			n, err := c.writeChunk(ch)
			c.mu.Lock()
			if c.lost != nil { // the reader has closed everything
				c.mu.Unlock()
				break
			}
			if err != nil {
				c.sendFailed = true
				c.dropQueue()
				c.shutdown()
				c.mu.Unlock()
				break
			}
			if n > 0 {
				closeAll(ch.fds)
				c.queue[0].fds = nil
			}
			c.queued -= n
			if c.queue[0].data = c.queue[0].data[n:]; len(c.queue[0].data) == 0 {
				c.queue[0] = chunk{}
				c.queue = c.queue[1:]
			}
			c.mu.Unlock()
		}
	}
}

// writeChunk waits until the socket takes something, or the connection ends.
func (c *connection) writeChunk(ch chunk) (n int, err error) {
	var oob []byte
	if len(ch.fds) > 0 {
		oob = unix.UnixRights(ch.fds...)
	}
	waitErr := c.raw.Write(func(fd uintptr) bool {
		for err = unix.EINTR; err == unix.EINTR; { // here, since the poller tells of a socket that has room once
			n, err = unix.SendmsgN(int(fd), ch.data, oob, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		}
		return err != unix.EAGAIN
	})
	if err == nil {
		err = waitErr
	}
	return n, err
}

// dropQueue is called with the lock held.
func (c *connection) dropQueue() {
	for _, ch := range c.queue {
		closeAll(ch.fds)
	}
	c.queue, c.queued = nil, 0
}

// duplicate gives descriptors of the same files, all or none.
func duplicate(fds []int) ([]int, error) {
	var out []int
	for _, fd := range fds {
		d, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			closeAll(out)
			return nil, err
		}
		out = append(out, d)
	}
	return out, nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}
