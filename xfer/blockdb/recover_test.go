package blockdb

import (
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
)

func TestAnotherBootServesNothing(t *testing.T) {
	o := memOptions()
	d, rec := open(t, o)
	assert.True(t, rec.Fresh)
	assert.Empty(t, rec.Reason)
	c, _ := attach(t, d, spec("a", 4))
	g := filled(t, c, 1, 0, 1)
	require.NoError(t, d.Close())

	o.BootID = "boot-2"
	d, rec = open(t, o)
	assert.Equal(t, Recovery{Fresh: true, Reason: "another boot"}, rec)
	s := spec("a", 4)
	_, _, err := d.Attach(s, vouchAll(g, 0, 1))
	require.ErrorIs(t, err, fault.ErrInvalidArgument)
	s.Binding.BootID = o.BootID
	_, served := attach(t, d, s, vouchAll(g, 0, 1)...)
	assert.Empty(t, served)
	require.NoError(t, d.Close())

	o.BootID = testBoot // not even the boot it was written in gets it back
	d, rec = open(t, o)
	assert.True(t, rec.Fresh)
	_, served = attach(t, d, spec("a", 4), vouchAll(g, 0, 1)...)
	assert.Empty(t, served)
}

func TestGenerationsNeverRepeat(t *testing.T) {
	o := testOptions(t.TempDir())
	seen := map[uint64]bool{}
	epochs := map[uint64]bool{}
	take := func(d *DB) {
		c, _ := attach(t, d, spec("a", 4))
		for n := range uint64(3) {
			g := filled(t, c, n, 0)
			require.NotZero(t, g)
			require.False(t, seen[g], "generation %d again", g)
			seen[g] = true
			epochs[g>>counterBits] = true
		}
	}
	d, _ := open(t, o)
	take(d)
	d, _ = reopen(t, d) // the same epoch goes on
	take(d)
	assert.Len(t, epochs, 1)

	require.NoError(t, d.Close()) // another boot
	o.BootID = "boot-2"
	d, _ = open(t, o)
	require.NoError(t, d.Close())
	o.BootID = testBoot
	d, _ = open(t, o)
	take(d)
	d.wmu.Lock() // void marker
	require.NoError(t, d.void())
	d.wmu.Unlock()
	d, rec := reopen(t, d)
	assert.Equal(t, "void marker", rec.Reason)
	take(d)
	require.NoError(t, d.Close()) // set aside
	require.NoError(t, os.WriteFile(filepath.Join(o.Dir, dirLog, "marker.manifest.000001.MANIFEST-999999"), nil, 0o600))
	damage(t, vfs.Default, filepath.Join(o.Dir, dirLog), "MANIFEST", func(b []byte) []byte { return nil })
	d, rec = open(t, o)
	assert.NotEmpty(t, rec.SetAside)
	take(d)
	require.NoError(t, d.Close()) // the log removed
	require.NoError(t, os.RemoveAll(filepath.Join(o.Dir, dirLog)))
	d, rec = open(t, o)
	assert.Equal(t, "the log is missing", rec.Reason)
	take(d)
	assert.Len(t, epochs, 5)

	d.wmu.Lock() // the counter used up: its next epoch is not the next database's
	d.gen |= counterMask - 1
	d.wmu.Unlock()
	c := d.Caches()[0]
	require.NoError(t, c.Drop())
	take(d)
	d.wmu.Lock()
	require.NoError(t, d.void())
	d.wmu.Unlock()
	d, _ = reopen(t, d)
	take(d)
	assert.Len(t, epochs, 7)

	require.NoError(t, d.Close()) // the epoch's file lost: any other, never 0
	require.NoError(t, os.Remove(filepath.Join(o.Dir, fileEpoch)))
	e, err := nextEpoch(vfs.Default, o.Dir)
	require.NoError(t, err)
	assert.NotZero(t, e)
	assert.LessOrEqual(t, e, uint64(epochMask))
	next, err := nextEpoch(vfs.Default, o.Dir)
	require.NoError(t, err)
	if e < epochMask {
		assert.Equal(t, e+1, next)
	}
}

// damage changes every file under dir whose name contains part, and returns how many.
func damage(t *testing.T, fs vfs.FS, dir, part string, f func([]byte) []byte) (n int) {
	t.Helper()
	names, err := fs.List(dir)
	require.NoError(t, err)
	for _, name := range names {
		path := fs.PathJoin(dir, name)
		fi, err := fs.Stat(path)
		require.NoError(t, err)
		if fi.IsDir() {
			n += damage(t, fs, path, part, f)
			continue
		}
		if !strings.Contains(name, part) {
			continue
		}
		n++
		file, err := fs.Open(path)
		require.NoError(t, err)
		b, err := io.ReadAll(file)
		require.NoError(t, err)
		require.NoError(t, file.Close())
		file, err = fs.Create(path, vfs.WriteCategoryUnspecified)
		require.NoError(t, err)
		_, err = file.Write(f(b))
		require.NoError(t, err)
		require.NoError(t, file.Close())
	}
	return n
}

