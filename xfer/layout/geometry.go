package layout

import (
	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

// Geometry is a layout in a region: the offsets of a cache of NumBlocks blocks that starts at the region's first byte.
type Geometry struct {
	Layout    Layout
	NumBlocks uint32
}

// Validate checks the layout, the number of blocks and that the cache fits into a region of regionBytes.
func (g Geometry) Validate(regionBytes uint64) error {
	if err := g.Layout.Validate(); err != nil {
		return err
	}
	if g.NumBlocks < 1 || g.NumBlocks > MaxBlocks {
		return fault.Invalid("layout", "num_blocks", "%d, allowed 1..%d", g.NumBlocks, MaxBlocks)
	}
	// block bytes < 2^10 * 2 * 2^10 * 2^14 * 2^12 * 4 = 2^49 and blocks <= 2^24: the product could pass 2^63.
	if max := uint64(1) << 62 / g.Layout.BlockBytes(); uint64(g.NumBlocks) > max {
		return fault.Invalid("layout", "num_blocks", "%d blocks of %d bytes, allowed 1..%d", g.NumBlocks, g.Layout.BlockBytes(), max)
	}
	if g.Bytes() > regionBytes {
		return fault.Invalid("layout", "num_blocks", "%d blocks need %d bytes, the region has %d", g.NumBlocks, g.Bytes(), regionBytes)
	}
	return nil
}

// Bytes is the size of the cache.
func (g Geometry) Bytes() uint64 { return uint64(g.NumBlocks) * g.Layout.BlockBytes() }

// Offset is the byte offset in the region of a block in one plane of one layer.
func (g Geometry) Offset(layer uint32, plane uint64, block uint32) uint64 {
	return ((uint64(layer)*g.Layout.Planes()+plane)*uint64(g.NumBlocks) + uint64(block)) * g.Layout.PlaneBlockBytes()
}

// CheckBlocks refuses a list that is empty, names a block out of range or names one twice.
func (g Geometry) CheckBlocks(op string, blocks []uint32) error {
	if len(blocks) == 0 || uint64(len(blocks)) > uint64(g.NumBlocks) {
		return fault.Invalid(op, "blocks", "%d block ids, allowed 1..%d", len(blocks), g.NumBlocks)
	}
	seen := NewSet(g.NumBlocks, len(blocks))
	for i, b := range blocks {
		if b >= g.NumBlocks {
			return fault.Invalid(op, "blocks", "blocks[%d] is %d, allowed 0..%d", i, b, g.NumBlocks-1)
		}
		if !seen.Add(b) {
			return fault.Invalid(op, "blocks", "blocks[%d] names block %d a second time", i, b)
		}
	}
	return nil
}

// MaxMerge bounds a merged range in bytes.
const MaxMerge = 1 << 20

// Ranges appends the ranges that move blocks [first, first+count) of the lists from src to dst in one layer, merging
// neighbours that touch on both sides up to MaxMerge bytes. Both geometries agree (Compare) and the lists are checked
// and of equal length. It allocates nothing when out has room for Planes*count ranges.
func Ranges(out []rdma.Range, src, dst Geometry, srcBlocks, dstBlocks []uint32, layer, first, count uint32) []rdma.Range {
	size := src.Layout.PlaneBlockBytes()
	for plane := uint64(0); plane < src.Layout.Planes(); plane++ {
		srcBase, dstBase := src.Offset(layer, plane, 0), dst.Offset(layer, plane, 0)
		begin := len(out) // a range never leaves its plane: Bounds would refuse it
		for i := first; i < first+count; i++ {
			r := rdma.Range{Local: srcBase + uint64(srcBlocks[i])*size, Remote: dstBase + uint64(dstBlocks[i])*size, Len: size}
			if n := len(out); n > begin {
				p := &out[n-1]
				if p.Local+p.Len == r.Local && p.Remote+p.Len == r.Remote && p.Len+r.Len <= MaxMerge {
					p.Len += r.Len
					continue
				}
			}
			out = append(out, r)
		}
	}
	return out
}

// Bounds allows the bytes of a set of blocks of a geometry, in all layers and planes.
type Bounds struct {
	plane  uint64 // bytes of a plane
	block  uint64 // bytes of a block in a plane
	total  uint64
	blocks *Set
}

// NewBounds makes the bounds of a checked block list.
func NewBounds(g Geometry, blocks []uint32) *Bounds {
	b := &Bounds{block: g.Layout.PlaneBlockBytes(), total: g.Bytes(), blocks: SetOf(g.NumBlocks, blocks)}
	b.plane = b.block * uint64(g.NumBlocks)
	return b
}

// Allows implements rdma.Bounds. A range may span several allowed blocks of a plane, not the end of a plane.
func (b *Bounds) Allows(off, length uint64) bool {
	if length == 0 {
		return true
	}
	if off >= b.total || length > b.total-off {
		return false
	}
	in := off % b.plane
	if length > b.plane-in {
		return false
	}
	for i, last := in/b.block, (in+length-1)/b.block; i <= last; i++ {
		if !b.blocks.Has(uint32(i)) {
			return false
		}
	}
	return true
}
