package ring

import (
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/wire"
)

const patience = time.Minute

// pair makes a ring with both sides in this process.
func pair(t testing.TB, entries uint32) (*Client, *Daemon) {
	c, err := New(entries)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	d, err := open(c, entries)
	require.NoError(t, err)
	t.Cleanup(d.Close)
	c.Handed()
	return c, d
}

// open hands copies of the descriptors over, as a socket does.
func open(c *Client, entries uint32) (*Daemon, error) {
	fds := c.FDs()
	for i, fd := range fds {
		fds[i], _ = dup(fd)
	}
	return Open(fds[0], fds[1], fds[2], entries)
}

func (w words) bytes() []byte { return unsafe.Slice((*byte)(w.base), Size(w.entries)) }

// serve ends every post as it comes, until stop says so.
func serve(d *Daemon, stop func() bool) error {
	var s Spin
	posts := make([]wire.Post, 32)
	for !stop() {
		n, err := d.Take(posts)
		if err != nil {
			return err
		}
		for _, p := range posts[:n] {
			d.Complete(wire.Posted{Cookie: p.Cookie, Bytes: p.Prepared, Nanos: p.TimeoutNanos})
		}
		if n == 0 && !s.Until(func() bool { return d.Waiting() || stop() }, nil) {
			d.Sleep(-1)
		}
	}
	return nil
}

// next waits for an end.
func next(t testing.TB, c *Client, s *Spin) wire.Posted {
	for begin := time.Now(); ; {
		if p, ok := c.Next(); ok {
			return p
		}
		if !s.Until(c.Ready, nil) {
			c.Sleep(-1)
			if time.Since(begin) > patience {
				t.Fatal("no end came")
			}
		}
	}
}

func dup(fd int) (int, error) { return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0) }
