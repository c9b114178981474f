package kvxfer

import (
	"bytes"
	"crypto/rand"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/hostmem"
	"github.com/kvxfer/kvxfer/internal/wire"
)

const adoptOp = "register_cache"

var page = os.Getpagesize()

// mapPages maps n anonymous private pages with random contents, between two that nobody may touch, so that they are a mapping
// of their own.
func mapPages(t *testing.T, n int) []byte {
	t.Helper()
	all, err := unix.Mmap(-1, 0, (n+2)*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(all)) })
	require.NoError(t, unix.Mprotect(all[:page], unix.PROT_NONE))
	require.NoError(t, unix.Mprotect(all[(n+1)*page:], unix.PROT_NONE))
	mine := all[page : (n+1)*page]
	_, _ = rand.Read(mine)
	return mine
}

func adopt(buf []byte, options ...AdoptOption) (*memory, error) {
	return adoptMemory(adoptOp, "adopted", buf, adoptOptionsOf(options))
}

func TestAdoptedMemoryKeepsContentsAndAddress(t *testing.T) {
	outer, pages := t, mapPages(t, 5)
	for _, c := range []struct {
		name     string
		from, to int
	}{
		{"whole mapping", 0, 5 * page}, {"pages within", page, 3 * page}, {"its last page", 4 * page, 5 * page},
		{"a mapping but for its edges", 100, 5*page - 7}, {"again", 0, 5 * page},
	} {
		t.Run(c.name, func(t *testing.T) {
			before, fds := bytes.Clone(pages), openFDs(t)
			buf := pages[c.from:c.to]
			m, err := adopt(buf)
			if c.name == "a mapping but for its edges" {
				// What was adopted before split it: its pages are several mappings now.
				require.ErrorIs(t, err, ErrNotSupported)
				pages = mapPages(outer, 5)
				before, buf = bytes.Clone(pages), pages[c.from:c.to]
				m, err = adopt(buf)
			}
			require.NoError(t, err)
			assert.Same(t, &buf[0], &m.bytes()[0])
			assert.Equal(t, before, pages)
			assert.Equal(t, guaranteeFull, m.guarantee)
			r, passed, fe := m.registration("kv")
			require.Nil(t, fe)
			require.NoError(t, unix.Close(passed))
			assert.Equal(t, uint64(c.from%page), r.Offset)
			assert.Equal(t, uint64(len(buf)), r.Size)

			daemon := asDaemon(t, m)
			assert.Equal(t, buf, readBack(t, daemon, len(buf)))
			_, err = unix.Pwrite(daemon.Memory().FD, []byte("landed"), int64(daemon.Memory().Addr))
			require.NoError(t, err)
			assert.Equal(t, "landed", string(buf[:6]))
			buf[len(buf)-1] ^= 0xff
			assert.Equal(t, buf, readBack(t, daemon, len(buf)))

			require.NoError(t, m.close())
			require.NoError(t, m.close())
			assert.Equal(t, "landed", string(buf[:6]), "the pages stay")
			require.NoError(t, daemon.Close())
			assert.Equal(t, fds, openFDs(t))
		})
	}
}

func TestAdoptionOfSeveralChunksUnderReaders(t *testing.T) {
	const size = adoptChunk + 1<<20
	buf, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Munmap(buf)) }()
	marks := []int{0, adoptChunk - 1, adoptChunk, size - 1}
	for i, at := range marks {
		buf[at] = byte(i + 1)
	}
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for !stop.Load() {
			for i, at := range marks {
				if buf[at] != byte(i+1) {
					t.Errorf("byte %d was %d for a moment", at, buf[at])
					return
				}
			}
			runtime.Gosched()
		}
	})
	m, err := adopt(buf)
	stop.Store(true)
	wg.Wait()
	require.NoError(t, err)
	daemon := asDaemon(t, m)
	for i, at := range marks {
		var one [1]byte
		_, err := unix.Pread(daemon.Memory().FD, one[:], int64(at))
		require.NoError(t, err)
		assert.Equal(t, byte(i+1), one[0])
	}
	require.NoError(t, m.close())
}

var global [64 << 10]byte

// pageAligned are whole pages of Go's heap.
func pageAligned(n int) []byte {
	b := make([]byte, n+page)
	skip := page - int(uintptr(unsafe.Pointer(&b[0]))%uintptr(page))
	return b[skip : skip+n : skip+n]
}

