package verbs

import (
	"encoding/binary"

	"github.com/kvxfer/kvxfer/rdma"
)

// A record is what the initiator SENDs behind the data of a batch, on the same queue pair: what the WRITEs before it were. The
// target knows of placed bytes by its own receive completion of the record alone, which comes behind them.
//
// Why a SEND and no WRITE_WITH_IMM: an arrival has 64 bits of tag and a window, which do not fit into the 32 bits of an
// immediate; a SEND carries up to 16 of them, costs the same one request a batch, and needs no memory of the target's that a
// peer writes into.
const (
	recordHeader  = 16
	recordEntry   = 40
	recordEntries = 16
	recordLen     = 1024 // a slot; 16 + 16*40 = 656 are used at most
)

// entry is one part of a WRITE.
type entry struct {
	key         rdma.Key
	tag, op     uint64
	bytes       uint64
	part, parts uint16
}

func putRecord(b []byte, gen uint32, n int) int {
	le := binary.LittleEndian
	le.PutUint32(b, gen)
	le.PutUint32(b[4:], uint32(n))
	le.PutUint64(b[8:], 0)
	return recordHeader + n*recordEntry
}

// recordSize is the length of a record that putRecord made.
func recordSize(b []byte) int {
	return recordHeader + int(binary.LittleEndian.Uint32(b[4:]))*recordEntry
}

func putEntry(b []byte, k int, e *entry) {
	le := binary.LittleEndian
	b = b[recordHeader+k*recordEntry:]
	le.PutUint64(b, uint64(e.key))
	le.PutUint64(b[8:], e.tag)
	le.PutUint64(b[16:], e.op)
	le.PutUint64(b[24:], e.bytes)
	le.PutUint16(b[32:], e.part)
	le.PutUint16(b[34:], e.parts)
	le.PutUint32(b[36:], 0)
}

// parseRecord appends the entries of a received record to dst.
func parseRecord(dst []entry, b []byte, gen uint32) ([]entry, error) {
	le := binary.LittleEndian
	if len(b) < recordHeader {
		return dst, violation("a record of %d bytes", len(b))
	}
	n := le.Uint32(b[4:])
	if n > recordEntries || len(b) != recordHeader+int(n)*recordEntry || le.Uint32(b) != gen || le.Uint64(b[8:]) != 0 {
		return dst, violation("a malformed record")
	}
	for k := range int(n) {
		e := b[recordHeader+k*recordEntry:]
		x := entry{key: rdma.Key(le.Uint64(e)), tag: le.Uint64(e[8:]), op: le.Uint64(e[16:]), bytes: le.Uint64(e[24:]),
			part: le.Uint16(e[32:]), parts: le.Uint16(e[34:])}
		if le.Uint32(e[36:]) != 0 {
			return dst, violation("a malformed record")
		}
		if x.parts == 0 || x.part >= x.parts || x.parts > maxParts {
			return dst, violation("a record of part %d of %d", x.part, x.parts)
		}
		dst = append(dst, x)
	}
	return dst, nil
}
