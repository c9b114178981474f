package simfabric

import "github.com/kvxfer/kvxfer/rdma"

// session joins an initiator and a target. Everything in it is under Fabric.mu.
type session struct {
	f       *Fabric
	number  uint64
	ini     *initiator // nil until Connect
	tgt     *target
	over    bool // nothing is sent in it any more
	stalled int
	held    []event
}

// lose ends the session; both sides hear of it by themselves, each after a while of its own.
func (s *session) lose() {
	if s.over {
		return
	}
	s.over = true
	s.notice(s.ini.n, s.ini.down)
	s.notice(s.tgt.n, s.tgt.down)
}

// closedBy ends the session for the side that did not close it.
func (s *session) closedBy(end any) {
	if s.over || s.ini == nil {
		s.over = true
		return
	}
	s.over = true
	if end == any(s.ini) {
		s.notice(s.tgt.n, s.tgt.down)
	} else {
		s.notice(s.ini.n, s.ini.down)
	}
}

// notice is a time-out of the side itself: no stall holds it back.
func (s *session) notice(n *Node, f func()) { s.f.in(s.f.transit(), n, nil, f) }

// chunk is a part of an operation that travels in one packet: it begins at byte off of range number first.
type chunk struct {
	first    int
	off, len uint64
}

// maxPieces is how many ranges one packet touches at most.
const maxPieces = 256

// chunks cuts ranges, none of them empty, into packets. An operation without bytes is one packet.
func chunks(ranges []rdma.Range, size uint64) []chunk {
	out := []chunk{{}}
	pieces := 0
	for i, r := range ranges {
		for off := uint64(0); off < r.Len; {
			c := &out[len(out)-1]
			if c.len == size || pieces == maxPieces {
				out = append(out, chunk{first: i, off: off})
				c, pieces = &out[len(out)-1], 0
			}
			n := min(size-c.len, r.Len-off)
			c.len += n
			off += n
			pieces++
		}
	}
	return out
}

// each calls f for the parts of ranges that a chunk covers; at is where the part begins in the chunk.
func (c chunk) each(ranges []rdma.Range, f func(r rdma.Range, at uint64)) {
	i, off := c.first, c.off
	for at := uint64(0); at < c.len; i, off = i+1, 0 {
		r := ranges[i]
		n := min(r.Len-off, c.len-at)
		f(rdma.Range{Local: r.Local + off, Remote: r.Remote + off, Len: n}, at)
		at += n
	}
}
