package ring

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/wire"
)

func TestPostsAreBounded(t *testing.T) {
	c, d := pair(t, 16)
	posts := make([]wire.Post, 64)
	for round := range uint64(5) {
		for i := range uint64(16) {
			require.True(t, c.Submit(wire.Post{Cookie: 16*round + i}))
		}
		require.False(t, c.Submit(wire.Post{}), "as many as there are places are out")
		n, err := d.Take(posts)
		require.NoError(t, err)
		require.Equal(t, 16, n)
		require.False(t, c.Submit(wire.Post{}), "taken is not ended")
		for _, p := range posts[:n] {
			d.Complete(wire.Posted{Cookie: p.Cookie})
		}
		require.False(t, c.Submit(wire.Post{}), "ended is not seen: its end's place is in use")
		for i := range uint64(16) {
			p, ok := c.Next()
			require.True(t, ok)
			require.Equal(t, 16*round+i, p.Cookie)
			if i == 0 && round%2 == 0 {
				require.True(t, c.Submit(wire.Post{Cookie: ^uint64(0)}))
				require.False(t, c.Submit(wire.Post{}))
				n, err := d.Take(posts)
				require.NoError(t, err)
				require.Equal(t, 1, n)
			}
		}
		_, ok := c.Next()
		require.False(t, ok)
		if round%2 == 0 {
			d.Complete(wire.Posted{Cookie: ^uint64(0)})
			p, ok := c.Next()
			require.True(t, ok)
			require.Equal(t, ^uint64(0), p.Cookie)
		}
	}
}

func TestSleepAndDoorbell(t *testing.T) {
	c, d := pair(t, 16)
	var asleep atomic.Bool
	ended := make(chan error, 1)
	var stop atomic.Bool
	go func() {
		var posts [16]wire.Post
		for !stop.Load() {
			n, err := d.Take(posts[:])
			if err != nil {
				ended <- err
				return
			}
			for _, p := range posts[:n] {
				d.Complete(wire.Posted{Cookie: p.Cookie})
			}
			if n == 0 {
				asleep.Store(true)
				d.Sleep(-1) // without end: only a ring ends it
				asleep.Store(false)
			}
		}
		ended <- nil
	}()
	for i := range uint64(20) {
		for begin := time.Now(); !asleep.Load() || c.w.u32(offDaemonSleeps).Load() == 0; time.Sleep(time.Millisecond) {
			require.Less(t, time.Since(begin), patience)
		}
		if i%2 == 0 {
			time.Sleep(3 * time.Millisecond) // longer than the look in between: the daemon sleeps for good
		}
		require.True(t, c.Submit(wire.Post{Cookie: i}))
		for begin := time.Now(); !c.Ready(); c.Sleep(-1) {
			require.Less(t, time.Since(begin), patience)
		}
		p, ok := c.Next()
		require.True(t, ok)
		require.Equal(t, i, p.Cookie)
	}
	stop.Store(true)
	d.Ring()
	require.NoError(t, <-ended)

	begin := time.Now()
	d.Sleep(5 * time.Millisecond)
	c.Sleep(5 * time.Millisecond)
	assert.GreaterOrEqual(t, time.Since(begin), 9*time.Millisecond, "nobody rang")
	woken := make(chan struct{})
	go func() {
		c.Sleep(-1)
		close(woken)
	}()
	c.Wake()
	<-woken
	assert.False(t, c.Ended())
}

// TestMissedDoorbell: a client without a fence may not see that the daemon goes to sleep.
func TestMissedDoorbell(t *testing.T) {
	c, d := pair(t, 16)
	slept := make(chan struct{})
	go func() {
		d.Sleep(-1)
		close(slept)
	}()
	for begin := time.Now(); c.w.u32(offDaemonSleeps).Load() == 0; {
		require.Less(t, time.Since(begin), patience)
	}
	c.w.putPost(0, wire.Post{Cookie: 1})
	c.w.u64(offSubmitted).Store(1) // and no doorbell, right when it fell asleep
	select {
	case <-slept:
	case <-time.After(firstSleep * 100):
		c.Submit(wire.Post{}) // the post came later than the look in between: not what is tried here
		<-slept
	}
}

func TestDaemonsEndIsSeen(t *testing.T) {
	c, d := pair(t, 16)
	woken := make(chan struct{})
	go func() {
		for !c.Ended() {
			c.Sleep(-1)
		}
		close(woken)
	}()
	d.Close()
	<-woken

	c, d = pair(t, 16) // a daemon that dies says nothing
	woken = make(chan struct{})
	go func() {
		for !c.Ended() {
			c.Sleep(-1)
		}
		close(woken)
	}()
	require.NoError(t, unix.Shutdown(d.bell, unix.SHUT_RDWR))
	<-woken
	assert.Zero(t, c.w.u32(offEnded).Load())
}