// TestDamagedFilesServeNothingTorn flips, cuts and empties files of a log and what lies beside it. Open must come
// back with a database, and what it serves must be what an undamaged one may serve.
// killed copies the files as a kill would leave them now. A copy that Pebble's background work ran into is of no moment
// at all, some files older and some newer, so it is made again.
func killed(t *testing.T, fs vfs.FS) *vfs.MemFS {
	t.Helper()
	files := func() (out []string) {
		for _, dir := range []string{"/store", "/store/db"} {
			names, err := fs.List(dir)
			require.NoError(t, err)
			slices.Sort(names)
			for _, name := range names {
				if st, err := fs.Stat(fs.PathJoin(dir, name)); err == nil {
					out = append(out, fmt.Sprint(dir, "/", name, " ", st.Size()))
				}
			}
		}
		return out
	}
	var to *vfs.MemFS
	require.Eventually(t, func() bool {
		before := files()
		to = vfs.NewMem()
		ok, err := vfs.Clone(fs, to, "/store", "/store")
		return err == nil && ok && slices.Equal(before, files())
	}, time.Minute, 10*time.Millisecond)
	return to
}

func TestDamagedFilesServeNothingTorn(t *testing.T) {
	rng, seed := seeded(t)
	o := memOptions()
	o.BallastBytes = -1
	o.lateMost, o.foldBytes = 256, 8<<10
	d, _ := open(t, o)
	c, _ := attach(t, d, spec("a", 256))
	// Several tables, a MANIFEST with history and a WAL; then leases open at the end, over committed blocks.
	may := randomSteps(t, c, rng, 1200, true)
	for n := range uint64(20) {
		r := write(1<<40+n, uint32(2*n+1))
		g := grant(t, c, r)
		may.now[2*n+1], may.ever[2*n+1] = 0, append(may.ever[2*n+1], g)
	}
	var vouch []Vouch
	for b, ever := range may.ever {
		for _, g := range ever {
			vouch = append(vouch, Vouch{uint32(b), g})
		}
	}
	settle(t, d)
	crashed := killed(t, o.FS)
	require.NoError(t, d.Close())

	kinds := map[string]func([]byte) []byte{
		"flip": func(b []byte) []byte {
			if len(b) > 0 {
				b[rng.IntN(len(b))] ^= 1 << rng.IntN(8)
			}
			return b
		},
		"flip near the end": func(b []byte) []byte {
			if len(b) > 0 {
				b[len(b)-1-rng.IntN(min(len(b), 400))] ^= byte(1 + rng.IntN(255))
			}
			return b
		},
		"cut":   func(b []byte) []byte { return b[:rng.IntN(len(b)+1)] },
		"cut 1": func(b []byte) []byte { return b[:max(0, len(b)-1-rng.IntN(300))] },
		"empty": func([]byte) []byte { return nil },
		"zeros": func(b []byte) []byte {
			if len(b) > 0 {
				at := rng.IntN(len(b))
				clear(b[at:min(len(b), at+64)])
			}
			return b
		},
		"noise": func(b []byte) []byte {
			src := rand.NewChaCha8([32]byte{byte(seed)})
			_, _ = src.Read(b)
			return b
		},
	}
	whole, voided := 0, 0
	for _, part := range []string{"MANIFEST", ".log", ".sst", "OPTIONS", "marker", fileBoot, fileWitness, fileEpoch} {
		for kind, f := range kinds {
			for range 3 {
				mem := vfs.NewMem()
				ok, err := vfs.Clone(crashed, mem, "/store", "/store")
				require.NoError(t, err)
				require.True(t, ok)
				require.NotZero(t, damage(t, mem, "/store", part, f), part)
				o.FS = mem
				d, rec, err := Open(o)
				require.NoError(t, err, "%s of %s", kind, part)
				c, served, err := d.Attach(spec("a", 256), vouch)
				require.NoError(t, err)
				for _, b := range served {
					require.Equal(t, may.now[b], c.gen[b], "%s of %s: block %d is served torn (%+v)", kind, part, b, rec)
				}
				if rec.Reason == "" && !rec.Fresh {
					whole++
					assert.NotEmpty(t, served)
				} else {
					voided++
					assert.Empty(t, served)
				}
				grant(t, c, write(1, 0))
				require.NoError(t, d.Close())
			}
		}
	}
	t.Logf("%d damaged databases found void, %d whole", voided, whole)
	assert.NotZero(t, voided)
	assert.NotZero(t, whole)
}

