package blockdb

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
)

// A step is what one call did to the blocks of a cache: it took them out of COMMITTED, or put them into it. One record holds
// it, however many its blocks are. Steps are numbered, and applied to the pages in that order they give the mirror. From time
// to time the pages that they changed are written and all steps go, in one batch.
const (
	stepTake   = 1 // out of COMMITTED
	stepCommit = 2
)

// stepRec is a step taken apart; its lists lie in the record.
type stepRec struct {
	kind   byte
	cache  CacheID
	gen    uint64
	blocks []byte // four bytes each
	keyed  bool
	keys   []byte // a length and the key for each block
}

// addTake adds to the open batch a step out of COMMITTED. After the log failed it adds nothing.
func (d *DB) addTake(c *Cache, blocks []uint32) error {
	if d.failure() != nil {
		return nil
	}
	op := d.addStep(4 * len(blocks))
	v := putStepHead(op.Value, stepTake, false, c.id, 0, len(blocks))
	for i, n := range blocks {
		le.PutUint32(v[4*i:], n)
	}
	return op.Finish()
}

// addCommit adds to the open batch what is left of a step into COMMITTED: the blocks that nothing has taken since.
func (d *DB) addCommit(l *lateCommit) error {
	c, count, keys := l.cache, 0, 0
	for _, n := range l.blocks {
		if c.state[n] == Committed && c.gen[n] == l.gen {
			count++
			keys += len(c.index.key(n))
		}
	}
	if count == 0 {
		return nil
	}
	size := 4 * count
	if keys > 0 {
		size += count + keys
	}
	op := d.addStep(size)
	v := putStepHead(op.Value, stepCommit, keys > 0, c.id, l.gen, count)
	text := v[4*count:]
	for _, n := range l.blocks {
		if c.state[n] != Committed || c.gen[n] != l.gen {
			continue
		}
		le.PutUint32(v, n)
		v = v[4:]
		if keys > 0 {
			k := c.index.key(n)
			text[0] = byte(len(k))
			text = text[1+copy(text[1:], k):]
		}
	}
	return op.Finish()
}

const stepHeadLen = 31

// addStep makes room for a step whose lists take so many bytes.
func (d *DB) addStep(lists int) *pebble.DeferredBatchOp {
	op := d.batch().SetDeferred(stepKeyLen, stepHeadLen+lists)
	putStepKey(op.Key, d.steps)
	d.steps++
	d.stepBytes += stepHeadLen + lists
	return op
}

// putStepHead returns what is behind it.
func putStepHead(v []byte, kind byte, keyed bool, id CacheID, gen uint64, blocks int) []byte {
	v[0], v[1], v[2] = recordVersion, kind, flag(keyed)
	copy(v[3:19], id[:])
	le.PutUint64(v[19:], gen)
	le.PutUint32(v[27:], uint32(blocks))
	return v[stepHeadLen:]
}

func decodeStep(v []byte) (s stepRec, err error) {
	r := newReader("step", v)
	r.check(r.version >= firstPaged, "format version")
	s.kind = r.u8()
	keyed := r.u8()
	copy(s.cache[:], r.take(16))
	s.gen = r.u64()
	n := r.u32()
	r.check(s.kind == stepTake && s.gen == 0 && keyed == 0 || s.kind == stepCommit && s.gen != 0 && keyed <= 1, "kind")
	r.check(n > 0 && n <= MaxBlocks, "number of blocks")
	if r.err == nil {
		s.blocks = r.take(4 * int(n))
	}
	s.keyed = keyed == 1
	s.keys = r.b
	for range n {
		if !s.keyed || r.err != nil {
			break
		}
		r.take(int(r.u8()))
	}
	return s, r.done()
}

// scanStep applies a step to what was read before it: the keys of steps are in their order, behind those of pages.
// Since the pages were written none may be missing.
func (d *DB) scanStep(ordinal uint64, v []byte) error {
	if ordinal != d.steps {
		return fmt.Errorf("step record %d is missing", d.steps)
	}
	d.steps++
	s, err := decodeStep(v)
	if err != nil {
		return err
	}
	c := d.dormant[s.cache]
	if c == nil {
		return errors.New("step record without its cache")
	}
	keys := s.keys
	for b := s.blocks; len(b) > 0; b = b[4:] {
		n := le.Uint32(b)
		if n >= c.rec.numBlocks {
			return errors.New("step record with an impossible block")
		}
		if s.kind == stepTake {
			c.leave(n, Free, 0)
			continue
		}
		var k []byte
		if s.keyed {
			k, keys = keys[1:1+keys[0]], keys[1+keys[0]:]
		}
		c.enter(n, s.gen, 0, k)
	}
	d.stepBytes += len(v)
	return nil
}

func (d *DB) scanPage(id CacheID, page uint32, v []byte) error {
	p, err := decodePage(v)
	if err != nil {
		return err
	}
	c := d.dormant[id]
	if c == nil {
		return errors.New("page record without its cache")
	}
	if page >= pagesOf(c.rec.numBlocks) {
		return errors.New("page record out of range")
	}
	for at := range uint32(pageBlocks) {
		if p.set>>at&1 == 0 {
			continue
		}
		n := page<<pageShift + at
		if n >= c.rec.numBlocks {
			return fmt.Errorf("page record with an impossible block %d", n)
		}
		c.enter(n, p.gens[at], 0, p.keys[at])
	}
	c.dirty[page>>pageShift] &^= 1 << (page & (pageBlocks - 1)) // it is what the log has
	return nil
}

// fold adds to the open batch what the steps made of the pages, and the end of all steps. The mirror must be what the steps
// say: it is called between two calls, never within one.
func (d *DB) fold() error {
	b := d.batch()
	for _, c := range d.attached {
		if err := c.putPages(b); err != nil {
			return err
		}
	}
	for _, c := range d.dormant {
		if err := c.putPages(b); err != nil {
			return err
		}
	}
	var lo, hi [stepKeyLen]byte
	putStepKey(lo[:], 0)
	putStepKey(hi[:], ^uint64(0))
	d.steps, d.stepBytes = 0, 0
	d.dropCommits() // the pages have them
	return b.DeleteRange(lo[:], hi[:], nil)
}
