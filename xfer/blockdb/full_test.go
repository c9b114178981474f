package blockdb

import (
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// smallFS is a disk of a given size: the sum of its files' sizes cannot pass quota. It can also fail the n-th
// operation that writes, and every one after it.
type smallFS struct {
	vfs.FS
	mu     sync.Mutex
	quota  int64
	used   int64
	failAt int   // counts down; 0: never
	err    error // of an operation that fails; nil: ENOSPC
	once   bool  // only that one operation fails
	dead   bool
	ops    int
	sizes  map[string]int64
	pinned bool // in-place writes and removals fail too
}

func newSmallFS(quota int64) *smallFS {
	return &smallFS{FS: vfs.NewMem(), quota: quota, sizes: map[string]int64{}}
}

func (s *smallFS) charge(name string, n int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ops++
	if s.failAt > 0 {
		if s.failAt--; s.failAt == 0 {
			if s.once {
				return s.err
			}
			s.dead = true
		}
	}
	if s.dead && s.err != nil {
		return s.err
	}
	if s.dead || s.used+n > s.quota {
		return &os.PathError{Op: "write", Path: name, Err: syscall.ENOSPC}
	}
	s.used += n
	s.sizes[name] += n
	return nil
}

func (s *smallFS) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *smallFS) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ops
}

func (s *smallFS) forget(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used -= s.sizes[name]
	delete(s.sizes, name)
}

func (s *smallFS) Unwrap() vfs.FS { return s.FS }

func (s *smallFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := s.charge(name, 0); err != nil {
		return nil, err
	}
	s.forget(name)
	f, err := s.FS.Create(name, c)
	return &smallFile{f, s, name}, err
}

func (s *smallFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	f, err := s.FS.OpenReadWrite(name, c, o...)
	return &smallFile{f, s, name}, err
}

func (s *smallFS) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := s.charge(from, 0); err != nil {
		return nil, err
	}
	s.forget(from)
	f, err := s.FS.ReuseForWrite(from, to, c)
	return &smallFile{f, s, to}, err
}

func (s *smallFS) Remove(name string) error {
	s.mu.Lock()
	pinned := s.pinned
	s.mu.Unlock()
	if pinned {
		return &os.PathError{Op: "remove", Path: name, Err: syscall.ENOSPC}
	}
	s.forget(name)
	return s.FS.Remove(name)
}

func (s *smallFS) Rename(from, to string) error {
	if err := s.charge(from, 0); err != nil {
		return err
	}
	s.set(func() {
		s.used -= s.sizes[to]
		s.sizes[to] = s.sizes[from]
		delete(s.sizes, from)
	})
	return s.FS.Rename(from, to)
}

// Lock is not refused to a second owner, so that a database which is never closed can be opened again, as after a
// kill.
func (s *smallFS) Lock(string) (io.Closer, error) { return io.NopCloser(nil), nil }

type smallFile struct {
	vfs.File
	fs   *smallFS
	name string
}

func (f *smallFile) Write(p []byte) (int, error) {
	if err := f.fs.charge(f.name, int64(len(p))); err != nil {
		return 0, err
	}
	return f.File.Write(p)
}

// WriteAt is in place: a full disk has room for it.
func (f *smallFile) WriteAt(p []byte, off int64) (int, error) {
	f.fs.mu.Lock()
	pinned := f.fs.pinned
	f.fs.mu.Unlock()
	if pinned {
		return 0, &os.PathError{Op: "write", Path: f.name, Err: syscall.ENOSPC}
	}
	return f.File.WriteAt(p, off)
}

func smallOptions(fs *smallFS) Options {
	o := testOptions("/store")
	o.FS = fs
	return o
}

func wantStoreFailed(t *testing.T, err error) {
	t.Helper()
	require.ErrorIs(t, err, fault.ErrStoreFailed)
}

