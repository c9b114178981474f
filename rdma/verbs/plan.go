package verbs

import (
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
)

// How an operation becomes work requests: pure arithmetic.
const (
	maxParts   = 64
	stripeFrom = 1 << 20   // an operation of this size is split
	stripe     = 512 << 10 // into parts of at least this
	maxRequest = 1 << 20   // bytes of one work request
)

// cursor is a place in a range list: range i, byte off of it.
type cursor struct {
	i   int
	off uint64
}

// splitInto says into how many parts an operation of total bytes goes when there are ways for them.
func splitInto(total uint64, ways int) int {
	if ways < 2 || total < stripeFrom {
		return 1
	}
	return int(min(total/stripe, uint64(ways), maxParts))
}

// skip moves a cursor n bytes forward.
func skip(ranges []rdma.Range, c cursor, n uint64) cursor {
	for n > 0 {
		left := ranges[c.i].Len - c.off
		if n < left {
			c.off += n
			return c
		}
		n -= left
		c = cursor{i: c.i + 1}
	}
	return c
}

// geometry is what addresses and keys a part's requests get.
type geometry struct {
	local, remote uint64 // addresses of both regions' first bytes
	lkey, rkey    uint32
	maxSGE        int
	maxBytes      uint64 // of a request
}

// nextRequest cuts one work request of at most *left bytes off the range list: what is contiguous at the peer becomes one
// request, what is contiguous here as well one entry of it. It appends the entries to sges and lowers *left. *left must be above 0.
func nextRequest(ranges []rdma.Range, c *cursor, left *uint64, g *geometry, sges []nic.SGE) (wr nic.WR, out []nic.SGE) {
	first := len(sges)
	r := &ranges[c.i]
	wr = nic.WR{Remote: g.remote + r.Remote + c.off, RKey: g.rkey, First: uint32(first)}
	at := r.Remote + c.off // where the next byte at the peer must be
	limit := min(*left, g.maxBytes)
	var taken uint64
	for taken < limit && c.i < len(ranges) {
		r = &ranges[c.i]
		if r.Remote+c.off != at {
			break
		}
		addr, n := g.local+r.Local+c.off, min(r.Len-c.off, limit-taken)
		if k := len(sges); k > first && sges[k-1].Addr+uint64(sges[k-1].Len) == addr {
			sges[k-1].Len += uint32(n)
		} else if k-first == g.maxSGE {
			break
		} else {
			sges = append(sges, nic.SGE{Addr: addr, Len: uint32(n), LKey: g.lkey})
		}
		taken += n
		at += n
		if c.off += n; c.off == r.Len {
			*c = cursor{i: c.i + 1}
		}
	}
	*left -= taken
	wr.Count = uint32(len(sges) - first)
	return wr, sges
}
