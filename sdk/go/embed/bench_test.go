package embed_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	kvxfer "github.com/kvxfer/kvxfer/sdk/go"
	"github.com/kvxfer/kvxfer/sdk/go/embed"
)

// counts are of this process, in which both clients and both nodes are: how often a thread slept, calls of read, readv, write and writev
// (recvmsg and sendto, which sockets of control go through, are not among them).
type counts struct{ sleeps, reads, writes int64 }

func count(b *testing.B) (c counts) {
	var u unix.Rusage
	require.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	raw, err := os.ReadFile("/proc/self/io")
	require.NoError(b, err)
	var rchar, wchar int64
	_, err = fmt.Sscanf(string(raw), "rchar: %d\nwchar: %d\nsyscr: %d\nsyscw: %d", &rchar, &wchar, &c.reads, &c.writes)
	require.NoError(b, err)
	c.sleeps = u.Nvcsw
	return c
}

// counted runs f b.N times and says what one took beside its time.
func counted(b *testing.B, f func()) {
	f()
	b.ReportAllocs()
	before := count(b)
	b.ResetTimer()
	for range b.N {
		f()
	}
	b.StopTimer()
	after := count(b)
	of := float64(b.N)
	b.ReportMetric(float64(after.sleeps-before.sleeps)/of, "sleeps/op")
	b.ReportMetric(float64(after.reads-before.reads)/of, "reads/op")
	b.ReportMetric(float64(after.writes-before.writes)/of, "writes/op")
}

// BenchmarkPaths counts what a transfer of blocks of 4 KiB takes on each path, client, nodes and all: docs/where-time-goes.md.
func BenchmarkPaths(b *testing.B) {
	ctx := context.Background()
	for _, p := range []struct {
		name, provider string
		same           bool
	}{{"inside", "shm", true}, {"shm", "shm", false}, {"tcp", "tcp", false}} {
		first := start(b, embed.Config{Node: "a", Providers: []string{p.provider}, NATSListen: "127.0.0.1:0"})
		second := first
		if !p.same {
			second = start(b, embed.Config{Node: "b", Providers: []string{p.provider}, NATS: first.Info().NATSURL})
		}
		for _, blocks := range []int{1, 1024} {
			b.Run(fmt.Sprintf("prepared/%s/blocks=%d", p.name, blocks), func(b *testing.B) {
				list := prepared(b, first, second, blocks, 4096)
				b.SetBytes(int64(list.Bytes()))
				counted(b, func() {
					if _, err := list.Run(ctx); err != nil {
						b.Fatal(err)
					}
				})
				require.NoError(b, list.Close())
			})
			b.Run(fmt.Sprintf("push/%s/blocks=%d", p.name, blocks), func(b *testing.B) {
				src, dst := large(b, first, "src", blocks), large(b, second, "dst", blocks)
				ids := make([]uint32, blocks)
				for i := range ids {
					ids[i] = uint32(2 * i)
				}
				b.SetBytes(int64(blocks) * 4096)
				counted(b, func() {
					lease, err := dst.Lease(ctx, ids, kvxfer.LeaseOptions{})
					require.NoError(b, err)
					push, err := src.Write(ctx, ids, lease.Ticket())
					require.NoError(b, err)
					_, err = push.Wait(ctx)
					require.NoError(b, err)
				})
			})
		}
	}
}

// large is a cache of one piece of 4 KiB a block, twice as many as blocks.
func large(b *testing.B, n *embed.Node, name string, blocks int) *kvxfer.Cache {
	c, err := kvxfer.Dial(b.Context(), n.Info().Socket, kvxfer.WithLogger(quiet))
	require.NoError(b, err)
	b.Cleanup(func() { _ = c.Close() })
	l := kvxfer.Layout{Layers: 1, KVHeads: 1, HeadDim: 4096, DType: "uint8", BlockTokens: 1, Order: kvxfer.MLA}
	cache, err := c.AllocateCache(b.Context(), kvxfer.CacheSpec{Name: name, Model: "m", Layout: l, NumBlocks: 2 * blocks})
	require.NoError(b, err)
	return cache
}

// prepared is a list of scattered blocks of so many bytes from a client of one node to a client of another or of the same.
func prepared(t testing.TB, from, to *embed.Node, blocks, size int) *kvxfer.Prepared {
	regions := make([]*kvxfer.Region, 2)
	for i, n := range []*embed.Node{from, to} {
		c, err := kvxfer.Dial(t.Context(), n.Info().Socket, kvxfer.WithLogger(quiet))
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		regions[i], err = c.AllocateRegion(t.Context(), "r", 2*size*blocks)
		require.NoError(t, err)
	}
	adv, err := regions[1].Advertise(t.Context(), kvxfer.AdvertiseOptions{TTL: time.Hour})
	require.NoError(t, err)
	list := make([]kvxfer.Range, blocks)
	for i := range list {
		list[i] = kvxfer.Range{Local: int64(2 * size * i), Remote: int64(2 * size * (blocks - 1 - i)), Length: int64(size)}
	}
	p, err := regions[0].PrepareWrite(t.Context(), list, adv.Ticket(), kvxfer.Lasting(time.Hour))
	require.NoError(t, err)
	return p
}
