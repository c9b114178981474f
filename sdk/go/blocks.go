package kvxfer

import (
	"sync"

	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/xfer/layout"
)

// Integer is what block ids and token ids may be.
type Integer interface {
	~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~uintptr
}

// Blocks names blocks of a cache, in the order in which a transfer pairs them: a slice of any of Go's own integer types, or
// what [BlockIDs] made of a slice of another one.
type Blocks any

// BlockIDs makes Blocks of a slice of any integer type, for types that are not Go's own: type BlockID int32.
func BlockIDs[T Integer](ids []T) Blocks {
	if T(0)-1 < 0 {
		return widened[int64](ids)
	}
	return widened[uint64](ids)
}

func widened[W int64 | uint64, T Integer](ids []T) []W {
	out := make([]W, len(ids))
	for i, v := range ids {
		out[i] = W(v)
	}
	return out
}

// packBlocks checks a list against a cache of numBlocks blocks: 1..numBlocks ids, each of a block and none twice. What comes
// back is a copy of the caller's.
func packBlocks(op string, blocks Blocks, numBlocks int) ([]uint32, error) {
	switch ids := blocks.(type) {
	case []int:
		return packIDs(op, ids, numBlocks)
	case []int8:
		return packIDs(op, ids, numBlocks)
	case []int16:
		return packIDs(op, ids, numBlocks)
	case []int32:
		return packIDs(op, ids, numBlocks)
	case []int64:
		return packIDs(op, ids, numBlocks)
	case []uint:
		return packIDs(op, ids, numBlocks)
	case []uint8:
		return packIDs(op, ids, numBlocks)
	case []uint16:
		return packIDs(op, ids, numBlocks)
	case []uint32:
		return packIDs(op, ids, numBlocks)
	case []uint64:
		return packIDs(op, ids, numBlocks)
	case []uintptr:
		return packIDs(op, ids, numBlocks)
	}
	return nil, invalid(op, "blocks", "%T, allowed a slice of integers, or BlockIDs of a slice of a type of your own", blocks)
}

func packIDs[T Integer](op string, ids []T, numBlocks int) ([]uint32, error) {
	// A list that is too long is wrong before its end where an id is out of range, and needs no more memory than the cache's.
	out := make([]uint32, min(len(ids), numBlocks))
	for i, v := range ids {
		if v < 0 || uint64(v) >= uint64(numBlocks) {
			return nil, invalid(op, "blocks", "blocks[%d] is %d, allowed 0..%d", i, v, numBlocks-1)
		}
		if i < len(out) {
			out[i] = uint32(v)
		}
	}
	if len(ids) == 0 || len(ids) > numBlocks {
		return nil, invalid(op, "blocks", "%d block ids, allowed 1..%d", len(ids), numBlocks)
	}
	if err := (layout.Geometry{NumBlocks: uint32(numBlocks)}).CheckBlocks(op, out); err != nil {
		return nil, asError(op, err)
	}
	return out, nil
}

// vouched are the blocks of a cache that hold what a lease committed, with their generation. Dense columns rather than a map:
// an entry costs nine bytes, whatever is committed. It is safe for concurrent use.
type vouched struct {
	mu         sync.Mutex
	generation []uint64
	there      []bool
	count      int
}

func newVouched(numBlocks int) *vouched {
	return &vouched{generation: make([]uint64, numBlocks), there: make([]bool, numBlocks)}
}

// put vouches for the blocks of a checked list.
func (v *vouched) put(blocks []uint32, generation uint64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, b := range blocks {
		v.set(b, generation)
	}
}

func (v *vouched) set(b uint32, generation uint64) {
	if !v.there[b] {
		v.there[b] = true
		v.count++
	}
	v.generation[b] = generation
}

// take stops vouching for blocks and returns those that were vouched for, for restore.
func (v *vouched) take(blocks []uint32) []wire.Vouch {
	v.mu.Lock()
	defer v.mu.Unlock()
	var taken []wire.Vouch
	for _, b := range blocks {
		if v.there[b] {
			taken = append(taken, wire.Vouch{Block: b, Generation: v.generation[b]})
			v.there[b] = false
			v.count--
		}
	}
	return taken
}

// restore undoes a take whose request was refused.
func (v *vouched) restore(taken []wire.Vouch) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, t := range taken {
		v.set(t.Block, t.Generation)
	}
}

// packed is the array of REGISTER_CACHE, in block order.
func (v *vouched) packed() []byte {
	v.mu.Lock()
	defer v.mu.Unlock()
	out := make([]wire.Vouch, 0, v.count)
	for b, there := range v.there {
		if there {
			out = append(out, wire.Vouch{Block: uint32(b), Generation: v.generation[b]})
		}
	}
	return wire.AppendVouches(nil, out)
}

// keepOnly drops every block that is not in served.
func (v *vouched) keepOnly(served []uint32) {
	v.mu.Lock()
	defer v.mu.Unlock()
	keep := make([]bool, len(v.there))
	v.count = 0
	for _, b := range served {
		if int(b) < len(keep) && v.there[b] && !keep[b] {
			keep[b] = true
			v.count++
		}
	}
	v.there = keep
}
