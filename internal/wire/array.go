package wire

import (
	"encoding/binary"
	"slices"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// U32s reads a packed little-endian array of unsigned 32-bit integers: numpy's own bytes of a "<u4" array.
func U32s(field string, b []byte) ([]uint32, error) {
	if len(b)%4 != 0 {
		return nil, violation(field, "%d bytes are no multiple of 4", len(b))
	}
	out := make([]uint32, len(b)/4)
	for i := range out {
		out[i] = binary.LittleEndian.Uint32(b[4*i:])
	}
	return out, nil
}

// AppendU32s packs v.
func AppendU32s(dst []byte, v []uint32) []byte {
	dst = slices.Grow(dst, 4*len(v)) // a hundred thousand at a time: not by doubling
	for _, x := range v {
		dst = binary.LittleEndian.AppendUint32(dst, x)
	}
	return dst
}

// Vouch says that a client still vouches for a committed block: its id and the generation it was committed under.
type Vouch struct {
	Block      uint32
	Generation uint64
}

// vouchSize is {block u32, reserved u32, generation u64}.
const vouchSize = 16

// Vouches reads a packed array of vouches.
func Vouches(b []byte) ([]Vouch, error) {
	if len(b)%vouchSize != 0 {
		return nil, violation("vouched", "%d bytes are no multiple of %d", len(b), vouchSize)
	}
	out := make([]Vouch, len(b)/vouchSize)
	for i := range out {
		r := b[i*vouchSize:]
		out[i] = Vouch{Block: binary.LittleEndian.Uint32(r), Generation: binary.LittleEndian.Uint64(r[8:])}
	}
	return out, nil
}

// AppendVouches packs v.
func AppendVouches(dst []byte, v []Vouch) []byte {
	for _, x := range v {
		dst = binary.LittleEndian.AppendUint32(dst, x.Block)
		dst = binary.LittleEndian.AppendUint32(dst, 0)
		dst = binary.LittleEndian.AppendUint64(dst, x.Generation)
	}
	return dst
}

// States of a block in a BlockEntry. FREE blocks are not listed; 0 stands for FREE.
const (
	StateFree      uint32 = 0
	StateLeased    uint32 = 1
	StateCommitted uint32 = 2
	StateRevoking  uint32 = 3
	StateHeld      uint32 = 4
)

// BlockEntry is a block's state in the answer to BLOCKS.
type BlockEntry struct {
	Block      uint32
	State      uint32
	Generation uint64 // of a COMMITTED block what it was committed under, of a LEASED one what it will be; else 0
}

// blockEntrySize is {block u32, state u32, generation u64}.
const blockEntrySize = 16

// BlockEntries reads a packed array of block entries.
func BlockEntries(b []byte) ([]BlockEntry, error) {
	if len(b)%blockEntrySize != 0 {
		return nil, violation("blocks", "%d bytes are no multiple of %d", len(b), blockEntrySize)
	}
	out := make([]BlockEntry, len(b)/blockEntrySize)
	for i := range out {
		r := b[i*blockEntrySize:]
		out[i] = BlockEntry{Block: binary.LittleEndian.Uint32(r), State: binary.LittleEndian.Uint32(r[4:]),
			Generation: binary.LittleEndian.Uint64(r[8:])}
	}
	return out, nil
}

// AppendBlockEntries packs v.
func AppendBlockEntries(dst []byte, v []BlockEntry) []byte {
	for _, x := range v {
		dst = binary.LittleEndian.AppendUint32(dst, x.Block)
		dst = binary.LittleEndian.AppendUint32(dst, x.State)
		dst = binary.LittleEndian.AppendUint64(dst, x.Generation)
	}
	return dst
}

// LayerPart names part of a transfer: blocks [First, First+Count) of the transfer's block list, in one layer.
type LayerPart struct {
	Transfer uint64
	Layer    uint32
	First    uint32
	Count    uint32 // 0: to the end of the list
}

// LayerPartSize is {transfer u64, layer u32, first u32, count u32, reserved u32}.
const LayerPartSize = 24

// ParseLayerPart reads the array of a PUSH_LAYER frame.
func ParseLayerPart(b []byte) (LayerPart, error) {
	if len(b) != LayerPartSize {
		return LayerPart{}, violation("layer_part", "%d bytes, want %d", len(b), LayerPartSize)
	}
	return LayerPart{
		Transfer: binary.LittleEndian.Uint64(b),
		Layer:    binary.LittleEndian.Uint32(b[8:]),
		First:    binary.LittleEndian.Uint32(b[12:]),
		Count:    binary.LittleEndian.Uint32(b[16:]),
	}, nil
}

// Blocks resolves the part for a transfer of that many layers and blocks: where it begins in the block list and how
// many blocks it names. It refuses what lies outside, without overflow.
func (p LayerPart) Blocks(layers, blocks uint32) (first, count uint32, err error) {
	switch {
	case p.Layer >= layers:
		return 0, 0, fault.Invalid("push_layer", "layer", "%d, allowed 0..%d", p.Layer, int64(layers)-1)
	case p.First >= blocks:
		return 0, 0, fault.Invalid("push_layer", "first", "%d, allowed 0..%d", p.First, int64(blocks)-1)
	case p.Count > blocks-p.First:
		return 0, 0, fault.Invalid("push_layer", "count", "%d from %d, allowed 0..%d", p.Count, p.First, blocks-p.First)
	case p.Count == 0:
		return p.First, blocks - p.First, nil
	}
	return p.First, p.Count, nil
}

// AppendLayerPart packs p.
func AppendLayerPart(dst []byte, p LayerPart) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, p.Transfer)
	dst = binary.LittleEndian.AppendUint32(dst, p.Layer)
	dst = binary.LittleEndian.AppendUint32(dst, p.First)
	dst = binary.LittleEndian.AppendUint32(dst, p.Count)
	return binary.LittleEndian.AppendUint32(dst, 0)
}

