package verbs

import (
	"encoding/binary"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// writer appends little-endian fields.
type writer struct{ b []byte }

func (w *writer) u8(v uint8)   { w.b = append(w.b, v) }
func (w *writer) u16(v uint16) { w.b = binary.LittleEndian.AppendUint16(w.b, v) }
func (w *writer) u32(v uint32) { w.b = binary.LittleEndian.AppendUint32(w.b, v) }
func (w *writer) u64(v uint64) { w.b = binary.LittleEndian.AppendUint64(w.b, v) }
func (w *writer) raw(v []byte) { w.b = append(w.b, v...) }

// text is a length of two bytes and at most maxText bytes.
func (w *writer) text(s string) {
	s = s[:min(len(s), maxText)]
	w.u16(uint16(len(s)))
	w.b = append(w.b, s...)
}

const maxText = 1024

// reader takes fields off; what is missing reads as zero, and bad says so.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) take(n int) []byte {
	if len(r.b) < n {
		r.b, r.bad = nil, true
		return nil
	}
	v := r.b[:n]
	r.b = r.b[n:]
	return v
}

func (r *reader) u8() uint8 {
	if v := r.take(1); v != nil {
		return v[0]
	}
	return 0
}

func (r *reader) u16() uint16 {
	if v := r.take(2); v != nil {
		return binary.LittleEndian.Uint16(v)
	}
	return 0
}

func (r *reader) u32() uint32 {
	if v := r.take(4); v != nil {
		return binary.LittleEndian.Uint32(v)
	}
	return 0
}

func (r *reader) u64() uint64 {
	if v := r.take(8); v != nil {
		return binary.LittleEndian.Uint64(v)
	}
	return 0
}

func (r *reader) raw(dst []byte) { copy(dst, r.take(len(dst))) }

func (r *reader) text() string {
	n := int(r.u16())
	if n > maxText {
		r.b, r.bad = nil, true
	}
	return string(r.take(n))
}

// end is nil when all was there and nothing is left.
func (r *reader) end(what string) error {
	if r.bad || len(r.b) != 0 {
		return violation("malformed %s", what)
	}
	return nil
}

func violation(format string, args ...any) error {
	return fault.New(fault.ProtocolViolation, "side channel", format, args...)
}

func errClosed(op string) error { return fault.New(fault.Closed, op, "the provider is closed") }
