package shm

import (
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// outbox sends a session's messages: whoever has something to say sends it at once when nobody else is sending and the
// socket takes it; what it does not take is the writer goroutine's. So nobody who speaks ever waits for the peer.
type outbox struct {
	raw  syscall.RawConn
	mu   *sync.Mutex // the session's
	next func(b []byte) (msg []byte, fd int)
	wake sync.Cond

	// Under mu.
	busy  bool // somebody sends: the fields below are its own
	stuck bool // the socket was full: the writer goes on
	over  bool

	buf    []byte
	msg    []byte // what is being sent
	fd     int    // comes with msg and is closed then; -1: none
	rights []byte
	wait   bool
	err    error
	try    func(fd uintptr) bool // bound once, so that a message allocates nothing
}

// init sets an outbox up. next builds the next message in b, with mu held; an empty one means that there is nothing to say.
func (o *outbox) init(raw syscall.RawConn, mu *sync.Mutex, next func(b []byte) ([]byte, int)) {
	o.raw, o.mu, o.next, o.fd = raw, mu, next, -1
	o.wake.L = mu
	o.buf = make([]byte, 0, maxMessage)
	o.try = o.attempt
}

func (o *outbox) prepare() bool {
	o.msg, o.fd = o.next(o.buf[:0])
	o.rights = nil
	if o.fd >= 0 {
		o.rights = unix.UnixRights(o.fd)
	}
	return len(o.msg) > 0
}

// kick sends what there is to say. mu is not held. An error means that the socket is dead.
func (o *outbox) kick() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.busy || o.over {
		return nil
	}
	o.busy = true
	return o.run(false)
}

// run sends messages until there is none; mu is held before and after, the outbox is the caller's. Without wait it leaves
// the rest to the writer when the socket is full.
func (o *outbox) run(wait bool) error {
	for !o.over && (len(o.msg) > 0 || o.prepare()) {
		o.wait = wait
		o.mu.Unlock()
		err := o.raw.Write(o.try)
		if err == nil {
			err = o.err
		}
		o.mu.Lock()
		if err == syscall.EAGAIN && !o.over {
			o.stuck = true
			o.wake.Signal()
			return nil
		}
		o.sent()
		if err != nil {
			o.busy = false
			return err
		}
	}
	o.sent()
	o.busy = false
	return nil
}

func (o *outbox) sent() {
	if o.fd >= 0 {
		_ = unix.Close(o.fd)
	}
	o.msg, o.fd = nil, -1
}

// attempt runs inside RawConn.Write, which waits for room between two attempts.
func (o *outbox) attempt(fd uintptr) bool {
	for {
		o.err = unix.Sendmsg(int(fd), o.msg, o.rights, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		switch {
		case o.err == syscall.EINTR:
		case o.err == syscall.EAGAIN && o.wait:
			return false
		default:
			return true
		}
	}
}

// write is the writer goroutine. It returns when the session is over or the socket dead.
func (o *outbox) write() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for {
		for !o.over && !o.stuck {
			o.wake.Wait()
		}
		if o.over {
			if o.stuck {
				o.sent()
			}
			return nil
		}
		o.stuck = false
		if err := o.run(true); err != nil {
			return err
		}
	}
}

// end makes everybody stop. mu is held.
func (o *outbox) end() {
	o.over = true
	o.wake.Broadcast()
}
