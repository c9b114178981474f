package sendnow

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

func TestSendAllocatesNothing(t *testing.T) {
	p := pairs(t)["unix"]
	var s Sender
	require.NoError(t, s.Init(p[0]))
	b, into := make([]byte, 64), make([]byte, 64)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		n, err := s.Send(b)
		if n != len(b) || err != nil {
			t.Fatal(n, err)
		}
		_, _ = io.ReadFull(p[1], into)
	}))
}

func TestDeadlinesDoNotConcernIt(t *testing.T) {
	for name, p := range pairs(t) {
		t.Run(name, func(t *testing.T) {
			var s Sender
			require.NoError(t, s.Init(p[0]))
			require.NoError(t, p[0].SetDeadline(time.Unix(1, 0)))
			n, err := s.Send([]byte("late"))
			require.NoError(t, err)
			require.Equal(t, 4, n)
		})
	}
}

func TestClosedIsAnError(t *testing.T) {
	for name, p := range pairs(t) {
		t.Run(name, func(t *testing.T) {
			var s Sender
			require.NoError(t, s.Init(p[0]))
			require.NoError(t, p[1].Close())
			require.Eventually(t, func() bool { // over TCP the reset must have come first
				_, err := s.Send([]byte("x"))
				return err != nil
			}, time.Minute, time.Millisecond)
			require.NoError(t, p[0].Close())
			_, err := s.Send([]byte("x"))
			require.Error(t, err)
		})
	}
}
