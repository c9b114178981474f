package kvxfer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestStoppedDaemon: a daemon that is stopped (SIGSTOP) reads nothing and answers nothing. Every call ends by its deadline,
// nothing is taken for released, and Close comes back.
func TestStoppedDaemon(t *testing.T) {
	p := startProcess(t, nodeArguments(t, "n0"))
	c := dial(t, p.socket, WithTimeout(50*time.Millisecond))
	src, dst := allocate(t, c, "src", 8), allocate(t, c, "dst", 8)
	region, err := c.AllocateRegion(within(t), "raw", 4096)
	require.NoError(t, err)
	pages := mapPages(t, 1)
	adopted, err := c.RegisterRegion(within(t), "adopted", pages)
	require.NoError(t, err)
	lease, err := dst.Lease(within(t), []int{1}, LeaseOptions{})
	require.NoError(t, err)
	push, err := src.Write(within(t), []int{3}, lease.Ticket(), Layerwise())
	require.NoError(t, err)
	adv, err := region.Advertise(within(t), AdvertiseOptions{})
	require.NoError(t, err)
	key := []byte("0123456789abcdef")

	require.NoError(t, p.cmd.Process.Signal(unix.SIGSTOP))
	require.Eventually(t, func() bool { // the signal takes effect a moment after it is sent
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
		return err == nil && bytes.Contains(stat, []byte(") T "))
	}, patience, time.Millisecond)
	for name, call := range map[string]func(ctx context.Context) error{
		"ping":     func(ctx context.Context) error { _, err := c.Ping(ctx); return err },
		"allocate": func(ctx context.Context) error { _, err := c.AllocateRegion(ctx, "x", 1); return err },
		"lookup": func(ctx context.Context) error {
			_, err := c.Lookup(ctx, LookupRequest{Keys: [][]byte{key}, Like: dst})
			return err
		},
		"lease":      func(ctx context.Context) error { _, err := dst.Lease(ctx, []int{2}, LeaseOptions{}); return err },
		"write":      func(ctx context.Context) error { _, err := src.Write(ctx, []int{1}, lease.Ticket()); return err },
		"publish":    func(ctx context.Context) error { _, err := src.Publish(ctx, []int{1}, [][]byte{key}); return err },
		"evict":      func(ctx context.Context) error { return src.Evict(ctx, []int{1}) },
		"states":     func(ctx context.Context) error { _, err := src.BlockStates(ctx); return err },
		"revoke":     lease.Revoke,
		"renew":      func(ctx context.Context) error { return lease.Renew(ctx, time.Minute) },
		"waitLayer":  func(ctx context.Context) error { return lease.WaitLayer(ctx, 0) },
		"pushWait":   func(ctx context.Context) error { _, err := push.Wait(ctx); return err },
		"nextHolder": func(ctx context.Context) error { _, err := adv.NextHolder(ctx); return err },
		"drop":       dst.Drop,
		"deregister": region.Deregister,
	} {
		te := asTransferError(t, call(soon(t)))
		assert.Equal(t, "DeadlineExceeded", te.Code, name)
		if name == "revoke" || name == "evict" || name == "drop" || name == "deregister" || name == "lease" || name == "write" {
			assert.False(t, te.Released, name)
		}
	}
	_, err = Dial(soon(t), p.socket)
	assert.ErrorIs(t, err, ErrDaemonUnavailable)
	require.NoError(t, push.Layer(0), "it never waits")
	gone, err := c.DaemonExited(soon(t))
	require.NoError(t, err)
	assert.False(t, gone, "it is stopped, not gone")
	assert.False(t, lease.Released() || push.Released() || adv.Released())

	// It has adopted memory, whose owner hears that nobody has fenced it.
	closed := make(chan error, 1)
	go func() { closed <- c.Close() }()
	select {
	case err := <-closed:
		te := asTransferError(t, err)
		assert.Equal(t, "DeadlineExceeded", te.Code)
		assert.False(t, te.Released)
	case <-time.After(patience):
		t.Fatal("Close does not come back")
	}
	assert.Nil(t, adopted.Memory())
	pages[0]++ // still mapped: it is the caller's
	_, err = lease.Wait(t.Context())
	assert.Error(t, err)
	assert.False(t, lease.Released())
	claims.mu.Lock()
	clear(claims.held) // other tests want them empty
	claims.mu.Unlock()
}

// TestLayersInASelect: the channel of a layer is closed when it is there, and those of others when the lease has ended, for
// callers who come before and after that.
func TestLayersInASelect(t *testing.T) {
	n := startNode(t, "n0")
	c := dial(t, n.Info().Socket)
	src, dst := allocate(t, c, "src", 8), allocate(t, c, "dst", 8)
	lease, err := dst.Lease(within(t), []int{1}, LeaseOptions{})
	require.NoError(t, err)
	for _, bad := range []int{-1, 3} {
		_, err := lease.Layer(bad)
		assert.ErrorIs(t, err, ErrInvalidArgument)
	}
	push, err := src.Write(within(t), []int{3}, lease.Ticket(), Layerwise())
	require.NoError(t, err)
	closes := func(layer int) {
		t.Helper()
		ch, err := lease.Layer(layer)
		require.NoError(t, err)
		select {
		case <-ch:
		case <-time.After(patience):
			t.Fatalf("layer %d", layer)
		}
	}
	last, err := lease.Layer(2)
	require.NoError(t, err)
	require.NoError(t, push.Layer(0))
	closes(0)
	assert.NoError(t, lease.Err())
	select {
	case <-last:
		t.Fatal("layer 2 was not handed over")
	default:
	}
	require.NoError(t, lease.Revoke(within(t)))
	<-last
	closes(1)
	assert.True(t, errors.Is(lease.Err(), ErrLeaseRevoked))
	assert.Equal(t, []int{0}, lease.VisibleLayers())
}
