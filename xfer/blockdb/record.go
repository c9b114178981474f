package blockdb

import (
	"encoding/binary"
	"fmt"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// The first byte of every key says what the value is. The numbers are persisted and never reused.
const (
	tagHead    = 1 // {1}: head
	tagCache   = 2 // {2, cache id}: cacheRec
	tagBlock   = 3 // {3, cache id, block as big-endian uint32}: blockRec; of version 1 alone
	tagLease   = 4 // {4, cache id, lease id}: leaseRec
	tagJournal = 5 // {5, slot as big-endian uint32}: Transfer
	tagPage    = 6 // {6, cache id, page as big-endian uint32}: see page.go
	tagStep    = 7 // {7, ordinal as big-endian uint64}: see step.go
)

// firstPaged is the version from which on pages and steps say what is COMMITTED. In version 1 it was a record a block, void
// while any lease record named it.
const firstPaged = 2

// Limits of what a record may hold; they bound what a damaged length can make a decoder allocate.
const (
	MaxBlocks      = 1 << 26 // blocks of one cache
	MaxStringBytes = 255     // a name, model, peer or transfer id
	MaxKeyBytes    = 255     // a block's content key
)

// head is in every batch, so that the log's last batch is known from the database alone.
type head struct {
	seq uint64 // ordinal of the batch; the witness file holds the last one that was acknowledged
	gen uint64 // no generation beyond it has been given out
}

// cacheRec is what a cache was attached with. The boot id is the database's, not the record's.
type cacheRec struct {
	dev, ino  uint64
	numBlocks uint32
	layout    [32]byte
	name      string
	model     string
}

// blockRec is version 1's: it existed for COMMITTED blocks only, and was void while any lease record named its block.
type blockRec struct {
	gen uint64
	key []byte
}

// leaseRec exists while a lease is open that was so when a batch was written. It tells the next start of a lease that was
// torn; what is COMMITTED does not hang on it.
type leaseRec struct {
	state      State // Leased or Revoking
	kind       Kind
	gen        uint64
	grantedNS  int64
	traceID    [16]byte
	transferID string
	peer       string
	count      uint32   // of its blocks
	blocks     []uint32 // not in the record, but for version 1's
}

func putCacheKey(dst []byte, tag byte, id CacheID) {
	dst[0] = tag
	copy(dst[1:17], id[:])
}

func cacheKey(id CacheID) []byte {
	k := make([]byte, 17)
	putCacheKey(k, tagCache, id)
	return k
}

// The keys of blocks and of pages have the same shape.
const (
	blockKeyLen = 21
	pageKeyLen  = 21
)

func putNumberKey(dst []byte, tag byte, id CacheID, n uint32) {
	putCacheKey(dst, tag, id)
	binary.BigEndian.PutUint32(dst[17:], n)
}

// span returns the half-open key range of all blocks or pages of a cache.
func span(tag byte, id CacheID) (lo, hi []byte) {
	lo, hi = make([]byte, blockKeyLen), make([]byte, blockKeyLen)
	putNumberKey(lo, tag, id, 0)
	putNumberKey(hi, tag, id, ^uint32(0)) // MaxBlocks keeps every real number below it
	return lo, hi
}

const stepKeyLen = 9

func putStepKey(dst []byte, ordinal uint64) {
	dst[0] = tagStep
	binary.BigEndian.PutUint64(dst[1:], ordinal)
}

const leaseKeyLen = 33

func putLeaseKey(dst []byte, id CacheID, lease LeaseID) {
	putCacheKey(dst, tagLease, id)
	copy(dst[17:], lease[:])
}

const journalKeyLen = 5

func putJournalKey(dst []byte, slot uint32) {
	dst[0] = tagJournal
	binary.BigEndian.PutUint32(dst[1:], slot)
}

var le = binary.LittleEndian

const headLen = 17

func (h head) append(b []byte) []byte {
	b = append(b, recordVersion)
	b = le.AppendUint64(b, h.seq)
	return le.AppendUint64(b, h.gen)
}

func (c *cacheRec) encode() []byte {
	b := make([]byte, 0, 64+len(c.name)+len(c.model))
	b = append(b, recordVersion)
	b = le.AppendUint64(b, c.dev)
	b = le.AppendUint64(b, c.ino)
	b = le.AppendUint32(b, c.numBlocks)
	b = append(b, c.layout[:]...)
	b = appendString(b, c.name)
	return appendString(b, c.model)
}

func (l *leaseRec) encodedLen() int { return 41 + len(l.transferID) + len(l.peer) }

func (l *leaseRec) append(b []byte) []byte {
	b = append(b, recordVersion, byte(l.state), byte(l.kind))
	b = le.AppendUint64(b, l.gen)
	b = le.AppendUint64(b, uint64(l.grantedNS))
	b = append(b, l.traceID[:]...)
	b = appendString(b, l.transferID)
	b = appendString(b, l.peer)
	return le.AppendUint32(b, l.count)
}

func (t *Transfer) encodedLen() int { return 97 + len(t.TransferID) + len(t.Peer) }

func (t *Transfer) append(b []byte) []byte {
	b = append(b, recordVersion, byte(t.Kind), byte(t.Outcome))
	b = append(b, t.Cache[:]...)
	b = append(b, t.Lease[:]...)
	b = append(b, t.TraceID[:]...)
	for _, v := range [...]uint64{t.Ordinal, t.Generation, t.Bytes, uint64(t.GrantedUnixNano), uint64(t.EndedUnixNano)} {
		b = le.AppendUint64(b, v)
	}
	b = le.AppendUint32(b, t.Blocks)
	b = appendString(b, t.TransferID)
	return appendString(b, t.Peer)
}

// appendString writes a length byte and the bytes; callers have checked MaxStringBytes.
func appendString(b []byte, s string) []byte { return append(append(b, byte(len(s))), s...) }

// reader takes a value apart. After the first field that does not fit, every later one is zero and done reports it.
type reader struct {
	b       []byte
	what    string
	version byte
	err     error
}

func newReader(what string, v []byte) *reader {
	r := &reader{b: v, what: what}
	if r.version = r.u8(); r.err == nil && (r.version < oldestRecord || r.version > recordVersion) {
		r.err = fault.New(fault.VersionMismatch, "open", "%s record has format version %d, this daemon reads %d to %d",
			what, r.version, oldestRecord, recordVersion)
	}
	return r
}

func (r *reader) take(n int) []byte {
	if r.err != nil {
		return nil
	}
	if len(r.b) < n {
		r.err = fmt.Errorf("%s record is cut short", r.what)
		return nil
	}
	v := r.b[:n]
	r.b = r.b[n:]
	return v
}

func (r *reader) u8() byte {
	if v := r.take(1); v != nil {
		return v[0]
	}
	return 0
}

func (r *reader) u32() uint32 {
	if v := r.take(4); v != nil {
		return le.Uint32(v)
	}
	return 0
}

func (r *reader) u64() uint64 {
	if v := r.take(8); v != nil {
		return le.Uint64(v)
	}
	return 0
}

func (r *reader) str() string { return string(r.take(int(r.u8()))) }

func (r *reader) check(ok bool, field string) {
	if r.err == nil && !ok {
		r.err = fmt.Errorf("%s record has an impossible %s", r.what, field)
	}
}

func (r *reader) done() error {
	r.check(len(r.b) == 0, "length")
	return r.err
}

func decodeHead(v []byte) (h head, err error) {
	r := newReader("head", v)
	h.seq, h.gen = r.u64(), r.u64()
	r.check(h.gen != 0, "generation")
	return h, r.done()
}

func decodeCache(v []byte) (c cacheRec, err error) {
	r := newReader("cache", v)
	c.dev, c.ino, c.numBlocks = r.u64(), r.u64(), r.u32()
	copy(c.layout[:], r.take(32))
	c.name, c.model = r.str(), r.str()
	r.check(c.numBlocks > 0 && c.numBlocks <= MaxBlocks, "number of blocks")
	return c, r.done()
}

func decodeBlock(v []byte) (b blockRec, err error) {
	r := newReader("block", v)
	r.check(r.version < firstPaged, "format version")
	b.gen = r.u64()
	if k := r.take(int(r.u8())); len(k) > 0 {
		b.key = append([]byte(nil), k...)
	}
	r.check(b.gen != 0, "generation")
	return b, r.done()
}

func decodeLease(v []byte) (l leaseRec, err error) {
	r := newReader("lease", v)
	l.state, l.kind = State(r.u8()), Kind(r.u8())
	l.gen, l.grantedNS = r.u64(), int64(r.u64())
	copy(l.traceID[:], r.take(16))
	l.transferID, l.peer = r.str(), r.str()
	l.count = r.u32()
	r.check(l.state == Leased || l.state == Revoking, "state")
	r.check(l.kind == KindWrite, "kind")
	r.check(l.gen != 0, "generation")
	r.check(l.count > 0 && l.count <= MaxBlocks, "number of blocks")
	if r.err == nil && r.version < firstPaged {
		r.check(uint64(len(r.b)) == 4*uint64(l.count), "number of blocks")
	}
	if r.err == nil && r.version < firstPaged {
		l.blocks = make([]uint32, l.count)
		for i := range l.blocks {
			l.blocks[i] = r.u32()
		}
	}
	return l, r.done()
}

func decodeTransfer(v []byte) (t Transfer, err error) {
	r := newReader("transfer", v)
	t.Kind, t.Outcome = Kind(r.u8()), Outcome(r.u8())
	copy(t.Cache[:], r.take(16))
	copy(t.Lease[:], r.take(16))
	copy(t.TraceID[:], r.take(16))
	t.Ordinal, t.Generation, t.Bytes = r.u64(), r.u64(), r.u64()
	t.GrantedUnixNano, t.EndedUnixNano = int64(r.u64()), int64(r.u64())
	t.Blocks = r.u32()
	t.TransferID, t.Peer = r.str(), r.str()
	r.check(t.Kind == KindWrite, "kind")
	r.check(t.Outcome >= OutcomeCommitted && t.Outcome <= OutcomeTorn, "outcome")
	return t, r.done()
}

// decodeKey splits a key; rest is empty for the head and a cache; the block, lease, slot, page or step for others.
func decodeKey(k []byte) (tag byte, id CacheID, rest []byte, err error) {
	if len(k) == 0 {
		return 0, id, nil, fmt.Errorf("empty key")
	}
	want := map[byte]int{tagHead: 1, tagCache: 17, tagBlock: blockKeyLen, tagLease: leaseKeyLen, tagJournal: journalKeyLen,
		tagPage: pageKeyLen, tagStep: stepKeyLen}[k[0]]
	if len(k) != want {
		return 0, id, nil, fmt.Errorf("key of kind %d and %d bytes is not one of this version's", k[0], len(k))
	}
	if k[0] == tagHead || k[0] == tagJournal || k[0] == tagStep {
		return k[0], id, k[1:], nil
	}
	copy(id[:], k[1:17])
	return k[0], id, k[17:], nil
}