func TestFullDiskUsesTheBallast(t *testing.T) {
	fs := newSmallFS(8 << 20)
	o := smallOptions(fs)
	o.ballastRetry = time.Nanosecond
	d, rec := open(t, o)
	require.False(t, rec.BallastShort)
	c, _ := attach(t, d, spec("a", 64))
	g := filled(t, c, 1, 0, 1, 2, 3)
	grant(t, c, write(2, 10, 11))
	grant(t, c, write(3, 20))
	settle(t, d)
	fs.set(func() { fs.quota = fs.used })
	require.NoError(t, c.Evict([]uint32{0}), "the ballast makes room")
	assert.True(t, d.Stats().DiskFull)
	fs.set(func() { fs.quota = fs.used + 64<<10 }) // as the ballast does on a disk that others fill
	_, err := c.Grant(write(4, 30))
	wantStoreFailed(t, err)
	_, err = c.Publish([]uint32{40}, nil)
	wantStoreFailed(t, err)
	_, _, err = d.Attach(spec("b", 1), nil)
	wantStoreFailed(t, err)
	require.NoError(t, c.Revoke(lid(2)))
	require.NoError(t, c.Free(lid(2)))
	require.NoError(t, c.Commit(lid(3), CommitRecord{}))
	s := d.Stats()
	assert.Empty(t, s.Failed)
	assert.False(t, s.Voided)
	assert.EqualValues(t, 3, s.Refused)

	fs.set(func() { fs.quota = 16 << 20 })
	grant(t, c, write(5, 30))
	assert.False(t, d.Stats().DiskFull)
	require.NoError(t, c.Free(lid(5)))
	d, rec = reopen(t, d)
	assert.Empty(t, rec.Reason)
	_, served := attach(t, d, spec("a", 64), vouchAll(g, 0, 1, 2, 3)...)
	assert.Equal(t, []uint32{1, 2, 3}, served)
}

func TestFullDiskWritesTheVoidMarker(t *testing.T) {
	fs := newSmallFS(8 << 20)
	o := smallOptions(fs)
	o.BallastBytes = -1
	d, _ := open(t, o)
	c, _ := attach(t, d, spec("a", 64))
	g := filled(t, c, 1, 0, 1, 2, 3)
	grant(t, c, write(2, 10, 11))
	grant(t, c, write(3, 20))
	settle(t, d)
	fs.set(func() { fs.dead = true })

	_, err := c.Grant(write(4, 0))
	wantStoreFailed(t, err)
	assert.Equal(t, Committed, stateOf(t, c, 0), "a refused grant takes nothing")
	require.NoError(t, c.Commit(lid(3), CommitRecord{}))
	assert.False(t, d.Stats().Voided, "nothing had to be taken back yet")
	require.NoError(t, c.Revoke(lid(2)))
	require.NoError(t, c.Free(lid(2)))
	require.NoError(t, c.Evict([]uint32{1}))
	assert.Equal(t, Free, stateOf(t, c, 1))
	s := d.Stats()
	assert.True(t, s.Voided)
	assert.NotEmpty(t, s.Failed)
	require.NoError(t, c.Drop())

	fs.set(func() { fs.dead = false })
	d, rec := reopen(t, d)
	assert.True(t, rec.Fresh)
	assert.Equal(t, "void marker", rec.Reason)
	c, served := attach(t, d, spec("a", 64), vouchAll(g, 0, 1, 2, 3)...)
	assert.Empty(t, served)
	grant(t, c, write(6, 0))
}

// TestVoidWithoutTheWitness: where an overwrite needs space too, a removal may not; where neither works the owner is
// told that its blocks are not back.
func TestVoidWithoutTheWitness(t *testing.T) {
	for _, removable := range []bool{true, false} {
		fs := newSmallFS(8 << 20)
		o := smallOptions(fs)
		o.BallastBytes = -1
		d, _ := open(t, o)
		c, _ := attach(t, d, spec("a", 8))
		g := filled(t, c, 1, 0, 1)
		settle(t, d)
		require.NoError(t, d.witness.f.Close())
		d.witness.f = unwritable{d.witness.f}
		fs.set(func() { fs.dead, fs.pinned = true, !removable })
		err := c.Evict([]uint32{0})
		fs.set(func() { fs.dead, fs.pinned = false, false })
		if !removable {
			wantStoreFailed(t, err)
			assert.Equal(t, Committed, stateOf(t, c, 0))
			continue
		}
		require.NoError(t, err)
		d, rec := reopen(t, d)
		assert.Equal(t, "another boot", rec.Reason)
		_, served := attach(t, d, spec("a", 8), vouchAll(g, 0, 1)...)
		assert.Empty(t, served)
	}
}

type unwritable struct{ vfs.File }

func (unwritable) WriteAt([]byte, int64) (int, error) { return 0, syscall.ENOSPC }
func (unwritable) Close() error                       { return nil }

func TestStartsOnAFullDisk(t *testing.T) {
	fs := newSmallFS(1 << 20)
	d, rec := open(t, smallOptions(fs))
	assert.True(t, rec.BallastShort)
	_, _, err := d.Attach(spec("a", 8), nil)
	wantStoreFailed(t, err)

	none := newSmallFS(0)
	_, _, err = Open(smallOptions(none))
	wantStoreFailed(t, err)
}

