package blockdb

import (
	"bytes"
	"math/bits"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// onePage is the record of a page whose blocks have generation 5 and beyond; keys are nil or one a block.
func onePage(set uint64, keys [][]byte) []byte {
	v := le.AppendUint64([]byte{recordVersion}, set)
	v = append(v, flag(keys != nil))
	for n := range bits.OnesCount64(set) {
		v = le.AppendUint64(v, uint64(5+n))
	}
	for _, k := range keys {
		v = append(append(v, byte(len(k))), k...)
	}
	return v
}

func oneStep(kind byte, id CacheID, blocks ...uint32) []byte {
	v := append([]byte{recordVersion, kind, flag(kind == stepCommit)}, id[:]...)
	v = le.AppendUint64(v, uint64(kind-stepTake)*7)
	v = le.AppendUint32(v, uint32(len(blocks)))
	for _, n := range blocks {
		v = le.AppendUint32(v, n)
	}
	for range blocks {
		if kind == stepCommit {
			v = append(v, "\x03key"...)
		}
	}
	return v
}

// samples are values by the tags of their keys.
func samples() map[byte][][]byte {
	return map[byte][][]byte{
		tagHead:  {head{seq: 3, gen: 4}.append(nil)},
		tagCache: {(&cacheRec{dev: 1, ino: 2, numBlocks: 3, layout: [32]byte{4}, name: "n", model: "m"}).encode()},
		tagLease: {(&leaseRec{state: Revoking, kind: KindWrite, gen: 6, grantedNS: -7, traceID: [16]byte{8},
			transferID: "t", peer: "p", count: 2}).append(nil)},
		tagJournal: {(&Transfer{Ordinal: 1, Cache: CacheID{2}, Lease: LeaseID{3}, TransferID: "t", Kind: KindWrite,
			Outcome: OutcomeTorn, Generation: 4, Blocks: 5, Bytes: 6, Peer: "p", TraceID: [16]byte{7},
			GrantedUnixNano: -8, EndedUnixNano: 9}).append(nil)},
		tagPage: {onePage(1<<63|5, nil), onePage(3, [][]byte{{}, []byte("key")})},
		tagStep: {oneStep(stepTake, CacheID{1}, 9, 1<<20), oneStep(stepCommit, CacheID{1}, 4, 5)},
	}
}

// recode decodes a value and encodes what came out; of pages and steps, which are read in place, it takes the parts together.
func recode(tag byte, v []byte) (out []byte, err error) {
	switch tag {
	case tagHead:
		h, err := decodeHead(v)
		return h.append(nil), err
	case tagCache:
		c, err := decodeCache(v)
		return c.encode(), err
	case tagBlock:
		b, err := decodeBlock(v)
		out = le.AppendUint64([]byte{oldestRecord}, b.gen)
		return append(append(out, byte(len(b.key))), b.key...), err
	case tagLease:
		l, err := decodeLease(v)
		out = l.append(nil)
		for _, n := range l.blocks {
			out = le.AppendUint32(out, n)
		}
		return out, err
	case tagPage:
		p, err := decodePage(v)
		if err != nil {
			return nil, err
		}
		out = le.AppendUint64([]byte{recordVersion}, p.set)
		out = append(out, flag(len(v) > 10+8*bits.OnesCount64(p.set)))
		for at, gen := range p.gens {
			if p.set>>at&1 == 1 {
				out = le.AppendUint64(out, gen)
			}
		}
		for at, k := range p.keys {
			if p.set>>at&1 == 1 && out[9] == 1 {
				out = append(append(out, byte(len(k))), k...)
			}
		}
		return out, nil
	case tagStep:
		s, err := decodeStep(v)
		out = append([]byte{recordVersion, s.kind, flag(s.keyed)}, s.cache[:]...)
		out = le.AppendUint64(out, s.gen)
		out = le.AppendUint32(out, uint32(len(s.blocks)/4))
		return append(append(out, s.blocks...), s.keys...), err
	default:
		t, err := decodeTransfer(v)
		return t.append(nil), err
	}
}

func TestRecords(t *testing.T) {
	for tag, vs := range samples() {
		for _, v := range vs {
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
	}
	l := leaseRec{state: Leased, kind: KindWrite, gen: 1, count: 1, peer: "p"}
	assert.Len(t, l.append(nil), l.encodedLen())
	e := Transfer{TransferID: "t", Peer: "peer"}
	assert.Len(t, e.append(nil), e.encodedLen())
}

// FuzzDecode: whatever a decoder accepts is exactly what the encoder writes, but for its version, and nothing makes it fail
// otherwise than by an error.
func FuzzDecode(f *testing.F) {
	for tag, vs := range samples() {
		for _, v := range vs {
			f.Add(tag, v)
		}
	}
	f.Add(byte(tagBlock), []byte{1, 5, 0, 0, 0, 0, 0, 0, 0, 1, 'k'})
	f.Fuzz(func(t *testing.T, tag byte, v []byte) {
		got, err := recode(tag, bytes.Clone(v))
		if err == nil && !bytes.Equal(v[1:], got[1:]) {
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