func TestWhatCannotBeSharedIsRefused(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "f"))
	require.NoError(t, err)
	defer file.Close()
	require.NoError(t, file.Truncate(int64(page)))
	mapFile := func(flags int) []byte {
		b, err := unix.Mmap(int(file.Fd()), 0, page, unix.PROT_READ|unix.PROT_WRITE, flags)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, unix.Munmap(b)) })
		return b
	}
	shared, err := unix.Mmap(-1, 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_SHARED)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Munmap(shared)) }()
	readOnly := mapPages(t, 1)
	require.NoError(t, unix.Mprotect(readOnly, unix.PROT_READ))
	hole := mapPages(t, 3)
	require.NoError(t, unix.Mprotect(hole[page:2*page], unix.PROT_NONE))
	inside := mapPages(t, 3)
	for name, c := range map[string]struct {
		buf []byte
		why string
	}{
		"Go's heap":            {make([]byte, 3*page), "Go's own memory"},
		"whole pages of it":    {pageAligned(2 * page), "Go's own memory"},
		"a small object":       {make([]byte, 3), "Go's own memory"},
		"a global":             {global[:], "Go's own memory"},
		"a private file":       {mapFile(unix.MAP_PRIVATE), "a file or shared already"},
		"a shared file":        {mapFile(unix.MAP_SHARED), "a file or shared already"},
		"shared pages":         {shared, "a file or shared already"},
		"read-only":            {readOnly, "not mapped for reading and writing"},
		"a hole":               {hole, "not mapped for reading and writing"},
		"begins inside a page": {inside[10 : 2*page], "first or last page may hold something else"},
		"ends inside a page":   {inside[:page+1], "first or last page may hold something else"},
	} {
		t.Run(name, func(t *testing.T) {
			fds := openFDs(t)
			_, err := adopt(c.buf)
			require.ErrorIs(t, err, ErrNotSupported)
			e := err.(*Error)
			assert.Equal(t, []string{adoptOp, "adopted", adoptField}, []string{e.Op, e.Region, e.Field})
			assert.Contains(t, e.Detail, c.why)
			assert.Contains(t, e.Detail, "allowed")
			assert.Equal(t, fds, openFDs(t))
			assert.Empty(t, claims.held)

			var log bytes.Buffer
			o := adoptOptionsOf([]AdoptOption{AdoptAuto})
			o.log = slog.New(slog.NewTextHandler(&log, nil))
			m, err := adoptMemory(adoptOp, "adopted", c.buf, o)
			require.NoError(t, err)
			assert.Contains(t, log.String(), c.why)
			assert.Equal(t, GuaranteeLiveClientOnly, m.guarantee)
			require.NoError(t, m.close())
		})
	}
}

func TestProcessMemoryIsTheDaemonsToReach(t *testing.T) {
	for _, buf := range [][]byte{make([]byte, 3*page), global[3:999], mapPages(t, 2)[5:]} {
		fds := openFDs(t)
		m, err := adopt(buf, AdoptProcess)
		require.NoError(t, err)
		assert.Equal(t, GuaranteeLiveClientOnly, m.guarantee)
		r, passed, fe := m.registration("kv")
		require.Nil(t, fe)
		require.NoError(t, r.Validate())
		assert.Equal(t, wire.RegisterRegion{Name: "kv", ID: m.id, Kind: wire.RegionProcess, Size: uint64(len(buf)), Addr: r.Addr}, r)
		daemon, err := hostmem.OpenProcess(passed, r.Name, r.Addr, r.Size)
		require.NoError(t, err)
		_, err = unix.Pwrite(daemon.Memory().FD, []byte("landed"), int64(r.Addr))
		require.NoError(t, err)
		assert.Equal(t, "landed", string(m.bytes()[:6]))
		require.NoError(t, daemon.Close())
		require.NoError(t, m.close())
		assert.Equal(t, fds, openFDs(t))
	}
}

func memfdOf(t *testing.T, size int, seals int) (fd int, mapped []byte) {
	t.Helper()
	fd, err := unix.MemfdCreate("callers", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	require.NoError(t, err)
	require.NoError(t, unix.Ftruncate(fd, int64(size)))
	require.NoError(t, allocatePages(fd, int64(size)))
	_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	require.NoError(t, err)
	mapped, err = unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(mapped)); require.NoError(t, unix.Close(fd)) })
	return fd, mapped
}