func TestSetAsideIsBounded(t *testing.T) {
	o := testOptions(t.TempDir())
	o.KeepAside = 2
	for range 5 {
		d, _ := open(t, o)
		attach(t, d, spec("a", 4))
		require.NoError(t, d.Close())
		damage(t, vfs.Default, o.Dir, "MANIFEST", func([]byte) []byte { return []byte("nonsense") })
	}
	d, rec := open(t, o)
	require.NoError(t, d.Close())
	assert.Equal(t, filepath.Join(o.Dir, "aside.5"), rec.SetAside)
	aside, err := filepath.Glob(filepath.Join(o.Dir, dirAside+"*"))
	require.NoError(t, err)
	assert.Equal(t, []string{filepath.Join(o.Dir, "aside.4"), filepath.Join(o.Dir, "aside.5")}, aside)
}

// TestUnknownVersionIsNotRead puts, for each kind of record, one of a newer version into the log.
func TestUnknownVersionIsNotRead(t *testing.T) {
	s := spec("a", 4)
	block, page := make([]byte, blockKeyLen), make([]byte, pageKeyLen)
	putNumberKey(block, tagBlock, s.Binding.CacheID, 3)
	putNumberKey(page, tagPage, s.Binding.CacheID, 0)
	step, entry := make([]byte, stepKeyLen), make([]byte, journalKeyLen)
	putStepKey(step, 0)
	putJournalKey(entry, 1)
	lease := make([]byte, leaseKeyLen)
	putLeaseKey(lease, s.Binding.CacheID, lid(7))
	for name, key := range map[string][]byte{"head": {tagHead}, "cache": cacheKey(s.Binding.CacheID), "block": block,
		"lease": lease, "journal": entry, "page": page, "step": step, "unknown kind": {77, 1}} {
		t.Run(name, func(t *testing.T) {
			d, _ := open(t, testOptions(t.TempDir()))
			c, _ := attach(t, d, s)
			g := filled(t, c, 1, 0, 1)
			settle(t, d)
			require.NoError(t, d.p.Set(key, []byte{recordVersion + 1, 1, 2, 3}, pebble.Sync))
			killDB(t, d)
			d, rec := open(t, d.o)
			assert.NotEmpty(t, rec.SetAside)
			if name != "unknown kind" {
				assert.Contains(t, rec.Reason, fmt.Sprint("format version ", recordVersion+1))
			}
			_, served := attach(t, d, s, vouchAll(g, 0, 1)...)
			assert.Empty(t, served)
		})
	}
}

// TestImpossibleRecordsAreNotRead: records that are sound by themselves but not together.
func TestImpossibleRecordsAreNotRead(t *testing.T) {
	s := spec("a", 4)
	id, other := s.Binding.CacheID, CacheID{1}
	number := func(tag byte, id CacheID, n uint32) []byte {
		k := make([]byte, blockKeyLen)
		putNumberKey(k, tag, id, n)
		return k
	}
	leaseKey := func(id CacheID, n uint64) []byte {
		k := make([]byte, leaseKeyLen)
		putLeaseKey(k, id, lid(n))
		return k
	}
	stepKey := func(n uint64) []byte {
		k := make([]byte, stepKeyLen)
		putStepKey(k, n)
		return k
	}
	lease := (&leaseRec{state: Leased, kind: KindWrite, gen: 9, count: 1}).append(nil)
	for name, kv := range map[string][2][]byte{
		"page of no cache":           {number(tagPage, other, 0), onePage(1, nil)},
		"page out of range":          {number(tagPage, id, 1), onePage(1, nil)},
		"page with too many blocks":  {number(tagPage, id, 0), onePage(1<<4, nil)},
		"page without a block":       {number(tagPage, id, 0), onePage(0, nil)},
		"step of no cache":           {stepKey(0), oneStep(stepTake, other, 1)},
		"step out of range":          {stepKey(0), oneStep(stepTake, id, 4)},
		"step without a block":       {stepKey(0), oneStep(stepTake, id)},
		"step before it is missing":  {stepKey(1), oneStep(stepTake, id, 1)},
		"block of this version":      {number(tagBlock, id, 0), {recordVersion, 5, 0, 0, 0, 0, 0, 0, 0, 0}},
		"lease of no cache":          {leaseKey(other, 8), lease},
		"lease without a block":      {leaseKey(id, 8), (&leaseRec{state: Leased, kind: KindWrite, gen: 9}).append(nil)},
		"cache with too many blocks": {cacheKey(id), (&cacheRec{numBlocks: math.MaxUint32}).encode()},
	} {
		t.Run(name, func(t *testing.T) {
			d, _ := open(t, testOptions(t.TempDir()))
			c, _ := attach(t, d, s)
			grant(t, c, write(1, 2))
			settle(t, d)
			require.NoError(t, d.p.Set(kv[0], kv[1], pebble.Sync))
			killDB(t, d)
			_, rec := open(t, d.o)
			assert.NotEmpty(t, rec.SetAside)
		})
	}
}

