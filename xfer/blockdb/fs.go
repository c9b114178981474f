package blockdb

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// logFS is the file system Pebble gets. It changes two things.
//
// No file is ever synced: what is written must survive the process, which the page cache does, and is void after a
// reboot, which the boot id sees to. A WAL sync therefore costs one write.
//
// Pebble never learns that a write of its WAL, its MANIFEST or a marker failed, because in 2.1.7 that ends the
// process whatever Logger.Fatalf does (see the package's doc). The failure is reported to fail, and from there on
// every change is dropped and called a success: on the disk the log stays as the death of the process at that moment
// would leave it. The caller of a commit asks whether fail was called. Tables are the exception: Pebble handles
// their failures itself, and must not go on as if it had a table that is not there.
type logFS struct {
	vfs.FS
	fail   func(error)
	failed func() error
}

// Unwrap implements vfs.FS.
func (f *logFS) Unwrap() vfs.FS { return f.FS }

// Lock does nothing: the directory above is locked by Open.
func (f *logFS) Lock(string) (io.Closer, error) { return io.NopCloser(nil), nil }

func isTable(name string) bool { return strings.HasSuffix(name, ".sst") }

// make runs one call that makes a file.
func (f *logFS) make(name string, create func() (vfs.File, error)) (vfs.File, error) {
	err := f.failed()
	if err == nil {
		var file vfs.File
		if file, err = create(); err == nil {
			if isTable(name) {
				return unsynced{file}, nil
			}
			return &keptFile{unsynced: unsynced{file}, fs: f}, nil
		}
	}
	if isTable(name) {
		return nil, err
	}
	f.fail(err)
	return lostFile{name: f.PathBase(name)}, nil
}

// change runs one call that changes a directory.
func (f *logFS) change(call func() error) error {
	if f.failed() == nil {
		if err := call(); err != nil && !errors.Is(err, os.ErrNotExist) {
			f.fail(err)
		} else {
			return err
		}
	}
	return nil
}

// Create implements vfs.FS.
func (f *logFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return f.make(name, func() (vfs.File, error) { return f.FS.Create(name, c) })
}

// OpenReadWrite implements vfs.FS.
func (f *logFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	return f.make(name, func() (vfs.File, error) { return f.FS.OpenReadWrite(name, c, o...) })
}

// ReuseForWrite implements vfs.FS.
func (f *logFS) ReuseForWrite(oldname, newname string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return f.make(newname, func() (vfs.File, error) { return f.FS.ReuseForWrite(oldname, newname, c) })
}

// Remove implements vfs.FS.
func (f *logFS) Remove(name string) error {
	return f.change(func() error { return f.FS.Remove(name) })
}

// Rename implements vfs.FS.
func (f *logFS) Rename(oldname, newname string) error {
	return f.change(func() error { return f.FS.Rename(oldname, newname) })
}

// Link implements vfs.FS.
func (f *logFS) Link(oldname, newname string) error {
	return f.change(func() error { return f.FS.Link(oldname, newname) })
}

// OpenDir implements vfs.FS.
func (f *logFS) OpenDir(name string) (vfs.File, error) {
	file, err := f.FS.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return unsynced{file}, nil
}

// unsynced is a file whose syncs are no-ops.
type unsynced struct{ vfs.File }

func (unsynced) Sync() error                { return nil }
func (unsynced) SyncData() error            { return nil }
func (unsynced) SyncTo(int64) (bool, error) { return false, nil }

// keptFile keeps its failures from Pebble.
type keptFile struct {
	unsynced
	fs *logFS
}

func (w *keptFile) Write(p []byte) (int, error) {
	if w.fs.failed() != nil {
		return len(p), nil
	}
	if _, err := w.File.Write(p); err != nil {
		w.fs.fail(err)
	}
	return len(p), nil
}

func (w *keptFile) Close() error {
	if err := w.File.Close(); err != nil {
		w.fs.fail(err)
	}
	return nil
}

// lostFile stands for a file that could not be made.
type lostFile struct{ name string }

func (lostFile) Close() error                           { return nil }
func (lostFile) Read([]byte) (int, error)               { return 0, io.EOF }
func (lostFile) ReadAt([]byte, int64) (int, error)      { return 0, io.EOF }
func (lostFile) Write(p []byte) (int, error)            { return len(p), nil }
func (lostFile) WriteAt(p []byte, _ int64) (int, error) { return len(p), nil }
func (lostFile) Preallocate(int64, int64) error         { return nil }
func (l lostFile) Stat() (vfs.FileInfo, error)          { return lostInfo(l), nil }
func (lostFile) Sync() error                            { return nil }
func (lostFile) SyncTo(int64) (bool, error)             { return false, nil }
func (lostFile) SyncData() error                        { return nil }
func (lostFile) Prefetch(int64, int64) error            { return nil }
func (lostFile) Fd() uintptr                            { return vfs.InvalidFd }

type lostInfo struct{ name string }

func (i lostInfo) Name() string         { return i.name }
func (lostInfo) Size() int64            { return 0 }
func (lostInfo) Mode() fs.FileMode      { return os.ModePerm }
func (lostInfo) ModTime() time.Time     { return time.Time{} }
func (lostInfo) IsDir() bool            { return false }
func (lostInfo) Sys() any               { return nil }
func (lostInfo) DeviceID() vfs.DeviceID { return vfs.DeviceID{} }
