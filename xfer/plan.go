package xfer

import (
	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/xfer/layout"
	"github.com/kvxfer/kvxfer/xfer/protocol"
)

// plan says which bytes a transfer's pieces are. It is set before the first piece is posted and only read afterwards.
type plan interface {
	// most is how many pieces one operation carries at most.
	most() uint32
	// bytes is the sum of count pieces of a layer from first on.
	bytes(layer, first, count uint32) uint64
	// cost is what moving them takes, see opCost: of pieces that one operation carries. size is the sum of all.
	cost(layer, first, count uint32) uint64
	size() uint64
	// append adds their ranges to dst.
	append(dst []rdma.Range, layer, first, count uint32) []rdma.Range
	// tag names them to the target.
	tag(layer, first, count uint32) uint64
}

// blockPlan moves blocks between two caches of one layout. The local side may be source or destination.
type blockPlan struct {
	local, remote       layout.Geometry
	localIDs, remoteIDs []uint32
	opPieces            uint32
}

// newBlockPlan works out how many pieces one operation of the transfer carries.
func newBlockPlan(caps rdma.Caps, local, remote layout.Geometry, localIDs, remoteIDs []uint32) *blockPlan {
	l := local.Layout
	ranges := uint64(min(opRanges, caps.MaxRanges)) / l.Planes()
	return &blockPlan{local: local, remote: remote, localIDs: localIDs, remoteIDs: remoteIDs,
		opPieces: uint32(max(1, min(ranges, min(opBytes, caps.MaxOpBytes)/l.PieceBytes())))}
}

func (b *blockPlan) most() uint32 { return b.opPieces }
func (b *blockPlan) bytes(_, _, count uint32) uint64 {
	return uint64(count) * b.local.Layout.PieceBytes()
}
func (b *blockPlan) cost(_, _, count uint32) uint64 {
	l := b.local.Layout
	return opCost + uint64(count)*(l.PieceBytes()+l.Planes()*rangeCost)
}
func (b *blockPlan) size() uint64 {
	l, blocks := b.local.Layout, uint32(len(b.localIDs))
	ops := (blocks + b.opPieces - 1) / b.opPieces
	return uint64(l.Layers) * (b.cost(0, 0, blocks) + uint64(ops-1)*opCost)
}
func (b *blockPlan) append(dst []rdma.Range, layer, first, count uint32) []rdma.Range {
	return layout.Ranges(dst, b.local, b.remote, b.localIDs, b.remoteIDs, layer, first, count)
}
func (b *blockPlan) tag(layer, first, count uint32) uint64 {
	return uint64(layout.NewTag(layer, first, count))
}

// rangePlan is a scatter list of raw memory, cut into operations: a piece is one operation.
type rangePlan struct {
	ranges []rdma.Range
	cuts   []uint32 // piece i is ranges[cuts[i]:cuts[i+1]]
	sums   []uint64
	total  uint64
}

// newRangePlan cuts ranges into operations that every provider here takes. Neighbours on both sides are merged, long ranges split;
// empty ones are left out. false: it makes more than protocol.MaxOfferOps. It stops there, since ranges may overlap and so name
// any number of bytes.
func newRangePlan(list []rdma.Range, providers []rdma.Provider) (*rangePlan, bool) {
	maxRanges, maxBytes := opRanges, uint64(opBytes)
	for _, p := range providers {
		c := p.Caps()
		maxRanges, maxBytes = min(maxRanges, c.MaxRanges), min(maxBytes, c.MaxOpBytes)
	}
	p := &rangePlan{cuts: []uint32{0}}
	var sum uint64
	cut := func() {
		if sum > 0 {
			p.cuts = append(p.cuts, uint32(len(p.ranges)))
			p.sums = append(p.sums, sum)
			sum = 0
		}
	}
	for _, r := range list {
		for r.Len > 0 {
			part := r
			part.Len = min(r.Len, maxBytes-sum)
			r.Local, r.Remote, r.Len = r.Local+part.Len, r.Remote+part.Len, r.Len-part.Len
			first := int(p.cuts[len(p.cuts)-1])
			if n := len(p.ranges); n > first && p.ranges[n-1].Local+p.ranges[n-1].Len == part.Local && p.ranges[n-1].Remote+p.ranges[n-1].Len == part.Remote {
				p.ranges[n-1].Len += part.Len
			} else {
				p.ranges = append(p.ranges, part)
			}
			sum += part.Len
			p.total += part.Len
			if sum == maxBytes || len(p.ranges)-first == maxRanges {
				if cut(); p.pieces() > protocol.MaxOfferOps {
					return nil, false
				}
			}
		}
	}
	cut()
	return p, p.pieces() <= protocol.MaxOfferOps
}

func (p *rangePlan) pieces() uint32              { return uint32(len(p.sums)) }
func (p *rangePlan) most() uint32                { return 1 }
func (p *rangePlan) bytes(_, i, _ uint32) uint64 { return p.sums[i] }
func (p *rangePlan) cost(_, i, _ uint32) uint64 {
	return opCost + p.sums[i] + uint64(p.cuts[i+1]-p.cuts[i])*rangeCost
}
func (p *rangePlan) size() uint64 {
	return uint64(len(p.sums))*opCost + p.total + uint64(len(p.ranges))*rangeCost
}
func (p *rangePlan) append(dst []rdma.Range, _, i, _ uint32) []rdma.Range {
	return append(dst, p.ranges[p.cuts[i]:p.cuts[i+1]]...)
}
func (p *rangePlan) tag(_, i, _ uint32) uint64 { return uint64(i) }

// checkRanges refuses a list that leaves the own region or wraps on the other side.
func checkRanges(op string, list []rdma.Range, size uint64) error {
	for i, r := range list {
		if r.Local > size || r.Len > size-r.Local || r.Remote+r.Len < r.Remote {
			fe := fault.New(fault.OutOfBounds, op, "range %d {local %d, remote %d, length %d}, the own region has %d bytes", i, r.Local, r.Remote, r.Len, size)
			fe.Field = "ranges"
			return fe
		}
	}
	return nil
}
