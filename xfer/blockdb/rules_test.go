package blockdb

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// TestSteps runs scripts of steps on one cache of 8 blocks. A line is "op lease blocks -> result", then the states
// of all blocks: . FREE, L LEASED, C COMMITTED, R REVOKING.
func TestSteps(t *testing.T) {
	for name, script := range map[string]string{
		"a lease is committed": `
			grant 1 0,1,2 -> ok LLL.....
			commit 1 -> ok CCC.....
			commit 1 -> NotFound CCC.....`,
		"a lease is revoked, fenced and freed": `
			grant 1 3 -> ok ...L....
			revoke 1 -> ok ...R....
			revoke 1 -> ok ...R....
			commit 1 -> LeaseRevoked ...R....
			free 1 -> ok ........
			free 1 -> NotFound ........
			revoke 1 -> NotFound ........`,
		"a lease is freed without a revoke": `
			grant 1 3 -> ok ...L....
			free 1 -> ok ........`,
		"a lease takes committed blocks, and its end frees them": `
			grant 1 0,1 -> ok LL......
			commit 1 -> ok CC......
			grant 2 1,2 -> ok CLL.....
			free 2 -> ok C.......
			grant 2 0 -> ok L.......
			commit 2 -> ok C.......`,
		"a grant is all or nothing": `
			grant 1 0 -> ok L.......
			grant 2 1,0 -> BlocksBusy L.......
			grant 1 1 -> AlreadyExists L.......
			grant 2 1,1 -> InvalidArgument L.......
			grant 2 8 -> InvalidArgument L.......
			grant 2 -> InvalidArgument L.......
			revoke 1 -> ok R.......
			grant 2 0 -> BlocksBusy R.......`,
		"an evict is all or nothing": `
			grant 1 0,1 -> ok LL......
			commit 1 -> ok CC......
			grant 2 2 -> ok CCL.....
			evict 0 0,2 -> BlocksBusy CCL.....
			evict 0 0,7 -> ok .CL.....
			evict 0 0 -> ok .CL.....
			evict 0 9 -> InvalidArgument .CL.....
			evict 0 -> InvalidArgument .CL.....`,
		"an owner publishes what it filled": `
			publish 0 0,1 -> ok CC......
			publish 0 1,2 -> ok CCC.....
			grant 1 1 -> ok CLC.....
			publish 0 1 -> BlocksBusy CLC.....
			evict 0 0 -> ok .LC.....`,
	} {
		t.Run(name, func(t *testing.T) {
			d, _ := open(t, memOptions())
			c, _ := attach(t, d, spec("a", 8))
			for _, line := range strings.Split(strings.TrimSpace(script), "\n") {
				line = strings.TrimSpace(line)
				left, right, _ := strings.Cut(line, " -> ")
				var op, list, want, states string
				var lease uint64
				_, _ = fmt.Sscan(left, &op, &lease, &list)
				_, err := fmt.Sscan(right, &want, &states)
				require.NoError(t, err)
				var blocks []uint32
				for _, s := range strings.FieldsFunc(list, func(r rune) bool { return r == ',' }) {
					var b uint32
					_, err := fmt.Sscan(s, &b)
					require.NoError(t, err)
					blocks = append(blocks, b)
				}
				switch op {
				case "grant":
					_, err = c.Grant(write(lease, blocks...))
				case "commit":
					err = c.Commit(lid(lease), CommitRecord{})
				case "revoke":
					err = c.Revoke(lid(lease))
				case "free":
					err = c.Free(lid(lease))
				case "evict":
					err = c.Evict(blocks)
				case "publish":
					_, err = c.Publish(blocks, nil)
				}
				got := "ok"
				if err != nil {
					got = fault.CodeOf(err).String()
				}
				require.Equal(t, want, got, line)
				require.Equal(t, states, picture(t, c), line)
			}
		})
	}
}

func picture(t *testing.T, c *Cache) string {
	var s strings.Builder
	for b := range c.NumBlocks() {
		s.WriteByte(".LCR"[stateOf(t, c, b)])
	}
	return s.String()
}

