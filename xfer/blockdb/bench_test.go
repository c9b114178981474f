package blockdb

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/stretchr/testify/require"
)

// benchBlocks are the sizes of a lease.
var benchBlocks = []int{1, 64, 1024, 4096}

// BenchmarkLease is Grant and Commit of every second block of a cache, in an order of its own: "again" on blocks that were
// COMMITTED a moment ago, "written" on blocks that the log has as COMMITTED, "free" with an Evict between, which is not in the
// time.
func BenchmarkLease(b *testing.B) {
	for _, n := range benchBlocks {
		for _, before := range []string{"again", "written", "free"} {
			b.Run(fmt.Sprint(n, "/", before), func(b *testing.B) {
				c, blocks := benchCache(b, n)
				r := write(0, blocks...)
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					if before != "again" {
						b.StopTimer()
						settle(b, c.db)
						if before == "free" && i > 0 {
							require.NoError(b, c.Evict(blocks))
						}
						b.StartTimer()
					}
					r.LeaseID = lid(uint64(i))
					if _, err := c.Grant(r); err != nil {
						b.Fatal(err)
					}
					if err := c.Commit(r.LeaseID, CommitRecord{Bytes: 1}); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkFreed is Grant, Revoke and Free: a lease that came to nothing.
func BenchmarkFreed(b *testing.B) {
	for _, n := range benchBlocks {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			c, blocks := benchCache(b, n)
			r := write(0, blocks...)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				r.LeaseID = lid(uint64(i))
				if _, err := c.Grant(r); err != nil {
					b.Fatal(err)
				}
				if err := c.Revoke(r.LeaseID); err != nil {
					b.Fatal(err)
				}
				if err := c.Free(r.LeaseID); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkEvict is Evict of blocks that the log has as COMMITTED; what made them so is not in the time.
func BenchmarkEvict(b *testing.B) {
	for _, n := range benchBlocks {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			c, blocks := benchCache(b, n)
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				_, err := c.Publish(blocks, nil)
				require.NoError(b, err)
				settle(b, c.db)
				b.StartTimer()
				if err := c.Evict(blocks); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkPebble is what the others are measured by: a commit of n small records, or of one as long as they, in a log of the
// same settings on the same file system.
func BenchmarkPebble(b *testing.B) {
	for _, n := range benchBlocks {
		for _, shape := range []string{"n records", "one record"} {
			b.Run(fmt.Sprint(n, "/", shape), func(b *testing.B) {
				c, blocks := benchCache(b, n)
				b.ReportAllocs()
				for b.Loop() {
					if err := barePebble(c, blocks, shape == "one record"); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

func barePebble(c *Cache, blocks []uint32, one bool) error {
	batch := c.db.p.NewBatch()
	if one {
		op := batch.SetDeferred(blockKeyLen, 4*len(blocks))
		putNumberKey(op.Key, tagBlock, c.id, 0)
		if err := op.Finish(); err != nil {
			return err
		}
	}
	for _, n := range blocks {
		if one {
			break
		}
		op := batch.SetDeferred(blockKeyLen, 10)
		putNumberKey(op.Key, tagBlock, c.id, n)
		if err := op.Finish(); err != nil {
			return err
		}
	}
	if err := c.db.p.Apply(batch, pebble.Sync); err != nil {
		return err
	}
	return batch.Close()
}

func benchCache(b testing.TB, n int) (*Cache, []uint32) {
	o := testOptions(b.TempDir())
	o.MemTableBytes = 0
	d, _ := open(b, o)
	c, _, err := d.Attach(spec("a", uint32(2*n)), nil)
	require.NoError(b, err)
	blocks := everySecond(n)
	rand.New(rand.NewPCG(1, 1)).Shuffle(n, func(i, k int) { blocks[i], blocks[k] = blocks[k], blocks[i] })
	return c, blocks
}

func everySecond(n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(2 * i)
	}
	return out
}

// BenchmarkLookup finds keys of 32 bytes among a million.
func BenchmarkLookup(b *testing.B) {
	c := millionBlocks(b, true)
	for _, n := range benchBlocks {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var packed []byte
			for i := range n {
				packed = append(packed, millionKey(uint32(i)*251)...)
			}
			var found []uint32
			b.ReportAllocs()
			for b.Loop() {
				found = c.Prefix(found[:0], packed, keySize)
			}
			require.Len(b, found, n)
		})
	}
}

// BenchmarkMillion is the next start after a million blocks were COMMITTED: Open, and an Attach that vouches for all.
func BenchmarkMillion(b *testing.B) {
	for _, keyed := range []bool{false, true} {
		b.Run(fmt.Sprintf("keyed=%t", keyed), func(b *testing.B) {
			c := millionBlocks(b, keyed)
			d := c.db
			var vouch []Vouch
			c.Blocks(func(r Record) bool { vouch = append(vouch, Vouch{r.Block, r.Generation}); return true })
			var opened, attached time.Duration
			for b.Loop() {
				require.NoError(b, d.Close())
				at := time.Now()
				var err error
				d, _, err = Open(d.o)
				require.NoError(b, err)
				opened += time.Since(at)
				at = time.Now()
				_, served, err := d.Attach(spec("a", million), vouch)
				require.NoError(b, err)
				require.Len(b, served, million)
				attached += time.Since(at)
			}
			require.NoError(b, d.Close())
			b.ReportMetric(float64(opened.Milliseconds())/float64(b.N), "ms/open")
			b.ReportMetric(float64(attached.Milliseconds())/float64(b.N), "ms/attach")
		})
	}
}

const (
	million = 1 << 20
	keySize = 32
)

func millionKey(n uint32) []byte {
	k := make([]byte, keySize)
	le.PutUint64(k, uint64(n)*0x9e3779b97f4a7c15)
	return k
}

// millionBlocks makes a cache of so many blocks, all COMMITTED.
func millionBlocks(b testing.TB, keyed bool) *Cache {
	o := testOptions(b.TempDir())
	o.MemTableBytes = 0
	d, _ := open(b, o)
	c, _, err := d.Attach(spec("a", million), nil)
	require.NoError(b, err)
	const step = 1 << 14
	blocks := make([]uint32, step)
	var keys [][]byte
	for first := uint32(0); first < million; first += step {
		keys = keys[:0]
		for i := range blocks {
			blocks[i] = first + uint32(i)
			if keyed {
				keys = append(keys, millionKey(blocks[i]))
			}
		}
		if !keyed {
			keys = nil
		}
		_, err := c.Publish(blocks, keys)
		require.NoError(b, err)
	}
	return c
}

func heap() uint64 {
	var s runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&s)
	return s.HeapAlloc
}
