package blockdb

import (
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
// Pebble never learns of a failed WAL write. Pebble 2.1.7 answers one by Logger.Fatalf, by a panic, and in a WAL
// rotation by a panic that unlocks an unlocked mutex, which no recover can catch. So the failure is reported to
// fail, the bytes are dropped from there on, and the caller of the commit asks whether fail was called.
type logFS struct {
	vfs.FS
	fail   func(error)
	failed func() bool
}

func (f *logFS) Unwrap() vfs.FS { return f.FS }

// Lock does nothing: the directory above is locked by Open.
func (f *logFS) Lock(string) (io.Closer, error) { return io.NopCloser(nil), nil }

func isWAL(name string) bool { return strings.HasSuffix(name, ".log") }

func (f *logFS) wrap(name string, file vfs.File, err error) (vfs.File, error) {
	if !isWAL(name) {
		if err != nil {
			return nil, err
		}
		return unsynced{file}, nil
	}
	if err != nil {
		f.fail(err)
		return lostFile{name: f.PathBase(name)}, nil
	}
	return &walFile{unsynced: unsynced{file}, fs: f}, nil
}

// Create implements vfs.FS.
func (f *logFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if isWAL(name) && f.failed() {
		return lostFile{name: f.PathBase(name)}, nil
	}
	file, err := f.FS.Create(name, c)
	return f.wrap(name, file, err)
}

// ReuseForWrite implements vfs.FS.
func (f *logFS) ReuseForWrite(oldname, newname string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if isWAL(newname) && f.failed() {
		return lostFile{name: f.PathBase(newname)}, nil
	}
	file, err := f.FS.ReuseForWrite(oldname, newname, c)
	return f.wrap(newname, file, err)
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

// walFile keeps its failures from Pebble.
type walFile struct {
	unsynced
	fs *logFS
}

func (w *walFile) Write(p []byte) (int, error) {
	if w.fs.failed() {
		return len(p), nil
	}
	if _, err := w.File.Write(p); err != nil {
		w.fs.fail(err)
	}
	return len(p), nil
}

func (w *walFile) Close() error {
	if err := w.File.Close(); err != nil {
		w.fs.fail(err)
	}
	return nil
}

// lostFile stands for a WAL that could not be made.
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
