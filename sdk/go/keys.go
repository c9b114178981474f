package kvxfer

import (
	"crypto/sha256"
	"encoding/binary"
	"math"

	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/xfer/layout"
)

const (
	// MaxKeys bounds the keys of one call.
	MaxKeys = wire.MaxLookupKeys
	// maxKey bounds a key in bytes.
	maxKey = 255
	// maxKeyBytes bounds the keys of one call together, in bytes: an array of a frame.
	maxKeyBytes = 64 << 20
)

// ChainKeys makes a key for each whole block of tokens, which names its tokens and all before them.
//
// The chain: parent = SHA-256(seed); then for each block key = SHA-256(parent + tokens), where tokens are the block's ids as
// little-endian 32-bit unsigned integers, 4 bytes each with nothing between, and parent = key. So two sequences share a
// block's key exactly if they share the seed, blockTokens and every token up to that block's end.
//
// tokenIDs are 0..2^32-1; a last block that is not full has no key, since its contents will change. blockTokens is 1..4096, as
// in the layout. seed is what else the contents depend on (a tenant's salt, an adapter, images), any bytes; model, revision,
// compat and layout need not go in: a look-up compares them itself.
//
// It gives len(tokenIDs)/blockTokens keys of 32 bytes; ErrInvalidArgument names the field, and the index of a wrong id.
func ChainKeys[T Integer](tokenIDs []T, blockTokens int, seed []byte) ([][]byte, error) {
	const op = "chain_keys"
	if blockTokens < 1 || blockTokens > layout.MaxBlockTokens {
		return nil, invalid(op, "block_tokens", "%d, allowed 1..%d", blockTokens, layout.MaxBlockTokens)
	}
	count := len(tokenIDs) / blockTokens
	out, keys := make([]byte, 0, count*sha256.Size), make([][]byte, count)
	parent := sha256.Sum256(seed)
	block := make([]byte, sha256.Size, sha256.Size+4*blockTokens)
	for i, t := range tokenIDs {
		if t < 0 || uint64(t) > math.MaxUint32 {
			return nil, invalid(op, "token_ids", "token_ids[%d] is %d, allowed 0..%d", i, t, uint32(math.MaxUint32))
		}
		block = binary.LittleEndian.AppendUint32(block, uint32(t))
		if len(block) < cap(block) {
			continue
		}
		copy(block, parent[:])
		parent = sha256.Sum256(block)
		block = block[:sha256.Size]
		out = append(out, parent[:]...)
		keys[i/blockTokens] = out[len(out)-sha256.Size : len(out) : len(out)]
	}
	return keys, nil
}

// packKeys joins 1..most keys of equal length, 1..255 bytes each, with nothing between. size is the length of each in bytes.
func packKeys(op string, keys [][]byte, most int) (packed []byte, size uint32, err error) {
	bad := func(format string, args ...any) ([]byte, uint32, error) {
		return nil, 0, invalid(op, "keys", format, args...)
	}
	if len(keys) < 1 || len(keys) > most {
		return bad("%d keys, allowed 1..%d", len(keys), most)
	}
	n := len(keys[0])
	if n < 1 || n > maxKey {
		return bad("keys of %d bytes, allowed 1..%d", n, maxKey)
	}
	for i, k := range keys {
		if len(k) != n {
			return bad("keys[%d] has %d bytes and keys[0] has %d; allowed keys of one length", i, len(k), n)
		}
	}
	if total := n * len(keys); total > maxKeyBytes {
		return bad("%d bytes, allowed 1..%d", total, maxKeyBytes)
	}
	packed = make([]byte, 0, n*len(keys))
	for _, k := range keys {
		packed = append(packed, k...)
	}
	return packed, uint32(n), nil
}