// LayersVisible is the array of an EVENT_LAYERS frame: {lease u64, layer u32 ...}.
type LayersVisible struct {
	Lease  uint64
	Layers []uint32
}

// ParseLayersVisible reads it.
func ParseLayersVisible(b []byte) (LayersVisible, error) {
	if len(b) < 8 || len(b)%4 != 0 {
		return LayersVisible{}, violation("layers", "%d bytes", len(b))
	}
	l, err := U32s("layers", b[8:])
	return LayersVisible{Lease: binary.LittleEndian.Uint64(b), Layers: l}, err
}

// AppendLayersVisible packs v.
func AppendLayersVisible(dst []byte, v LayersVisible) []byte {
	return AppendU32s(binary.LittleEndian.AppendUint64(dst, v.Lease), v.Layers)
}

// RegionSpan is a part of a region: offset and length in bytes.
type RegionSpan struct{ Off, Len uint64 }

// ScatterRange moves Len bytes between offset Local of the own region and offset Remote of the advertised one.
type ScatterRange struct{ Local, Remote, Len uint64 }

const (
	spanSize    = 16
	scatterSize = 24
)

// RegionSpans reads a packed array of {offset u64, length u64}.
func RegionSpans(b []byte) ([]RegionSpan, error) {
	if len(b)%spanSize != 0 {
		return nil, violation("spans", "%d bytes are no multiple of %d", len(b), spanSize)
	}
	out := make([]RegionSpan, len(b)/spanSize)
	for i := range out {
		r := b[i*spanSize:]
		out[i] = RegionSpan{binary.LittleEndian.Uint64(r), binary.LittleEndian.Uint64(r[8:])}
	}
	return out, nil
}

// AppendRegionSpans packs v.
func AppendRegionSpans(dst []byte, v []RegionSpan) []byte {
	for _, x := range v {
		dst = binary.LittleEndian.AppendUint64(dst, x.Off)
		dst = binary.LittleEndian.AppendUint64(dst, x.Len)
	}
	return dst
}

// ScatterRanges reads a packed array of {local u64, remote u64, length u64}.
func ScatterRanges(b []byte) ([]ScatterRange, error) {
	if len(b)%scatterSize != 0 {
		return nil, violation("ranges", "%d bytes are no multiple of %d", len(b), scatterSize)
	}
	out := make([]ScatterRange, len(b)/scatterSize)
	for i := range out {
		r := b[i*scatterSize:]
		out[i] = ScatterRange{binary.LittleEndian.Uint64(r), binary.LittleEndian.Uint64(r[8:]), binary.LittleEndian.Uint64(r[16:])}
	}
	return out, nil
}

// AppendScatterRanges packs v.
func AppendScatterRanges(dst []byte, v []ScatterRange) []byte {
	for _, x := range v {
		dst = binary.LittleEndian.AppendUint64(dst, x.Local)
		dst = binary.LittleEndian.AppendUint64(dst, x.Remote)
		dst = binary.LittleEndian.AppendUint64(dst, x.Len)
	}
	return dst
}

// MaxKey bounds a block's content key, in bytes.
const MaxKey = 255

// Keys cuts a packed array of keys of size bytes each. The keys share b.
func Keys(b []byte, size uint32) ([][]byte, error) {
	if size < 1 || size > MaxKey {
		return nil, fault.Invalid("keys", "key_bytes", "%d, allowed 1..%d", size, MaxKey)
	}
	if len(b)%int(size) != 0 {
		return nil, violation("keys", "%d bytes are no multiple of %d", len(b), size)
	}
	out := make([][]byte, len(b)/int(size))
	for i := range out {
		out[i] = b[i*int(size) : (i+1)*int(size) : (i+1)*int(size)]
	}
	return out, nil
}
