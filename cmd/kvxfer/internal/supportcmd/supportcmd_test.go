package supportcmd

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/kvxfer/kvxfer/cmd/kvxfer/internal/daemon"
	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
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
	code, _, errs = run("--out", filepath.Join(dir, "no", "such"))
	assert.Equal(t, 1, code)
	assert.Contains(t, errs, "InvalidArgument field=\"out\"")
	code, _, _ = run("what")
	assert.Equal(t, 2, code)
	code, out, _ = run("--help")
	assert.Zero(t, code)
	assert.Equal(t, help, out)
}

// A daemon that gives its rows in pages, those of all tenants only to whom it trusts.
func TestRowsOfWhoMaySeeThem(t *testing.T) {
	dir, err := os.MkdirTemp("", "kvx") // short: a socket's path is
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	for _, trusted := range []bool{true, false} {
		path := filepath.Join(dir, strconv.FormatBool(trusted))
		listener, err := net.Listen("unix", path)
		require.NoError(t, err)
		done := make(chan struct{})
		go func() { defer close(done); answerRows(listener, trusted) }()
		conn, err := daemon.Dial(t.Context(), path, "")
		require.NoError(t, err)
		text, err := inspect(wire.InspectLeases)(&asked{ctx: t.Context(), conn: conn})
		require.NoError(t, err)
		var got table
		require.NoError(t, json.Unmarshal(text, &got))
		assert.Equal(t, trusted, got.AllTenants)
		assert.True(t, got.Stale)
		require.Len(t, got.Rows, 2)
		assert.Contains(t, string(text), "kept")
		conn.Close()
		<-done
	}
}

// answerRows serves the first connection to its end.
func answerRows(listener net.Listener, trusted bool) {
	c, err := listener.Accept()
	if err != nil {
		return
	}
	defer func() { _, _ = c.Close(), listener.Close() }()
	for {
		f, err := wire.ReadFrame(c, wire.LocalLimits)
		if err != nil {
			return
		}
		var q wire.Inspect
		answer := wire.NewError(f.Request, fault.New(fault.PermissionDenied, "inspect", "root alone"))
		switch err := f.Decode(&q); {
		case f.Kind == wire.KindHello:
			answer, _ = wire.NewFrame(wire.KindHelloOK, f.Request, &wire.Hello{Node: "a", Version: 1}, nil)
		case err == nil && q.Detail && q.Ended && (trusted || !q.AllTenants):
			info, rows := &wire.InspectInfo{Next: "1"}, `[{"n":1,"new_field":"kept"}]`
			if q.After == "1" {
				info, rows = &wire.InspectInfo{Stale: true}, `[{"n":2}]`
			}
			answer, _ = wire.NewFrame(wire.KindOK, f.Request, info, []byte(rows))
		}
		_, _ = c.Write(wire.Append(nil, answer))
	}
}

// What an archive holds is what docs/doctor.md says.
func TestPageListsEveryFile(t *testing.T) {
	page, err := os.ReadFile("../../../../docs/doctor.md")
	require.NoError(t, err)
	for _, s := range sources {
		assert.Contains(t, string(page), "`"+s.name+"`")
	}
}
