package kvxfer

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/ring"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// ringPoster is a poster over a ring with slots that are out, and the ring's other side.
func ringPoster(t testing.TB, out uint32) (*poster, *ring.Daemon) {
	r, err := ring.New(postEntries)
	require.NoError(t, err)
	t.Cleanup(r.Close)
	fds := r.FDs()
	for i := range fds {
		fds[i], err = unix.Dup(fds[i])
		require.NoError(t, err)
	}
	d, err := ring.Open(fds[0], fds[1], fds[2], postEntries)
	require.NoError(t, err)
	t.Cleanup(d.Close)
	o := &poster{ring: r, vacant: make(chan struct{}, 1)}
	for i := range out {
		require.True(t, r.Submit(wire.Post{Cookie: uint64(i)}))
		o.slots[i].until = time.Now().Add(time.Hour)
		o.slots[i].enter(slotOut)
	}
	var posts [postEntries]wire.Post
	n, err := d.Take(posts[:])
	require.NoError(t, err)
	require.EqualValues(t, out, n)
	return o, d
}

// TestWhoIsCalledToLeadHandsOn: who sleeps is called to lead, and finds that somebody else has taken its end meanwhile. It calls the
// next one, whom nobody would wake for its end else.
func TestWhoIsCalledToLeadHandsOn(t *testing.T) {
	o, d := ringPoster(t, 2)
	p := &Prepared{poster: o}
	o.leads.Store(true) // this test leads
	var done [2]chan struct{}
	for i := range uint32(2) {
		done[i] = make(chan struct{})
		go func() {
			defer close(done[i])
			o.wait(context.Background(), Post{p, i, 0}, false)
		}()
	}
	require.Eventually(t, func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		return o.asleep == 2
	}, 30*time.Second, time.Millisecond)
	o.mu.Lock() // abdicate, and Done of another post before the one who was called runs
	o.leads.Store(false)
	o.rouse(&o.slots[0])
	o.ended(wire.Posted{Cookie: 0})
	o.mu.Unlock()
	<-done[0]
	d.Complete(wire.Posted{Cookie: 0}, wire.Posted{Cookie: 1})
	select {
	case <-done[1]:
		assert.True(t, o.slots[1].is(0, slotEnded))
	case <-time.After(20 * time.Second):
		assert.Fail(t, "nobody looks at the ring")
		o.mu.Lock()
		o.drain()
		o.mu.Unlock()
		<-done[1]
	}
}

// TestSlotsThatAreFreeAreTaken: two wait for a slot, and two posts that nobody waits for end: whoever waits looks at the ring, and both
// slots are taken.
func TestSlotsThatAreFreeAreTaken(t *testing.T) {
	o, d := ringPoster(t, postEntries)
	for i := range o.slots {
		o.slots[i].left = true
	}
	p := &Prepared{poster: o}
	p.until, p.done = time.Now().Add(time.Hour), make(chan struct{})
	got := make(chan error, 2)
	for range 2 {
		go func() {
			_, err := p.post(context.Background(), true)
			got <- err
		}()
	}
	d.Complete(wire.Posted{Cookie: 7}, wire.Posted{Cookie: 8})
	for range 2 {
		select {
		case err := <-got:
			require.NoError(t, err)
		case <-time.After(20 * time.Second):
			o.mu.Lock()
			o.over = p.err
			o.mu.Unlock()
			require.Fail(t, "a slot is free and somebody waits for one")
		}
	}
}