func TestCallersMemfdIsHandedOver(t *testing.T) {
	fd, mapped := memfdOf(t, 3*page, memorySeals)
	buf := mapped[page+9:]
	m, err := adopt(buf, AdoptMemfd(fd))
	require.NoError(t, err)
	r, passed, fe := m.registration("kv")
	require.Nil(t, fe)
	assert.NotEqual(t, fd, m.fd)
	require.NoError(t, unix.Close(passed))
	assert.Equal(t, uint64(page+9), r.Offset)
	daemon := asDaemon(t, m)
	copy(buf, "hello")
	assert.Equal(t, "hello", string(readBack(t, daemon, 5)))
	require.NoError(t, m.close())

	otherFD, other := memfdOf(t, page, memorySeals)
	for _, bad := range []struct {
		buf   []byte
		fd    int
		field string
	}{
		{buf, otherFD, adoptField}, {other, fd, adoptField}, {make([]byte, page), fd, adoptField}, {mapPages(t, 1), fd, adoptField}, {buf, -1, "memfd"},
	} {
		_, err := adopt(bad.buf, AdoptMemfd(bad.fd))
		require.ErrorIs(t, err, ErrInvalidArgument)
		assert.Equal(t, bad.field, err.(*Error).Field)
	}
	assert.Empty(t, claims.held)
}

func TestMemoryIsAdoptedOnce(t *testing.T) {
	pages := mapPages(t, 4)
	m, err := adopt(pages[page : 3*page])
	require.NoError(t, err)
	for _, buf := range [][]byte{pages, pages[:2*page], pages[2*page:], pages[page : 2*page]} {
		_, err := adopt(buf)
		require.ErrorIs(t, err, ErrAlreadyExists)
		_, err = adopt(buf, AdoptProcess)
		require.ErrorIs(t, err, ErrAlreadyExists)
		assert.ErrorContains(t, err, `handed over already, as "adopted"`)
		_, err = adopt(buf, AdoptAuto)
		require.ErrorIs(t, err, ErrAlreadyExists)
	}
	beside, err := adopt(pages[3*page:])
	require.NoError(t, err)
	require.NoError(t, beside.close())
	require.NoError(t, m.close())
	m, err = adopt(pages)
	require.NoError(t, err)
	require.NoError(t, m.close())
	assert.Empty(t, claims.held)
}

func TestMemoryThatIsNotFencedStaysClaimed(t *testing.T) {
	pages := mapPages(t, 1)
	m, err := adopt(pages)
	require.NoError(t, err)
	c := m.claim
	assert.True(t, m.giveUp())
	assert.Nil(t, m.bytes())
	_, err = adopt(pages)
	require.ErrorIs(t, err, ErrAlreadyExists)
	delete(claims.held, c) // other tests want them empty
}

func TestAdoptArgumentsAreChecked(t *testing.T) {
	_, err := adopt(make([]byte, 1), AdoptMode("borrow"))
	require.ErrorIs(t, err, ErrInvalidArgument)
	assert.Equal(t, "adopt", err.(*Error).Field)
	for _, empty := range [][]byte{nil, {}} {
		_, err = adopt(empty)
		require.ErrorIs(t, err, ErrInvalidArgument)
		assert.Equal(t, adoptField, err.(*Error).Field)
	}
}

func TestMappingLines(t *testing.T) {
	m, err := parseMapping("7f00-7fff rw-s 00001000 fe:01 12    /memfd:a b (deleted)")
	require.NoError(t, err)
	assert.Equal(t, mapping{extent: extent{0x7f00, 0x7fff}, perms: "rw-s", shared: true, offset: 4096, dev: unix.Mkdev(0xfe, 1), inode: 12,
		path: "/memfd:a b (deleted)"}, m)
	m, err = parseMapping("7f00-7fff rw-p 00000000 00:00 0 ")
	require.NoError(t, err)
	assert.Equal(t, "", m.path+m.refusal())
}

func FuzzMappingLine(f *testing.F) {
	f.Add("7f00-7fff rw-s 00001000 fe:01 12    /memfd:a b (deleted)")
	f.Add("7f00-7fff rw-p 00000000 00:00 0 ")
	f.Fuzz(func(t *testing.T, line string) {
		if m, err := parseMapping(line); err == nil {
			require.LessOrEqual(t, m.lo, m.hi)
			require.Len(t, m.perms, 4)
		}
	})
}
