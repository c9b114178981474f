package kvxfer

import (
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/wire"
)

// TestChainKeysAgreeWithPython: both SDKs' tests read the same vectors.
func TestChainKeysAgreeWithPython(t *testing.T) {
	var vectors []struct {
		TokenIDs    []uint32 `json:"token_ids"`
		Squares     int      `json:"squares_mod_50000"`
		BlockTokens int      `json:"block_tokens"`
		Seed        string   `json:"seed"`
		Keys        []string `json:"keys"`
	}
	readVectors(t, "chain_keys.json", &vectors)
	require.NotEmpty(t, vectors)
	for _, v := range vectors {
		for i := range v.Squares {
			v.TokenIDs = append(v.TokenIDs, uint32(i*i%50000))
		}
		seed, err := hex.DecodeString(v.Seed)
		require.NoError(t, err)
		keys, err := ChainKeys(v.TokenIDs, v.BlockTokens, seed)
		require.NoError(t, err)
		got := make([]string, len(keys))
		for i, k := range keys {
			got[i] = hex.EncodeToString(k)
		}
		assert.Equal(t, v.Keys, got)
	}
}

func TestChainKeysNameTheField(t *testing.T) {
	for _, c := range []struct {
		run    func() error
		field  string
		detail string
	}{
		{func() error { _, err := ChainKeys([]int{1}, 0, nil); return err }, "block_tokens", "0, allowed 1..4096"},
		{func() error { _, err := ChainKeys([]int{1}, 4097, nil); return err }, "block_tokens", "4097, allowed 1..4096"},
		{func() error { _, err := ChainKeys([]int64{7, 8, -1}, 2, nil); return err }, "token_ids", "token_ids[2] is -1, allowed 0..4294967295"},
		{func() error { _, err := ChainKeys([]uint64{1 << 32}, 1, nil); return err }, "token_ids", "token_ids[0] is 4294967296, allowed 0..4294967295"},
	} {
		err := c.run()
		require.ErrorIs(t, err, ErrInvalidArgument)
		assert.Equal(t, []string{c.field, c.detail}, []string{err.(*Error).Field, err.(*Error).Detail})
	}
}

func TestChainKeysAllocateNothingPerBlock(t *testing.T) {
	tokens := make([]int32, 1<<14)
	few := testing.AllocsPerRun(5, func() { _, _ = ChainKeys(tokens[:32], 16, nil) })
	many := testing.AllocsPerRun(5, func() { _, _ = ChainKeys(tokens, 16, nil) })
	assert.Equal(t, few, many)
}

func TestKeysAreChecked(t *testing.T) {
	packed, size, err := packKeys("publish", [][]byte{[]byte("ab"), []byte("cd")}, 2)
	require.NoError(t, err)
	assert.Equal(t, "abcd", string(packed))
	assert.Equal(t, uint32(2), size)
	require.NoError(t, wire.CheckKeys("lookup", packed, size))
	for detail, keys := range map[string][][]byte{
		"0 keys, allowed 1..2":                                              nil,
		"3 keys, allowed 1..2":                                              {{1}, {1}, {1}},
		"keys of 0 bytes, allowed 1..255":                                   {{}},
		"keys of 256 bytes, allowed 1..255":                                 {[]byte(strings.Repeat("x", 256))},
		"keys[1] has 1 bytes and keys[0] has 2; allowed keys of one length": {[]byte("ab"), []byte("a")},
	} {
		_, _, err := packKeys("publish", keys, 2)
		require.ErrorIs(t, err, ErrInvalidArgument)
		assert.Equal(t, []string{"keys", detail}, []string{err.(*Error).Field, err.(*Error).Detail})
	}
	_, _, err = packKeys("lookup", make([][]byte, MaxKeys+1), MaxKeys)
	assert.ErrorIs(t, err, ErrInvalidArgument)
}
