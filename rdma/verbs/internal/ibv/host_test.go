//go:build cgo && linux

package ibv

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
)

func TestMissingLibrary(t *testing.T) {
	h := New()
	h.library = "libibverbs-is-not-here.so.1"
	_, err := h.Open("mlx5_0")
	require.ErrorIs(t, err, fault.ErrNotSupported)
	assert.ErrorContains(t, err, "libibverbs-is-not-here.so.1")
	assert.ErrorContains(t, err, "libibverbs1 and ibverbs-providers")
	_, err = h.Devices()
	assert.NoError(t, err, "devices are listed without the library")
}

func TestMissingFunction(t *testing.T) {
	h := New()
	h.library = "libm.so.6"
	_, err := h.Open("mlx5_0")
	require.ErrorIs(t, err, fault.ErrNotSupported)
	assert.ErrorContains(t, err, "libm.so.6 has no function ibv_get_device_list")
}

// write makes a file with its folders.
func write(t *testing.T, text string, path ...string) {
	p := filepath.Join(path...)
	require.NoError(t, os.MkdirAll(filepath.Dir(p), 0o755))
	require.NoError(t, os.WriteFile(p, []byte(text+"\n"), 0o644))
}

func TestOpenSaysWhatIsMissing(t *testing.T) {
	root := t.TempDir()
	h := &Host{classes: filepath.Join(root, "class"), files: filepath.Join(root, "dev")}
	for _, name := range []string{"mlx5_7", "", "..", "a/b"} {
		_, err := h.file(name)
		require.ErrorIs(t, err, fault.ErrNotSupported)
		assert.ErrorContains(t, err, "there is no RDMA device")
	}
	write(t, "4: ACTIVE", h.classes, "infiniband/mlx5_7/ports/1/state")
	_, err := h.file("mlx5_7")
	require.ErrorIs(t, err, fault.ErrNotSupported)
	assert.ErrorContains(t, err, "modprobe ib_uverbs")

	write(t, "mlx5_6", h.classes, "infiniband_verbs/uverbs2/ibdev")
	write(t, "mlx5_7", h.classes, "infiniband_verbs/uverbs3/ibdev")
	_, err = h.file("mlx5_7")
	require.ErrorIs(t, err, fault.ErrNotSupported)
	assert.ErrorContains(t, err, "--device "+filepath.Join(h.files, "uverbs3"))

	path := filepath.Join(h.files, "uverbs3")
	write(t, "", path)
	file, err := h.file("mlx5_7")
	require.NoError(t, err)
	assert.Equal(t, "uverbs3", file)

	// Root passes over modes but not over an immutable kind of file: a folder cannot be opened for writing by anyone.
	require.NoError(t, os.Chmod(path, 0))
	if os.Geteuid() != 0 {
		_, err = h.file("mlx5_7")
		require.ErrorIs(t, err, fault.ErrPermissionDenied)
		assert.ErrorContains(t, err, path)
	}
	require.NoError(t, os.Remove(path))
	require.NoError(t, os.Mkdir(path, 0o755))
	_, err = h.file("mlx5_7")
	require.ErrorIs(t, err, fault.ErrInternal)
	assert.ErrorContains(t, err, path)
}

func TestRemoved(t *testing.T) {
	root := t.TempDir()
	d := &device{name: "mlx5_7", file: "uverbs3", host: &Host{classes: root}}
	write(t, "", root, "infiniband/mlx5_7/node_desc")
	write(t, "mlx5_7", root, "infiniband_verbs/uverbs3/ibdev")
	assert.False(t, d.removed(0), "it stopped answering, but is there")
	require.NoError(t, os.Rename(filepath.Join(root, "infiniband/mlx5_7"), filepath.Join(root, "infiniband/mlx5_new")))
	assert.False(t, d.removed(0), "renamed")
	require.NoError(t, os.RemoveAll(filepath.Join(root, "infiniband_verbs/uverbs3")))
	assert.True(t, d.removed(0))
}

func TestMemlockText(t *testing.T) {
	status := []byte("Name:\tkvxfer\nVmLck:\t       4 kB\nVmPin:\t    2048 kB\n")
	assert.EqualValues(t, 2<<20, statusBytes(status, "VmPin:"))
	assert.Zero(t, statusBytes(status, "VmHWM:"))
	assert.Equal(t, "1.5 GiB", size(3<<29))
	assert.Equal(t, "64.0 KiB", size(64<<10))
}
