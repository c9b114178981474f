package pidfd_test

import (
	"context"
	"net"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/pidfd"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sleeper starts a child that ends when the test does.
func sleeper(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "600")
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_, _ = cmd.Process.Wait()
	})
	return cmd
}

func TestWait(t *testing.T) {
	cmd := sleeper(t)
	h, err := pidfd.Open(cmd.Process.Pid)
	require.NoError(t, err)
	defer h.Close()

	gone, err := h.Exited()
	require.NoError(t, err)
	assert.False(t, gone)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	assert.ErrorIs(t, h.Wait(ctx), context.DeadlineExceeded)
	cancel()

	require.NoError(t, cmd.Process.Signal(unix.SIGSTOP))
	ctx, cancel = context.WithTimeout(context.Background(), 10*time.Millisecond)
	assert.ErrorIs(t, h.Wait(ctx), context.DeadlineExceeded, "a stopped process has not exited")
	cancel()

	// Killed and not reaped: a zombie counts as exited.
	ctx, cancel = context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- h.Wait(ctx) }()
	require.NoError(t, cmd.Process.Signal(unix.SIGKILL))
	require.NoError(t, <-done)
	gone, err = h.Exited()
	require.NoError(t, err)
	assert.True(t, gone)
	assert.NoError(t, h.Wait(ctx), "again")
}

// TestWaitsOneAfterTheOther: a context that ends while its wait returns costs the next wait nothing.
func TestWaitsOneAfterTheOther(t *testing.T) {
	cmd := sleeper(t)
	h, err := pidfd.Open(cmd.Process.Pid)
	require.NoError(t, err)
	defer h.Close()
	require.NoError(t, cmd.Process.Kill())
	require.NoError(t, h.Wait(t.Context()))
	for range 2000 {
		first, cancel := context.WithCancel(t.Context())
		go cancel()
		_ = h.Wait(first) // either has come first
		require.NoError(t, h.Wait(t.Context()))
	}
}

func TestOpenGone(t *testing.T) {
	cmd := exec.Command("true")
	require.NoError(t, cmd.Run())
	_, err := pidfd.Open(cmd.Process.Pid)
	assert.ErrorIs(t, err, pidfd.ErrGone)
}

func TestOpenUnseen(t *testing.T) {
	for _, pid := range []int{0, -1} { // a kernel takes neither for "none", and some calls take them for a group
		_, err := pidfd.Open(pid)
		assert.ErrorIs(t, err, pidfd.ErrUnseen)
	}
}

func TestOfPeer(t *testing.T) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
	require.NoError(t, err)
	defer l.Close()
	c, err := net.DialUnix("unix", nil, l.Addr().(*net.UnixAddr))
	require.NoError(t, err)
	defer c.Close()
	s, err := l.AcceptUnix()
	require.NoError(t, err)
	defer s.Close()
	h, err := pidfd.OfPeer(s, unix.Getpid())
	require.NoError(t, err)
	defer h.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	assert.ErrorIs(t, h.Wait(ctx), context.DeadlineExceeded, "this process lives")
}
