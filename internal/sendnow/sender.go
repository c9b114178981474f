package sendnow

import "syscall"

// Sender is one socket's. Make it with Init. One goroutine at a time may use it, and nobody may write to the socket in
// another way meanwhile.
type Sender struct {
	raw syscall.RawConn
	try func(fd uintptr) // bound once, so that a call allocates nothing
	b   []byte
	n   int
	err error
}

// Init prepares a sender for a stream socket. It fails where the connection gives no access to its descriptor.
func (s *Sender) Init(conn syscall.Conn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	s.raw, s.try = raw, s.once
	return nil
}

// Send hands the socket as much of b as it takes at once. n < len(b) without an error says that the rest would have to wait.
func (s *Sender) Send(b []byte) (n int, err error) {
	for n < len(b) {
		s.b = b[n:]
		err = s.raw.Control(s.try) // not Write, which waits and heeds deadlines
		s.b = nil
		if err == nil {
			err = s.err
		}
		switch err { //nolint:errorlint // errno as the kernel gave it
		case nil:
			n += s.n
		case syscall.EINTR:
		case syscall.EAGAIN:
			return n, nil
		default:
			return n, err
		}
	}
	return n, nil
}

// once relies on the descriptor's being a poller's, which never blocks. It is syscall's call, since the race detector knows that
// one to order what comes before it and what comes after the other side's read.
func (s *Sender) once(fd uintptr) { s.n, s.err = syscall.Write(int(fd), s.b) }
