package wire

import (
	"encoding/binary"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// FeaturePrepared is the feature of the local protocol that PREPARE, POST and RING belong to.
const FeaturePrepared = "prepared"

// Prepare starts a transfer whose list is built and bound once and posted many times: of own blocks (Cache) or of ranges of
// raw memory (Region). EVENT_PREPARED says that posts may begin, EVENT_TRANSFER that it has ended, by PUSH_FINISH (the lease
// is committed, or the reader's word is confirmed), PUSH_CANCEL, or because it failed.
type Prepare struct {
	Cache         uint64 `json:"cache,omitempty"`
	Region        uint64 `json:"region,omitempty"`
	Mode          string `json:"mode"` // "write": own memory to the peer's; "read": the reverse
	Ticket        string `json:"ticket"`
	TimeoutMillis int64  `json:"timeout_ms"` // of the whole; each post has its own
	Traceparent   string `json:"traceparent,omitempty"`
	SpanID        string `json:"span_id,omitempty"`
	TransferIdentity
}

// PreparedEvent says that a prepared transfer is bound.
type PreparedEvent struct {
	Transfer   uint64 `json:"transfer"`
	Provider   string `json:"provider"`
	Reason     string `json:"provider_reason,omitempty"`
	Operations uint32 `json:"operations"` // of one post
	Bytes      uint64 `json:"bytes"`      // of one post
}

// Ring hands a submission and completion ring over, with three descriptors: the ring's sealed memfd, an eventfd that wakes
// the daemon and one that wakes the client. Package ring has the layout.
type Ring struct {
	Entries uint32 `json:"entries"`
}

// Limits of posts.
const (
	// MaxPostNanos bounds a post's time-out.
	MaxPostNanos = uint64(MaxMillis) * 1e6
	// PostSize is {prepared u64, cookie u64, timeout_ns u64}.
	PostSize = 24
	// PostedSize is {cookie u64, code u32, flags u32, bytes u64, took_ns u64}.
	PostedSize = 32
)

// Post asks for one run of a prepared transfer's list. Cookie is the client's own and comes back.
type Post struct {
	Prepared     uint64
	Cookie       uint64
	TimeoutNanos uint64 // 1..MaxPostNanos
}

// PostedWrote is the flag of a failed post that bytes may have been written.
const PostedWrote = 1

// Posted is the end of a post. Nothing touches the client's memory for it any more.
type Posted struct {
	Cookie uint64
	Code   uint32 // of the error table; 0: every byte is placed and visible
	Flags  uint32
	Bytes  uint64 // that were moved
	Nanos  uint64 // from the daemon's seeing the post to its end
}

// Check says what is wrong with a post by itself; 0: nothing.
func (p *Post) Check() fault.Code {
	if p.TimeoutNanos < 1 || p.TimeoutNanos > MaxPostNanos {
		return fault.InvalidArgument
	}
	return 0
}

// Posts reads the array of POST.
func Posts(b []byte) ([]Post, error) {
	if len(b) == 0 || len(b)%PostSize != 0 {
		return nil, violation("posts", "%d bytes are no multiple of %d above 0", len(b), PostSize)
	}
	out := make([]Post, len(b)/PostSize)
	for i := range out {
		out[i] = GetPost(b[i*PostSize:])
	}
	return out, nil
}

// GetPost reads one post.
func GetPost(b []byte) Post {
	return Post{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[16:])}
}

// AppendPost packs p.
func AppendPost(dst []byte, p Post) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, p.Prepared)
	dst = binary.LittleEndian.AppendUint64(dst, p.Cookie)
	return binary.LittleEndian.AppendUint64(dst, p.TimeoutNanos)
}

// PostedList reads the array of EVENT_POSTED.
func PostedList(b []byte) ([]Posted, error) {
	if len(b) == 0 || len(b)%PostedSize != 0 {
		return nil, violation("posted", "%d bytes are no multiple of %d above 0", len(b), PostedSize)
	}
	out := make([]Posted, len(b)/PostedSize)
	for i := range out {
		out[i] = GetPosted(b[i*PostedSize:])
	}
	return out, nil
}

// GetPosted reads one end.
func GetPosted(b []byte) Posted {
	return Posted{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint32(b[8:]), binary.LittleEndian.Uint32(b[12:]),
		binary.LittleEndian.Uint64(b[16:]), binary.LittleEndian.Uint64(b[24:])}
}

// AppendPosted packs p.
func AppendPosted(dst []byte, p Posted) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, p.Cookie)
	dst = binary.LittleEndian.AppendUint32(dst, p.Code)
	dst = binary.LittleEndian.AppendUint32(dst, p.Flags)
	dst = binary.LittleEndian.AppendUint64(dst, p.Bytes)
	return binary.LittleEndian.AppendUint64(dst, p.Nanos)
}

// Validate checks the fields.
func (r *Prepare) Validate() error {
	const op = "prepare"
	if (r.Cache == 0) == (r.Region == 0) {
		return fault.Invalid(op, "region", "cache %d and region %d, allowed exactly one of them", r.Cache, r.Region)
	}
	return first(checkMode(op, r.Mode), checkTransfer(op, r.SpanID, &r.TransferIdentity, r.TimeoutMillis, nil))
}

// Sizes of rings, in entries; powers of 2.
const (
	MinRingEntries = 16
	MaxRingEntries = 1 << 14
)

// Validate checks the fields.
func (r *Ring) Validate() error {
	if r.Entries < MinRingEntries || r.Entries > MaxRingEntries || r.Entries&(r.Entries-1) != 0 {
		return fault.Invalid("ring", "entries", "%d, allowed powers of 2 from %d to %d", r.Entries, MinRingEntries, MaxRingEntries)
	}
	return nil
}
