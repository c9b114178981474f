package blockdb

import (
	"encoding/binary"
	"errors"
	"log/slog"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		childMain()
		return
	}
	goleak.VerifyTestMain(m)
}

// seeded returns a generator whose seed is in the log and can be given by KVXFER_SEED.
func seeded(t testing.TB) (*rand.Rand, uint64) {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("KVXFER_SEED"); s != "" {
		v, err := strconv.ParseUint(s, 10, 64)
		require.NoError(t, err, "KVXFER_SEED")
		seed = v
	}
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0)), seed
}

const testBoot = "boot-1"

func testOptions(dir string) Options {
	return Options{Dir: dir, BootID: testBoot, BallastBytes: 1 << 20, MemTableBytes: 64 << 10, Logger: slog.New(slog.DiscardHandler)}
}

func memOptions() Options {
	o := testOptions("/store")
	o.FS = vfs.NewMem()
	return o
}

func open(t testing.TB, o Options) (*DB, Recovery) {
	t.Helper()
	d, rec, err := Open(o)
	require.NoError(t, err)
	t.Cleanup(func() { _ = d.Close() })
	return d, rec
}

func reopen(t testing.TB, d *DB) (*DB, Recovery) {
	t.Helper()
	require.NoError(t, d.Close())
	return open(t, d.o)
}

// settle writes what is late.
func settle(t testing.TB, d *DB) {
	t.Helper()
	d.wmu.Lock()
	defer d.wmu.Unlock()
	require.NoError(t, d.flushOnce())
}

// killDB closes a database without writing what is late.
func killDB(t testing.TB, d *DB) {
	t.Helper()
	d.fail(errKilled)
	require.NoError(t, d.Close())
}

var errKilled = errors.New("killed")

func spec(name string, blocks uint32) AttachSpec {
	s := AttachSpec{Name: name, NumBlocks: blocks, Model: "m", LayoutDigest: [32]byte{7},
		Binding: Binding{BootID: testBoot, Dev: 1, Ino: 100}}
	copy(s.Binding.CacheID[:], "cache:"+name)
	return s
}

func attach(t testing.TB, d *DB, s AttachSpec, v ...Vouch) (*Cache, []uint32) {
	t.Helper()
	c, served, err := d.Attach(s, v)
	require.NoError(t, err)
	return c, served
}

func lid(n uint64) (l LeaseID) {
	binary.BigEndian.PutUint64(l[8:], n)
	return l
}

func write(n uint64, blocks ...uint32) LeaseRecord {
	return LeaseRecord{LeaseID: lid(n), Kind: KindWrite, Blocks: blocks, TransferID: "t" + strconv.Itoa(int(n)), Peer: "p"}
}

func grant(t testing.TB, c *Cache, r LeaseRecord) uint64 {
	t.Helper()
	g, err := c.Grant(r)
	require.NoError(t, err)
	return g
}

// filled grants and commits.
func filled(t testing.TB, c *Cache, n uint64, blocks ...uint32) uint64 {
	t.Helper()
	g := grant(t, c, write(n, blocks...))
	require.NoError(t, c.Commit(lid(n), CommitRecord{Bytes: 1}))
	return g
}

func vouchAll(gen uint64, blocks ...uint32) (v []Vouch) {
	for _, b := range blocks {
		v = append(v, Vouch{b, gen})
	}
	return v
}

func stateOf(t testing.TB, c *Cache, block uint32) State {
	t.Helper()
	r, err := c.State(block)
	require.NoError(t, err)
	return r.State
}
