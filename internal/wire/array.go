package wire

import (
	"encoding/binary"
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
