package blockdb

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// samples are one value of each kind, by the tag of its key.
func samples() map[byte][]byte {
	block := make([]byte, blockRecLen([]byte("key")))
	putBlockRec(block, 5, []byte("key"))
	return map[byte][]byte{
		tagHead:  head{seq: 3, gen: 4}.encode(),
		tagCache: (&cacheRec{dev: 1, ino: 2, numBlocks: 3, layout: [32]byte{4}, name: "n", model: "m"}).encode(),
		tagBlock: block,
		tagLease: (&leaseRec{state: Revoking, kind: KindWrite, gen: 6, grantedNS: -7, traceID: [16]byte{8},
			transferID: "t", peer: "p", blocks: []uint32{9, 1 << 20}}).append(nil),
		tagJournal: (&Transfer{Ordinal: 1, Cache: CacheID{2}, Lease: LeaseID{3}, TransferID: "t", Kind: KindWrite,
			Outcome: OutcomeTorn, Generation: 4, Blocks: 5, Bytes: 6, Peer: "p", TraceID: [16]byte{7},
			GrantedUnixNano: -8, EndedUnixNano: 9}).encode(),
	}
}

// recode decodes a value and encodes what came out.
func recode(tag byte, v []byte) ([]byte, error) {
	switch tag {
	case tagHead:
		h, err := decodeHead(v)
		return h.encode(), err
	case tagCache:
		c, err := decodeCache(v)
		return c.encode(), err
	case tagBlock:
		b, err := decodeBlock(v)
		out := make([]byte, blockRecLen(b.key))
		putBlockRec(out, b.gen, b.key)
		return out, err
	case tagLease:
		l, err := decodeLease(v)
		return l.append(nil), err
	default:
		t, err := decodeTransfer(v)
		return t.encode(), err
	}
}

func TestRecords(t *testing.T) {
	for tag, v := range samples() {
		got, err := recode(tag, v)
		require.NoError(t, err, "kind %d", tag)
		assert.Equal(t, v, got, "kind %d", tag)
		for n := range len(v) {
			_, err := recode(tag, v[:n])
			require.Error(t, err, "kind %d cut to %d bytes", tag, n)
		}
		_, err = recode(tag, append(bytes.Clone(v), 0))
		require.Error(t, err, "kind %d with a byte more", tag)
		for _, ver := range []byte{0, recordVersion + 1, 255} {
			w := bytes.Clone(v)
			w[0] = ver
			_, err = recode(tag, w)
			require.ErrorIs(t, err, fault.ErrVersionMismatch)
		}
	}
	l := leaseRec{state: Leased, kind: KindWrite, gen: 1, blocks: []uint32{1}}
	assert.Len(t, l.append(nil), l.encodedLen())
}

// FuzzDecode: whatever a decoder accepts is exactly what the encoder writes, and nothing makes it fail otherwise than
// by an error.
func FuzzDecode(f *testing.F) {
	for tag, v := range samples() {
		f.Add(tag, v)
	}
	f.Fuzz(func(t *testing.T, tag byte, v []byte) {
		got, err := recode(tag, bytes.Clone(v))
		if err == nil && !bytes.Equal(v, got) {
			t.Errorf("kind %d: %x became %x", tag, v, got)
		}
		_, _, _, _ = decodeKey(v)
	})
}

func FuzzBeside(f *testing.F) {
	f.Add([]byte(bootHeader + "id\n"))
	f.Add(append([]byte(witnessMagic), make([]byte, 12)...))
	f.Fuzz(func(t *testing.T, v []byte) {
		o := memOptions()
		require.NoError(t, o.FS.MkdirAll(o.Dir, 0o700))
		for _, name := range []string{fileBoot, fileEpoch, fileWitness} {
			require.NoError(t, replaceFile(o.FS, o.Dir, name, v))
		}
		_ = readBoot(o.FS, o.Dir)
		e, err := nextEpoch(o.FS, o.Dir)
		if err != nil || e == 0 || e > epochMask {
			t.Errorf("epoch %d, %v", e, err)
		}
		w, err := openWitness(o.FS, o.Dir)
		require.NoError(t, err)
		if seq, err := w.read(); err == nil && len(v) < witnessLen {
			t.Errorf("%d bytes read as %d", len(v), seq)
		}
		require.NoError(t, w.write(77))
		seq, err := w.read()
		require.NoError(t, err)
		require.EqualValues(t, 77, seq)
		require.NoError(t, w.f.Close())
	})
}
