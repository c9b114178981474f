package blockdb

import (
	"io"
	"os"
	"sync"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// fewFS is a process that may have so many descriptors. Whoever else there is takes them with hog.
type fewFS struct {
	vfs.FS
	mu   sync.Mutex
	free int
}

func (f *fewFS) take(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.free == 0 {
		return &os.PathError{Op: "open", Path: name, Err: syscall.EMFILE}
	}
	f.free--
	return nil
}

func (f *fewFS) give() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.free++
}

// hog takes all that are free and returns their number.
func (f *fewFS) hog() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, f.free = f.free, 0
	return n
}

func (f *fewFS) file(name string, open func() (vfs.File, error)) (vfs.File, error) {
	if err := f.take(name); err != nil {
		return nil, err
	}
	file, err := open()
	if err != nil {
		f.give()
		return nil, err
	}
	return &fewFile{File: file, fs: f}, nil
}

func (f *fewFS) Unwrap() vfs.FS { return f.FS }

func (f *fewFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return f.file(name, func() (vfs.File, error) { return f.FS.Create(name, c) })
}

func (f *fewFS) Open(name string, o ...vfs.OpenOption) (vfs.File, error) {
	return f.file(name, func() (vfs.File, error) { return f.FS.Open(name, o...) })
}

func (f *fewFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	return f.file(name, func() (vfs.File, error) { return f.FS.OpenReadWrite(name, c, o...) })
}

func (f *fewFS) OpenDir(name string) (vfs.File, error) {
	return f.file(name, func() (vfs.File, error) { return f.FS.OpenDir(name) })
}

func (f *fewFS) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return f.file(to, func() (vfs.File, error) { return f.FS.ReuseForWrite(from, to, c) })
}

type fewFile struct {
	vfs.File
	fs   *fewFS
	once sync.Once
}

func (f *fewFile) Close() error {
	f.once.Do(f.fs.give)
	return f.File.Close()
}

// spareOne is one that spareFS keeps.
type spareOne struct{ fs *fewFS }

func (s spareOne) Close() error {
	s.fs.give()
	return nil
}

func TestNoDescriptorIsLeft(t *testing.T) {
	few := &fewFS{FS: vfs.NewMem(), free: 200}
	o := testOptions("/store") // whose buffer is small: few records make many files
	o.FS = few
	o.openSpare = func() (io.Closer, error) {
		if err := few.take("spare"); err != nil {
			return nil, err
		}
		return spareOne{few}, nil
	}
	d, _ := open(t, o)
	c, _ := attach(t, d, spec("c", 4096))
	blocks := make([]uint32, 4096)
	for i := range blocks {
		blocks[i] = uint32(i)
	}
	cycle := func() {
		for i := range 40 { // 16 KiB a grant: several files of the log
			id := LeaseID{byte(i), 1}
			_, err := c.Grant(LeaseRecord{LeaseID: id, Kind: KindWrite, Blocks: blocks})
			require.NoError(t, err)
			require.NoError(t, c.Revoke(id))
			require.NoError(t, c.Free(id))
		}
	}
	hogged := few.hog()
	cycle()
	require.NoError(t, d.failure())

	few.mu.Lock()
	few.free += hogged
	few.mu.Unlock()
	cycle()
	d.spare.mu.Lock()
	assert.Len(t, d.spare.kept, spareFiles, "they are taken again")
	d.spare.mu.Unlock()
	require.NoError(t, d.Close())
	assert.Equal(t, 200, few.free, "none is left open")
}
