package rawsock

import "syscall"

// Sender is one socket's. Make it with Init. One goroutine at a time may use it, and nobody may write to the socket in
// another way meanwhile.
type Sender struct {
	raw syscall.RawConn
	try func(fd uintptr) // bound once, so that a call allocates nothing
	b   []byte
	n   int
	err syscall.Errno
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
		switch {
		case err != nil:
			return n, err
		case s.err == 0:
			n += s.n
		case s.err == syscall.EAGAIN:
			return n, nil
		case s.err != syscall.EINTR:
			return n, s.err
		}
	}
	return n, nil
}

func (s *Sender) once(fd uintptr) { s.n, s.err = send(fd, s.b) }
