package blockdb

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// crashed is what a kill now would leave: all that was written, which is not all that was done.
func crashed(fs *vfs.MemFS) *vfs.MemFS {
	return fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})
}

type held struct {
	gen uint64
	key string
}

func holds(c *Cache) map[uint32]held {
	out := map[uint32]held{}
	c.Blocks(func(r Record) bool {
		if r.State == Committed {
			out[r.Block] = held{r.Generation, string(r.Key)}
		}
		return true
	})
	return out
}

// TestCrashLosesOnlyWhatIsLate takes random steps and looks after each whether a process that dies here serves what it may:
// nothing but what is COMMITTED now, under its key, and all of that which was so when the last batch was written. Generations
// that were given out are not given out again. The steps are folded often, and the tags of batches begin again.
func TestCrashLosesOnlyWhatIsLate(t *testing.T) {
	const blocks = 3 * pageBlocks
	rng, _ := seeded(t)
	o := memOptions()
	fs := vfs.NewCrashableMem()
	o.FS, o.BallastBytes, o.lateBy = fs, -1, time.Hour
	o.lateMost, o.foldBytes = 1<<10, 2<<10
	d, _ := open(t, o)
	s := spec("a", blocks)
	c, _ := attach(t, d, s)
	written, seq, most := holds(c), d.seq, uint64(0)
	var leases []uint64
	late, folded, lost := 0, 0, 0
	for step := range 2000 {
		var b []uint32
		var keys [][]byte
		for _, n := range rng.Perm(blocks)[:1+rng.IntN(12)] {
			if st := c.state[n]; st == Free || st == Committed {
				b = append(b, uint32(n))
				keys = append(keys, fmt.Appendf(nil, "%*d", 1+rng.IntN(9), rng.IntN(50)))
			}
		}
		if rng.IntN(2) == 0 {
			keys = nil
		}
		var id uint64
		if len(leases) > 0 {
			i := rng.IntN(len(leases))
			id = leases[i]
		}
		end := func() {
			for i, l := range leases {
				if l == id {
					leases = append(leases[:i], leases[i+1:]...)
				}
			}
		}
		ordinal := d.steps
		what := rng.IntN(100)
		switch {
		case what < 35 && len(b) > 0:
			most = max(most, grant(t, c, write(uint64(step+1), b...)))
			leases = append(leases, uint64(step+1))
		case what < 60 && id > 0:
			if keys = nil; rng.IntN(2) == 0 {
				for n := range c.leases[lid(id)].count {
					keys = append(keys, fmt.Appendf(nil, "k%d", n))
				}
			}
			require.NoError(t, c.Commit(lid(id), CommitRecord{Keys: keys}))
			end()
		case what < 68 && id > 0:
			require.NoError(t, c.Revoke(lid(id)))
			require.NoError(t, c.Free(lid(id)))
			end()
		case what < 80 && len(b) > 0:
			require.NoError(t, c.Evict(b))
		case what < 92 && len(b) > 0:
			g, err := c.Publish(b, keys)
			require.NoError(t, err)
			most = max(most, g)
		case what < 94:
			settle(t, d)
		case what < 95:
			d.write() // as the writer
		case what < 96:
			d.wmu.Lock()
			if len(d.commits) == 0 && d.open == nil {
				d.tag = math.MaxUint32 - 2
			}
			d.wmu.Unlock()
		case what < 97 && len(leases) == 0:
			require.NoError(t, c.Detach())
			c, _ = attach(t, d, s, vouchFor(written, holdsDormant(d))...)
		}
		now := holds(c)
		if d.seq != seq {
			// A batch holds everything up to the step that wrote it, and of that step what goes out of COMMITTED.
			for n, h := range written {
				if now[n] != h {
					delete(written, n)
				}
			}
			for n, h := range now {
				if c.tag[n] != d.tag {
					written[n] = h
				}
			}
			seq = d.seq
		}
		if d.steps < ordinal {
			folded++
		}
		for n, h := range written {
			if now[n] != h {
				delete(written, n) // taken without a word to the log, which would be wrong
				require.NotEqual(t, Committed, now[n], "step %d", step)
				t.Fatalf("step %d: block %d left COMMITTED and the log was not told", step, n)
			}
		}
		if rng.IntN(5) > 0 {
			continue
		}
		after := o
		after.FS = crashed(fs)
		d2, rec, err := Open(after)
		require.NoError(t, err)
		require.Empty(t, rec.Reason, "step %d", step)
		require.GreaterOrEqual(t, d2.gen, most, "step %d: a generation would be given out again", step)
		c2, _ := attach(t, d2, s, vouchFor(written, now)...)
		got := holds(c2)
		for n, h := range got {
			require.Equal(t, now[n], h, "step %d: block %d is served", step, n)
		}
		for n, h := range written {
			require.Equal(t, h, got[n], "step %d: block %d is lost", step, n)
		}
		lost += len(now) - len(got)
		if len(got) < len(now) {
			late++
		}
		require.NoError(t, d2.Close())
		if rng.IntN(8) == 0 { // and on from here, as after a kill
			killDB(t, d)
			fs = crashed(after.FS.(*vfs.MemFS))
			o.FS = fs
			d, _ = open(t, o)
			c, _ = attach(t, d, s, vouchFor(written, now)...)
			leases, written, seq = nil, holds(c), d.seq
		}
	}
	t.Logf("%d crashes lost late commits, %d blocks in all; folded %d times", late, lost, folded)
	assert.NotZero(t, late)
	assert.NotZero(t, folded)
}

