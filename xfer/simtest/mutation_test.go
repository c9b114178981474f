//go:build !kvxfer_nofence

package simtest_test

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestLateWritesAreFound is the mutation control of TestLateWrites: with gates that never shut, it must fail, and in each
// way to take blocks back, by bytes that changed.
func TestLateWritesAreFound(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "test", "-tags", "kvxfer_nofence", "-count=1", "-run", "^TestLateWrites$", ".").CombinedOutput()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit, "without a fence nothing landed late:\n%s", out)
	for _, way := range ways {
		assert.Contains(t, string(out), "--- FAIL: TestLateWrites/"+subtest(way.name))
	}
	assert.Contains(t, string(out), "changed bytes: block ")
}
