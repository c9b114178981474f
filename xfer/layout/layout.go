package layout

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// Order is the order of the axes inside a block.
type Order string

const (
	HND Order = "HND" // [kv head][token][dim]
	NHD Order = "NHD" // [token][kv head][dim]
	MLA Order = "MLA" // [token][dim], one plane, no heads
)

// Layout describes one rank's part of a KV cache.
type Layout struct {
	Layers      uint32 `json:"layers"`       // on this rank
	KVHeads     uint32 `json:"kv_heads"`     // on this rank; 1 with MLA
	HeadDim     uint32 `json:"head_dim"`     // elements; with MLA the latent's width
	DType       string `json:"dtype"`        // element type, see ElementBytes
	BlockTokens uint32 `json:"block_tokens"` // tokens in a block
	Order       Order  `json:"order"`
	TPRank      uint32 `json:"tp_rank"`
	TPSize      uint32 `json:"tp_size"` // 1: not split
}

// Limits of a layout. Together they keep every offset below 2^63 (TestValidateBoundsTheArithmetic).
const (
	MaxLayers      = 1 << 10
	MaxKVHeads     = 1 << 10
	MaxHeadDim     = 1 << 14
	MaxBlockTokens = 1 << 12
	MaxTPSize      = 1 << 10
	MaxBlocks      = 1 << 24
)

var elementBytes = map[string]uint64{
	"float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1, "int8": 1, "uint8": 1,
}

// ElementBytes is the size of an element of dtype in bytes, 0 for an unknown one.
func ElementBytes(dtype string) uint64 { return elementBytes[dtype] }

// Validate checks every field; the error names the field and its allowed range.
func (l Layout) Validate() error {
	for _, f := range [...]struct {
		name  string
		v     uint32
		limit uint32
	}{
		{"layers", l.Layers, MaxLayers}, {"kv_heads", l.KVHeads, MaxKVHeads}, {"head_dim", l.HeadDim, MaxHeadDim},
		{"block_tokens", l.BlockTokens, MaxBlockTokens}, {"tp_size", l.TPSize, MaxTPSize},
	} {
		if f.v < 1 || f.v > f.limit {
			return fault.Invalid("layout", "layout."+f.name, "%d, allowed 1..%d", f.v, f.limit)
		}
	}
	if l.TPRank >= l.TPSize {
		return fault.Invalid("layout", "layout.tp_rank", "%d, allowed 0..%d", l.TPRank, l.TPSize-1)
	}
	if ElementBytes(l.DType) == 0 {
		return fault.Invalid("layout", "layout.dtype", "%q, allowed float32, float16, bfloat16, float8_e4m3fn, float8_e5m2, int8, uint8", l.DType)
	}
	switch l.Order {
	case HND, NHD:
	case MLA:
		if l.KVHeads != 1 {
			return fault.Invalid("layout", "layout.kv_heads", "%d, allowed 1 with order MLA", l.KVHeads)
		}
	default:
		return fault.Invalid("layout", "layout.order", "%q, allowed HND, NHD, MLA", l.Order)
	}
	return nil
}

// Planes is the number of planes of a layer: 2 (K and V), or 1 with MLA.
func (l Layout) Planes() uint64 {
	if l.Order == MLA {
		return 1
	}
	return 2
}

// PlaneBlockBytes is the size of a block in one plane of one layer, in bytes.
func (l Layout) PlaneBlockBytes() uint64 {
	return uint64(l.KVHeads) * uint64(l.HeadDim) * uint64(l.BlockTokens) * ElementBytes(l.DType)
}

// PieceBytes is the size of a piece: one block in all planes of one layer.
func (l Layout) PieceBytes() uint64 { return l.Planes() * l.PlaneBlockBytes() }

// BlockBytes is the size of a block in all layers.
func (l Layout) BlockBytes() uint64 { return uint64(l.Layers) * l.PieceBytes() }

// Digest names the layout and the number of blocks: two caches with the same digest have the same offsets.
func (l Layout) Digest(numBlocks uint32) [32]byte {
	b := []byte("kvxfer layout 1\x00" + l.DType + "\x00" + string(l.Order) + "\x00")
	for _, v := range [...]uint32{l.Layers, l.KVHeads, l.HeadDim, l.BlockTokens, l.TPRank, l.TPSize, numBlocks} {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return sha256.Sum256(b)
}

// String is for people.
func (l Layout) String() string {
	return fmt.Sprintf("%s %dL x %dH x %dD x %dT %s tp %d/%d", l.Order, l.Layers, l.KVHeads, l.HeadDim, l.BlockTokens, l.DType, l.TPRank, l.TPSize)
}

// Identity is what must agree between two caches besides the layout.
type Identity struct{ Model, Revision, Compat string }

// Compare says whether blocks of src may be moved into dst as they are: LayoutMismatch names the first field that
// differs. Both layouts are valid.
func Compare(src, dst Layout, srcID, dstID Identity) error {
	for _, f := range [...]struct {
		name     string
		src, dst any
	}{
		{"model", srcID.Model, dstID.Model}, {"revision", srcID.Revision, dstID.Revision}, {"compat", srcID.Compat, dstID.Compat},
		{"layout.layers", src.Layers, dst.Layers}, {"layout.kv_heads", src.KVHeads, dst.KVHeads},
		{"layout.head_dim", src.HeadDim, dst.HeadDim}, {"layout.dtype", src.DType, dst.DType},
		{"layout.block_tokens", src.BlockTokens, dst.BlockTokens}, {"layout.order", src.Order, dst.Order},
		{"layout.tp_size", src.TPSize, dst.TPSize}, {"layout.tp_rank", src.TPRank, dst.TPRank},
	} {
		if f.src != f.dst {
			e := fault.New(fault.LayoutMismatch, "bind", "source has %v, target has %v", f.src, f.dst)
			e.Field = f.name
			return e
		}
	}
	return nil
}
