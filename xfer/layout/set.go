package layout

import (
	"hash/maphash"
	mathbits "math/bits"
)

// Set is a set of a cache's blocks. What it takes, in memory and to make, grows with the blocks in it and not with the cache:
// a bitmap where that is small, else a table of hashes; at most 16 bytes a block, and 1 KiB at least.
type Set struct {
	bits  []uint64
	table []uint32 // block + 1; 0: free. At most half of it is used.
	shift int
}

// multiplier spreads block ids over a table. No process has the same one: who chooses the ids must not be able to choose the
// collisions. What a set holds does not depend on it.
var multiplier = uint32(maphash.String(maphash.MakeSeed(), "")) | 1

// NewSet makes an empty set for up to n blocks of numBlocks.
func NewSet(numBlocks uint32, n int) *Set {
	if uint64(numBlocks) <= max(8<<10, 128*uint64(n)) {
		return &Set{bits: make([]uint64, (uint64(numBlocks)+63)/64)}
	}
	size := mathbits.Len(uint(max(1, 2*n-1))) // a power of two, at least 2n
	return &Set{table: make([]uint32, 1<<size), shift: 32 - size}
}

// SetOf makes the set of a list, whose blocks are below numBlocks.
func SetOf(numBlocks uint32, blocks []uint32) *Set {
	s := NewSet(numBlocks, len(blocks))
	for _, b := range blocks {
		s.Add(b)
	}
	return s
}

// Add adds a block and says whether it was missing.
func (s *Set) Add(b uint32) bool {
	if s.table == nil {
		w, m := b/64, uint64(1)<<(b%64)
		fresh := s.bits[w]&m == 0
		s.bits[w] |= m
		return fresh
	}
	i := s.find(b)
	if s.table[i] != 0 {
		return false
	}
	s.table[i] = b + 1
	return true
}

// Has says whether a block, below the cache's number, is in the set.
func (s *Set) Has(b uint32) bool {
	if s.table == nil {
		return s.bits[b/64]&(1<<(b%64)) != 0
	}
	return s.table[s.find(b)] != 0
}

// First finds the first of blocks that is in the set.
func (s *Set) First(blocks []uint32) (block uint32, ok bool) {
	for _, b := range blocks {
		if s.Has(b) {
			return b, true
		}
	}
	return 0, false
}

// find is where a block stands in the table, or would.
func (s *Set) find(b uint32) uint32 {
	mask := uint32(len(s.table) - 1)
	i := b * multiplier >> s.shift
	for s.table[i] != 0 && s.table[i] != b+1 {
		i = (i + 1) & mask
	}
	return i
}
