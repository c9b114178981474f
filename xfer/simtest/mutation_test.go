//go:build !kvxfer_nofence

package simtest_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestLateWritesAreFound is the mutation control of TestLateWrites: with gates that never shut, it must fail, and in each
// way by bytes that changed.
//
// What it shows of reads. A window's gate that does not shut lets a source be read after its owner took it back: the
// reader's memory then holds bytes that carry the owner's mark. The reader's own memory has no window; the provider fences
// it by ending the operation, which in simfabric is a gate as well. So the control covers it here and says nothing of how
// another provider cancels: that is the conformance suite's part.
func TestLateWritesAreFound(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "test", "-tags", "kvxfer_nofence", "-count=1", "-run", "^TestLateWrites$", ".").CombinedOutput()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit, "without a fence nothing landed late:\n%s", out)
	found := map[string]string{}
	for _, part := range strings.Split(string(out), "--- FAIL: TestLateWrites/")[1:] {
		name, rest, _ := strings.Cut(part, " ")
		found[name] = rest
	}
	assert.Contains(t, string(out), "read too late: ")
	for _, w := range ways {
		rest := found[subtest(w.name)]
		assert.Contains(t, rest, "changed bytes: ", w.name)
		t.Logf("%s: %d times changed, %d times read too late", w.name, strings.Count(rest, "changed bytes: "), strings.Count(rest, "read too late: "))
	}
}
