package kvxfer

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/ring"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// fakePosts is a fake daemon that knows prepared transfers, and ends posts as answer says; false: not now.
type fakePosts struct {
	*fakeDaemon
	ring   *ring.Daemon
	answer func(wire.Post) (wire.Posted, bool)
	stop   atomic.Bool
	ended  sync.WaitGroup
}

func startFakePosts(t testing.TB, answer func(wire.Post) (wire.Posted, bool)) *fakePosts {
	f := &fakePosts{fakeDaemon: startFake(t), answer: answer}
	f.set(func() {
		f.rings, f.hello.Optional = true, []string{wire.FeaturePrepared}
		f.special[wire.KindPrepare] = func(r wire.Frame) (any, []byte, bool) {
			f.reply(r.Request, wire.KindOK, &wire.PushInfo{Transfer: r.Request, TransferID: "ffeeddccbbaa99887766554433221100", TraceID: "000102030405060708090a0b0c0d0e0f"}, nil)
			f.event(wire.KindEventPrepared, &wire.PreparedEvent{Transfer: r.Request, Provider: "fake", Operations: 1, Bytes: 96}, nil)
			return nil, nil, false
		}
		f.special[wire.KindRing] = func(r wire.Frame) (any, []byte, bool) {
			f.mu.Lock()
			fds := f.keep
			f.keep = nil
			f.mu.Unlock()
			d, err := ring.Open(fds[0], fds[1], fds[2], postEntries)
			if !assert.NoError(t, err) {
				return nil, nil, false
			}
			f.ring = d
			f.ended.Go(f.posts)
			return nil, nil, true
		}
	})
	t.Cleanup(func() {
		f.stop.Store(true)
		if f.ring != nil {
			f.ring.Ring()
			f.ended.Wait()
			f.ring.Close()
		}
	})
	return f
}

func (f *fakePosts) posts() {
	var posts [16]wire.Post
	var spin ring.Spin
	found := func() bool { return f.ring.Waiting() || f.stop.Load() }
	for !f.stop.Load() {
		n, err := f.ring.Take(posts[:])
		if !assert.NoError(f.t, err) {
			return
		}
		for _, x := range posts[:n] {
			if end, ok := f.answer(x); ok {
				f.ring.Complete(end)
			}
		}
		if n == 0 && !spin.Until(found, nil) {
			f.ring.Sleep(-1)
		}
	}
}

func well(x wire.Post) (wire.Posted, bool) { return wire.Posted{Cookie: x.Cookie, Bytes: 96}, true }

func never(wire.Post) (wire.Posted, bool) { return wire.Posted{}, false }

// prepared is a prepared transfer of a client of the fake.
func (f *fakePosts) prepared(o ...Option) (*Client, *Prepared) {
	c, cache := f.attach(o...)
	p, err := cache.PrepareWrite(within(f.t), []int{1}, "ticket")
	require.NoError(f.t, err)
	return c, p
}

// TestRunAllocatesNothing on the steady path, which is the ring's, whoever sleeps.
func TestRunAllocatesNothing(t *testing.T) {
	f := startFakePosts(t, well)
	_, p := f.prepared()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var err error
	assert.Zero(t, testing.AllocsPerRun(300, func() {
		if _, e := p.Run(ctx); e != nil {
			err = e
		}
		x, e := p.Post(ctx)
		if _, e2 := x.Wait(ctx); e != nil || e2 != nil {
			err = e
		}
	}))
	require.NoError(t, err)
}

// TestPostsKeepTheirDeadlines where the daemon says nothing.
func TestPostsKeepTheirDeadlines(t *testing.T) {
	for way, options := range ways {
		t.Run(way, func(t *testing.T) {
			f := startFakePosts(t, never)
			_, p := f.prepared(options...)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			x, err := p.Post(within(t))
			require.NoError(t, err)
			assert.False(t, x.Done())
			_, err = x.Wait(ctx)
			var e *Error
			require.ErrorAs(t, err, &e)
			require.ErrorIs(t, err, ErrDeadlineExceeded)
			assert.True(t, e.MayHaveWritten && !e.Released)
			assert.Zero(t, f.count(wire.KindPushCancel), "only the waiting has ended")

			ctx, cancel = context.WithCancel(t.Context())
			time.AfterFunc(20*time.Millisecond, cancel)
			_, err = p.Run(ctx)
			require.ErrorIs(t, err, ErrCancelled)
			require.ErrorIs(t, err, context.Canceled)
			assert.Zero(t, f.count(wire.KindPushCancel))

			begin := time.Now()
			ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			_, err = p.Run(ctx)
			require.ErrorIs(t, err, ErrDeadlineExceeded)
			require.ErrorAs(t, err, &e)
			assert.True(t, e.MayHaveWritten && !e.Released)
			assert.GreaterOrEqual(t, time.Since(begin), 50*time.Millisecond+grace, "the daemon has time to say it itself")
			f.got(wire.KindPushCancel, 1, nil)
		})
	}
}

