package blockdb

import (
	"math/bits"

	"github.com/cockroachdb/pebble/v2"
)

// A page is the COMMITTED blocks among 64 that follow one another: a set of bits, then a generation each and, where one of
// them has a key, a key each. A page without any has no record. The pages are what the steps made of a cache as far as
// they were folded in: see step.go.
const (
	pageShift  = 6
	pageBlocks = 1 << pageShift
)

func pagesOf(blocks uint32) uint32 { return (blocks + pageBlocks - 1) >> pageShift }

func (c *Cache) soil(block uint32) {
	c.dirty[block>>(2*pageShift)] |= 1 << (block >> pageShift & (pageBlocks - 1))
}

// putPages adds to b the pages that have changed since the last time, as the mirror has them.
func (c *Cache) putPages(b *pebble.Batch) error {
	for i, word := range c.dirty {
		for ; word != 0; word &= word - 1 {
			if err := c.putPage(b, uint32(i*pageBlocks+bits.TrailingZeros64(word))); err != nil {
				return err
			}
		}
		c.dirty[i] = 0
	}
	return nil
}

func (c *Cache) putPage(b *pebble.Batch, page uint32) error {
	first := page << pageShift
	end := min(first+pageBlocks, c.rec.numBlocks)
	var set uint64
	keyed, size := false, 10
	for n := first; n < end; n++ {
		if c.state[n] == Committed {
			set |= 1 << (n - first)
			k := c.index.key(n)
			keyed = keyed || len(k) > 0
			size += 9 + len(k)
		}
	}
	if set == 0 {
		op := b.DeleteDeferred(pageKeyLen)
		putNumberKey(op.Key, tagPage, c.id, page)
		return op.Finish()
	}
	if !keyed {
		size = 10 + 8*bits.OnesCount64(set)
	}
	op := b.SetDeferred(pageKeyLen, size)
	putNumberKey(op.Key, tagPage, c.id, page)
	v := append(op.Value[:0], recordVersion)
	v = le.AppendUint64(v, set)
	v = append(v, flag(keyed))
	for rest := set; rest != 0; rest &= rest - 1 {
		v = le.AppendUint64(v, c.gen[first+uint32(bits.TrailingZeros64(rest))])
	}
	for rest := set; rest != 0 && keyed; rest &= rest - 1 {
		k := c.index.key(first + uint32(bits.TrailingZeros64(rest)))
		v = append(append(v, byte(len(k))), k...)
	}
	return op.Finish()
}

func flag(set bool) byte {
	if set {
		return 1
	}
	return 0
}

// pageRec is a page taken apart; its keys lie in the record.
type pageRec struct {
	set  uint64
	gens [pageBlocks]uint64
	keys [pageBlocks][]byte // nil for every block without one
}

func decodePage(v []byte) (p pageRec, err error) {
	r := newReader("page", v)
	r.check(r.version >= firstPaged, "format version")
	p.set = r.u64()
	keyed := r.u8()
	r.check(p.set != 0, "set of blocks")
	r.check(keyed <= 1, "flag")
	for rest := p.set; rest != 0; rest &= rest - 1 {
		at := bits.TrailingZeros64(rest)
		p.gens[at] = r.u64()
		r.check(p.gens[at] != 0, "generation")
	}
	some := false
	for rest := p.set; rest != 0 && keyed == 1; rest &= rest - 1 {
		k := r.take(int(r.u8()))
		p.keys[bits.TrailingZeros64(rest)] = k
		some = some || len(k) > 0
	}
	r.check(some == (keyed == 1), "flag")
	return p, r.done()
}
