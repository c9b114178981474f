package localapi

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/ring"
	"github.com/kvxfer/kvxfer/internal/wire"
)

func openRing(t testing.TB, c *testClient) *ring.Client {
	r, err := ring.New(16)
	require.NoError(t, err)
	t.Cleanup(r.Close)
	fds := r.FDs()
	f := c.ask(wire.KindRing, &wire.Ring{Entries: 16}, nil, fds[0], fds[1], fds[2])
	require.Equal(t, wire.KindOK, f.Kind)
	return r
}

// next waits for an end, as a client does.
func next(t testing.TB, r *ring.Client) wire.Posted {
	for by := time.Now().Add(30 * time.Second); time.Now().Before(by); r.Sleep(time.Second) {
		if x, ok := r.Next(); ok {
			return x
		}
	}
	t.Fatal("no end of a post came")
	return wire.Posted{}
}

// TestPostsOverTheRing: also behind a pause in which the daemon slept, and after wrapping around.
func TestPostsOverTheRing(t *testing.T) {
	s := serve(t, options(t, newEngine(t)))
	c := attach(t, s)
	r := openRing(t, c)
	for i := range uint64(100) {
		if i%30 == 29 {
			time.Sleep(5 * time.Millisecond)
		}
		require.True(t, r.Submit(wire.Post{Prepared: 7 + i, Cookie: i, TimeoutNanos: 1}))
		assert.Equal(t, wire.Posted{Cookie: i, Bytes: 7 + i}, next(t, r))
	}
	fds := r.FDs()
	id := c.send(wire.KindRing, &wire.Ring{Entries: 16}, nil, fds[0], fds[1], fds[2])
	c.refused(id, fault.ErrAlreadyExists, "")
	_ = c.conn.Close()
	for by := time.Now().Add(30 * time.Second); !r.Ended() && time.Now().Before(by); r.Sleep(time.Second) {
	}
	assert.True(t, r.Ended(), "the client hears of the end")
}

func TestPostsOverTheSocket(t *testing.T) {
	c := attach(t, serve(t, options(t, newEngine(t))))
	c.send(wire.KindPost, nil, wire.AppendPost(wire.AppendPost(nil, wire.Post{Prepared: 1, Cookie: 2, TimeoutNanos: 3}), wire.Post{Prepared: 4, Cookie: 5, TimeoutNanos: 6}))
	for _, want := range []wire.Posted{{Cookie: 2, Bytes: 1}, {Cookie: 5, Bytes: 4}} {
		f := c.recv()
		require.Equal(t, wire.KindEventPosted, f.Kind)
		got, err := wire.PostedList(f.Array)
		require.NoError(t, err)
		assert.Equal(t, []wire.Posted{want}, got)
	}
	c.send(wire.KindPost, nil, make([]byte, 23))
	c.ended()
}

// TestRingIsChecked: what a client hands over wrongly leaves neither descriptors nor mappings.
func TestRingIsChecked(t *testing.T) {
	s := serve(t, options(t, newEngine(t)))
	c := attach(t, s)
	r, err := ring.New(16)
	require.NoError(t, err)
	defer r.Close()
	fds := r.FDs()
	before := ringFiles(t)
	c.refused(c.send(wire.KindRing, &wire.Ring{Entries: 32}, nil, fds[0], fds[1], fds[2]), fault.ErrMemoryRejected, "size")
	c.refused(c.send(wire.KindRing, &wire.Ring{Entries: 17}, nil, fds[0], fds[1], fds[2]), fault.ErrInvalidArgument, "entries")
	c.refused(c.send(wire.KindRing, &wire.Ring{Entries: 16}, nil, fds[0], fds[0], fds[2]), fault.ErrInvalidArgument, "fds")
	c.refused(c.send(wire.KindRing, &wire.Ring{Entries: 16}, nil, fds[1], fds[1], fds[2]), fault.ErrMemoryRejected, "kind")
	empty := memfd(t, int64(ring.Size(16)))
	c.refused(c.send(wire.KindRing, &wire.Ring{Entries: 16}, nil, empty, fds[1], fds[2]), fault.ErrInvalidArgument, "entries")
	_ = unix.Close(empty)
	assert.Equal(t, before, ringFiles(t))
	openRing(t, c)
}

// ringFiles counts this process's descriptors and mappings of rings and eventfds.
func ringFiles(t testing.TB) (n int) {
	all, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, f := range all {
		if to, err := os.Readlink("/proc/self/fd/" + f.Name()); err == nil && (strings.Contains(to, "kvxfer-ring") || strings.Contains(to, "eventfd")) {
			n++
		}
	}
	raw, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	return n + strings.Count(string(raw), "kvxfer-ring")
}
