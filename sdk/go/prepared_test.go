package kvxfer

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// ways are how posts reach the daemon.
var ways = map[string][]Option{"ring": nil, "socket": {WithoutRing()}}

// TestPrepared moves lists again and again, in every way, between two nodes and inside one.
func TestPrepared(t *testing.T) {
	a, b := startPair(t)
	for way, options := range ways {
		for _, peer := range []*daemon{a, b} {
			t.Run(way+" to "+peer.Info().Node, func(t *testing.T) {
				ca, cb := dial(t, a.Info().Socket, options...), dial(t, peer.Info().Socket, options...)
				name := way + peer.Info().Node
				src, dst := allocate(t, ca, "src-"+name, 16), allocate(t, cb, "dst-"+name, 16)
				ctx := within(t)

				t.Run("write blocks", func(t *testing.T) {
					lease, err := dst.Lease(ctx, []int{7, 3, 12}, LeaseOptions{})
					require.NoError(t, err)
					p, err := src.PrepareWrite(ctx, []int{0, 1, 2}, lease.Ticket(), Lasting(time.Minute))
					require.NoError(t, err)
					used, why := p.Way()
					require.Equal(t, way, used, why)
					assert.NotEmpty(t, p.Provider())
					assert.NotEmpty(t, p.ProviderReason())
					assert.Positive(t, p.Operations())
					assert.EqualValues(t, 3*testLayout.BlockBytes(), p.Bytes())
					for round := range byte(20) {
						fill(src, round, 0, 1, 2)
						r, err := p.Run(ctx)
						require.NoError(t, err)
						assert.Equal(t, p.Bytes(), r.Bytes)
						requireSame(t, src, []int{0, 1, 2}, dst, []int{7, 3, 12})
					}
					var posts []Post
					for range 50 {
						x, err := p.Post(ctx)
						require.NoError(t, err)
						posts = append(posts, x)
					}
					for _, x := range posts {
						_, err := x.Wait(ctx)
						require.NoError(t, err)
						assert.True(t, x.Done())
						_, err = x.Wait(ctx)
						require.ErrorIs(t, err, ErrInvalidArgument, "a second time")
					}
					res, err := p.Finish(ctx, []byte("first token"))
					require.NoError(t, err)
					got, err := lease.Wait(ctx)
					require.NoError(t, err)
					assert.Equal(t, []byte("first token"), got.Notification)
					assert.Equal(t, res.TransferID, got.TransferID)
					assert.True(t, p.Released() && lease.Released())
					_, err = p.Run(ctx)
					require.ErrorIs(t, err, ErrClosed)
					require.NoError(t, p.Close())
				})

				t.Run("read blocks", func(t *testing.T) {
					lease, err := src.LeaseRead(ctx, []int{8, 9}, LeaseOptions{})
					require.NoError(t, err)
					p, err := dst.PrepareRead(ctx, []int{1, 0}, lease.Ticket())
					require.NoError(t, err)
					for round := range byte(5) {
						fill(src, round+100, 8, 9)
						_, err := p.Run(ctx)
						require.NoError(t, err)
						requireSame(t, src, []int{8, 9}, dst, []int{1, 0})
					}
					res, err := p.Finish(ctx, nil)
					require.NoError(t, err)
					assert.NotZero(t, res.Generation)
					_, err = lease.Wait(ctx)
					require.NoError(t, err)
				})

				t.Run("raw", func(t *testing.T) {
					ra, err := ca.AllocateRegion(ctx, "raw-a", 1<<20)
					require.NoError(t, err)
					rb, err := cb.AllocateRegion(ctx, "raw-b", 1<<20)
					require.NoError(t, err)
					for _, mode := range []Mode{ModeWrite, ModeRead} {
						adv, err := rb.Advertise(ctx, AdvertiseOptions{Mode: mode})
						require.NoError(t, err)
						prepare, from, to := ra.PrepareWrite, ra.Memory()[4096:8192], rb.Memory()[64:4160]
						if mode == ModeRead {
							prepare, from, to = ra.PrepareRead, to, from
						}
						p, err := prepare(ctx, []Range{{4096, 64, 4096}}, adv.Ticket())
						require.NoError(t, err)
						for round := range byte(10) {
							for i := range from {
								from[i] = round + byte(i*7)
							}
							_, err = p.Run(ctx)
							require.NoError(t, err)
							require.Equal(t, from, to)
						}
						_, err = p.Finish(ctx, []byte("note"))
						require.NoError(t, err)
						holder, err := adv.NextHolder(ctx)
						require.NoError(t, err)
						require.NoError(t, holder.Err)
						assert.Equal(t, []byte("note"), holder.Notification)
						require.NoError(t, adv.Revoke(ctx))
					}
				})

				t.Run("finished without a post", func(t *testing.T) {
					lease, err := dst.Lease(ctx, []int{5}, LeaseOptions{})
					require.NoError(t, err)
					p, err := src.PrepareWrite(ctx, []int{0}, lease.Ticket())
					require.NoError(t, err)
					_, err = p.Finish(ctx, nil)
					require.ErrorIs(t, err, ErrCancelled)
					require.NoError(t, p.Close())
					require.ErrorIs(t, waitErr(lease, ctx), ErrCancelled)
				})

				t.Run("taken back", func(t *testing.T) {
					lease, err := dst.Lease(ctx, []int{5, 6}, LeaseOptions{})
					require.NoError(t, err)
					p, err := src.PrepareWrite(ctx, []int{0, 1}, lease.Ticket())
					require.NoError(t, err)
					_, err = p.Run(ctx)
					require.NoError(t, err)
					var posts []Post
					for range 20 {
						if x, err := p.Post(ctx); err == nil {
							posts = append(posts, x)
						}
					}
					require.NoError(t, lease.Revoke(ctx))
					require.ErrorIs(t, waitErr(lease, ctx), ErrLeaseRevoked)
					require.NoError(t, lease.WaitReleased(ctx))
					for _, b := range []int{5, 6} { // the owner's again: nothing may change it
						for l := range testLayout.Layers {
							for _, x := range pieces(dst, l, b) {
								clear(x)
							}
						}
					}
					for _, x := range posts { // each ends once, well before the revocation or with its reason
						if _, err := x.Wait(ctx); err != nil {
							require.ErrorIs(t, err, ErrLeaseRevoked)
						}
					}
					for {
						if _, err = p.Run(ctx); err != nil {
							break
						}
					}
					require.ErrorIs(t, err, ErrLeaseRevoked)
					require.NoError(t, p.Close())
					require.ErrorIs(t, p.Err(), ErrLeaseRevoked)
					for _, b := range []int{5, 6} {
						for l := range testLayout.Layers {
							for _, x := range pieces(dst, l, b) {
								require.Equal(t, make([]byte, len(x)), x)
							}
						}
					}
				})

				t.Run("many goroutines", func(t *testing.T) {
					lease, err := dst.Lease(ctx, []int{5, 6}, LeaseOptions{})
					require.NoError(t, err)
					p, err := src.PrepareWrite(ctx, []int{0, 1}, lease.Ticket())
					require.NoError(t, err)
					var all sync.WaitGroup
					for range 8 {
						all.Go(func() {
							for range 50 {
								if _, err := p.Run(ctx); !assert.NoError(t, err) {
									return
								}
							}
						})
					}
					all.Wait()
					res, err := p.Finish(ctx, nil)
					require.NoError(t, err)
					assert.Equal(t, 400*p.Bytes(), res.Bytes)
				})

				t.Run("bounded", func(t *testing.T) {
					lease, err := dst.Lease(ctx, []int{5}, LeaseOptions{})
					require.NoError(t, err)
					p, err := src.PrepareWrite(ctx, []int{0}, lease.Ticket())
					require.NoError(t, err)
					posts := make([]Post, postEntries)
					for i := range posts {
						posts[i], err = p.Post(ctx)
						require.NoError(t, err)
					}
					_, err = p.Post(ctx)
					require.ErrorIs(t, err, ErrResourceExhausted)
					var e *Error
					require.ErrorAs(t, err, &e)
					assert.Equal(t, "posts", e.Field)
					_, err = posts[9].Wait(ctx)
					require.NoError(t, err)
					_, err = p.Run(ctx)
					require.NoError(t, err)
					require.NoError(t, ca.Close(), "with posts out")
					_, err = posts[3].Wait(ctx)
					if err != nil { // it had ended before, or says that the client was closed
						require.ErrorIs(t, err, ErrClosed)
					}
					_, err = p.Run(ctx)
					require.ErrorIs(t, err, ErrClosed)
				})
			})
		}
	}
}

