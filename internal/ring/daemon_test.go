package ring

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
)

func TestEntriesAreCopiedOnce(t *testing.T) {
	c, d := pair(t, 16)
	want := wire.Post{Prepared: 1, Cookie: 2, TimeoutNanos: 3}
	require.True(t, c.Submit(want))
	var posts [4]wire.Post
	n, err := d.Take(posts[:])
	require.NoError(t, err)
	require.Equal(t, 1, n)
	c.w.putPost(0, wire.Post{Prepared: 7, Cookie: 8, TimeoutNanos: wire.MaxPostNanos + 1})
	c.w.u64(offTaken).Store(0)
	c.w.u64(offCompleted).Store(5)
	assert.Equal(t, want, posts[0], "a copy")
	n, err = d.Take(posts[:])
	require.NoError(t, err)
	assert.Zero(t, n, "the daemon counts for itself what it has taken")
	d.Complete(wire.Posted{Cookie: 2})
	assert.EqualValues(t, 1, c.w.u64(offCompleted).Load(), "and what it has told")
}

func TestWrongCountsEndTheRing(t *testing.T) {
	for _, x := range []struct {
		name        string
		taken, done int
		submitted   uint64
	}{
		{name: "more than there are places", submitted: 17},
		{name: "by far", submitted: 1 << 63},
		{name: "more are out than there are places", taken: 10, done: 2, submitted: 19},
		{name: "went back behind what was told", taken: 10, done: 10, submitted: 9},
		{name: "went back behind what was taken", taken: 10, submitted: 9},
		{name: "nothing was ever posted", taken: 10, done: 3, submitted: 0},
	} {
		t.Run(x.name, func(t *testing.T) {
			c, d := pair(t, 16)
			posts := make([]wire.Post, 32)
			for range x.taken {
				require.True(t, c.Submit(wire.Post{}))
			}
			n, err := d.Take(posts)
			require.NoError(t, err)
			require.Equal(t, x.taken, n)
			d.Complete(make([]wire.Posted, x.done)...)
			c.w.u64(offSubmitted).Store(x.submitted)
			assert.True(t, d.Waiting())
			for range 2 {
				n, err = d.Take(posts)
				require.ErrorIs(t, err, fault.ErrProtocolViolation)
				assert.Zero(t, n)
			}
			assert.EqualValues(t, x.taken, c.w.u64(offTaken).Load())
		})
	}
}

// FuzzDaemonSide plays a client that writes anything anywhere in the ring, in between what the daemon does.
func FuzzDaemonSide(f *testing.F) {
	f.Add([]byte{0, 64, 1, 3, 0, 64, 16, 3, 4, 0, 64, 17, 3})
	f.Add([]byte{1, 64, 1, 3, 4, 2, 7, 9, 3})
	f.Add([]byte{5, 5, 3, 4, 4, 3})
	f.Fuzz(func(t *testing.T, script []byte) {
		const entries = 16
		c, d := pair(t, entries)
		view := c.w.bytes()
		posts := make([]wire.Post, entries+3)
		out := 0
		next := func() (b byte) {
			if len(script) > 0 {
				b, script = script[0], script[1:]
			}
			return b
		}
		for len(script) > 0 {
			switch next() % 6 {
			case 0: // a word of the header, small
				c.w.u64(uintptr(next()) &^ 7).Store(uint64(next()))
			case 1: // one that is large
				c.w.u64(uintptr(next()) &^ 7).Store(uint64(next())<<56 | ^uint64(0)>>8)
			case 2: // any byte
				view[(int(next())<<8|int(next()))%len(view)] = next()
			case 3:
				n, err := d.Take(posts)
				require.True(t, n >= 0 && n <= entries && (err == nil || n == 0))
				out += n
				require.LessOrEqual(t, out, entries, "no more than the ring has places")
			case 4:
				if out > 0 {
					d.Complete(wire.Posted{Cookie: 1})
					out--
				}
			case 5:
				d.Ring()
				d.Sleep(-1) // which Ring, also of long ago, ends
			}
		}
		d.Close()
		d.Complete(wire.Posted{})
		d.Ring()
	})
}

