package tcp

import (
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestShutOfAClosedLane: who ends a session may come to a lane whose users are gone. The descriptor's number is somebody else's.
func TestShutOfAClosedLane(t *testing.T) {
	p, err := New(Options{})
	require.NoError(t, err)
	defer func() { assert.NoError(t, p.Close()) }()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = ln.Close() }()
	conn, err := net.Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	c, err := p.carry(conn)
	require.NoError(t, err)
	var l lane
	require.NoError(t, p.setup(&l, 0, c))
	require.NoError(t, p.attach(&l, c, true))
	fd := l.sock.fd
	l.unuse() // reader and writer have found the connection dead
	l.unuse()

	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	other := pair[0]
	if other != fd {
		require.NoError(t, unix.Dup3(pair[0], fd, unix.O_CLOEXEC))
		other = fd
		defer func() { _ = unix.Close(pair[0]) }()
	}
	defer func() { _ = unix.Close(other); _ = unix.Close(pair[1]) }()
	l.shut()
	_, err = unix.Write(other, []byte{1})
	assert.NoError(t, err, "somebody else's connection was shut down")
}
