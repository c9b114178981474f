package localapi

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// hog takes every descriptor that this process may still have; the function gives them back.
func hog(t *testing.T) (give func()) {
	t.Helper()
	var old unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
	few := old
	few.Cur = min(few.Cur, 512) // so that it is soon done
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &few))
	var taken []int
	for {
		fd, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			require.ErrorIs(t, err, unix.EMFILE)
			break
		}
		taken = append(taken, fd)
	}
	given := false
	give = func() {
		if !given {
			given = true
			closeAll(taken)
			_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &old)
		}
	}
	t.Cleanup(give)
	return give
}

func TestNoDescriptorIsLeft(t *testing.T) {
	const size = 4096
	e := newEngine(t)
	o := options(t, e)
	s := serve(t, o)
	c := attach(t, s)
	fd := memfd(t, size)
	late, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)

	give := hog(t)
	id := c.send(wire.KindRegisterRegion, region("kv", size), nil, fd)
	c.refused(id, fault.ErrResourceExhausted, "")
	assert.Equal(t, wire.KindOK, c.ask(wire.KindPing, nil, nil).Kind, "the connection goes on")
	require.NoError(t, unix.Connect(late, &unix.SockaddrUnix{Name: o.Path}))
	require.NoError(t, unix.SetsockoptTimeval(late, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: int64(patience / time.Second)}))
	buf := make([]byte, 4096)
	n, err := unix.Read(late, buf)
	require.NoError(t, err)
	assert.Contains(t, string(buf[:n]), "ResourceExhausted", "who comes is told why")
	assert.Equal(t, 1, s.Clients())

	give()
	require.NoError(t, unix.Close(late))
	require.Equal(t, wire.KindOK, c.ask(wire.KindRegisterRegion, region("kv", size), nil, fd).Kind)
	require.NoError(t, unix.Close(fd))
	attach(t, s)
}
