package blockdb

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
)

// What the package's doc says of a block's share of the heap, and of a keyed block's beside its key.
const (
	bytesPerBlock = 18
	bytesPerKey   = 16
)

func TestMemoryPerBlock(t *testing.T) {
	const blocks = 1 << 18
	d, _ := open(t, memOptions())
	for keyed, most := range map[bool]float64{false: bytesPerBlock, true: bytesPerBlock + keySize + bytesPerKey} {
		before := heap()
		c := newCache(d, CacheID{1}, cacheRec{numBlocks: blocks})
		for n := range uint32(blocks) {
			var key []byte
			if keyed {
				key = millionKey(n)
			}
			c.enter(n, 1, 1, key)
		}
		per := (float64(heap()) - float64(before)) / blocks
		runtime.KeepAlive(c)
		t.Logf("keyed %t: %.1f bytes a block", keyed, per)
		assert.Less(t, per, most)
	}
}

// TestNothingIsAllocatedForABlock: what a call allocates is the same for one block and for 1,024, but for their list, and so is
// what writing allocates, the log's own work in the background included.
func TestNothingIsAllocatedForABlock(t *testing.T) {
	const calls = 100
	for _, n := range []int{1, 1024} {
		c, blocks := benchCache(t, n)
		keys := make([][]byte, n)
		for i := range keys {
			keys[i] = millionKey(uint32(i))
		}
		next := uint64(0)
		once := func(settled bool, step func(id LeaseID)) float64 {
			return testing.AllocsPerRun(calls, func() {
				next++
				step(lid(next))
				if settled {
					settle(t, c.db)
				}
			})
		}
		r := write(0, blocks...)
		for name, step := range map[string]func(id LeaseID){
			"commit": func(id LeaseID) {
				r.LeaseID = id
				_, _ = c.Grant(r)
				_ = c.Commit(id, CommitRecord{})
			},
			"commit under keys": func(id LeaseID) {
				r.LeaseID = id
				_, _ = c.Grant(r)
				_ = c.Commit(id, CommitRecord{Keys: keys})
			},
			"free": func(id LeaseID) {
				r.LeaseID = id
				_, _ = c.Grant(r)
				_ = c.Revoke(id)
				_ = c.Free(id)
			},
			"publish and evict": func(LeaseID) {
				_, _ = c.Publish(blocks, keys)
				_ = c.Evict(blocks)
			},
		} {
			for _, settled := range []bool{false, true} {
				got := once(settled, step)
				t.Logf("%d blocks, %s, written at once %t: %.0f", n, name, settled, got)
				assert.Less(t, got, 96.0, name) // Pebble's own goroutines allocate beside
			}
		}
	}
}