func TestBadArgumentsNameTheField(t *testing.T) {
	d, _ := open(t, memOptions())
	c, _ := attach(t, d, spec("a", 8))
	long := strings.Repeat("x", 256)
	with := func(f func(*AttachSpec)) error {
		s := spec("b", 8)
		f(&s)
		_, _, err := d.Attach(s, nil)
		return err
	}
	grantWith := func(f func(*LeaseRecord)) error {
		r := write(1, 1)
		f(&r)
		_, err := c.Grant(r)
		return err
	}
	grant(t, c, write(9, 7))
	_, keysErr := c.Publish([]uint32{1, 2}, [][]byte{{1}})
	_, keyErr := c.Publish([]uint32{1}, [][]byte{[]byte(long)})
	_, _, vouchErr := d.Attach(spec("b", 8), []Vouch{{8, 1}})
	_, stateErr := c.State(8)
	openErr := func(f func(*Options)) error {
		o := memOptions()
		f(&o)
		_, _, err := Open(o)
		return err
	}
	for field, errs := range map[string][]error{
		"name":            {with(func(s *AttachSpec) { s.Name = "" }), with(func(s *AttachSpec) { s.Name = long })},
		"model":           {with(func(s *AttachSpec) { s.Model = long })},
		"num_blocks":      {with(func(s *AttachSpec) { s.NumBlocks = 0 }), with(func(s *AttachSpec) { s.NumBlocks = MaxBlocks + 1 })},
		"cache_id":        {with(func(s *AttachSpec) { s.Binding.CacheID = CacheID{} })},
		"boot_id":         {with(func(s *AttachSpec) { s.Binding.BootID = "?" }), openErr(func(o *Options) { o.BootID = "" })},
		"vouched":         {vouchErr},
		"kind":            {grantWith(func(r *LeaseRecord) { r.Kind = 0 })},
		"transfer_id":     {grantWith(func(r *LeaseRecord) { r.TransferID = long }), c.Commit(lid(9), CommitRecord{TransferID: long})},
		"peer":            {grantWith(func(r *LeaseRecord) { r.Peer = long }), c.Commit(lid(9), CommitRecord{Peer: long})},
		"keys":            {keysErr, keyErr, c.Commit(lid(9), CommitRecord{Keys: make([][]byte, 2)})},
		"blocks":          {stateErr},
		"dir":             {openErr(func(o *Options) { o.Dir = "" })},
		"mem_table_bytes": {openErr(func(o *Options) { o.MemTableBytes = 1 })},
		"journal":         {openErr(func(o *Options) { o.Journal = -1 })},
		"keep_aside":      {openErr(func(o *Options) { o.KeepAside = -1 })},
	} {
		for _, err := range errs {
			require.ErrorIs(t, err, fault.ErrInvalidArgument, field)
			e := fault.From("", err)
			assert.Equal(t, field, e.Field)
			assert.NotEmpty(t, e.Detail)
		}
	}
}

func TestAttachServesTheIntersection(t *testing.T) {
	d, _ := open(t, memOptions())
	s := spec("a", 16)
	c, served := attach(t, d, s, vouchAll(1, 0, 1)...)
	assert.Empty(t, served, "a new cache has nothing")
	g1 := filled(t, c, 1, 0, 1, 2, 3)
	g2 := filled(t, c, 2, 2) // again, over the first
	require.NoError(t, c.Evict([]uint32{3}))
	require.NoError(t, c.Commit(func() LeaseID { grant(t, c, write(3, 5, 6)); return lid(3) }(),
		CommitRecord{Keys: [][]byte{[]byte("k5"), []byte("k6")}}))
	r5, err := c.State(5)
	require.NoError(t, err)
	grant(t, c, write(4, 8)) // open at the crash
	grant(t, c, write(5, 0)) // takes a committed block
	d, rec := reopen(t, d)
	assert.Equal(t, Recovery{Caches: 1, Committed: 4, OpenLeases: 2, TornBlocks: 2}, rec)
	assert.Empty(t, d.Caches())
	c, served = attach(t, d, s, append(vouchAll(g1, 0, 1, 2, 3, 8), Vouch{5, r5.Generation}, Vouch{5, 1}, Vouch{2, g1})...)
	assert.Equal(t, []uint32{1, 5}, served)
	assert.Equal(t, ".C...C..........", picture(t, c))
	r5, err = c.State(5)
	require.NoError(t, err)
	assert.Equal(t, "k5", string(r5.Key))
	assert.Equal(t, 2, c.Committed())

	// What was not vouched for is gone for good, though it is vouched for later.
	d, _ = reopen(t, d)
	_, served = attach(t, d, s, append(vouchAll(g2, 2), vouchAll(g1, 1)...)...)
	assert.Equal(t, []uint32{1}, served)
}

