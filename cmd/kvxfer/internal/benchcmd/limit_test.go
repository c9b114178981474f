package benchcmd

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func program(t *testing.T, dir string) string {
	if _, err := exec.LookPath("cc"); err != nil {
		if os.Getenv("CI") == "true" {
			require.NoError(t, err)
		}
		t.Skip("no C compiler")
	}
	path, err := compile(t.Context(), dir)
	require.NoError(t, err)
	return path
}

func TestLimitProgram(t *testing.T) {
	dir := t.TempDir()
	path := program(t, dir)
	begin := func(c Case) *limit {
		l, err := startLimit(t.Context(), path, dir, c)
		require.NoError(t, err)
		t.Cleanup(l.close)
		return l
	}
	for _, c := range []Case{{1, 8}, {3, 24}, {64, 4 << 10}, {1500, 512}} { // the last has more pieces than a call takes
		l := begin(c)
		for _, bench := range []string{"copy", "tcp"} {
			for _, op := range []string{"write", "read"} {
				for _, w := range ways(bench, op, c) {
					s, err := l.run(w, "list", 2)
					require.NoError(t, err, "%s %s", c.Name(), w.name)
					assert.Len(t, s, 2)
					require.NoError(t, l.check("list"), "%s %s", c.Name(), w.name)
				}
			}
		}
		// What was compared is cleared, so bytes that did not move are not taken for those that did before.
		assert.ErrorContains(t, l.check("list"), "is not what was sent")
	}
	l := begin(Case{1, 8})
	for _, w := range append(lines("copy", "copy"), lines("tcp", "write")[0], lines("tcp", "read")[0]) {
		_, err := l.run(w, "line", 1)
		require.NoError(t, err, w.name)
		require.NoError(t, l.check("line"), w.name)
	}
	best, err := l.best(ways("tcp", "read", Case{1, 8}), "list")
	require.NoError(t, err)
	assert.Equal(t, "1x16", best.name, "one piece can go one way alone")
	for command, want := range map[string]string{
		"copy list 5 0 1": "lanes 1..4", "write list 1 0 1": "pieces a call 1..1024", "read list 1 1025 1": "pieces a call 1..1024",
		"copy list 1 0 0": "rounds 1..", "fly list 1 1 1": "no such command", "copy all 1 1 1": "list or line", "copy": "list or line",
	} {
		_, err := begin(Case{1, 8}).ask(command)
		assert.ErrorContains(t, err, want, command)
	}
	list := filepath.Join(dir, "outside")
	require.NoError(t, Case{2, 4096}.writeList(list))
	for _, args := range [][]string{{}, {list, "4096", "16384"}, {list, "16384", "8192"}, {filepath.Join(dir, "none"), "8", "8"}} {
		out, err := exec.CommandContext(t.Context(), path, args...).Output()
		require.Error(t, err)
		assert.Contains(t, string(out), "error: ")
	}
}

func TestNoCompiler(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := compile(t.Context(), t.TempDir())
	assert.ErrorContains(t, err, "--no-limit")
	code, stdout, stderr := call("copy", "--case", "1x8B")
	assert.Equal(t, 1, code)
	assert.Empty(t, stdout)
	assert.Contains(t, stderr, "no C compiler")
	code, stdout, _ = call("copy", "--case", "1x8B", "--no-limit", "--rounds", "3", "--json")
	assert.Zero(t, code)
	assert.Contains(t, stdout, `"limit_gbps": null`)
}
