package kvxfer

import (
	"fmt"
	"reflect"
	"unsafe"
)

// Planes of a layer, for LayerView. MLA has one plane, 0.
const (
	PlaneK = 0
	PlaneV = 1
)

// Element is what an element of a cache may be seen as: float32 as float32 or its bits (uint32); float16 and bfloat16, which Go
// does not have, as bits (uint16); both float8 as bits (uint8); int8 and uint8 as themselves.
type Element interface {
	~float32 | ~uint32 | ~uint16 | ~uint8 | ~int8
}

var elementKinds = map[string][]reflect.Kind{
	"float32": {reflect.Float32, reflect.Uint32}, "float16": {reflect.Uint16}, "bfloat16": {reflect.Uint16},
	"float8_e4m3fn": {reflect.Uint8}, "float8_e5m2": {reflect.Uint8}, "int8": {reflect.Int8}, "uint8": {reflect.Uint8},
}

// Layered is memory with layers: a Cache.
type Layered interface {
	Memory() []byte
	Layout() Layout
	NumBlocks() int
}

// LayerView is one layer of a cache, over the cache's own memory: nothing is copied, and what is stored through it is in the
// cache. It is valid as long as the memory. Its methods panic where an index is out of range, as indexing a slice does.
type LayerView[T Element] struct {
	data      []T
	layout    Layout
	numBlocks int
	plane     int // elements of a plane
	block     int // elements of a block in a plane
}

// Layer is the view of one layer of a cache, 0..Layers-1. ErrInvalidArgument: there is no such layer, T cannot show the cache's
// elements, or the memory was given back.
func Layer[T Element](c Layered, layer int) (LayerView[T], error) {
	return LayerOf[T](c.Memory(), c.Layout(), c.NumBlocks(), layer)
}

// LayerOf is Layer for memory that holds a cache of numBlocks blocks from its first byte on, aligned for T.
func LayerOf[T Element](memory []byte, l Layout, numBlocks, layer int) (LayerView[T], error) {
	const op = "layer"
	var none LayerView[T]
	g, err := l.geometry(numBlocks)
	if err != nil {
		return none, err
	}
	if layer < 0 || layer >= l.Layers {
		return none, invalid(op, "layer", "%d, allowed 0..%d", layer, l.Layers-1)
	}
	if err := checkElement[T](op, l.DType); err != nil {
		return none, err
	}
	if uint64(len(memory)) < g.Bytes() {
		return none, invalid(op, "memory", "%d bytes, allowed %d at least: all blocks of all layers", len(memory), g.Bytes())
	}
	first := unsafe.Pointer(unsafe.SliceData(memory[g.Offset(uint32(layer), 0, 0):]))
	if uintptr(first)%unsafe.Alignof(*new(T)) != 0 {
		return none, invalid(op, "memory", "it begins at %p, allowed a multiple of %d", first, unsafe.Alignof(*new(T)))
	}
	l = l.withDefaults()
	v := LayerView[T]{layout: l, numBlocks: numBlocks, block: l.KVHeads * l.HeadDim * l.BlockTokens}
	v.plane = v.block * numBlocks
	v.data = unsafe.Slice((*T)(first), v.plane*l.Planes())
	return v, nil
}

func checkElement[T Element](op, dtype string) error {
	kind := reflect.TypeFor[T]().Kind()
	for _, k := range elementKinds[dtype] {
		if k == kind {
			return nil
		}
	}
	return invalid(op, "T", "%s for elements of %s, allowed %v", reflect.TypeFor[T](), dtype, elementKinds[dtype])
}

// Shape is Layout.LayerShape.
func (v LayerView[T]) Shape() []int { return v.layout.LayerShape(v.numBlocks) }

// Strides are the distances, in elements, between neighbours along each axis of Shape; the last is 1:
//
//	HND, NHD [plane, block, head or token, token or head, dim]
//	MLA      [block, token, dim]
func (v LayerView[T]) Strides() []int {
	shape := v.Shape()
	strides := make([]int, len(shape))
	n := 1
	for i := len(shape) - 1; i >= 0; i-- {
		strides[i] = n
		n *= shape[i]
	}
	return strides
}

// Data is the whole layer, one plane behind the other.
func (v LayerView[T]) Data() []T { return v.data[:len(v.data):len(v.data)] }

// Plane is PlaneK or PlaneV, all blocks; with MLA 0, the latent.
func (v LayerView[T]) Plane(plane int) []T {
	v.check("plane", plane, v.layout.Planes())
	return v.data[plane*v.plane : (plane+1)*v.plane : (plane+1)*v.plane]
}

// Block is one block of a plane: [head][token][dim], [token][head][dim] or with MLA [token][dim].
func (v LayerView[T]) Block(plane, block int) []T {
	v.check("plane", plane, v.layout.Planes())
	v.check("block", block, v.numBlocks)
	at := plane*v.plane + block*v.block
	return v.data[at : at+v.block : at+v.block]
}

// At is the HeadDim elements of one head at one token of a block, whatever the order; with MLA the latent of a token, plane and
// head 0.
func (v LayerView[T]) At(plane, block, head, token int) []T {
	v.check("head", head, v.layout.KVHeads)
	v.check("token", token, v.layout.BlockTokens)
	row := head*v.layout.BlockTokens + token
	if v.layout.Order != HND {
		row = token*v.layout.KVHeads + head
	}
	d := v.layout.HeadDim
	return v.Block(plane, block)[row*d : (row+1)*d : (row+1)*d]
}

func (v LayerView[T]) check(axis string, i, n int) {
	if i < 0 || i >= n {
		panic(fmt.Sprintf("kvxfer: %s %d, allowed 0..%d", axis, i, n-1))
	}
}
