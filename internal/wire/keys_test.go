package wire

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
)

func TestKeyedBlocks(t *testing.T) {
	blocks, keys, err := KeyedBlocks(append(AppendU32s(nil, []uint32{7, 3}), "aaabbb"...), 3)
	require.NoError(t, err)
	assert.Equal(t, []uint32{7, 3}, blocks)
	assert.Equal(t, [][]byte{[]byte("aaa"), []byte("bbb")}, keys)
	_, _, err = KeyedBlocks(make([]byte, 8), 3)
	assert.ErrorIs(t, err, fault.ErrProtocolViolation)
	for _, size := range []uint32{0, 256, ^uint32(0)} {
		_, _, err = KeyedBlocks(nil, size)
		assert.Equal(t, "key_bytes", fault.From("", err).Field)
	}
}

func TestCheckKeys(t *testing.T) {
	assert.NoError(t, CheckKeys("lookup", make([]byte, 6), 3))
	assert.NoError(t, CheckKeys("lookup", make([]byte, MaxLookupKeys), 1))
	for size, n := range map[uint32]int{0: 4, 256: 256, 3: 0, 1: MaxLookupKeys + 1} {
		assert.ErrorIs(t, CheckKeys("lookup", make([]byte, n), size), fault.ErrInvalidArgument, "%d", size)
	}
	assert.ErrorIs(t, CheckKeys("lookup", make([]byte, 4), 3), fault.ErrProtocolViolation)
}

// FuzzKeyedBlocks: whatever the array, what is read has a key for each block, or an error.
func FuzzKeyedBlocks(f *testing.F) {
	f.Add([]byte("\x01\x00\x00\x00k"), uint32(1))
	f.Fuzz(func(t *testing.T, b []byte, size uint32) {
		blocks, keys, err := KeyedBlocks(b, size)
		if err != nil {
			return
		}
		require.Len(t, keys, len(blocks))
		for _, k := range keys {
			require.Len(t, k, int(size))
		}
		if CheckKeys("x", b, size) == nil {
			_, err := Keys(b, size)
			require.NoError(t, err)
		}
	})
}
