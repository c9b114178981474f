package rdma

import (
	"sort"
	"unsafe"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// MemoryKind says where memory lives. A provider lists the kinds it can reach in Caps.
type MemoryKind uint8

const (
	// MemoryHost is memory that this process has mapped.
	MemoryHost MemoryKind = 1
	// MemoryCUDA is memory of a CUDA device. No provider lists it yet; Register refuses it with NotSupported.
	MemoryCUDA MemoryKind = 2
	// MemoryProcess is memory of another process, reached by pread and pwrite on a descriptor of its /proc/PID/mem. It ends
	// with that process, so what is promised of it holds while the process lives ("live-client-only").
	MemoryProcess MemoryKind = 3
)

// String gives the kind's name in the registry and in errors.
func (k MemoryKind) String() string {
	switch k {
	case MemoryHost:
		return "host"
	case MemoryCUDA:
		return "cuda"
	case MemoryProcess:
		return "process"
	}
	return "unknown"
}

// Memory is what a caller registers. It stays mapped until Region.Close returned.
type Memory struct {
	Kind MemoryKind
	Base unsafe.Pointer // MemoryHost; never on the Go heap: the provider hands it to system calls from other goroutines
	Len  uint64         // bytes
	Name string         // for errors; the region's name

	// FD is a descriptor of the memory object, open as long as the region; 0: none. Of MemoryHost it is the memfd that is
	// mapped at Base, for providers that hand memory to another process; of MemoryProcess the /proc/PID/mem.
	FD int
	// Addr is where the region begins in FD's object: of MemoryHost the memfd's offset of the byte at Base (0 for memory that a
	// client registers), of MemoryProcess an address in that process.
	Addr uint64
}

// Span is a part of a region: byte offset and length.
type Span struct{ Off, Len uint64 }

// Range moves Len bytes between a local region's offset and a remote region's offset.
type Range struct{ Local, Remote, Len uint64 }

// Bounds says which bytes of a region a window covers. Allows is called for every range of every operation, from
// several goroutines; it must be pure, fast and free of allocation. off+len never wraps when it is called.
type Bounds interface {
	Allows(off, length uint64) bool
}

// Spans is a Bounds of sorted, disjoint, non-adjacent spans; NewSpans makes one.
type Spans []Span

// NewSpans sorts and merges s. It refuses spans that leave a region of size bytes.
func NewSpans(size uint64, s ...Span) (Spans, error) {
	in := append(Spans(nil), s...)
	sort.Slice(in, func(i, j int) bool { return in[i].Off < in[j].Off })
	out := in[:0]
	for _, x := range in {
		if x.Off > size || x.Len > size-x.Off {
			return nil, fault.New(fault.OutOfBounds, "window", "span [%d, +%d) leaves the region of %d bytes", x.Off, x.Len, size)
		}
		if x.Len == 0 {
			continue
		}
		if n := len(out); n > 0 && x.Off <= out[n-1].Off+out[n-1].Len {
			if end := x.Off + x.Len; end > out[n-1].Off+out[n-1].Len {
				out[n-1].Len = end - out[n-1].Off
			}
			continue
		}
		out = append(out, x)
	}
	return out, nil
}

// Allows reports whether [off, off+length) lies inside one span. An empty range is allowed anywhere.
func (s Spans) Allows(off, length uint64) bool {
	if length == 0 {
		return true
	}
	i := sort.Search(len(s), func(i int) bool { return s[i].Off > off })
	return i > 0 && off-s[i-1].Off <= s[i-1].Len && length <= s[i-1].Len-(off-s[i-1].Off)
}
