package rawsock

import (
	"bytes"
	"io"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// stream is what the daemon's sockets are: both ends of one connection.
type stream interface {
	net.Conn
	syscall.Conn
}

func pairs(t *testing.T) map[string][2]stream {
	t.Helper()
	out := map[string][2]stream{}
	for network, addr := range map[string]string{"unix": filepath.Join(shortDir(t), "s"), "tcp": "127.0.0.1:0"} {
		l, err := net.Listen(network, addr)
		require.NoError(t, err)
		a, err := net.Dial(network, l.Addr().String())
		require.NoError(t, err)
		b, err := l.Accept()
		require.NoError(t, err)
		require.NoError(t, l.Close())
		t.Cleanup(func() { _, _ = a.Close(), b.Close() })
		out[network] = [2]stream{a.(stream), b.(stream)}
	}
	return out
}

// shortDir is one whose name leaves room for a socket's path.
func shortDir(t *testing.T) string {
	dir, err := os.MkdirTemp("", "kvxfer")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func TestSendTakesWhatFits(t *testing.T) {
	for name, p := range pairs(t) {
		t.Run(name, func(t *testing.T) {
			var s Sender
			require.NoError(t, s.Init(p[0]))
			all := make([]byte, 64<<20) // more than any socket holds
			for i := range all {
				all[i] = byte(i * 7 >> 3)
			}
			n, err := s.Send(all)
			require.NoError(t, err)
			require.Positive(t, n)
			require.Less(t, n, len(all), "it did not wait for a reader")
			got := make([]byte, n)
			require.NoError(t, p[1].SetReadDeadline(time.Now().Add(time.Minute)))
			_, err = io.ReadFull(p[1], got)
			require.NoError(t, err)
			assert.True(t, bytes.Equal(all[:n], got))
		})
	}
}

func TestDeadlines(t *testing.T) {
	for name, p := range pairs(t) {
		t.Run(name, func(t *testing.T) {
			var s Sender
			var r Receiver
			require.NoError(t, s.Init(p[0]))
			require.NoError(t, r.Init(p[0]))
			require.NoError(t, p[0].SetDeadline(time.Unix(1, 0)))
			n, err := s.Send([]byte("late"))
			require.NoError(t, err)
			require.Equal(t, 4, n)
			_, err = r.Read(make([]byte, 1))
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			require.NoError(t, p[0].SetDeadline(time.Time{}))
			_, err = p[1].Write([]byte("back"))
			require.NoError(t, err)
			n, err = r.Read(make([]byte, 9))
			require.NoError(t, err)
			require.Equal(t, 4, n)
		})
	}
}

func TestClosed(t *testing.T) {
	for name, p := range pairs(t) {
		t.Run(name, func(t *testing.T) {
			var s Sender
			var r Receiver
			require.NoError(t, s.Init(p[0]))
			require.NoError(t, r.Init(p[0]))
			ended := make(chan error, 1)
			go func() {
				_, err := r.Read(make([]byte, 1))
				ended <- err
			}()
			require.NoError(t, p[1].Close())
			require.ErrorIs(t, <-ended, io.EOF)
			require.Eventually(t, func() bool { // over TCP the reset must have come first
				_, err := s.Send([]byte("x"))
				return err != nil
			}, time.Minute, time.Millisecond)
			require.NoError(t, p[0].Close())
			_, err := s.Send([]byte("x"))
			require.Error(t, err)
			_, err = r.Read(make([]byte, 1))
			require.Error(t, err)
		})
	}
}

func TestReceiveDescriptors(t *testing.T) {
	p := pairs(t)["unix"]
	var r Receiver
	require.NoError(t, r.Init(p[1]))
	f, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	_, _, err = p[0].(*net.UnixConn).WriteMsgUnix([]byte("two"), unix.UnixRights(int(f.Fd()), int(f.Fd())), nil)
	require.NoError(t, err)
	b, oob := make([]byte, 16), make([]byte, unix.CmsgSpace(4*4))
	n, oobn, flags, err := r.Receive(b, oob)
	require.NoError(t, err)
	require.Equal(t, "two", string(b[:n]))
	require.Zero(t, flags&unix.MSG_CTRUNC)
	msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
	require.NoError(t, err)
	require.Len(t, msgs, 1)
	fds, err := unix.ParseUnixRights(&msgs[0])
	require.NoError(t, err)
	require.Len(t, fds, 2)
	for _, fd := range fds {
		how, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		require.NoError(t, err)
		assert.NotZero(t, how&unix.FD_CLOEXEC)
		require.NoError(t, unix.Close(fd))
	}
}
