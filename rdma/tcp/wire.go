package tcp

import (
	"encoding/binary"
	"math/bits"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// The frames of a lane, version 1. docs/protocol.md ("Lanes") has the same byte by byte.
const (
	headerLen  = 64
	descLen    = 16
	resultLen  = 24
	trailerLen = 8

	maxCount   = 256     // descriptors or results in a frame
	maxPayload = 1 << 20 // payload bytes in a frame

	frameMagic   = 0x4658564b // "KVXF", little-endian
	trailerMagic = 0x5458564b // "KVXT"
)

type frameKind uint8

const (
	kindWrite   frameKind = 1 // initiator -> target: descriptors, payload, trailer
	kindResult  frameKind = 2 // target -> initiator: results
	kindRequest frameKind = 3 // initiator -> target: descriptors of a READ
	kindData    frameKind = 4 // target -> initiator: payload of a READ, trailer
)

// header is the fixed part of a frame. An operation's frames follow one another on one lane; offset counts the
// operation's bytes in the frames before this one, so the first has 0 and the last reaches total.
type header struct {
	kind    frameKind
	count   uint16 // descriptors or results behind the header
	payload uint32 // payload bytes behind them
	seq     uint64 // the operation, by the initiator's own count from 1; grows along a lane
	key     uint64
	tag     uint64
	total   uint64 // bytes of the whole operation
	offset  uint64
}

func (h *header) put(b []byte) {
	_ = b[headerLen-1]
	le := binary.LittleEndian
	le.PutUint32(b[0:], frameMagic)
	b[4], b[5] = byte(h.kind), 0
	le.PutUint16(b[6:], h.count)
	le.PutUint32(b[8:], h.payload)
	le.PutUint32(b[12:], 0)
	le.PutUint64(b[16:], h.seq)
	le.PutUint64(b[24:], h.key)
	le.PutUint64(b[32:], h.tag)
	le.PutUint64(b[40:], h.total)
	le.PutUint64(b[48:], h.offset)
	le.PutUint64(b[56:], 0)
}

// violation is the error for a frame that no correct peer sends; it ends the session.
func violation(format string, args ...any) error {
	return fault.New(fault.ProtocolViolation, "lane", format, args...)
}

// parseHeader reads a header and checks everything about it that needs no state and no descriptors.
func parseHeader(b []byte) (header, error) {
	_ = b[headerLen-1]
	le := binary.LittleEndian
	h := header{kind: frameKind(b[4]), count: le.Uint16(b[6:]), payload: le.Uint32(b[8:]), seq: le.Uint64(b[16:]),
		key: le.Uint64(b[24:]), tag: le.Uint64(b[32:]), total: le.Uint64(b[40:]), offset: le.Uint64(b[48:])}
	if m := le.Uint32(b[0:]); m != frameMagic {
		return h, violation("frame magic %#x, want %#x", m, frameMagic)
	}
	if b[5] != 0 || le.Uint32(b[12:]) != 0 || le.Uint64(b[56:]) != 0 {
		return h, violation("reserved header bytes are not zero")
	}
	if h.count > maxCount {
		return h, violation("count %d is above %d", h.count, maxCount)
	}
	if h.payload > maxPayload {
		return h, violation("payload of %d bytes is above %d", h.payload, maxPayload)
	}
	switch h.kind {
	case kindResult:
		if h.count == 0 || h.payload != 0 || h.seq|h.key|h.tag|h.total|h.offset != 0 {
			return h, violation("malformed result frame")
		}
		return h, nil
	case kindWrite:
		if (h.count == 0) != (h.payload == 0) {
			return h, violation("write frame with %d descriptors for %d bytes", h.count, h.payload)
		}
	case kindRequest:
		if h.payload != 0 || h.tag != 0 || (h.count == 0) != (h.total == 0) {
			return h, violation("malformed read request")
		}
	case kindData:
		if h.count != 0 || h.key != 0 || h.tag != 0 {
			return h, violation("malformed read data")
		}
	default:
		return h, violation("frame kind %d is unknown", h.kind)
	}
	if h.seq == 0 {
		return h, violation("operation number 0")
	}
	if h.kind != kindRequest && (h.payload == 0) != (h.total == 0) {
		return h, violation("frame of %d bytes in an operation of %d", h.payload, h.total)
	}
	if h.offset > h.total || uint64(h.payload) > h.total-h.offset || h.total > 0 && h.offset == h.total {
		return h, violation("frame [%d, +%d) leaves its operation of %d bytes", h.offset, h.payload, h.total)
	}
	return h, nil
}

// desc is one range of the remote side. off+len may wrap: bounds are the window's business.
type desc struct{ off, len uint64 }

func (d desc) put(b []byte) {
	binary.LittleEndian.PutUint64(b[0:], d.off)
	binary.LittleEndian.PutUint64(b[8:], d.len)
}

// parseDescs reads the descriptors of a WRITE or a READ request into dst[:0] and returns them with their sum. The sum
// of a WRITE's is its payload; that of a request stays inside its operation.
func parseDescs(dst []desc, b []byte, h *header) ([]desc, uint64, error) {
	dst = dst[:0]
	var sum, carry uint64
	for i := range int(h.count) {
		d := desc{off: binary.LittleEndian.Uint64(b[i*descLen:]), len: binary.LittleEndian.Uint64(b[i*descLen+8:])}
		if d.len == 0 {
			return dst, 0, violation("descriptor %d is empty", i)
		}
		if sum, carry = bits.Add64(sum, d.len, 0); carry != 0 {
			return dst, 0, violation("descriptors overflow")
		}
		dst = append(dst, d)
	}
	if h.kind == kindWrite && sum != uint64(h.payload) {
		return dst, 0, violation("descriptors of %d bytes for a payload of %d", sum, h.payload)
	}
	if sum > h.total-h.offset {
		return dst, 0, violation("descriptors [%d, +%d) leave their operation of %d bytes", h.offset, sum, h.total)
	}
	return dst, sum, nil
}

// result ends an operation at the initiator: every WRITE that was not aborted, and a READ that was refused.
type result struct {
	seq    uint64
	bytes  uint64 // placed
	status fault.Code
	wrote  bool // the target's bytes may have been changed
}

func (r *result) put(b []byte) {
	_ = b[resultLen-1]
	binary.LittleEndian.PutUint64(b[0:], r.seq)
	binary.LittleEndian.PutUint64(b[8:], r.bytes)
	binary.LittleEndian.PutUint16(b[16:], uint16(r.status))
	var flags uint16
	if r.wrote {
		flags = 1
	}
	binary.LittleEndian.PutUint16(b[18:], flags)
	binary.LittleEndian.PutUint32(b[20:], 0)
}

func parseResult(b []byte) (result, error) {
	_ = b[resultLen-1]
	le := binary.LittleEndian
	flags := le.Uint16(b[18:])
	r := result{seq: le.Uint64(b[0:]), bytes: le.Uint64(b[8:]), status: fault.Code(le.Uint16(b[16:])), wrote: flags == 1}
	if r.seq == 0 || flags > 1 || le.Uint32(b[20:]) != 0 {
		return r, violation("malformed result")
	}
	return r, nil
}

// The trailer follows a payload: status 0 says that all of it was real, another that it became filler on the way.
func putTrailer(b []byte, status fault.Code) {
	_ = b[trailerLen-1]
	binary.LittleEndian.PutUint32(b[0:], trailerMagic)
	binary.LittleEndian.PutUint16(b[4:], uint16(status))
	binary.LittleEndian.PutUint16(b[6:], 0)
}

func parseTrailer(b []byte) (fault.Code, error) {
	_ = b[trailerLen-1]
	if binary.LittleEndian.Uint32(b[0:]) != trailerMagic || binary.LittleEndian.Uint16(b[6:]) != 0 {
		return 0, violation("malformed trailer")
	}
	return fault.Code(binary.LittleEndian.Uint16(b[4:])), nil
}
