package shm

import (
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestTimeNamespace reads the offset that a time namespace has, or says that it cannot be said.
func TestTimeNamespace(t *testing.T) {
	for name, c := range map[string]struct {
		own, children, offsets string
		want                   int64
		ok                     bool
	}{
		"the host's":       {"time:[1]", "time:[1]", "monotonic           0         0\nboottime            0         0\n", 0, true},
		"ahead":            {"time:[2]", "time:[2]", "monotonic        25200         5\nboottime        25200         0\n", 25200*1e9 + 5, true},
		"behind":           {"time:[2]", "time:[2]", "boottime 0 0\nmonotonic -2 500000000\n", -1.5e9, true},
		"by number":        {"time:[2]", "time:[2]", "1 3 0\n", 3e9, true},
		"its children's":   {"time:[2]", "time:[3]", "monotonic 5 0\n", 0, false},
		"another clock's":  {"time:[2]", "time:[2]", "boottime 5 0\n", 0, false},
		"no number":        {"time:[2]", "time:[2]", "monotonic x 0\n", 0, false},
		"more than fits":   {"time:[2]", "time:[2]", "monotonic 9223372036854775807 0\n", 0, false},
		"seconds too many": {"time:[2]", "time:[2]", "monotonic 1 1000000000\n", 0, false},
		"nothing":          {"time:[2]", "time:[2]", "", 0, false},
	} {
		proc := t.TempDir()
		require.NoError(t, os.Mkdir(filepath.Join(proc, "ns"), 0o755))
		require.NoError(t, os.Symlink(c.own, filepath.Join(proc, "ns/time")))
		require.NoError(t, os.Symlink(c.children, filepath.Join(proc, "ns/time_for_children")))
		require.NoError(t, os.WriteFile(filepath.Join(proc, "timens_offsets"), []byte(c.offsets), 0o644))
		offset, ok := timeNamespace(proc)
		assert.Equal(t, c.ok, ok, name)
		assert.Equal(t, c.want, offset, name)
	}
	offset, ok := timeNamespace(t.TempDir())
	assert.True(t, ok, "a kernel without time namespaces")
	assert.Zero(t, offset)
}

// TestHostMonotonic grows, and is far from what a deadline could not hold.
func TestHostMonotonic(t *testing.T) {
	a := hostMonotonic()
	require.Positive(t, a)
	assert.Less(t, a, int64(math.MaxInt64-365*24*time.Hour))
	assert.GreaterOrEqual(t, hostMonotonic(), a)
}
