package blockdb

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestKeysStayWithTheirBlocks gives blocks in an order of their own; the log, which has them in another, gives each its key
// back at the next start.
func TestKeysStayWithTheirBlocks(t *testing.T) {
	rng, _ := seeded(t)
	d, _ := open(t, memOptions())
	s := spec("a", 64)
	c, _ := attach(t, d, s)
	want := map[uint32]string{}
	step := func(id uint64, publish bool) {
		var blocks []uint32
		var keys [][]byte
		for _, n := range rng.Perm(64)[:40] {
			blocks = append(blocks, uint32(n))
			keys = append(keys, fmt.Appendf(nil, "%d of %d", n, id))
			want[uint32(n)] = string(keys[len(keys)-1])
		}
		if publish {
			_, err := c.Publish(blocks, keys)
			require.NoError(t, err)
			return
		}
		grant(t, c, write(id, blocks...))
		require.NoError(t, c.Commit(lid(id), CommitRecord{Keys: keys}))
	}
	step(1, false)
	step(2, true)
	var gone []uint32
	for _, n := range rng.Perm(64)[:8] {
		gone = append(gone, uint32(n))
		delete(want, uint32(n))
	}
	require.NoError(t, c.Evict(gone))
	var vouch []Vouch
	c.Blocks(func(r Record) bool { vouch = append(vouch, Vouch{r.Block, r.Generation}); return true })
	d, _ = reopen(t, d)
	c, _ = attach(t, d, s, vouch...)
	got := map[uint32]string{}
	c.Blocks(func(r Record) bool {
		if r.State == Committed {
			got[r.Block] = string(r.Key)
		}
		return true
	})
	assert.Equal(t, want, got)
}
