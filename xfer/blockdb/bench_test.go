package blockdb

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// benchBlocks are the sizes of a lease.
var benchBlocks = []int{1, 64, 1024}

// BenchmarkGrant is one Grant; the Free that makes room for the next is not in the time.
func BenchmarkGrant(b *testing.B) {
	for _, n := range benchBlocks {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			c := benchCache(b)
			r := write(0, benchList(n)...)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				r.LeaseID = lid(uint64(i))
				if _, err := c.Grant(r); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				if err := c.Free(r.LeaseID); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}

// BenchmarkLease is Grant and Commit.
func BenchmarkLease(b *testing.B) {
	for _, n := range benchBlocks {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			c := benchCache(b)
			r := write(0, benchList(n)...)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
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

func benchCache(b *testing.B) *Cache {
	o := testOptions(b.TempDir())
	o.MemTableBytes = 0
	d, _ := open(b, o)
	c, _, err := d.Attach(spec("a", 4096), nil)
	require.NoError(b, err)
	return c
}

func benchList(n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(i)
	}
	return out
}

// BenchmarkScattered is Grant, Commit and Evict of every second block of a cache: in the cache's order, and in one of its own.
func BenchmarkScattered(b *testing.B) {
	for _, n := range []int{64, 1024, 4096} {
		for _, order := range []string{"ascending", "permuted"} {
			b.Run(fmt.Sprint(n, "/", order), func(b *testing.B) {
				o := testOptions(b.TempDir())
				o.MemTableBytes = 0
				d, _ := open(b, o)
				c, _, err := d.Attach(spec("a", uint32(2*n)), nil)
				require.NoError(b, err)
				blocks := benchList(n)
				for i := range blocks {
					blocks[i] *= 2
				}
				if order == "permuted" {
					rand.New(rand.NewPCG(1, 1)).Shuffle(n, func(i, k int) { blocks[i], blocks[k] = blocks[k], blocks[i] })
				}
				r := write(0, blocks...)
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					r.LeaseID = lid(uint64(i))
					if _, err := c.Grant(r); err != nil {
						b.Fatal(err)
					}
					if err := c.Commit(r.LeaseID, CommitRecord{Bytes: 1}); err != nil {
						b.Fatal(err)
					}
					if err := c.Evict(blocks); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
