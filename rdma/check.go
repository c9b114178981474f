package rdma

import (
	"math/bits"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// What every provider refuses in the same words: the parts of an operation and of a window that need no session to judge.

// CheckKind refuses an operation that is neither WRITE nor READ.
func (o *Op) CheckKind() error {
	if o.Kind != OpWrite && o.Kind != OpRead {
		return fault.Invalid("post", "Kind", "%d, want write (1) or read (2)", o.Kind)
	}
	return nil
}

// CheckCount refuses a scatter list of more than most ranges.
func (o *Op) CheckCount(most int) error {
	if n := len(o.Ranges); n > most {
		return fault.Invalid("post", "Ranges", "%d ranges, want at most %d", n, most)
	}
	return nil
}

// Compact appends the operation's ranges without the empty ones to dst and sums them. It refuses a range that leaves the local
// memory with OutOfBounds, and more than maxBytes in all with InvalidArgument; dst comes back either way.
func (o *Op) Compact(dst []Range, local *Memory, maxBytes uint64) (ranges []Range, total uint64, err error) {
	for k, x := range o.Ranges {
		if x.Len == 0 {
			continue
		}
		var carry uint64
		total, carry = bits.Add64(total, x.Len, 0)
		switch {
		case x.Local > local.Len || x.Len > local.Len-x.Local:
			fe := fault.New(fault.OutOfBounds, "post", "range %d, local [%d, +%d), leaves the region of %d bytes", k, x.Local, x.Len, local.Len)
			fe.Region, fe.Field = local.Name, "Ranges"
			return dst, 0, fe
		case carry != 0 || total > maxBytes:
			return dst, 0, fault.Invalid("post", "Ranges", "the operation has more than %d bytes", maxBytes)
		}
		dst = append(dst, x)
	}
	return dst, total, nil
}

// CheckLocal is Compact without a list: the ranges that are empty stay where they are.
func (o *Op) CheckLocal(local *Memory, maxBytes uint64) (total uint64, err error) {
	for k := range o.Ranges {
		x := &o.Ranges[k]
		var carry uint64
		total, carry = bits.Add64(total, x.Len, 0)
		if x.Len != 0 && (x.Local > local.Len || x.Len > local.Len-x.Local || carry != 0 || total > maxBytes) {
			_, _, err = o.Compact(nil, local, maxBytes) // which says what is wrong
			return 0, err
		}
	}
	return total, nil
}

// Check refuses a window of no access, of both, or without bounds.
func (w *Window) Check() error {
	if w.Access != AccessWrite && w.Access != AccessRead {
		return fault.Invalid("grant", "Access", "%d, want write (1) or read (2)", w.Access)
	}
	if w.Bounds == nil {
		return fault.Invalid("grant", "Bounds", "nil, want the window's bounds")
	}
	return nil
}

// DownStatus is the status of the EventDown for what ended a session: ProtocolViolation, or else PeerLost.
func DownStatus(err error) fault.Code {
	if fault.CodeOf(err) == fault.ProtocolViolation {
		return fault.ProtocolViolation
	}
	return fault.PeerLost
}
