package ring

import (
	"runtime"
	"runtime/debug"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// errTorn is the error of memory whose pages the client took out: no seal forbids that, and where the kernel has none to
// put in their place the access faults.
func errTorn() error {
	return fault.New(fault.MemoryFault, op, "a page of the ring cannot be reached")
}

// guarded is deferred with debug.SetPanicOnFault(true) as before: it makes a fault of the ring's memory the function's error.
func (w words) guarded(before bool, err *error) {
	debug.SetPanicOnFault(before)
	if r := recover(); r != nil {
		if !w.holds(r) {
			panic(r)
		}
		*err = errTorn()
	}
}

// holds says whether a panic is a fault of this memory.
func (w words) holds(r any) bool {
	e, ok := r.(runtime.Error)
	if !ok {
		return false
	}
	a, ok := e.(interface{ Addr() uintptr })
	if !ok {
		return false
	}
	at, base := a.Addr(), uintptr(w.base)
	return at >= base && at-base < uintptr(offSubmissions+uint64(w.entries)*(submissionSize+wire.PostedSize))
}
