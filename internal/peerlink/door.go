package peerlink

import (
	"net"
	"slices"
	"sync"
)

// door bounds how many connections are in their hello. When it is full the one that has taken longest is put out, so
// that connections which say nothing cannot keep out those that do; a hello takes a round trip. For lanes, which have a
// door of their own, the provider hears of it as of a lane that broke: at worst a peer's new session is lost with it.
type door struct {
	max int

	mu       sync.Mutex
	visitors []*visitor // the oldest first
}

type visitor struct {
	conn net.Conn
	out  bool // closed to make room
}

// enter takes a connection in; leave must follow.
func (d *door) enter(conn net.Conn) *visitor {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.visitors) >= d.max {
		oldest := d.visitors[0]
		oldest.out = true
		d.visitors = slices.Delete(d.visitors, 0, 1)
		_ = lowest(oldest.conn).Close()
	}
	v := &visitor{conn: conn}
	d.visitors = append(d.visitors, v)
	return v
}

// leave ends a visit, at the first call. It reports false for a visitor that was put out.
func (d *door) leave(v *visitor) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if i := slices.Index(d.visitors, v); i >= 0 {
		d.visitors = slices.Delete(d.visitors, i, i+1)
	}
	return !v.out
}
