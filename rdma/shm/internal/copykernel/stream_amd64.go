package copykernel

import "golang.org/x/sys/cpu"

var canStream = cpu.X86.HasAVX2

// streamCopy copies n bytes with non-temporal stores; n and dst are multiples of 64.
//
//go:noescape
func streamCopy(dst, src, n uintptr)

// streamAhead is streamCopy that has the processor fetch the first n bytes at next meanwhile. They need not be there.
//
//go:noescape
func streamAhead(dst, src, n, next uintptr)

// storeFence orders the streamed stores before everything that follows.
//
//go:noescape
func storeFence()
