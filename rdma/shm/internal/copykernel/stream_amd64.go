package copykernel

import "golang.org/x/sys/cpu"

var canStream = cpu.X86.HasAVX2

// streamCopy copies n bytes, at least 128, with non-temporal stores where they fill whole aligned pieces of 64 bytes.
//
//go:noescape
func streamCopy(dst, src, n uintptr)

// storeFence orders the streamed stores before everything that follows.
//
//go:noescape
func storeFence()
