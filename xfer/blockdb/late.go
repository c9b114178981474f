package blockdb

import (
	"math"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// Steps into COMMITTED are late: the database remembers the lists of their blocks, and the next batch says what is left of them
// by then. A batch is written when a step comes that may not be late, with that one at its end; by the writer, lateBy after the
// first late step or when they have become many; and by Close. So the log has all steps in the order in which they were done,
// and what a crash loses is an end of them that had only late ones in it. Blocks that were COMMITTED and taken between two
// batches leave nothing to write.
const (
	lateBy    = 10 * time.Millisecond
	lateKick  = 256 << 10 // bytes of late steps at which the writer does not wait any longer
	lateMost  = 1 << 20   // at which the caller writes them, so that they do not grow without bound
	foldBytes = 4 << 20   // of steps, after which the pages are written
	reserve   = 1 << 16   // generations that a batch sets aside
)

// lateCommit is a step into COMMITTED that is not in the log.
type lateCommit struct {
	cache  *Cache
	gen    uint64
	blocks []uint32 // its own
}

// addLate remembers a step into COMMITTED for the next batch. After the log failed there is none.
func (d *DB) addLate(c *Cache, gen uint64, blocks []uint32, keys [][]byte) {
	if d.failure() != nil {
		d.stats.Unlogged++
		return
	}
	d.commits = append(d.commits, lateCommit{c, gen, blocks})
	d.lateBytes += 4*len(blocks) + 64
	for _, k := range keys {
		d.lateBytes += 1 + len(k)
	}
}

func (d *DB) dropCommits() {
	clear(d.commits)
	d.commits, d.lateBytes = d.commits[:0], 0
}

// batch returns the open one.
func (d *DB) batch() *pebble.Batch {
	if d.open == nil {
		d.open = d.p.NewBatch()
	}
	return d.open
}

// late is called at the end of a call that left something which may be late: the mirror is what the steps say.
func (d *DB) late() {
	switch {
	case d.failure() != nil:
	case d.lateBytes >= d.o.lateMost:
		_ = d.flushOnce() // a failure is known to every step from here on
	case d.lateBytes >= lateKick && d.armed < 2:
		d.armed = 2
		d.writer.Reset(0)
	case d.armed < 1 && d.unwritten():
		d.armed = 1
		d.writer.Reset(d.o.lateBy)
	}
}

// write is the writer: it runs while there is something late and never else.
func (d *DB) write() {
	d.wmu.Lock()
	d.armed = 0
	if d.closed || d.failure() != nil || !d.unwritten() {
		d.wmu.Unlock()
		return
	}
	steps := uint64(len(d.commits))
	var err error
	if d.stepBytes >= d.o.foldBytes/2 {
		err = d.fold()
	}
	var b *pebble.Batch
	if err == nil {
		b, err = d.seal()
	}
	if err != nil {
		d.fail(err)
		d.wmu.Unlock()
		return
	}
	seq := d.seq
	d.logMu.Lock() // batches keep their order
	d.wmu.Unlock()
	err = d.append(b, seq)
	d.logMu.Unlock()
	d.wmu.Lock()
	d.count(err, steps)
	d.wmu.Unlock()
}

func (d *DB) count(err error, steps uint64) {
	if err == nil {
		d.stats.LogWrites++
	} else {
		d.stats.Unlogged += steps
	}
}

// before brings into the open batch what comes before a step out of COMMITTED; with many steps since the last time the pages.
func (d *DB) before(op string) error {
	switch {
	case d.failure() != nil:
		return nil
	case d.stepBytes >= d.o.foldBytes:
		return fault.Wrap(fault.StoreFailed, op, d.fold())
	}
	return fault.Wrap(fault.StoreFailed, op, d.putCommits())
}

// unwritten says whether the next batch would have something to say.
func (d *DB) unwritten() bool {
	return d.open != nil || len(d.commits) > 0 || len(d.begun) > 0 || d.noted < d.ordinal
}

// seal ends the open batch: from here on its steps count as being in the log, as they may be at any moment.
func (d *DB) seal() (*pebble.Batch, error) {
	if err := d.putCommits(); err != nil {
		return nil, err
	}
	b := d.batch()
	if err := d.putLeases(b); err != nil {
		return nil, err
	}
	if err := d.putJournal(b); err != nil {
		return nil, err
	}
	if d.reserved <= d.gen || d.reserved-d.gen <= d.ahead/2 {
		d.reserved = min(d.gen+d.ahead, d.gen|counterMask)
	}
	d.seq++
	op := b.SetDeferred(1, headLen)
	op.Key[0] = tagHead
	head{seq: d.seq, gen: d.reserved}.append(op.Value[:0])
	if err := op.Finish(); err != nil {
		return nil, err
	}
	d.open = nil
	d.stats.LogBytes += uint64(b.Len())
	if d.tag++; d.tag == math.MaxUint32 {
		d.untag()
	}
	return b, nil
}

func (d *DB) putCommits() error {
	for i := range d.commits {
		if err := d.addCommit(&d.commits[i]); err != nil {
			return err
		}
	}
	d.dropCommits()
	return nil
}

// untag makes the tags begin again: 0 is that of every batch written before.
func (d *DB) untag() {
	for _, c := range d.attached {
		clear(c.tag)
	}
	for _, c := range d.dormant {
		clear(c.tag)
	}
	d.tag = 1
}

// flush writes the open batch and is done when its bytes would survive the process. A step that the owner needs in order to
// take blocks back passes must: where the log cannot be written the void marker is, and the step goes on in memory.
func (d *DB) flush(op string, must bool) error {
	err := d.flushOnce()
	if err == nil {
		return nil
	}
	if must {
		d.stats.Unlogged++
		verr := d.void()
		if verr == nil {
			return nil
		}
		err = verr
	}
	d.stats.Refused++
	return &fault.Error{Code: fault.StoreFailed, Op: op, Err: err}
}

func (d *DB) flushOnce() error {
	if err := d.failure(); err != nil {
		return err
	}
	b, err := d.seal()
	if err != nil {
		d.fail(err)
		return err
	}
	d.logMu.Lock()
	defer d.logMu.Unlock()
	if err := d.append(b, d.seq); err != nil {
		return err
	}
	d.stats.LogWrites++
	return nil
}

// append writes a batch to the log. logMu is held.
func (d *DB) append(b *pebble.Batch, seq uint64) error {
	if err := d.failure(); err != nil { // the witness may be void by now
		return err
	}
	if err := d.apply(b); err != nil {
		return err
	}
	if err := d.failure(); err != nil { // Pebble was not told of it, see logFS
		return err
	}
	if d.o.trapBlind {
		return nil
	}
	if err := d.witness.write(seq); err != nil {
		d.fail(err)
		return err
	}
	return nil
}
