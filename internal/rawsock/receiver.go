package rawsock

import (
	"io"
	"syscall"
)

// Receiver is one socket's. Make it with Init. One goroutine at a time may use it.
type Receiver struct {
	raw    syscall.RawConn
	try    func(fd uintptr) bool
	p, oob []byte
	n      int
	oobn   int
	flags  int
	err    syscall.Errno
}

// Init prepares a receiver for a stream socket.
func (r *Receiver) Init(conn syscall.Conn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	r.raw, r.try = raw, r.once
	return nil
}

// Receive waits for bytes, until the connection's deadline for reading, and reads them into p, which is not empty, and control
// messages into oob, with descriptors that are closed on exec. io.EOF says that the stream has ended.
func (r *Receiver) Receive(p, oob []byte) (n, oobn, flags int, err error) {
	r.p, r.oob, r.oobn, r.flags = p, oob, 0, 0
	err = r.raw.Read(r.try)
	r.p, r.oob = nil, nil
	switch {
	case err != nil:
		return 0, 0, 0, err
	case r.err != 0:
		return 0, 0, 0, r.err
	case r.n == 0:
		err = io.EOF
	}
	return r.n, r.oobn, r.flags, err
}

// Read is Receive without control messages: io.Reader.
func (r *Receiver) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	n, _, _, err := r.Receive(p, nil)
	return n, err
}

func (r *Receiver) once(fd uintptr) bool {
	for {
		if len(r.oob) == 0 {
			r.n, r.err = read(fd, r.p)
		} else {
			r.n, r.oobn, r.flags, r.err = recvmsg(fd, r.p, r.oob)
		}
		if r.err != syscall.EINTR {
			return r.err != syscall.EAGAIN
		}
	}
}
