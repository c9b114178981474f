package tcp

import (
	"crypto/tls"
	"net"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

// lane is one connection of a session, with what both sides need. Its users (two goroutines, and at an initiator
// whoever sends from Post or reads in Progress) are counted: the last one closes the descriptor and unmaps the control memory.
type lane struct {
	index int
	sock  *socket  // in clear
	conn  net.Conn // over TLS: the TCP connection below it
	raw   syscall.RawConn
	ctl   []byte
	tx    sender
	rx    receiver
	users atomic.Int32
}

const (
	// A lane's control memory: the sender's part, the receiver's, and a scratch for each, whose pages cost nothing until
	// memory of another process is moved.
	txCtl   = 8 << 10
	bothCtl = 16 << 10
	laneCtl = bothCtl + 2*processScratch
)

// carrier is the connection of a lane to be.
type carrier struct {
	conn   net.Conn // the TCP connection itself, also below TLS: it is what is closed and tuned
	raw    syscall.RawConn
	secure *tls.Conn // nil: the bytes travel in clear
}

// stream carries the hello.
func (c *carrier) stream() net.Conn {
	if c.secure != nil {
		return c.secure
	}
	return c.conn
}

// setup prepares an accepted or dialled connection that is past its hello.
// A lane in clear leaves package net; attach must follow when nobody needs the connection any more.
func (p *Provider) setup(l *lane, index int, c *carrier) error {
	ctl, err := mapControl(laneCtl)
	if err != nil {
		return fault.Wrap(fault.Internal, "map control memory", err)
	}
	l.index, l.conn, l.raw, l.ctl = index, c.conn, c.raw, ctl
	scratch := ctl[bothCtl:]
	l.tx.init(ctl[:txCtl], p.filler, scratch[:processScratch])
	l.rx.init(ctl[txCtl:bothCtl], p.sink, scratch[processScratch:])
	if c.secure != nil {
		l.tx.secure, l.rx.secure = newSecureTx(c.secure), newSecureRx(c.secure)
	}
	l.users.Store(2)
	return nil
}

// attach takes a lane in clear out of package net; after an error its connection is still there.
func (p *Provider) attach(l *lane, c *carrier, initiator bool) error {
	if c.secure != nil {
		return nil
	}
	s, err := p.takeSocket(c, initiator)
	if err != nil {
		return err
	}
	l.sock, l.conn, l.raw = s, nil, nil
	l.tx.sock, l.rx.sock = s, s
	return nil
}

// shut ends the lane's connection; who reads or writes it finds out. Who ends a session shuts one lane after the other, while the
// users of a further one may find by themselves that it is dead: its descriptor may be closed, and another's, by then.
func (l *lane) shut() {
	if !l.use() {
		return
	}
	defer l.unuse()
	if l.sock != nil {
		l.sock.shut()
		return
	}
	_ = l.raw.Control(func(fd uintptr) { limitOrphan(int(fd)) })
	_ = l.conn.Close()
}

// use begins one, unless the last one is over.
func (l *lane) use() bool {
	for {
		n := l.users.Load()
		if n == 0 || l.users.CompareAndSwap(n, n+1) {
			return n > 0
		}
	}
}

// unuse ends one use. A connection over TLS may be closed already, to stop its users: that twice is harmless.
func (l *lane) unuse() {
	if l.users.Add(-1) == 0 {
		if l.sock != nil {
			l.sock.close()
		} else {
			_ = l.conn.Close()
		}
		_ = unix.Munmap(l.ctl)
	}
}

// carry takes a connection's descriptor, with small messages undelayed.
func (p *Provider) carry(conn net.Conn) (*carrier, error) {
	sc, ok := conn.(syscall.Conn)
	if !ok {
		return nil, fault.New(fault.NotSupported, "lane", "%T gives no file descriptor", conn)
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return nil, fault.Wrap(fault.Internal, "lane", err)
	}
	if tc, ok := conn.(*net.TCPConn); ok {
		_ = tc.SetNoDelay(true)
	}
	return &carrier{conn: conn, raw: raw}, nil
}

// hostBuffer is the most that a lane inside one host gets: there is no round trip to fill, and what lies in a larger
// buffer has left the cache when it is read (4 MiB made lists of 16 KiB blocks 10 to 40% slower over loop-back).
const hostBuffer = 1 << 20

// tune asks for the buffers and says at debug what the kernel gave.
func (p *Provider) tune(c *carrier, role string, id rdma.SessionID, index int) {
	asked := p.opt.SocketBuffer
	if a, ok := c.conn.RemoteAddr().(*net.TCPAddr); ok && a.IP.IsLoopback() {
		asked = min(asked, hostBuffer)
	}
	_ = c.raw.Control(func(fd uintptr) {
		send, receive := setBuffers(fd, asked)
		p.opt.Logger.Debug("lane attached", "role", role, "session", uint64(id), "lane", index,
			"tls", c.secure != nil, "asked_bytes", asked, "send_bytes", send, "receive_bytes", receive)
	})
}

// statusOf makes a code from the wire one of the table's.
func statusOf(c fault.Code) fault.Code {
	if c == 0 || c.Known() {
		return c
	}
	return fault.Internal
}

func errClosed(op string) error { return fault.New(fault.Closed, op, "closed") }
