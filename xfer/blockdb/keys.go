package blockdb

import (
	"bytes"
	"hash/maphash"
)

// keyIndex has the content keys of COMMITTED blocks and finds the blocks by them: exact, and about as large as its keyed
// blocks were many at a time. Keys lie in chunks of 256 neighbours, each with room for the longest key that it has. The table
// is open addressing over the numbers of blocks; where several have one key the table has one of them, and the others hang on it.
type keyIndex struct {
	chunks []*keyChunk // by block; nil until there is a key
	seed   maphash.Seed
	table  []uint32 // a power of two; block+1, 0 is none
	used   int      // of the table's entries: different keys
	next   []uint32 // by block: others of the same key; nil until a key has two
	prev   []uint32 // noBlock: it is the one in the table
}

type keyChunk struct {
	size  int // of the longest key
	keyed int // of its blocks
	b     []byte
}

const (
	chunkShift  = 8
	chunkBlocks = 1 << chunkShift
	leastTable  = 64
)

// noBlock ends a chain of blocks of one key.
const noBlock = ^uint32(0)

// key returns a block's key in place, nil for none.
func (x *keyIndex) key(block uint32) []byte {
	if x.chunks == nil {
		return nil
	}
	ch := x.chunks[block>>chunkShift]
	if ch == nil {
		return nil
	}
	at := int(block&(chunkBlocks-1)) * (1 + ch.size)
	n := int(ch.b[at])
	if n == 0 {
		return nil
	}
	return ch.b[at+1 : at+1+n : at+1+n]
}

// set gives a block its key in place of the one it had; an empty one is none. blocks are the cache's.
func (x *keyIndex) set(block uint32, key []byte, blocks uint32) {
	if x.chunks == nil && len(key) == 0 {
		return
	}
	if old := x.key(block); old != nil {
		if bytes.Equal(old, key) {
			return
		}
		x.remove(block)
	}
	if len(key) > 0 {
		x.add(block, key, blocks)
	}
}

func (x *keyIndex) add(block uint32, key []byte, blocks uint32) {
	if x.chunks == nil {
		x.chunks = make([]*keyChunk, (blocks+chunkBlocks-1)>>chunkShift)
		x.seed = maphash.MakeSeed()
		x.table = make([]uint32, leastTable)
	}
	ch := x.chunks[block>>chunkShift]
	if ch == nil || ch.size < len(key) || ch.keyed == 0 && ch.size > len(key) {
		ch = ch.resized(len(key))
		x.chunks[block>>chunkShift] = ch
	}
	at := int(block&(chunkBlocks-1)) * (1 + ch.size)
	ch.b[at] = byte(len(key))
	copy(ch.b[at+1:], key)
	ch.keyed++

	slot, head := x.find(key)
	if head == noBlock {
		x.table[slot] = block + 1
		if x.next != nil {
			x.next[block], x.prev[block] = noBlock, noBlock
		}
		if x.used++; 4*x.used > 3*len(x.table) {
			x.grow()
		}
		return
	}
	if x.next == nil {
		x.next, x.prev = make([]uint32, blocks), make([]uint32, blocks)
		for i := range x.next {
			x.next[i], x.prev[i] = noBlock, noBlock
		}
	}
	// Behind the one in the table, which stays where it is.
	x.next[block], x.prev[block] = x.next[head], head
	if after := x.next[head]; after != noBlock {
		x.prev[after] = block
	}
	x.next[head] = block
}

// remove takes a block's key away, which it must have.
func (x *keyIndex) remove(block uint32) {
	key := x.key(block)
	switch {
	case x.next != nil && x.prev[block] != noBlock:
		before, after := x.prev[block], x.next[block]
		x.next[before] = after
		if after != noBlock {
			x.prev[after] = before
		}
	case x.next != nil && x.next[block] != noBlock:
		slot, _ := x.find(key)
		after := x.next[block]
		x.table[slot], x.prev[after] = after+1, noBlock
	default:
		slot, _ := x.find(key)
		x.vacate(slot)
		x.used--
	}
	ch := x.chunks[block>>chunkShift]
	ch.b[int(block&(chunkBlocks-1))*(1+ch.size)] = 0
	ch.keyed--
}

// resized has room for a longer key, or for shorter ones where there are none now.
func (ch *keyChunk) resized(size int) *keyChunk {
	out := &keyChunk{size: size, b: make([]byte, chunkBlocks*(1+size))}
	if ch != nil && ch.keyed > 0 {
		out.keyed = ch.keyed
		for i := range chunkBlocks {
			copy(out.b[i*(1+size):], ch.b[i*(1+ch.size):(i+1)*(1+ch.size)])
		}
	}
	return out
}

func (x *keyIndex) home(key []byte) int { return int(maphash.Bytes(x.seed, key)) & (len(x.table) - 1) }

// find returns the slot of a key and the block in it, or the slot where the key belongs and noBlock.
func (x *keyIndex) find(key []byte) (slot int, head uint32) {
	for slot = x.home(key); ; slot = (slot + 1) & (len(x.table) - 1) {
		n := x.table[slot]
		if n == 0 {
			return slot, noBlock
		}
		if bytes.Equal(x.key(n-1), key) {
			return slot, n - 1
		}
	}
}

// vacate empties a slot and moves up those behind it that would not be found any more.
func (x *keyIndex) vacate(slot int) {
	mask := len(x.table) - 1
	for at := (slot + 1) & mask; x.table[at] != 0; at = (at + 1) & mask {
		if home := x.home(x.key(x.table[at] - 1)); (at-home)&mask >= (at-slot)&mask {
			x.table[slot] = x.table[at]
			slot = at
		}
	}
	x.table[slot] = 0
}

func (x *keyIndex) grow() {
	old := x.table
	x.table = make([]uint32, 2*len(old))
	for _, b := range old {
		if b != 0 {
			slot, _ := x.find(x.key(b - 1))
			x.table[slot] = b
		}
	}
}

// Prefix appends to dst the blocks that hold the first keys of a packed list, size bytes each, as far as the cache has
// them COMMITTED without a gap. It sees one moment's state. A cache that is not attached holds nothing.
func (c *Cache) Prefix(dst []uint32, keys []byte, size int) []uint32 {
	c.db.mu.RLock()
	defer c.db.mu.RUnlock()
	for ; size > 0 && len(keys) >= size && c.attached && c.index.used > 0; keys = keys[size:] {
		_, block := c.index.find(keys[:size])
		if block == noBlock {
			break
		}
		dst = append(dst, block)
	}
	return dst
}
