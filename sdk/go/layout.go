package kvxfer

import (
	"fmt"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/xfer/layout"
)

// Order is the order of the axes inside a block.
type Order string

// The orders.
const (
	HND Order = "HND" // [head][token][dim]
	NHD Order = "NHD" // [token][head][dim]
	MLA Order = "MLA" // [token][dim], one plane, no heads
)

// MaxBlocks bounds a cache's blocks; a cache also has at most 2^62 bytes.
const MaxBlocks = layout.MaxBlocks

const maxCacheBytes = 1 << 62

// Layout is one rank's part of a KV cache. Memory is ordered [layer][plane][block]. A plane is K or V of one layer (MLA has
// one plane, the latent); a block is BlockTokens tokens of one plane.
type Layout struct {
	Layers      int    // layers on this rank, 1..1024
	KVHeads     int    // KV heads on this rank, 1..1024; 1 with order MLA
	HeadDim     int    // elements of a head, 1..16384; with MLA the latent's width
	DType       string // float32, float16, bfloat16, float8_e4m3fn, float8_e5m2, int8 or uint8
	BlockTokens int    // tokens in a block, 1..4096
	Order       Order  // "": HND
	TPRank      int    // 0..TPSize-1
	TPSize      int    // ranks that the heads are split over, 1..1024; 0: 1
}

// withDefaults fills the fields whose zero value stands for a default.
func (l Layout) withDefaults() Layout {
	if l.Order == "" {
		l.Order = HND
	}
	if l.TPSize == 0 {
		l.TPSize = 1
	}
	return l
}

// Validate checks every field; ErrInvalidArgument names the field and what is allowed.
func (l Layout) Validate() error {
	_, err := l.wire()
	return err
}

// wire is the layout as it travels, checked, with the defaults filled in.
func (l Layout) wire() (layout.Layout, error) {
	l = l.withDefaults()
	for _, f := range [...]struct {
		name     string
		v, limit int
	}{
		{"layers", l.Layers, layout.MaxLayers}, {"kv_heads", l.KVHeads, layout.MaxKVHeads}, {"head_dim", l.HeadDim, layout.MaxHeadDim},
		{"block_tokens", l.BlockTokens, layout.MaxBlockTokens}, {"tp_size", l.TPSize, layout.MaxTPSize},
	} {
		if f.v < 1 || f.v > f.limit {
			return layout.Layout{}, invalid("layout", "layout."+f.name, "%d, allowed 1..%d", f.v, f.limit)
		}
	}
	if l.TPRank < 0 || l.TPRank >= l.TPSize {
		return layout.Layout{}, invalid("layout", "layout.tp_rank", "%d, allowed 0..%d", l.TPRank, l.TPSize-1)
	}
	w := layout.Layout{Layers: uint32(l.Layers), KVHeads: uint32(l.KVHeads), HeadDim: uint32(l.HeadDim), DType: l.DType,
		BlockTokens: uint32(l.BlockTokens), Order: layout.Order(l.Order), TPRank: uint32(l.TPRank), TPSize: uint32(l.TPSize)}
	if err := w.Validate(); err != nil {
		return layout.Layout{}, newError(fault.From("layout", err), true, nil)
	}
	return w, nil
}

// geometry is the layout with its number of blocks, both checked.
func (l Layout) geometry(numBlocks int) (layout.Geometry, error) {
	w, err := l.wire()
	if err != nil {
		return layout.Geometry{}, err
	}
	if most := min(MaxBlocks, maxCacheBytes/w.BlockBytes()); numBlocks < 1 || uint64(numBlocks) > most {
		return layout.Geometry{}, invalid("layout", "num_blocks", "%d, allowed 1..%d", numBlocks, most)
	}
	return layout.Geometry{Layout: w, NumBlocks: uint32(numBlocks)}, nil
}

// ElementBytes is the size of an element in bytes; 0 for an unknown DType.
func (l Layout) ElementBytes() int { return int(layout.ElementBytes(l.DType)) }

// Planes is the number of planes of a layer: 2 (K and V), or 1 with MLA.
func (l Layout) Planes() int {
	if l.Order == MLA {
		return 1
	}
	return 2
}

// PlaneBlockBytes is the size in bytes of a block in one plane of one layer. It and the sizes below are those of a layout
// that Validate accepts.
func (l Layout) PlaneBlockBytes() int {
	return l.KVHeads * l.HeadDim * l.BlockTokens * l.ElementBytes()
}

// PieceBytes is the size in bytes of a block in all planes of one layer.
func (l Layout) PieceBytes() int { return l.Planes() * l.PlaneBlockBytes() }

// BlockBytes is the size in bytes of a block in all layers.
func (l Layout) BlockBytes() int { return l.Layers * l.PieceBytes() }

// LayerShape is the shape of one layer of a cache of numBlocks blocks, the last axis contiguous:
//
//	HND [2, numBlocks, KVHeads, BlockTokens, HeadDim]
//	NHD [2, numBlocks, BlockTokens, KVHeads, HeadDim]
//	MLA [numBlocks, BlockTokens, HeadDim]
func (l Layout) LayerShape(numBlocks int) []int {
	switch l.Order {
	case MLA:
		return []int{numBlocks, l.BlockTokens, l.HeadDim}
	case NHD:
		return []int{2, numBlocks, l.BlockTokens, l.KVHeads, l.HeadDim}
	}
	return []int{2, numBlocks, l.KVHeads, l.BlockTokens, l.HeadDim}
}

// String is for people.
func (l Layout) String() string {
	l = l.withDefaults()
	return fmt.Sprintf("%s %dL x %dH x %dD x %dT %s tp %d/%d", l.Order, l.Layers, l.KVHeads, l.HeadDim, l.BlockTokens, l.DType, l.TPRank, l.TPSize)
}