func TestAnotherMemoryInheritsNothing(t *testing.T) {
	for name, change := range map[string]func(*AttachSpec){
		"inode":  func(s *AttachSpec) { s.Binding.Ino++ },
		"device": func(s *AttachSpec) { s.Binding.Dev++ },
		"id":     func(s *AttachSpec) { s.Binding.CacheID[0]++ },
		"layout": func(s *AttachSpec) { s.LayoutDigest[0]++ },
		"model":  func(s *AttachSpec) { s.Model = "other" },
		"size":   func(s *AttachSpec) { s.NumBlocks++ },
	} {
		t.Run(name, func(t *testing.T) {
			d, _ := open(t, memOptions())
			c, _ := attach(t, d, spec("a", 4))
			g := filled(t, c, 1, 0, 1)
			d, _ = reopen(t, d)
			s := spec("a", 4)
			change(&s)
			c, served := attach(t, d, s, vouchAll(g, 0, 1)...)
			assert.Empty(t, served)
			assert.Zero(t, c.Committed())
			// Nor does the former one come back to it.
			d, rec := reopen(t, d)
			assert.Equal(t, 1, rec.Caches)
			assert.Zero(t, rec.Committed)
			_, served = attach(t, d, spec("a", 4), vouchAll(g, 0, 1)...)
			assert.Empty(t, served)
		})
	}
	t.Run("another name is no other memory", func(t *testing.T) {
		d, _ := open(t, memOptions())
		c, _ := attach(t, d, spec("a", 4))
		g := filled(t, c, 1, 0, 1)
		require.NoError(t, c.Detach())
		s := spec("a", 4)
		s.Name = "b"
		_, served := attach(t, d, s, vouchAll(g, 0, 1)...)
		assert.Equal(t, []uint32{0, 1}, served)
	})
}

func TestDetachAndDrop(t *testing.T) {
	d, _ := open(t, memOptions())
	c, _ := attach(t, d, spec("a", 4))
	_, _, err := d.Attach(spec("a", 4), nil)
	require.ErrorIs(t, err, fault.ErrAlreadyExists)
	other := spec("a", 4)
	other.Binding.CacheID[0]++
	_, _, err = d.Attach(other, nil)
	require.ErrorIs(t, err, fault.ErrAlreadyExists, "the name is taken")
	g := filled(t, c, 1, 0, 1)
	grant(t, c, write(2, 2))
	require.ErrorIs(t, c.Detach(), fault.ErrBlocksBusy)
	require.ErrorIs(t, c.Drop(), fault.ErrBlocksBusy)
	require.NoError(t, c.Free(lid(2)))
	require.NoError(t, c.Detach())
	for _, err := range []error{c.Detach(), c.Evict([]uint32{0}), c.Free(lid(1)), c.Revoke(lid(1)), c.Commit(lid(1), CommitRecord{})} {
		require.ErrorIs(t, err, fault.ErrClosed)
	}
	_, err = c.State(0)
	require.ErrorIs(t, err, fault.ErrClosed)
	_, err = c.Grant(write(3, 0))
	require.ErrorIs(t, err, fault.ErrClosed)
	assert.Zero(t, c.Committed())
	c.Blocks(func(Record) bool { t.Error("a detached cache has blocks"); return false })
	assert.Equal(t, 1, d.Stats().Detached)

	c, served := attach(t, d, spec("a", 4), vouchAll(g, 1)...)
	assert.Equal(t, []uint32{1}, served)
	require.NoError(t, c.Drop())
	_, served = attach(t, d, spec("a", 4), vouchAll(g, 1)...)
	assert.Empty(t, served)
	attach(t, d, spec("b", 4))

	d, rec := reopen(t, d)
	assert.Equal(t, 2, rec.Caches)
	n, err := d.DropDetached()
	require.NoError(t, err)
	assert.Equal(t, 2, n)
	d, rec = reopen(t, d)
	assert.Zero(t, rec.Caches)
	require.NoError(t, d.Close())
	require.NoError(t, d.Close())
	_, _, err = d.Attach(spec("a", 4), nil)
	require.ErrorIs(t, err, fault.ErrClosed)
	_, err = d.DropDetached()
	require.ErrorIs(t, err, fault.ErrClosed)
}

