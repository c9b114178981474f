package supportcmd

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func run(args ...string) (code int, stdout, stderr string) {
	var out, err bytes.Buffer
	code = Run(args, &out, &err)
	return code, out.String(), err.String()
}

func unpack(t *testing.T, path string) map[string]string {
	f, err := os.Open(path)
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	z, err := gzip.NewReader(f)
	require.NoError(t, err)
	out := map[string]string{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		require.NoError(t, err)
		raw, err := io.ReadAll(r)
		require.NoError(t, err)
		out[h.Name] = string(raw)
	}
}

func TestBundleWithoutADaemon(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "out.tar.gz")
	args := []string{"--out", path, "--socket", filepath.Join(dir, "none"), "--json"}
	code, out, errs := run(args...)
	require.Zero(t, code, errs)
	var w Written
	require.NoError(t, json.Unmarshal([]byte(out), &w))
	assert.Equal(t, []string{"version.json", "doctor.json", "kernel.txt", "missing.json"}, w.Parts)
	assert.Contains(t, w.Missing["log.txt"], "DaemonUnavailable")
	files := unpack(t, path)
	assert.Len(t, files, len(w.Parts))
	assert.Contains(t, files["kvxfer-support/kernel.txt"], "Max open files")
	assert.Contains(t, files["kvxfer-support/missing.json"], "status.json")
	assert.Contains(t, files["kvxfer-support/doctor.json"], `"provider-tcp"`)
	st, err := os.Stat(path)
	require.NoError(t, err)
	assert.EqualValues(t, 0o600, st.Mode().Perm())

	code, _, errs = run(args...)
	assert.Equal(t, 1, code)
	assert.Contains(t, errs, "AlreadyExists", "nothing is overwritten")
	code, _, _ = run("what")
	assert.Equal(t, 2, code)
	code, out, _ = run("--help")
	assert.Zero(t, code)
	assert.Equal(t, help, out)
}

// What an archive holds is what docs/doctor.md says.
func TestPageListsEveryFile(t *testing.T) {
	page, err := os.ReadFile("../../../../docs/doctor.md")
	require.NoError(t, err)
	for _, s := range sources {
		assert.Contains(t, string(page), "| `"+s.name+"` |")
	}
}
