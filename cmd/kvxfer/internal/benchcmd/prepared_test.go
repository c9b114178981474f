package benchcmd

import (
	"io"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestWays(t *testing.T) {
	for name, want := range map[string][]string{"all": {transfers, prepared}, transfers: {transfers}, prepared: {prepared}} {
		got, err := chosenWays(name)
		require.NoError(t, err)
		assert.Equal(t, want, got)
	}
	_, err := chosenWays("")
	assert.Error(t, err)
	require.NoError(t, measured("shm", "shm"))
	assert.ErrorContains(t, measured("tcp", "shm"), "shm is measured")
}

// TestRanges: a region's list is the limit's.
func TestRanges(t *testing.T) {
	c := Case{64, 4 << 10}
	from, to := c.ids(local), c.ids(remote)
	ranges := c.ranges()
	require.Len(t, ranges, c.Blocks)
	for i, r := range ranges {
		assert.EqualValues(t, int(from[i])*c.BlockBytes, r.Local)
		assert.EqualValues(t, int(to[i])*c.BlockBytes, r.Remote)
		assert.EqualValues(t, c.BlockBytes, r.Length)
	}
}

// TestBusy: it uses a processor until its input ends.
func TestBusy(t *testing.T) {
	in, out := io.Pipe()
	ended := make(chan int)
	before, err := clockOf(os.Getpid())
	require.NoError(t, err)
	go func() { ended <- compute(in) }()
	require.Eventually(t, func() bool {
		now, err := clockOf(os.Getpid())
		return err == nil && now-before > 20*time.Millisecond
	}, patience, time.Millisecond)
	select {
	case <-ended:
		t.Fatal("it ended with its input open")
	default:
	}
	require.NoError(t, out.Close())
	select {
	case code := <-ended:
		assert.Zero(t, code)
	case <-time.After(patience):
		t.Fatal("it outlives its input")
	}
}
