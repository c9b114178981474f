package health

import (
	"net"
	"sync"
)

// bounded is a listener that has at most so many connections at a time: whoever connects costs a goroutine and a
// descriptor, which the data path needs more.
type bounded struct {
	net.Listener
	slots chan struct{}
	once  sync.Once
	done  chan struct{}
}

func newBounded(l net.Listener, n int) *bounded {
	return &bounded{Listener: l, slots: make(chan struct{}, n), done: make(chan struct{})}
}

func (b *bounded) Accept() (net.Conn, error) {
	select {
	case b.slots <- struct{}{}:
	case <-b.done:
		return nil, net.ErrClosed
	}
	c, err := b.Listener.Accept()
	if err != nil {
		<-b.slots
		return nil, err
	}
	return &boundedConn{Conn: c, slots: b.slots}, nil
}

func (b *bounded) Close() error {
	b.once.Do(func() { close(b.done) })
	return b.Listener.Close()
}

type boundedConn struct {
	net.Conn
	slots chan struct{}
	once  sync.Once
}

func (c *boundedConn) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() { <-c.slots })
	return err
}
