package copykernel

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"unsafe"
)

const (
	// StreamFrom is the number of bytes of a whole transfer from which its copies stream.
	StreamFrom = 256 << 10
	// streamMin is the shortest step that streams.
	streamMin = 512
	// aheadMax is the longest step during which the next one is fetched.
	aheadMax = 8 << 10
	// line is a cache line's length.
	line = 64
)

// Step is one piece of a copy. Dst and Src are addresses of mapped memory outside the Go heap; they do not overlap.
type Step struct{ Dst, Src, N uintptr }

// Fault says that memory could not be accessed. Bytes of the destination may have been changed before it.
type Fault struct {
	Addr   uintptr // where
	Source bool    // the memory was being read; false: stored into
}

// Error gives the side; the address would say nothing to whoever reads it.
func (f *Fault) Error() string {
	if f.Source {
		return "a page of the source cannot be read"
	}
	return "a page of the destination cannot be written"
}

// Guard makes faults of the calling goroutine panics that Copy recovers, until it is called with the returned value. A
// goroutine that only copies calls it once; Copy outside of it ends the process at a fault.
func Guard(on bool) (before bool) { return debug.SetPanicOnFault(on) }

// Streams reports whether this processor has the streaming copy.
func Streams() bool { return canStream }

// Copy makes the steps in order; all of them are visible to other processors when it returns nil. With stream the long
// ones go past the caches. A fault gives *Fault; steps before it are done, its own in part.
func Copy(steps []Step, stream bool) (err error) {
	at := 0
	defer func() {
		if r := recover(); r != nil {
			err = fault(r, &steps[at])
		}
	}()
	stream = stream && canStream
	for at = range steps {
		s := &steps[at]
		if stream && s.N >= streamMin {
			next := s.Src
			if at+1 < len(steps) {
				next = steps[at+1].Src
			}
			stream1(s, next)
		} else if s.N > 0 {
			copy(bytes(s.Dst, s.N), bytes(s.Src, s.N))
		}
	}
	if stream {
		storeFence()
	}
	return nil
}

// stream1 streams one step. What does not fill a cache line at its ends is stored plainly.
func stream1(s *Step, next uintptr) {
	dst, src, n := s.Dst, s.Src, s.N
	if head := -dst % line; head > 0 {
		copy(bytes(dst, head), bytes(src, head))
		dst, src, n = dst+head, src+head, n-head
	}
	whole := n &^ (line - 1)
	if whole <= aheadMax {
		streamAhead(dst, src, whole, next)
	} else {
		streamCopy(dst, src, whole)
	}
	if n > whole {
		copy(bytes(dst+whole, n-whole), bytes(src+whole, n-whole))
	}
}

// fault makes an error of a panic, and goes on with one that is no fault of the step's memory.
func fault(r any, s *Step) error {
	e, ok := r.(runtime.Error)
	if !ok {
		panic(r)
	}
	a, ok := e.(interface{ Addr() uintptr })
	if !ok {
		panic(r)
	}
	at := a.Addr()
	switch {
	case at >= s.Src && at-s.Src < s.N:
		return &Fault{Addr: at, Source: true}
	case at >= s.Dst && at-s.Dst < s.N:
		return &Fault{Addr: at}
	}
	panic(fmt.Sprintf("copy of %d bytes faulted outside its memory: %v", s.N, r))
}

// bytes makes a slice of an address that is no Go pointer.
func bytes(addr, n uintptr) []byte {
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&addr)), n)
}
