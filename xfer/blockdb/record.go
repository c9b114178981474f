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
	tagBlock   = 3 // {3, cache id, block as big-endian uint32}: blockRec
	tagLease   = 4 // {4, cache id, lease id}: leaseRec
	tagJournal = 5 // {5, slot as big-endian uint32}: Transfer
)

// Limits of what a record may hold; they bound what a damaged length can make a decoder allocate.
const (
	MaxBlocks      = 1 << 26 // blocks of one cache
	MaxStringBytes = 255     // a name, model, peer or transfer id
	MaxKeyBytes    = 255     // a block's content key
)

// head is in every batch, so that the log's last batch is known from the database alone.
type head struct {
	seq uint64 // ordinal of the batch; the witness file holds the last one that was acknowledged
	gen uint64 // the last generation given out
}

// cacheRec is what a cache was attached with. The boot id is the database's, not the record's.
type cacheRec struct {
	dev, ino  uint64
	numBlocks uint32
	layout    [32]byte
	name      string
	model     string
}

// blockRec exists for COMMITTED blocks only. It is void while any lease record names its block.
type blockRec struct {
	gen uint64
	key []byte
}

// leaseRec exists while a lease is open. It alone takes its blocks out of COMMITTED: one record a lease, not one
// a block, keeps the step that a grant waits for small.
type leaseRec struct {
	state      State // Leased or Revoking
	kind       Kind
	gen        uint64
	grantedNS  int64
	traceID    [16]byte
	transferID string
	peer       string
	blocks     []uint32
}

func keyHead() []byte { return []byte{tagHead} }

func putCacheKey(dst []byte, tag byte, id CacheID) {
	dst[0] = tag
	copy(dst[1:17], id[:])
}

func cacheKey(id CacheID) []byte {
	k := make([]byte, 17)
	putCacheKey(k, tagCache, id)
	return k
}

const blockKeyLen = 21

func putBlockKey(dst []byte, id CacheID, block uint32) {
	putCacheKey(dst, tagBlock, id)
	binary.BigEndian.PutUint32(dst[17:], block)
}

// blockSpan returns the half-open key range of all blocks of a cache.
func blockSpan(id CacheID) (lo, hi []byte) {
	lo, hi = make([]byte, blockKeyLen), make([]byte, blockKeyLen)
	putBlockKey(lo, id, 0)
	putBlockKey(hi, id, ^uint32(0)) // MaxBlocks keeps every real block below it
	return lo, hi
}

const leaseKeyLen = 33

func putLeaseKey(dst []byte, id CacheID, lease LeaseID) {
	putCacheKey(dst, tagLease, id)
	copy(dst[17:], lease[:])
}

func journalKey(slot uint32) []byte {
	k := []byte{tagJournal, 0, 0, 0, 0}
	binary.BigEndian.PutUint32(k[1:], slot)
	return k
}

var le = binary.LittleEndian

func (h head) encode() []byte {
	b := make([]byte, 0, 17)
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

func blockRecLen(key []byte) int { return 10 + len(key) }

func putBlockRec(dst []byte, gen uint64, key []byte) {
	dst[0] = recordVersion
	le.PutUint64(dst[1:], gen)
	dst[9] = byte(len(key))
	copy(dst[10:], key)
}

func (l *leaseRec) encodedLen() int { return 41 + len(l.transferID) + len(l.peer) + 4*len(l.blocks) }

func (l *leaseRec) append(b []byte) []byte {
	b = append(b, recordVersion, byte(l.state), byte(l.kind))
	b = le.AppendUint64(b, l.gen)
	b = le.AppendUint64(b, uint64(l.grantedNS))
	b = append(b, l.traceID[:]...)
	b = appendString(b, l.transferID)
	b = appendString(b, l.peer)
	b = le.AppendUint32(b, uint32(len(l.blocks)))
	for _, n := range l.blocks {
		b = le.AppendUint32(b, n)
	}
	return b
}

func (t *Transfer) encode() []byte {
	b := make([]byte, 0, 128+len(t.TransferID)+len(t.Peer))
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
	b    []byte
	what string
	err  error
}

func newReader(what string, v []byte) *reader {
	r := &reader{b: v, what: what}
	if ver := r.u8(); r.err == nil && (ver < oldestRecord || ver > recordVersion) {
		r.err = fault.New(fault.VersionMismatch, "open", "%s record has format version %d, this daemon reads %d to %d",
			what, ver, oldestRecord, recordVersion)
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
	n := r.u32()
	r.check(l.state == Leased || l.state == Revoking, "state")
	r.check(l.kind == KindWrite, "kind")
	r.check(l.gen != 0, "generation")
	r.check(n > 0 && uint64(len(r.b)) == 4*uint64(n), "number of blocks")
	if r.err == nil {
		l.blocks = make([]uint32, n)
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

// decodeKey splits a key; rest is empty for the head, the block, the lease or the slot for others.
func decodeKey(k []byte) (tag byte, id CacheID, rest []byte, err error) {
	if len(k) == 0 {
		return 0, id, nil, fmt.Errorf("empty key")
	}
	want := map[byte]int{tagHead: 1, tagCache: 17, tagBlock: blockKeyLen, tagLease: leaseKeyLen, tagJournal: 5}[k[0]]
	if len(k) != want {
		return 0, id, nil, fmt.Errorf("key of kind %d and %d bytes is not one of this version's", k[0], len(k))
	}
	if k[0] == tagHead || k[0] == tagJournal {
		return k[0], id, k[1:], nil
	}
	copy(id[:], k[1:17])
	return k[0], id, k[17:], nil
}
