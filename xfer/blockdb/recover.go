package blockdb

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"
)

// start opens the log, reads all of it into the mirror and frees what was torn. A log that cannot be opened, read
// in full and understood in full, or that ends before batch minSeq, is set aside and a fresh one begun.
func (d *DB) start(minSeq uint64, rec *Recovery) error {
	err := d.load(minSeq, rec)
	if err == nil {
		return nil
	}
	if environmental(err) || environmental(d.failure()) {
		return err
	}
	if !errors.Is(err, errFresh) {
		rec.Reason = err.Error()
		if rec.SetAside, err = setAside(d.fs, d.o.Dir, d.o.KeepAside); err != nil {
			return err
		}
		*rec = Recovery{Reason: rec.Reason, SetAside: rec.SetAside, BallastShort: rec.BallastShort}
	}
	d.failed.Store(nil)
	return d.begin(rec)
}

// errFresh says that there is no log, or one whose very first batch was never written.
var errFresh = errors.New("there is no log")

func (d *DB) load(minSeq uint64, rec *Recovery) (err error) {
	if _, serr := d.fs.Stat(d.fs.PathJoin(d.o.Dir, dirLog)); serr != nil {
		if minSeq > 0 {
			rec.Reason = "the log is missing"
		}
		return errFresh
	}
	if err := d.checkManifest(); err != nil {
		return err
	}
	if d.p, err = d.openPebble(); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = d.closePebble()
			clear(d.dormant)
			clear(d.journal)
			d.ordinal, d.noted, d.steps, d.stepBytes, d.open = 0, 0, 0, 0, nil
		}
	}()
	if err := d.failure(); err != nil {
		return err
	}
	h, err := d.scan()
	if err != nil && !errors.Is(err, errFresh) || err != nil && minSeq == 0 {
		return err
	}
	if h.seq < minSeq {
		return fmt.Errorf("the log ends at batch %d of %d", h.seq, minSeq)
	}
	d.seq, d.gen, d.reserved = h.seq, h.gen, 0
	return d.freeTorn(rec)
}

// begin makes an empty log under the next epoch.
func (d *DB) begin(rec *Recovery) (err error) {
	rec.Fresh = true
	if err := d.removeLog(); err != nil {
		return err
	}
	epoch, err := nextEpoch(d.fs, d.o.Dir)
	if err != nil {
		return err
	}
	if d.p, err = d.openPebble(); err != nil {
		return err
	}
	d.seq, d.gen, d.reserved = 0, epoch<<counterBits, 0
	return d.flushOnce()
}

func (d *DB) removeLog() error {
	if err := d.fs.RemoveAll(d.fs.PathJoin(d.o.Dir, dirLog)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// scan reads every record into dormant caches. Any record that this version does not understand makes the whole
// log untrusted: it might be the one that takes a block out of COMMITTED.
func (d *DB) scan() (h head, err error) {
	it, err := d.p.NewIter(nil)
	if err != nil {
		return h, err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	var journal []Transfer
	for ok := it.First(); ok; ok = it.Next() {
		tag, id, rest, err := decodeKey(it.Key())
		if err != nil {
			return h, err
		}
		v, err := it.ValueAndErr()
		if err != nil {
			return h, err
		}
		switch tag {
		case tagHead:
			h, err = decodeHead(v)
		case tagCache:
			var r cacheRec
			if r, err = decodeCache(v); err == nil {
				d.dormant[id] = newCache(d, id, r)
			}
		case tagBlock:
			err = d.scanBlock(id, binary.BigEndian.Uint32(rest), v)
		case tagLease:
			err = d.scanLease(id, LeaseID(rest), v)
		case tagPage:
			err = d.scanPage(id, binary.BigEndian.Uint32(rest), v)
		case tagStep:
			err = d.scanStep(binary.BigEndian.Uint64(rest), v)
		case tagJournal:
			var t Transfer
			if t, err = decodeTransfer(v); err == nil {
				journal = append(journal, t)
			}
		}
		if err != nil {
			return h, err
		}
	}
	if err := it.Error(); err != nil {
		return h, err
	}
	if h.seq == 0 {
		return h, errFresh
	}
	d.loadJournal(journal)
	return h, nil
}

// scanBlock relies on the order of the keys: caches come before their blocks, blocks before leases.
func (d *DB) scanBlock(id CacheID, block uint32, v []byte) error {
	b, err := decodeBlock(v)
	if err != nil {
		return err
	}
	c := d.dormant[id]
	if c == nil || block >= c.rec.numBlocks {
		return errors.New("block record without its cache")
	}
	c.enter(block, b.gen, 0, b.key)
	c.records = true
	return nil
}

func (d *DB) scanLease(id CacheID, lid LeaseID, v []byte) error {
	r, err := decodeLease(v)
	if err != nil {
		return err
	}
	c := d.dormant[id]
	if c == nil {
		return errors.New("lease record without its cache")
	}
	c.nextStamp()
	for _, n := range r.blocks {
		if n >= c.rec.numBlocks || c.state[n] == Leased || c.stamped(n) {
			return errors.New("lease record with an impossible block")
		}
		c.stamp[n] = c.stampN
	}
	l := &lease{id: lid, cache: id, leaseRec: r, logged: true}
	c.leases[lid] = l
	c.byGen[r.gen] = l
	for _, n := range r.blocks {
		c.leave(n, Leased, r.gen)
	}
	return nil
}

// loadJournal keeps what the ring has room for; entries of a formerly longer ring drop out.
func (d *DB) loadJournal(all []Transfer) {
	for _, t := range all {
		d.ordinal = max(d.ordinal, t.Ordinal+1)
	}
	for _, t := range all {
		if t.Ordinal+uint64(len(d.journal)) >= d.ordinal {
			d.note(t)
		}
	}
}

// freeTorn ends every lease that was open: bytes of it may have landed, and nobody will say which. What the log has of blocks
// is written anew: pages in the place of steps and of a former version's records.
func (d *DB) freeTorn(rec *Recovery) error {
	d.noted = d.ordinal
	now := time.Now().UnixNano()
	for _, c := range d.dormant {
		for _, l := range c.leases {
			rec.OpenLeases++
			rec.TornBlocks += int(l.count)
			t, err := c.endLease(l, OutcomeTorn, Transfer{EndedUnixNano: now})
			if err != nil {
				return err
			}
			d.note(t)
			for _, n := range l.blocks {
				c.leave(n, Free, 0)
			}
		}
		clear(c.leases)
		clear(c.byGen)
		rec.Caches++
		rec.Committed += c.committed
		if c.records {
			lo, hi := span(tagBlock, c.id)
			if err := d.batch().DeleteRange(lo, hi, nil); err != nil {
				return err
			}
			c.records = false
		}
	}
	if err := d.fold(); err != nil {
		return err
	}
	return d.flushOnce()
}