// TestFailureAtEveryWrite fails the n-th write of a run, for many n: WAL, rotation, flush, compaction, MANIFEST. The
// process must live, what takes blocks back must succeed, and what a crash then leaves must serve nothing torn.
func TestFailureAtEveryWrite(t *testing.T) {
	rng, _ := seeded(t)
	const steps = 1000
	writes, total, whole, voided := 0, 0, 0, map[string]int{}
	for n := 0; n < 32; n++ {
		fs := newSmallFS(64 << 20)
		o := smallOptions(fs)
		o.BallastBytes = -1
		o.lateMost, o.foldBytes = 256, 8<<10
		d, _ := open(t, o)
		c, _ := attach(t, d, spec("a", 256))
		if n > 0 {
			at := 1 + rng.IntN(writes)
			fs.set(func() {
				fs.failAt = at
				if n%2 == 0 { // as a bad disk does, and not again
					fs.err, fs.once = syscall.EIO, n%4 == 0
				}
			})
		}
		ops := fs.count()
		takeBack := n%8 < 4
		may := randomSteps(t, c, rng, steps, takeBack)
		if n == 0 {
			writes = fs.count() - ops
			require.Greater(t, writes, steps, "too little is written to fail at")
			continue
		}
		// As a kill leaves it: the first database can change nothing any more, a second opens its files.
		fs.set(func() { fs.dead, fs.pinned = true, true })
		after := newSmallFS(64 << 20)
		after.FS = fs.FS
		o.FS = after
		d2, rec, err := Open(o)
		require.NoError(t, err)
		var vouch []Vouch
		for b, ever := range may.ever {
			for _, g := range ever {
				vouch = append(vouch, Vouch{uint32(b), g})
			}
		}
		_, served, err := d2.Attach(spec("a", 256), vouch)
		require.NoError(t, err)
		for _, b := range served {
			c2 := d2.attached[spec("a", 256).Binding.CacheID]
			require.Equal(t, may.now[b], c2.gen[b], "block %d is served torn (%+v)", b, rec)
		}
		if rec.Reason == "" {
			whole++
			total += len(served)
		} else {
			voided[rec.Reason]++
		}
		require.NoError(t, d2.Close())
		require.NoError(t, d.Close())
	}
	t.Logf("%d databases whole, with %d blocks served; void: %v", whole, total, voided)
	assert.NotZero(t, total)
	assert.Equal(t, []string{"void marker"}, slices.Collect(maps.Keys(voided)), "a failure alone voids nothing")
}

type allowed struct {
	now  []uint64 // generation that may be served
	ever [][]uint64
}

// randomSteps ends early when grants are refused. With takeBack it then takes much of everything back.
func randomSteps(t *testing.T, c *Cache, rng *rand.Rand, steps int, takeBack bool) allowed {
	n := int(c.NumBlocks())
	a := allowed{now: make([]uint64, n), ever: make([][]uint64, n)}
	type held struct {
		r   LeaseRecord
		gen uint64
	}
	var leases []held
	pad := strings.Repeat("x", 200)
	for step := 0; step < steps; step++ {
		var blocks []uint32
		for range 1 + rng.IntN(8) {
			b := uint32(rng.IntN(n))
			if s := c.state[b]; (s == Free || s == Committed) && !has(blocks, b) {
				blocks = append(blocks, b)
			}
		}
		if len(blocks) > 0 {
			r := write(uint64(step+1), blocks...)
			r.TransferID = fmt.Sprint(pad, step)
			gen, err := c.Grant(r)
			if err != nil {
				wantStoreFailed(t, err)
				break
			}
			for _, b := range blocks {
				a.now[b], a.ever[b] = 0, append(a.ever[b], gen)
			}
			leases = append(leases, held{r, gen})
		}
		if len(leases) > 4 {
			i := rng.IntN(len(leases))
			l := leases[i]
			leases = append(leases[:i], leases[i+1:]...)
			if rng.IntN(3) == 0 {
				require.NoError(t, c.Revoke(l.r.LeaseID))
				require.NoError(t, c.Free(l.r.LeaseID))
				continue
			}
			require.NoError(t, c.Commit(l.r.LeaseID, CommitRecord{}))
			for _, b := range l.r.Blocks {
				a.now[b] = l.gen
			}
		}
	}
	if !takeBack {
		return a
	}
	for _, l := range leases {
		require.NoError(t, c.Free(l.r.LeaseID))
	}
	for b := range uint32(n) {
		if b%2 == 0 && c.state[b] == Committed {
			require.NoError(t, c.Evict([]uint32{b}))
			a.now[b] = 0
		}
	}
	return a
}
