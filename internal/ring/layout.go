package ring

import (
	"encoding/binary"
	"runtime"
	"sync/atomic"
	"unsafe"

	"github.com/kvxfer/kvxfer/internal/wire"
)

// Offsets of the words, and sizes.
const (
	magic = 0x31474e495258564b // "KVXRING1" read as a little-endian number

	offMagic        = 0
	offEntries      = 8
	offSubmitted    = 64
	offTaken        = 128
	offCompleted    = 192
	offSeen         = 256
	offDaemonSleeps = 320
	offClientSleeps = 384
	offEnded        = 448
	offSubmissions  = 4096

	submissionSize = 64
)

// Size is how many bytes a ring of so many entries takes.
func Size(entries uint32) uint64 {
	return offSubmissions + uint64(entries)*(submissionSize+wire.PostedSize)
}

// Usable says whether this hardware orders stores as a ring needs it: total store order.
func Usable() bool { return runtime.GOARCH == "amd64" }

// words is a mapped ring.
type words struct {
	base    unsafe.Pointer
	entries uint32
}

func (w words) u64(off uintptr) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Add(w.base, off)) }
func (w words) u32(off uintptr) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Add(w.base, off)) }

// submission is the place of entry n.
func (w words) submission(n uint64) *[submissionSize]byte {
	return (*[submissionSize]byte)(unsafe.Add(w.base, offSubmissions+uintptr(n&uint64(w.entries-1))*submissionSize))
}

// completion is the place of completion n.
func (w words) completion(n uint64) *[wire.PostedSize]byte {
	return (*[wire.PostedSize]byte)(unsafe.Add(w.base, offSubmissions+uintptr(w.entries)*submissionSize+uintptr(n&uint64(w.entries-1))*wire.PostedSize))
}

// putPost writes an entry: three plain words, so that nothing is allocated.
func (w words) putPost(n uint64, p wire.Post) {
	b := w.submission(n)
	binary.LittleEndian.PutUint64(b[0:], p.Prepared)
	binary.LittleEndian.PutUint64(b[8:], p.Cookie)
	binary.LittleEndian.PutUint64(b[16:], p.TimeoutNanos)
}

// getPost copies an entry out.
func (w words) getPost(n uint64) wire.Post {
	b := *w.submission(n)
	return wire.GetPost(b[:wire.PostSize])
}

func (w words) putPosted(n uint64, p wire.Posted) {
	b := w.completion(n)
	binary.LittleEndian.PutUint64(b[0:], p.Cookie)
	binary.LittleEndian.PutUint32(b[8:], p.Code)
	binary.LittleEndian.PutUint32(b[12:], p.Flags)
	binary.LittleEndian.PutUint64(b[16:], p.Bytes)
	binary.LittleEndian.PutUint64(b[24:], p.Nanos)
}

func (w words) getPosted(n uint64) wire.Posted {
	b := *w.completion(n)
	return wire.GetPosted(b[:])
}