func waitErr(l *Lease, ctx context.Context) error {
	_, err := l.Wait(ctx)
	return err
}

func TestPreparedArguments(t *testing.T) {
	n := startNode(t, "n0")
	c := dial(t, n.Info().Socket)
	src, dst := allocate(t, c, "src", 4), allocate(t, c, "dst", 4)
	ctx := within(t)
	r, err := c.AllocateRegion(ctx, "raw", 4096)
	require.NoError(t, err)
	lease, err := dst.Lease(ctx, []int{1}, LeaseOptions{})
	require.NoError(t, err)
	field := func(err error) string {
		var e *Error
		require.ErrorAs(t, err, &e)
		require.ErrorIs(t, err, ErrInvalidArgument)
		assert.True(t, e.Released)
		return e.Field
	}
	for want, o := range map[string]TransferOption{"layerwise": Layerwise(), "notification": Notify([]byte("x")), "lasting": Lasting(25 * time.Hour), "attempt": Attempt(0)} {
		_, err := src.PrepareWrite(ctx, []int{0}, lease.Ticket(), o)
		assert.Equal(t, want, field(err))
	}
	_, err = src.Write(ctx, []int{0}, lease.Ticket(), Lasting(time.Second))
	assert.Equal(t, "lasting", field(err))
	_, err = r.PrepareWrite(ctx, nil, lease.Ticket())
	assert.Equal(t, "ranges", field(err))
	_, err = src.PrepareWrite(ctx, []int{9}, lease.Ticket())
	assert.Equal(t, "blocks", field(err))
	_, err = src.PrepareWrite(ctx, []int{0}, "nonsense")
	require.ErrorIs(t, err, ErrTicketInvalid)

	p, err := src.PrepareWrite(ctx, []int{0}, lease.Ticket())
	require.NoError(t, err, "none of that has claimed the lease")
	late, cancel := context.WithDeadline(ctx, time.Now().Add(-time.Second))
	defer cancel()
	_, err = p.Run(late)
	require.ErrorIs(t, err, ErrDeadlineExceeded)
	gone, cancel := context.WithCancel(ctx)
	cancel()
	_, err = p.Run(gone)
	require.ErrorIs(t, err, context.Canceled)
	_, err = p.Run(ctx)
	require.NoError(t, err, "nothing was posted before")
	_, err = src.PrepareWrite(ctx, []int{0}, lease.Ticket())
	require.ErrorIs(t, err, ErrTicketBound)
	require.NoError(t, p.Close())
	require.ErrorIs(t, p.Err(), ErrCancelled)
}

