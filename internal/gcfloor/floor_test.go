package gcfloor

import (
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestShare(t *testing.T) {
	const mb = 1 << 20
	for _, c := range []struct {
		floor, live uint64
		want        int
	}{{32 * mb, 8 * mb, 300}, {32 * mb, 16 * mb, 100}, {32 * mb, 15 * mb, 113}, {32 * mb, 1 << 30, 100}, {32 * mb, 0, 3100}, {0, mb, 100}} {
		got := shareFor(c.floor, c.live)
		assert.Equal(t, c.want, got, "floor %d, live %d", c.floor, c.live)
		assert.GreaterOrEqual(t, got, goDefault)
	}
}

func TestUsersWord(t *testing.T) {
	for _, name := range []string{"GOGC", "GOMEMLIMIT"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, "100")
			assert.False(t, Set(1<<40))
		})
	}
}

var kept []byte // on the heap

func TestFollowsTheHeap(t *testing.T) {
	t.Setenv("GOGC", "")
	t.Setenv("GOMEMLIMIT", "")
	was := debug.SetGCPercent(goDefault)
	defer debug.SetGCPercent(was)
	const floor = 64 << 20
	require.True(t, Set(floor))
	share := func() int {
		s := debug.SetGCPercent(goDefault)
		debug.SetGCPercent(s)
		return s
	}
	becomes := func(ok func(int) bool) {
		t.Helper()
		require.Eventually(t, func() bool {
			runtime.GC()
			return ok(share())
		}, time.Minute, time.Millisecond)
	}
	becomes(func(s int) bool { return s > 2*goDefault })
	kept = make([]byte, floor)
	becomes(func(s int) bool { return s == goDefault })
	kept = nil
	becomes(func(s int) bool { return s > 2*goDefault })
}
