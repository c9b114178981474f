package wire

import "github.com/kvxfer/kvxfer/internal/fault"

// KeyedBlocks reads the array of PUBLISH: block ids, then a key of size bytes for each, in the same order. The keys share b.
func KeyedBlocks(b []byte, size uint32) (blocks []uint32, keys [][]byte, err error) {
	if err := checkKeyBytes("publish", size); err != nil {
		return nil, nil, err
	}
	if len(b)%(4+int(size)) != 0 {
		return nil, nil, violation("keys", "%d bytes are no multiple of %d, a block id and its key", len(b), 4+size)
	}
	n := len(b) / (4 + int(size))
	if blocks, err = U32s("blocks", b[:4*n]); err != nil {
		return nil, nil, err
	}
	keys, err = Keys(b[4*n:], size)
	return blocks, keys, err
}

// CheckKeys refuses a packed array that is not 1 to MaxLookupKeys keys of size bytes each.
func CheckKeys(op string, b []byte, size uint32) error {
	if err := checkKeyBytes(op, size); err != nil {
		return err
	}
	if len(b)%int(size) != 0 {
		return violation("keys", "%d bytes are no multiple of %d", len(b), size)
	}
	if n := len(b) / int(size); n < 1 || n > MaxLookupKeys {
		return fault.Invalid(op, "keys", "%d, allowed 1..%d", n, MaxLookupKeys)
	}
	return nil
}
