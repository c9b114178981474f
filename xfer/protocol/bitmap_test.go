package protocol

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/testseed"
)

// TestRangesOfBitsAgreeWithSingleOnes: ranges are set and counted 64 at a time.
func TestRangesOfBitsAgreeWithSingleOnes(t *testing.T) {
	rng := testseed.New(t)
	for range 300 {
		size := 1 + rng.Uint64N(400)
		b, naive := newBitmap(size), newBitmap(size)
		for range 20 {
			first := rng.Uint64N(size)
			n := rng.Uint64N(size - first + 1)
			var fresh uint32
			for i := first; i < first+n; i++ {
				if naive.set(i) {
					fresh++
				}
			}
			require.Equal(t, uint32(n)-fresh, b.count(first, n), "[%d, +%d)", first, n)
			require.Equal(t, fresh, b.setRange(first, n), "[%d, +%d)", first, n)
			require.Equal(t, naive, b)
		}
	}
}
