package shm

import (
	"encoding/binary"
	"math/bits"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

// The frames of a session, version 1. docs/protocol.md ("Shared memory") has the same byte by byte. A message of the
// socket holds whole frames, one behind the other.
const (
	opLen     = 64
	descLen   = 24
	regionLen = 32
	dropLen   = 8
	listLen   = 8
	resultLen = 24
	answerLen = 32

	maxCount   = 256      // descriptors, results or answers in a frame
	maxMessage = 32 << 10 // bytes
)

type frameKind uint8

const (
	kindWrite  frameKind = 1 // initiator -> target: copy these
	kindRead   frameKind = 2 // initiator -> target: may I copy these?
	kindRegion frameKind = 3 // owner -> reader: memory, its descriptor with it
	kindDrop   frameKind = 4 // owner -> reader: unmap it
	kindResult frameKind = 5 // target -> initiator: WRITEs that ended
	kindAnswer frameKind = 6 // target -> initiator: to kindRead
)

// violation is the error for a frame that no correct peer sends; it ends the session.
func violation(format string, args ...any) error {
	return fault.New(fault.ProtocolViolation, "shm", format, args...)
}

// desc is one range of an operation: offsets in the initiator's and in the target's region. Sums may wrap: bounds are
// checked by whoever knows the regions.
type desc struct{ local, remote, len uint64 }

// opFrame is up to 256 ranges of a WRITE or READ. An operation's frames follow one another on the socket.
type opFrame struct {
	kind   frameKind
	count  uint16
	index  uint32 // of the frame in its operation
	frames uint32 // of the operation
	seq    uint64 // the operation, by the initiator's own count from 1; grows
	key    uint64
	tag    uint64
	total  uint64 // bytes of the whole operation
	region uint32 // WRITE: the initiator's region by its number
	slot   uint32 // WRITE: the permission to read it
	word   uint64 // WRITE: what the slot must hold
}

func (f *opFrame) append(b []byte) []byte {
	le := binary.LittleEndian
	b = append(b, byte(f.kind), 0)
	b = le.AppendUint16(b, f.count)
	b = le.AppendUint32(b, f.index)
	b = le.AppendUint64(b, f.seq)
	b = le.AppendUint64(b, f.key)
	b = le.AppendUint64(b, f.tag)
	b = le.AppendUint64(b, f.total)
	b = le.AppendUint32(b, f.frames)
	b = le.AppendUint32(b, f.region)
	b = le.AppendUint32(b, f.slot)
	b = le.AppendUint32(b, 0)
	return le.AppendUint64(b, f.word)
}

func (d desc) append(b []byte) []byte {
	le := binary.LittleEndian
	return le.AppendUint64(le.AppendUint64(le.AppendUint64(b, d.local), d.remote), d.len)
}

// parseOp reads the operation frame that b begins with and its descriptors into dst[:0].
func parseOp(b []byte, dst []desc) (f opFrame, descs []desc, rest []byte, err error) {
	if len(b) < opLen {
		return f, dst, nil, violation("an operation frame of %d bytes", len(b))
	}
	le := binary.LittleEndian
	f = opFrame{kind: frameKind(b[0]), count: le.Uint16(b[2:]), index: le.Uint32(b[4:]), seq: le.Uint64(b[8:]), key: le.Uint64(b[16:]),
		tag: le.Uint64(b[24:]), total: le.Uint64(b[32:]), frames: le.Uint32(b[40:]), region: le.Uint32(b[44:]), slot: le.Uint32(b[48:]),
		word: le.Uint64(b[56:])}
	switch {
	case b[1] != 0 || le.Uint32(b[52:]) != 0:
		return f, dst, nil, violation("reserved bytes are not zero")
	case f.count > maxCount:
		return f, dst, nil, violation("count %d is above %d", f.count, maxCount)
	case len(b) < opLen+int(f.count)*descLen:
		return f, dst, nil, violation("%d descriptors in %d bytes", f.count, len(b)-opLen)
	case f.seq == 0 || f.index >= f.frames:
		return f, dst, nil, violation("frame %d of %d of operation %d", f.index, f.frames, f.seq)
	case (f.count == 0) != (f.total == 0) || f.count == 0 && f.frames != 1:
		return f, dst, nil, violation("%d descriptors in %d frames for %d bytes", f.count, f.frames, f.total)
	case f.kind == kindRead && (f.tag != 0 || f.region != 0 || f.slot != 0 || f.word != 0):
		return f, dst, nil, violation("a READ with fields of a WRITE")
	}
	dst = dst[:0]
	var sum, carry uint64
	for b = b[opLen:]; len(dst) < int(f.count); b = b[descLen:] {
		d := desc{le.Uint64(b), le.Uint64(b[8:]), le.Uint64(b[16:])}
		if sum, carry = bits.Add64(sum, d.len, 0); carry != 0 || d.len == 0 || sum > f.total || f.kind == kindRead && d.local != 0 {
			return f, dst, nil, violation("descriptor %d of %d bytes in an operation of %d", len(dst), d.len, f.total)
		}
		dst = append(dst, d)
	}
	return f, dst, b, nil
}

// regionFrame hands memory to the process that is to read it.
type regionFrame struct {
	memory rdma.MemoryKind
	number uint32 // from 1, never used twice in a session
	addr   uint64 // where it begins in the descriptor's object
	len    uint64
}

func (f *regionFrame) append(b []byte) []byte {
	le := binary.LittleEndian
	b = le.AppendUint32(append(b, byte(kindRegion), byte(f.memory), 0, 0), f.number)
	return le.AppendUint64(le.AppendUint64(le.AppendUint64(b, f.addr), f.len), 0)
}

func parseRegion(b []byte) (f regionFrame, rest []byte, err error) {
	if len(b) < regionLen {
		return f, nil, violation("a region frame of %d bytes", len(b))
	}
	le := binary.LittleEndian
	f = regionFrame{memory: rdma.MemoryKind(b[1]), number: le.Uint32(b[4:]), addr: le.Uint64(b[8:]), len: le.Uint64(b[16:])}
	if le.Uint16(b[2:]) != 0 || le.Uint64(b[24:]) != 0 {
		return f, nil, violation("reserved bytes are not zero")
	}
	if f.number == 0 || f.addr+f.len < f.addr || f.addr+f.len > 1<<62 {
		return f, nil, violation("region %d of %d bytes at %#x", f.number, f.len, f.addr)
	}
	if f.memory != rdma.MemoryHost && f.memory != rdma.MemoryProcess {
		return f, nil, violation("memory of kind %d", f.memory)
	}
	return f, b[regionLen:], nil
}

func appendDrop(b []byte, number uint32) []byte {
	return binary.LittleEndian.AppendUint32(append(b, byte(kindDrop), 0, 0, 0), number)
}

func parseDrop(b []byte) (number uint32, rest []byte, err error) {
	if len(b) < dropLen || b[1] != 0 || b[2] != 0 || b[3] != 0 {
		return 0, nil, violation("malformed drop frame")
	}
	return binary.LittleEndian.Uint32(b[4:]), b[dropLen:], nil
}

// appendList begins a frame of count results or answers.
func appendList(b []byte, k frameKind, count int) []byte {
	b = binary.LittleEndian.AppendUint16(append(b, byte(k), 0), uint16(count))
	return append(b, 0, 0, 0, 0)
}

// parseList gives the items of a frame of results or answers, each of n bytes.
func parseList(b []byte, n int) (items, rest []byte, err error) {
	if len(b) < listLen || b[1] != 0 || binary.LittleEndian.Uint32(b[4:]) != 0 {
		return nil, nil, violation("malformed list frame")
	}
	count := int(binary.LittleEndian.Uint16(b[2:]))
	if count == 0 || count > maxCount || len(b) < listLen+count*n {
		return nil, nil, violation("a list of %d in %d bytes", count, len(b)-listLen)
	}
	return b[listLen : listLen+count*n], b[listLen+count*n:], nil
}

// result ends a WRITE at the initiator. The target reads its source no more.
type result struct {
	seq    uint64
	bytes  uint64 // placed
	status fault.Code
	wrote  bool // the target's bytes may have been changed
}

func (r *result) append(b []byte) []byte {
	le := binary.LittleEndian
	b = le.AppendUint64(le.AppendUint64(b, r.seq), r.bytes)
	var flags uint16
	if r.wrote {
		flags = 1
	}
	return le.AppendUint32(le.AppendUint16(le.AppendUint16(b, uint16(r.status)), flags), 0)
}

func parseResult(b []byte) (result, error) {
	le := binary.LittleEndian
	r := result{seq: le.Uint64(b), bytes: le.Uint64(b[8:]), status: fault.Code(le.Uint16(b[16:])), wrote: b[18]&1 != 0}
	if le.Uint16(b[18:])&^1 != 0 || le.Uint32(b[20:]) != 0 {
		return r, violation("reserved result bytes are not zero")
	}
	return r, nil
}

// answer permits or refuses the ranges of one READ frame.
type answer struct {
	seq    uint64
	index  uint32
	region uint32 // the target's region by its number
	slot   uint32 // the permission to read it
	status fault.Code
	word   uint64 // what the slot must hold
}

func (a *answer) append(b []byte) []byte {
	le := binary.LittleEndian
	b = le.AppendUint32(le.AppendUint64(b, a.seq), a.index)
	b = le.AppendUint32(le.AppendUint32(b, a.region), a.slot)
	b = le.AppendUint16(le.AppendUint16(b, uint16(a.status)), 0)
	return le.AppendUint64(b, a.word)
}

func parseAnswer(b []byte) (answer, error) {
	le := binary.LittleEndian
	a := answer{seq: le.Uint64(b), index: le.Uint32(b[8:]), region: le.Uint32(b[12:]), slot: le.Uint32(b[16:]),
		status: fault.Code(le.Uint16(b[20:])), word: le.Uint64(b[24:])}
	if le.Uint16(b[22:]) != 0 {
		return a, violation("reserved answer bytes are not zero")
	}
	if a.status != 0 && (a.region != 0 || a.slot != 0 || a.word != 0) {
		return a, violation("a refusal with a permission")
	}
	return a, nil
}

// statusOf makes a code from the wire one of the table's.
func statusOf(c fault.Code) fault.Code {
	if c == 0 || c.Known() {
		return c
	}
	return fault.Internal
}
