package blockdb

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestPrefixAgainstNaiveModel publishes, commits, leases, evicts, detaches and restarts at random; after each step the
// longest prefix of random keys is what a search through all blocks finds. Keys are few, so that several blocks have one.
func TestPrefixAgainstNaiveModel(t *testing.T) {
	const blocks, size = 24, 2
	rng, _ := seeded(t)
	d, _ := open(t, memOptions())
	s := spec("a", blocks)
	c, _ := attach(t, d, s)
	key := func() []byte { return fmt.Appendf(nil, "k%c", 'a'+rune(rng.IntN(10))) }
	some := func() (b []uint32, keys [][]byte) {
		for _, n := range rng.Perm(blocks)[:1+rng.IntN(4)] {
			b, keys = append(b, uint32(n)), append(keys, key())
		}
		return b, keys
	}
	for step := range 4000 {
		b, keys := some()
		switch rng.IntN(12) {
		case 0, 1, 2, 3:
			_, err := c.Publish(b, keys)
			require.NoError(t, err)
		case 4:
			_, err := c.Publish(b, nil)
			require.NoError(t, err)
		case 5, 6:
			grant(t, c, write(uint64(step), b...))
			require.NoError(t, c.Commit(lid(uint64(step)), CommitRecord{Keys: keys}))
		case 7:
			grant(t, c, write(uint64(step), b...))
			require.NoError(t, c.Free(lid(uint64(step))))
		case 8, 9:
			require.NoError(t, c.Evict(b))
		case 10:
			r, err := c.State(b[0])
			require.NoError(t, err)
			require.NoError(t, c.EvictGeneration(b, r.Generation))
		default:
			var vouch []Vouch
			c.Blocks(func(r Record) bool { vouch = append(vouch, Vouch{r.Block, r.Generation}); return true })
			if rng.IntN(2) == 0 {
				require.NoError(t, c.Detach())
				assert.Empty(t, c.Prefix(nil, []byte("ka"), size))
			} else {
				d, _ = reopen(t, d)
			}
			c, _ = attach(t, d, s, vouch...)
		}
		held := map[string]bool{}
		keyed := 0
		c.Blocks(func(r Record) bool {
			if r.State == Committed && len(r.Key) > 0 {
				held[string(r.Key)] = true
				keyed++
			}
			return true
		})
		require.Equal(t, len(held), c.index.used, "step %d: the index is as large as it must be", step)
		for range 4 {
			var list []byte
			want, gap := 0, false
			for range 1 + rng.IntN(5) {
				k := key()
				list = append(list, k...)
				gap = gap || !held[string(k)]
				if !gap {
					want++
				}
			}
			got := c.Prefix(nil, list, size)
			require.Len(t, got, want, "step %d: %s", step, list)
			for i, n := range got {
				r, err := c.State(n)
				require.NoError(t, err)
				require.Equal(t, Committed, r.State)
				require.Equal(t, string(list[size*i:size*(i+1)]), string(r.Key), "step %d", step)
			}
		}
	}
}

func TestEvictGenerationLeavesOthers(t *testing.T) {
	d, _ := open(t, memOptions())
	c, _ := attach(t, d, spec("a", 8))
	g := filled(t, c, 1, 0, 1, 2, 3)
	filled(t, c, 2, 1)
	grant(t, c, write(3, 2))
	require.NoError(t, c.Evict([]uint32{3}))
	require.NoError(t, c.EvictGeneration([]uint32{0, 1, 2, 3, 7, 99}, g))
	assert.Equal(t, ".CL.....", picture(t, c))
	_ = d
}

// BenchmarkKeyIndex reports the bytes that a keyed block takes in memory.
func BenchmarkKeyIndex(b *testing.B) {
	const blocks, size = 1 << 16, 32
	d, _, err := Open(memOptions())
	require.NoError(b, err)
	b.Cleanup(func() { _ = d.Close() })
	c, _, err := d.Attach(spec("a", blocks), nil)
	require.NoError(b, err)
	all, keys := make([]uint32, blocks), make([][]byte, blocks)
	var packed []byte
	for i := range all {
		all[i], keys[i] = uint32(i), fmt.Appendf(nil, "%032x", i)
		packed = append(packed, keys[i]...)
	}
	var before, after runtime.MemStats
	c.db.mu.Lock()
	runtime.GC()
	runtime.ReadMemStats(&before)
	c.commitAll(all, 1<<40, 0, keys)
	runtime.GC()
	runtime.ReadMemStats(&after)
	c.db.mu.Unlock()
	runtime.KeepAlive(keys)
	var found []uint32
	for b.Loop() {
		found = c.Prefix(found[:0], packed, size)
	}
	require.Len(b, found, blocks)
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/blocks, "bytes/block")
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/blocks, "ns/block")
}