func holdsDormant(d *DB) map[uint32]held {
	for _, c := range d.dormant {
		return holds(c)
	}
	return nil
}

func vouchFor(of ...map[uint32]held) (v []Vouch) {
	for _, m := range of {
		for n, h := range m {
			v = append(v, Vouch{n, h.gen})
		}
	}
	return v
}

// TestFormerVersionIsServed: what a daemon of record version 1 left is served, but for the blocks of its open leases, and is in
// records of this version from then on.
func TestFormerVersionIsServed(t *testing.T) {
	o := memOptions()
	d, _ := open(t, o)
	s := spec("a", 100)
	attach(t, d, s)
	settle(t, d)
	set := func(key, value []byte) { require.NoError(t, d.p.Set(key, value, pebble.Sync)) }
	block := func(n uint32, gen uint64, key string) {
		k := make([]byte, blockKeyLen)
		putNumberKey(k, tagBlock, s.Binding.CacheID, n)
		v := le.AppendUint64([]byte{1}, gen)
		set(k, append(append(v, byte(len(key))), key...))
	}
	gen := d.gen
	block(3, gen+1, "")
	block(70, gen+1, "seventy")
	block(99, gen+2, "")
	block(4, gen+1, "torn")
	k := make([]byte, leaseKeyLen)
	putLeaseKey(k, s.Binding.CacheID, lid(9))
	v := (&leaseRec{state: Leased, kind: KindWrite, gen: gen + 3, count: 2, peer: "p"}).append(nil)
	v = le.AppendUint32(le.AppendUint32(v, 4), 5)
	v[0] = 1
	set(k, v)
	v = head{seq: d.seq, gen: gen + 3}.append(nil)
	v[0] = 1
	set([]byte{tagHead}, v)
	v = (&cacheRec{dev: 1, ino: 100, numBlocks: 100, layout: s.LayoutDigest, name: "a", model: "m"}).encode()
	v[0] = 1
	set(cacheKey(s.Binding.CacheID), v)
	killDB(t, d)

	for range 2 { // the second time from this version's records
		var rec Recovery
		d, rec = open(t, o)
		require.Empty(t, rec.Reason)
		assert.Equal(t, 3, rec.Committed)
		it, err := d.p.NewIter(nil)
		require.NoError(t, err)
		for ok := it.First(); ok; ok = it.Next() {
			assert.NotEqual(t, byte(tagBlock), it.Key()[0])
		}
		require.NoError(t, it.Close())
		killDB(t, d)
	}
	d, rec := open(t, o)
	assert.Zero(t, rec.OpenLeases)
	torn := d.Journal(1)[0]
	assert.Equal(t, OutcomeTorn, torn.Outcome)
	assert.EqualValues(t, 2, torn.Blocks)
	c, served := attach(t, d, s, append(vouchAll(gen+1, 3, 4, 70), vouchAll(gen+2, 99)...)...)
	assert.Equal(t, []uint32{3, 70, 99}, served)
	r, err := c.State(70)
	require.NoError(t, err)
	assert.Equal(t, "seventy", string(r.Key))
	assert.Greater(t, grant(t, c, write(1, 4)), gen+3)
}
