package blockdb

import (
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// Options of Open. Dir and BootID are required.
type Options struct {
	Dir           string       // on a local file system; made if absent, owned by one DB at a time
	BootID        string       // of this boot, see HostBootID; 1 to MaxStringBytes bytes
	Logger        *slog.Logger // nil: no log
	FS            vfs.FS       // nil: the operating system's
	BallastBytes  int64        // kept aside for a full disk; 0: 16 MiB, negative: none
	MemTableBytes int64        // Pebble's write buffer; 0: 4 MiB, at least 64 KiB
	Journal       int          // ended leases remembered; 0: 1024, at most 1 << 20
	KeepAside     int          // databases kept that could not be trusted; 0: 2

	ballastRetry time.Duration             // between attempts to make the ballast again
	lateBy       time.Duration             // 0: lateBy
	lateMost     int                       // 0: lateMost
	foldBytes    int                       // 0: foldBytes
	openSpare    func() (io.Closer, error) // a descriptor to keep; nil: of /dev/null
	trapNoSync   bool                      // commit as the trap does; the tests show that it loses the log
	trapBlind    bool                      // do not keep the witness, so that the loss stays unseen
	trapLate     bool                      // let steps out of COMMITTED be late too, as the rules forbid
}

// DB is the block metadata and the transfer journal of one node.
type DB struct {
	o       Options
	fs      vfs.FS
	spare   *spareFS
	lock    io.Closer
	witness *witness
	p       *pebble.DB
	closing chan struct{} // ends the pauses of p

	failed    atomic.Pointer[error] // the log is not written any more
	full      atomic.Bool           // the ballast is gone
	ballastMu sync.Mutex            // orders making and dropping it

	// wmu is held through every step that changes anything, log write included: the log's order is the mirror's.
	// Its holder reads the mirror without mu.
	wmu         sync.Mutex
	seq         uint64 // of the last batch
	gen         uint64 // the last one given out
	reserved    uint64 // what the log has as its bound
	ahead       uint64 // how far a batch moves it on
	voided      bool   // the void marker is written
	ballastNext time.Time
	ordinal     uint64 // of the next journal entry
	noted       uint64 // of the next journal entry for the log
	closed      bool   // guarded by mu as well
	stats       Stats

	// What is not in the log yet, see late.go.
	open      *pebble.Batch // nil: nothing
	tag       uint32        // of the open batch, never 0
	commits   []lateCommit
	lateBytes int      // that they will take, about
	begun     []*lease // granted since the last batch; nil where ended
	steps     uint64   // ordinal of the next step; 0 after fold
	stepBytes int      // since fold
	writer    *time.Timer
	armed     int // 1: the writer will come, 2: at once

	// logMu orders the batches on their way into the log. It is taken with wmu held, or alone.
	logMu sync.Mutex

	// mu guards the mirror; it is held only while memory is changed or read.
	mu       sync.RWMutex
	attached map[CacheID]*Cache
	dormant  map[CacheID]*Cache // known from the log, not attached: never served
	journal  []Transfer         // ring: entry n at n mod len; an entry of Kind 0 is none
}

func (o *Options) prepare() error {
	if o.Dir == "" {
		return fault.Invalid("open", "dir", "must be a directory's path")
	}
	if n := len(o.BootID); n < 1 || n > MaxStringBytes {
		return fault.Invalid("open", "boot_id", "has %d bytes, allowed are 1 to %d", n, MaxStringBytes)
	}
	if o.MemTableBytes == 0 {
		o.MemTableBytes = 4 << 20
	}
	if o.MemTableBytes < 64<<10 || o.MemTableBytes > 1<<30 {
		return fault.Invalid("open", "mem_table_bytes", "is %d, allowed are %d to %d", o.MemTableBytes, 64<<10, 1<<30)
	}
	if o.Journal == 0 {
		o.Journal = 1024
	}
	if o.Journal < 1 || o.Journal > 1<<20 {
		return fault.Invalid("open", "journal", "is %d, allowed are 1 to %d", o.Journal, 1<<20)
	}
	if o.KeepAside == 0 {
		o.KeepAside = 2
	}
	if o.KeepAside < 1 || o.KeepAside > 100 {
		return fault.Invalid("open", "keep_aside", "is %d, allowed are 1 to 100", o.KeepAside)
	}
	if o.BallastBytes == 0 {
		o.BallastBytes = 16 << 20
	}
	if o.ballastRetry == 0 {
		o.ballastRetry = 5 * time.Second
	}
	if o.lateBy == 0 {
		o.lateBy = lateBy
	}
	if o.lateMost == 0 {
		o.lateMost = lateMost
	}
	if o.foldBytes == 0 {
		o.foldBytes = foldBytes
	}
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}

// Open opens or makes the database. Nothing of it is served before Attach. Errors: InvalidArgument; StoreFailed
// where the directory is in use or the host refuses its files. Damage is no error: see Recovery.
func Open(o Options) (_ *DB, rec Recovery, err error) {
	if err := o.prepare(); err != nil {
		return nil, rec, err
	}
	spare := newSpareFS(o.FS, o.openSpare)
	d := &DB{o: o, fs: spare, spare: spare, tag: 1, ahead: reserve,
		attached: map[CacheID]*Cache{}, dormant: map[CacheID]*Cache{}, journal: make([]Transfer, o.Journal)}
	if err := d.fs.MkdirAll(o.Dir, 0o700); err != nil {
		spare.close()
		return nil, rec, fault.Wrap(fault.StoreFailed, "open", err)
	}
	if d.lock, err = d.fs.Lock(d.fs.PathJoin(o.Dir, fileLock)); err != nil {
		spare.close()
		return nil, rec, &fault.Error{Code: fault.StoreFailed, Op: "open", Detail: "the directory is in use", Err: err}
	}
	defer func() {
		if err != nil {
			d.release()
			err = fault.Wrap(fault.StoreFailed, "open", err)
		}
	}()
	if d.witness, err = openWitness(d.fs, o.Dir); err != nil {
		return nil, rec, err
	}
	seq, reason := d.trusted()
	if reason != "" {
		// The log goes first: whatever ends the process in between, the reason is still there at the next start.
		if _, serr := d.fs.Stat(d.fs.PathJoin(o.Dir, dirLog)); serr == nil {
			rec.Reason = reason
		}
		if err = d.removeLog(); err != nil {
			return nil, rec, err
		}
		seq = 0
	}
	if readBoot(d.fs, o.Dir) != o.BootID {
		if err = writeBoot(d.fs, o.Dir, o.BootID); err != nil {
			return nil, rec, err
		}
	}
	if err := d.growBallast(); err != nil {
		rec.BallastShort = true
	}
	d.writer = time.AfterFunc(time.Hour, d.write)
	d.writer.Stop()
	if err = d.start(seq, &rec); err != nil {
		return nil, rec, err
	}
	if rec.Reason != "" {
		d.o.Logger.Warn("block metadata is void", "reason", rec.Reason, "set_aside", rec.SetAside)
	}
	return d, rec, nil
}

// trusted returns the last batch that the log must contain, or why the log counts for nothing.
func (d *DB) trusted() (seq uint64, reason string) {
	if readBoot(d.fs, d.o.Dir) != d.o.BootID {
		return 0, "another boot"
	}
	if d.o.trapBlind {
		return 0, ""
	}
	seq, err := d.witness.read()
	switch {
	case err != nil:
		return 0, err.Error()
	case seq == witnessVoid:
		return 0, "void marker"
	}
	return seq, ""
}

// release closes what Open opened, whichever part of it.
func (d *DB) release() {
	if d.p != nil {
		_ = d.closePebble()
	}
	if d.witness != nil {
		_ = d.witness.f.Close()
	}
	_ = d.lock.Close()
	d.spare.close()
}

// Close writes what is late and ends the use of the database. What is in it stays for the next start of the same boot.
func (d *DB) Close() error {
	d.wmu.Lock()
	defer d.wmu.Unlock()
	if d.closed {
		return nil
	}
	d.writer.Stop()
	if d.failure() == nil {
		d.ahead, d.reserved = 0, 0 // the next start goes on where this one ends
		_ = d.flushOnce()
	}
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	d.logMu.Lock()
	err := d.closePebble()
	d.logMu.Unlock()
	d.release()
	if d.failure() != nil {
		return nil // it has been said by every refused step
	}
	return fault.Wrap(fault.StoreFailed, "close", err)
}

// void makes the next start serve nothing. Where even the marker cannot be written (a file system that copies on
// write may need space for it) the boot file is removed: no boot id is another boot id.
func (d *DB) void() error {
	if d.voided {
		return nil
	}
	d.fail(fault.New(fault.StoreFailed, "void", "the void marker is written"))
	d.logMu.Lock() // a batch under way writes its witness first; a later one finds that the log has failed
	defer d.logMu.Unlock()
	if err := d.witness.write(witnessVoid); err != nil {
		if rerr := d.fs.Remove(d.fs.PathJoin(d.o.Dir, fileBoot)); rerr != nil {
			return err
		}
	}
	d.voided = true
	d.o.Logger.Warn("block metadata will be void at the next start")
	return nil
}

// dropBallast is called by the file system when the disk is full.
func (d *DB) dropBallast() {
	d.ballastMu.Lock()
	defer d.ballastMu.Unlock()
	if d.full.CompareAndSwap(false, true) {
		d.o.Logger.Warn("disk is full: ballast dropped, new leases are refused")
	}
	_ = d.fs.Remove(d.fs.PathJoin(d.o.Dir, fileBallast)) // absent where it was dropped before
}

func (d *DB) growBallast() error {
	d.ballastMu.Lock()
	defer d.ballastMu.Unlock()
	if d.o.BallastBytes > 0 {
		if err := makeBallast(d.fs, d.o.Dir, d.o.BallastBytes); err != nil {
			d.full.Store(true)
			return err
		}
	}
	d.full.Store(false)
	return nil
}

// grantable says whether a step may begin that nobody needs in order to take blocks back. While the disk is full
// it tries from time to time to make the ballast again.
func (d *DB) grantable(op string) error {
	if err := d.failure(); err != nil {
		d.stats.Refused++
		return &fault.Error{Code: fault.StoreFailed, Op: op, Err: err}
	}
	if !d.full.Load() {
		return nil
	}
	if now := time.Now(); !now.Before(d.ballastNext) {
		d.ballastNext = now.Add(d.o.ballastRetry)
		if d.growBallast() == nil {
			d.o.Logger.Info("disk has room again: leases are granted")
			return nil
		}
	}
	d.stats.Refused++
	return fault.New(fault.StoreFailed, op, "the disk is full")
}

// provide makes sure that there is a next generation. The log knows a bound of them, which a batch moves on before it is
// reached, so that one which was given out and is not in the log is not given out again. As it may write a batch it comes
// before a step looks at what is late.
func (d *DB) provide(op string) error {
	if d.gen&counterMask == counterMask {
		epoch, err := nextEpoch(d.fs, d.o.Dir)
		if err != nil {
			return fault.Wrap(fault.StoreFailed, op, err)
		}
		d.gen = epoch << counterBits
		d.reserved = 0
	}
	if d.reserved <= d.gen {
		return fault.Wrap(fault.StoreFailed, op, d.flushOnce())
	}
	return nil
}