func TestMemoryIsChecked(t *testing.T) {
	c, err := New(16)
	require.NoError(t, err)
	defer c.Close()
	for _, entries := range []uint32{32, 8} {
		_, err = open(c, entries)
		require.ErrorIs(t, err, fault.ErrMemoryRejected)
		assert.Equal(t, "size", fault.From("", err).Field)
	}
	for name, spoil := range map[string]func(){
		"entries":   func() { c.w.u32(offEntries).Store(32) },
		"magic":     func() { c.w.u64(offMagic).Store(1) },
		"taken":     func() { c.w.u64(offTaken).Store(1) },
		"completed": func() { c.w.u64(offCompleted).Store(1) },
		"ended":     func() { c.w.u32(offEnded).Store(1) },
	} {
		before := append([]byte(nil), c.w.bytes()...)
		spoil()
		_, err = open(c, 16)
		require.ErrorIs(t, err, fault.ErrInvalidArgument, name)
		assert.Equal(t, "entries", fault.From("", err).Field, name)
		copy(c.w.bytes(), before)
	}

	fd, err := unix.MemfdCreate("ring", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	require.NoError(t, unix.Fallocate(fd, 0, 0, int64(Size(16))))
	_, err = Open(fd, -1, -1, 16)
	require.ErrorIs(t, err, fault.ErrMemoryRejected, "it may shrink")

	for _, entries := range []uint32{0, 8, 17, 1 << 15} {
		_, err = New(entries)
		require.ErrorIs(t, err, fault.ErrInvalidArgument)
		assert.Equal(t, "entries", fault.From("", err).Field)
	}
	d, err := open(c, 16)
	require.NoError(t, err, "and nothing of it was spoiled")
	d.Close()
}

func TestDescriptorsAreChecked(t *testing.T) {
	c, err := New(16)
	require.NoError(t, err)
	defer c.Close()
	dup := func(fd int) int {
		n, err := dup(fd)
		require.NoError(t, err)
		return n
	}
	udp, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
	require.NoError(t, err)
	defer unix.Close(udp[1])
	fds := c.FDs()
	for _, x := range [][2]int{{dup(fds[0]), dup(fds[2])}, {dup(fds[2]), dup(fds[2])}, {dup(fds[1]), dup(fds[1])}, {dup(fds[1]), udp[0]}} {
		_, err = Open(dup(fds[0]), x[0], x[1], 16)
		require.ErrorIs(t, err, fault.ErrInvalidArgument)
		assert.Equal(t, "fds", fault.From("", err).Field)
		for _, fd := range x {
			_, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
			assert.ErrorIs(t, err, unix.EBADF, "a refused descriptor is closed")
		}
	}
}

// TestClientCannotHoldTheDaemon has the client do all it can to make the daemon's ringing and being rung block.
func TestClientCannotHoldTheDaemon(t *testing.T) {
	c, err := New(16)
	require.NoError(t, err)
	defer c.Close()
	d, err := open(c, 16)
	require.NoError(t, err)
	defer d.Close()
	full := []byte{0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	_, err = unix.Write(c.doorbell, full)
	require.NoError(t, err)
	for { // until nothing more goes into the daemon's end
		if _, err := unix.Write(c.theirs, make([]byte, 4096)); err != nil {
			require.ErrorIs(t, err, unix.EAGAIN)
			break
		}
	}
	for _, fd := range []int{c.doorbell, c.theirs, c.bell} {
		require.NoError(t, unix.SetNonblock(fd, false))
	}
	c.w.u32(offClientSleeps).Store(1)
	d.Complete(wire.Posted{Cookie: 1})
	d.Ring()
	d.Sleep(-1)
	d.Ring()
	d.Sleep(-1)
}

// TestTornMemory begins with Complete, whose first access is a plain one: the race detector makes the atomic ones in C, where a
// fault cannot be recovered from.
func TestTornMemory(t *testing.T) {
	for _, protect := range []int{unix.PROT_NONE, unix.PROT_READ} {
		c, d := pair(t, 16)
		require.True(t, c.Submit(wire.Post{Cookie: 1}))
		var posts [4]wire.Post
		_, err := d.Take(posts[:])
		require.NoError(t, err)
		require.NoError(t, unix.Mprotect(d.w.bytes(), protect)) // as good as pages that the kernel cannot give
		d.Complete(wire.Posted{Cookie: 1})
		assert.True(t, d.Waiting())
		d.Sleep(-1)
		_, err = d.Take(posts[:])
		require.ErrorIs(t, err, fault.ErrMemoryFault)
		d.Complete(wire.Posted{Cookie: 2})
		d.Close()
		assert.False(t, c.Ready())
		c.Sleep(-1)
		assert.True(t, c.Ended(), "the bell's end says it")
	}
}
