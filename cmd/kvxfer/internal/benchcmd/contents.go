package benchcmd

import (
	"encoding/binary"
	"fmt"
)

// fill writes what the blocks hold in round seed. What a block holds depends on the round and on its position in the
// list, not on its id, so that both sides can make it and a block at a wrong place is seen.
func fill(memory []byte, ids []uint32, blockBytes int, seed uint64) {
	for i, id := range ids {
		b := memory[int(id)*blockBytes:][:blockBytes]
		for x := first(seed, i); len(b) >= 8; b = b[8:] {
			binary.LittleEndian.PutUint64(b, x)
			x += step
		}
	}
}

// check compares the blocks with what fill writes.
func check(memory []byte, ids []uint32, blockBytes int, seed uint64) error {
	for i, id := range ids {
		b := memory[int(id)*blockBytes:][:blockBytes]
		for x := first(seed, i); len(b) >= 8; b = b[8:] {
			if got := binary.LittleEndian.Uint64(b); got != x {
				return fmt.Errorf("position %d of the list (block %d) holds %#x %d bytes before its end, expected %#x", i, id, got, len(b), x)
			}
			x += step
		}
	}
	return nil
}

const step = 0x9e3779b97f4a7c15 // odd, so that the words of a block differ

func first(seed uint64, position int) uint64 {
	x := (seed<<32 ^ uint64(position)) + step
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
