package blockdb

import (
	"errors"
	"io"
	"os"
	"sync"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// spareFS keeps descriptors for a process that has no other left, as the ballast is kept for a full disk: clients and
// peers use them up, and a log that cannot begin its next file has failed until the next start. A call that fails for
// want of a descriptor gives one of the spare ones back and is repeated; they are taken again when there are some.
type spareFS struct {
	vfs.FS
	open func() (io.Closer, error) // takes one

	mu     sync.Mutex
	kept   []io.Closer
	closed bool
}

// spareFiles is more than the log ever opens at a time: a few tables, as it compacts at four, its WALs and MANIFEST.
const spareFiles = 16

func newSpareFS(fs vfs.FS, open func() (io.Closer, error)) *spareFS {
	if open == nil {
		open = func() (io.Closer, error) { return os.Open(os.DevNull) }
	}
	s := &spareFS{FS: fs, open: open}
	s.take()
	return s
}

// take fills up what is kept, as far as that goes.
func (s *spareFS) take() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.kept) < spareFiles && !s.closed {
		f, err := s.open()
		if err != nil {
			return
		}
		s.kept = append(s.kept, f)
	}
}

// give gives one back; false where none is left.
func (s *spareFS) give() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.kept) == 0 {
		return false
	}
	last := len(s.kept) - 1
	_ = s.kept[last].Close()
	s.kept = s.kept[:last]
	return true
}

// close gives all back, for good.
func (s *spareFS) close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	for s.give() {
	}
}

func (s *spareFS) try(call func() (vfs.File, error)) (vfs.File, error) {
	f, err := call()
	for (errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)) && s.give() {
		f, err = call()
	}
	if err == nil {
		s.take()
	}
	return f, err
}

// Unwrap implements vfs.FS.
func (s *spareFS) Unwrap() vfs.FS { return s.FS }

// Create implements vfs.FS.
func (s *spareFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return s.try(func() (vfs.File, error) { return s.FS.Create(name, c) })
}

// Open implements vfs.FS.
func (s *spareFS) Open(name string, o ...vfs.OpenOption) (vfs.File, error) {
	return s.try(func() (vfs.File, error) { return s.FS.Open(name, o...) })
}

// OpenReadWrite implements vfs.FS.
func (s *spareFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	return s.try(func() (vfs.File, error) { return s.FS.OpenReadWrite(name, c, o...) })
}

// OpenDir implements vfs.FS.
func (s *spareFS) OpenDir(name string) (vfs.File, error) {
	return s.try(func() (vfs.File, error) { return s.FS.OpenDir(name) })
}

// ReuseForWrite implements vfs.FS.
func (s *spareFS) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return s.try(func() (vfs.File, error) { return s.FS.ReuseForWrite(from, to, c) })
}