func TestOneOwnerAtATime(t *testing.T) {
	o := testOptions(t.TempDir())
	d, _ := open(t, o)
	_, _, err := Open(o)
	wantStoreFailed(t, err)
	reopen(t, d)

	if os.Geteuid() != 0 { // root may write anywhere
		o.Dir = filepath.Join(t.TempDir(), "x")
		require.NoError(t, os.Mkdir(o.Dir, 0o500))
		_, _, err = Open(o)
		wantStoreFailed(t, err)
	}
}

func TestHostBootID(t *testing.T) {
	id, err := HostBootID()
	require.NoError(t, err)
	assert.Len(t, id, 36)
}

// TestIdleDoesNothing measures the process's own processor time while a database is open and unused, by the
// process's clock, not the wall's: a loaded machine makes it smaller, not larger.
func TestIdleDoesNothing(t *testing.T) {
	o := testOptions(t.TempDir())
	o.MemTableBytes = 0
	d, _ := open(t, o)
	c, _ := attach(t, d, spec("a", 1024))
	filled(t, c, 1, 0, 1, 2)
	cpu := func() time.Duration {
		var u unix.Rusage
		require.NoError(t, unix.Getrusage(unix.RUSAGE_SELF, &u))
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	const idle = time.Second
	before := cpu()
	time.Sleep(idle)
	used := cpu() - before
	t.Logf("%v of processor time in %v", used, idle)
	assert.Less(t, used, idle/50)
}

// A MANIFEST whose end cannot be read hides a table in the middle: the write-ahead log behind it still reaches the witness.
func TestManifestThatLostItsEndServesAllOrNothing(t *testing.T) {
	rng, _ := seeded(t)
	o := memOptions()
	o.BallastBytes = -1
	o.lateMost, o.foldBytes = 256, 8<<10
	d, _ := open(t, o)
	c, _ := attach(t, d, spec("a", 256))
	randomSteps(t, c, rng, 300, true)
	// A start moves the log into a table and names it in a MANIFEST of its own; newer records are in the log alone.
	settle(t, d)
	held := killed(t, o.FS)
	require.NoError(t, d.Close())
	o.FS = held
	d, _ = open(t, o)
	var all []Vouch
	for b := range c.gen {
		all = append(all, Vouch{uint32(b), c.gen[b]})
	}
	c, _ = attach(t, d, spec("a", 256), all...)
	randomSteps(t, c, rng, 20, true)
	settle(t, d)
	require.Eventually(t, func() bool { // what the table has replaced goes in its own time
		files, err := held.List("/store/db")
		require.NoError(t, err)
		return len(slices.DeleteFunc(files, func(f string) bool { return !strings.HasSuffix(f, ".log") })) == 1
	}, time.Minute, time.Millisecond)
	var vouch []Vouch
	for b := range c.state {
		if c.state[b] == Committed {
			vouch = append(vouch, Vouch{uint32(b), c.gen[b]})
		}
	}
	require.NotEmpty(t, vouch)
	crashed := killed(t, held)
	require.NoError(t, d.Close())
	for back := 1; back <= 400; back += 1 + rng.IntN(6) {
		mem := vfs.NewMem()
		_, err := vfs.Clone(crashed, mem, "/store", "/store")
		require.NoError(t, err)
		require.NotZero(t, damage(t, mem, "/store", "MANIFEST", func(b []byte) []byte {
			if len(b) > 0 { // the marker that names the file is empty
				b[max(0, len(b)-back)] ^= 1 << rng.IntN(8)
			}
			return b
		}))
		o.FS = mem
		d, rec, err := Open(o)
		require.NoError(t, err)
		_, served, err := d.Attach(spec("a", 256), vouch)
		require.NoError(t, err)
		if len(served) > 0 {
			assert.Len(t, served, len(vouch), "%d before the end: %+v", back, rec)
		}
		require.NoError(t, d.Close())
	}
}