// TestLateEndsFreeTheirPlaces: posts that nobody waits for any more.
func TestLateEndsFreeTheirPlaces(t *testing.T) {
	var mu sync.Mutex
	var out []wire.Post
	f := startFakePosts(t, func(x wire.Post) (wire.Posted, bool) {
		mu.Lock()
		defer mu.Unlock()
		if len(out) < 5 {
			out = append(out, x)
			return wire.Posted{}, false
		}
		return well(x)
	})
	_, p := f.prepared()
	for range 5 {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(5*time.Millisecond, cancel)
		_, err := p.Run(ctx)
		require.ErrorIs(t, err, ErrCancelled)
	}
	free := func() int { p.poster.mu.Lock(); defer p.poster.mu.Unlock(); return len(p.poster.free) }
	require.Equal(t, postEntries-5, free())
	f.event(wire.KindEventPosted, nil, wire.AppendPosted(wire.AppendPosted(nil, wire.Posted{Cookie: ^uint64(0)}), wire.Posted{Cookie: 1<<32 | 7}))
	mu.Lock()
	for _, x := range out {
		f.ring.Complete(wire.Posted{Cookie: x.Cookie, Bytes: 96})
	}
	mu.Unlock()
	_, err := p.Run(within(t))
	require.NoError(t, err)
	require.Equal(t, postEntries, free(), "and ends that are nobody's are passed over")
}

// TestFailedPosts say what the transfer ended with.
func TestFailedPosts(t *testing.T) {
	for way, options := range ways {
		t.Run(way, func(t *testing.T) {
			var f *fakePosts
			failed := func(x wire.Post) wire.Posted {
				return wire.Posted{Cookie: x.Cookie, Code: uint32(fault.LeaseRevoked), Flags: wire.PostedWrote}
			}
			f = startFakePosts(t, func(x wire.Post) (wire.Posted, bool) { return failed(x), true })
			_, p := f.prepared(options...)
			ended := make(chan error, 1)
			go func() {
				_, err := p.Run(within(t))
				ended <- err
			}()
			if way == "socket" {
				posts, err := wire.Posts(f.got(wire.KindPost, 1, nil).Array)
				require.NoError(t, err)
				assert.Equal(t, p.number, posts[0].Prepared)
				f.event(wire.KindEventPosted, nil, wire.AppendPosted(nil, failed(posts[0])))
			}
			f.event(wire.KindEventTransfer, &wire.TransferEvent{Transfer: p.number, Released: true,
				Error: fault.ToWire(&fault.Error{Code: fault.LeaseRevoked, Op: "push", Peer: "n1", Detail: "its owner took it back"})}, nil)
			err := <-ended
			require.ErrorIs(t, err, ErrLeaseRevoked)
			var e *Error
			require.ErrorAs(t, err, &e)
			assert.Equal(t, "n1", e.Peer)
			assert.Equal(t, "post", e.Op)
			assert.True(t, e.MayHaveWritten)
			<-p.WhenReleased()
			_, err = p.Run(within(t))
			require.ErrorIs(t, err, ErrLeaseRevoked)
			_, err = p.Post(within(t))
			require.ErrorIs(t, err, ErrLeaseRevoked)
			require.NoError(t, p.Close())
		})
	}
}

// TestLostDaemonEndsPosts, whoever waits how.
func TestLostDaemonEndsPosts(t *testing.T) {
	for way, options := range ways {
		t.Run(way, func(t *testing.T) {
			f := startFakePosts(t, never)
			_, p := f.prepared(options...)
			var all sync.WaitGroup
			for range 5 {
				x, err := p.Post(within(t))
				require.NoError(t, err)
				all.Go(func() {
					_, err := x.Wait(within(t))
					assert.ErrorIs(t, err, ErrDaemonUnavailable)
					if e, ok := err.(*Error); assert.True(t, ok) {
						assert.True(t, e.MayHaveWritten && !e.Released)
					}
				})
			}
			f.hangUp()
			all.Wait()
			_, err := p.Run(within(t))
			require.ErrorIs(t, err, ErrDaemonUnavailable)
			if p.poster.ring != nil {
				p.poster.mu.Lock()
				assert.True(t, p.poster.unmapped)
				p.poster.mu.Unlock()
			}
		})
	}
}

func TestOlderDaemonKnowsNoPrepared(t *testing.T) {
	f := startFake(t)
	c, cache := f.attach()
	_, err := cache.PrepareWrite(within(t), []int{1}, "ticket")
	require.ErrorIs(t, err, ErrFeatureRequired)
	assert.Zero(t, f.count(wire.KindPrepare)+f.count(wire.KindRing))
	_, err = c.Ping(within(t))
	require.NoError(t, err)
}

func TestDaemonWithoutRings(t *testing.T) {
	f := startFakePosts(t, never)
	f.set(func() {
		f.rings = false
		f.refuse[wire.KindRing] = fault.New(fault.NotSupported, "ring", "not on this hardware")
	})
	_, p := f.prepared()
	way, why := p.Way()
	assert.Equal(t, "socket", way)
	assert.Contains(t, why, "not on this hardware")
}
