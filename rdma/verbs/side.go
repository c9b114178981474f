package verbs

import (
	"encoding/binary"
	"io"
	"net"
	"sync"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// side is a session's side channel: one TCP connection, on which queue pairs and keys are exchanged. Its end is the session's.
type side struct {
	conn net.Conn
	wg   sync.WaitGroup

	mu     sync.Mutex
	out    writer
	full   bool // the peer does not read: out is as long as it may be
	closed bool
	wake   chan struct{} // capacity 1
}

func newSide(conn net.Conn) *side { return &side{conn: conn, wake: make(chan struct{}, 1)} }

// maxQueued bounds what waits for a peer that does not read: beyond it the session ends.
const maxQueued = 64 << 20

// start reads and writes until the connection ends; then lost gets the reason, once. handle's error ends it too. A side that was
// closed before does not start.
func (s *side) start(handle func(m message) error, lost func(err error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.wg.Add(2)
	go s.write()
	go func() {
		defer s.wg.Done()
		err := s.read(handle)
		s.mu.Lock()
		if s.full {
			err = fault.New(fault.PeerLost, "side channel", "the peer does not read: more than %d bytes wait for it", maxQueued)
		}
		s.mu.Unlock()
		s.close()
		lost(err)
	}()
}

// send queues a message; it never blocks.
func (s *side) send(m message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.full {
		return
	}
	if len(s.out.b) > maxQueued {
		s.full = true
		_ = lowest(s.conn).Close()
		return
	}
	at := len(s.out.b)
	s.out.u32(0)
	s.out.u8(uint8(kindOf(m)))
	m.bytes(&s.out)
	binary.LittleEndian.PutUint32(s.out.b[at:], uint32(len(s.out.b)-at-4))
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *side) write() {
	defer s.wg.Done()
	var buf []byte
	for range s.wake {
		s.mu.Lock()
		buf, s.out.b = s.out.b, buf[:0]
		s.mu.Unlock()
		if len(buf) == 0 {
			continue
		}
		if _, err := s.conn.Write(buf); err != nil {
			_ = s.conn.Close() // the reader says why
		}
	}
}

func (s *side) read(handle func(m message) error) error {
	head := make([]byte, 5)
	var body []byte
	for {
		if _, err := io.ReadFull(s.conn, head); err != nil {
			return fault.Wrap(fault.PeerLost, "side channel", err)
		}
		n := binary.LittleEndian.Uint32(head)
		if n < 1 || n > maxMessage {
			return violation("a message of %d bytes, want 1 to %d", n, maxMessage)
		}
		if n--; int(n) > cap(body) {
			body = make([]byte, n)
		}
		body = body[:n]
		if _, err := io.ReadFull(s.conn, body); err != nil {
			return fault.Wrap(fault.PeerLost, "side channel", err)
		}
		m, err := parseMessage(kind(head[4]), body)
		if err == nil {
			err = handle(m)
		}
		if err != nil {
			return err
		}
	}
}

// close ends the connection; wait returns when nothing of it runs any more.
func (s *side) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.closed = true
	close(s.wake)
	_ = lowest(s.conn).Close()
}

func (s *side) wait() { s.wg.Wait() }

// lowest is the connection below TLS: closing that above waits for the peer.
func lowest(c net.Conn) net.Conn {
	if t, ok := c.(interface{ NetConn() net.Conn }); ok {
		return t.NetConn()
	}
	return c
}