// preparedRaw prepares writes between regions of two clients that are as long as the ranges are.
func preparedRaw(t testing.TB, from, to *Client, ranges []Range) *Prepared {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	size := 0
	for _, r := range ranges {
		size = max(size, int(r.Local+r.Length), int(r.Remote+r.Length))
	}
	a, err := from.AllocateRegion(ctx, "from", size)
	require.NoError(t, err)
	b, err := to.AllocateRegion(ctx, "to", size)
	require.NoError(t, err)
	adv, err := b.Advertise(ctx, AdvertiseOptions{TTL: time.Hour})
	require.NoError(t, err)
	p, err := a.PrepareWrite(ctx, ranges, adv.Ticket(), Lasting(time.Hour))
	require.NoError(t, err)
	return p
}

func BenchmarkRun(b *testing.B) {
	lists := map[string][]Range{"8B": {{0, 0, 8}}, "4KiB": {{0, 0, 4096}}, "1024x4KiB": nil, "64x1MiB": nil}
	for i := range int64(1024) { // neighbours in one direction alone, so that none are joined
		lists["1024x4KiB"] = append(lists["1024x4KiB"], Range{4096 * i, 4096 * (1023 - i), 4096})
	}
	for i := range int64(64) {
		lists["64x1MiB"] = append(lists["64x1MiB"], Range{i << 20, (63 - i) << 20, 1 << 20})
	}
	n := startNode(b, "n0")
	for _, name := range []string{"8B", "4KiB", "1024x4KiB", "64x1MiB"} {
		for way, options := range ways {
			b.Run(name+"/"+way, func(b *testing.B) {
				from, to := dial(b, n.Info().Socket, options...), dial(b, n.Info().Socket)
				defer from.Close()
				defer to.Close()
				p := preparedRaw(b, from, to, lists[name])
				ctx := context.Background()
				b.SetBytes(int64(p.Bytes()))
				b.ReportAllocs()
				for b.Loop() {
					if _, err := p.Run(ctx); err != nil {
						b.Fatal(err)
					}
				}
				if _, err := p.Finish(ctx, nil); err != nil && !errors.Is(err, ErrCancelled) {
					b.Fatal(err)
				}
			})
		}
	}
}