func TestReads(t *testing.T) {
	d, _ := open(t, memOptions())
	c, _ := attach(t, d, spec("a", 8))
	g := filled(t, c, 1, 5)
	blocks := []uint32{2, 3}
	r := write(2, blocks...)
	r.TraceID = [16]byte{9}
	g2 := grant(t, c, r)
	blocks[0] = 7 // the caller's slice is its own
	var got []Record
	c.Blocks(func(r Record) bool { got = append(got, r); return true })
	assert.Equal(t, []Record{
		{Block: 2, State: Leased, Generation: g2, Lease: lid(2)}, {Block: 3, State: Leased, Generation: g2, Lease: lid(2)},
		{Block: 5, State: Committed, Generation: g}}, got)
	n := 0
	c.Blocks(func(Record) bool { n++; return false })
	assert.Equal(t, 1, n)
	ls := d.Leases()
	require.Len(t, ls, 1)
	assert.Equal(t, []uint32{2, 3}, ls[0].Blocks)
	assert.Equal(t, [16]byte{9}, ls[0].TraceID)
	assert.Equal(t, "t2", ls[0].TransferID)
	assert.Equal(t, "a", c.Name())
	s := d.Stats()
	assert.EqualValues(t, 2, s.Grants)
	assert.EqualValues(t, 3, s.BlocksGranted)
	assert.Equal(t, 1, s.OpenLeases)
	assert.Equal(t, 1, s.Committed)
	assert.NotZero(t, s.LogBytes)
}

func TestJournalKeepsTheNewest(t *testing.T) {
	o := memOptions()
	o.Journal = 4
	d, _ := open(t, o)
	c, _ := attach(t, d, spec("a", 8))
	for n := range uint64(5) {
		filled(t, c, n, 0)
	}
	grant(t, c, write(5, 1))
	require.NoError(t, c.Free(lid(5)))
	grant(t, c, write(6, 1))
	require.NoError(t, c.Revoke(lid(6)))
	require.NoError(t, c.Free(lid(6)))
	grant(t, c, write(7, 2, 3))
	outcomes := func(d *DB, n int) (out []string) {
		for _, e := range d.Journal(n) {
			out = append(out, fmt.Sprint(e.TransferID, " ", e.Outcome, " ", e.Blocks))
		}
		return out
	}
	assert.Equal(t, []string{"t6 REVOKED 1", "t5 FREED 1", "t4 COMMITTED 1", "t3 COMMITTED 1"}, outcomes(d, 10))
	d, _ = reopen(t, d)
	want := []string{"t7 TORN 2", "t6 REVOKED 1", "t5 FREED 1", "t4 COMMITTED 1"}
	assert.Equal(t, want, outcomes(d, 10))
	assert.Equal(t, want[:2], outcomes(d, 2))
	require.NoError(t, d.Close())
	o.Journal = 2
	d, _ = open(t, o)
	assert.Equal(t, want[:2], outcomes(d, 10))
	require.NoError(t, d.Close())
	o.Journal = 16
	d, _ = open(t, o)
	assert.Equal(t, want[:2], outcomes(d, 10)[:2])
	c, _ = attach(t, d, spec("a", 8))
	filled(t, c, 8, 0)
	assert.Equal(t, "t8 COMMITTED 1", outcomes(d, 1)[0])
}

// TestConcurrentUse is for the race detector; the steps themselves are checked by the model.
func TestConcurrentUse(t *testing.T) {
	d, _ := open(t, memOptions())
	rng, _ := seeded(t)
	var wg sync.WaitGroup
	for w := range 4 {
		c, _ := attach(t, d, spec(fmt.Sprint("c", w/2, w), 64))
		seed := rng.Uint64()
		for half := range uint64(2) {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(seed, half))
				for n := range uint64(200) {
					id := half<<32 | n
					b := uint32(rng.IntN(64))
					if _, err := c.Grant(write(id, b)); err == nil && rng.IntN(2) == 0 {
						assert.NoError(t, c.Commit(lid(id), CommitRecord{}))
					} else if err == nil {
						assert.NoError(t, c.Revoke(lid(id)))
						assert.NoError(t, c.Free(lid(id)))
					}
					_ = c.Evict([]uint32{b})
				}
			})
		}
		wg.Go(func() {
			for range 200 {
				_, _ = c.State(3)
				c.Blocks(func(Record) bool { return true })
				_, _, _ = d.Leases(), d.Journal(3), d.Stats()
			}
		})
	}
	wg.Wait()
	assert.Zero(t, d.Stats().OpenLeases)
}
