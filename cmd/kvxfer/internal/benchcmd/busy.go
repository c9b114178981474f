package benchcmd

import (
	"io"
	"runtime"
	"sync/atomic"
)

// busyName is the hidden command that --busy starts: `kvxfer bench busy`.
const busyName = "busy"

// busyMost bounds --busy: more processes than any host has processors say nothing new.
const busyMost = 1024

// compute keeps a processor busy, in its registers alone and with the priority of everybody else, until stdin ends.
func compute(stdin io.Reader) int {
	var over atomic.Bool
	go func() {
		_, _ = io.Copy(io.Discard, stdin) // a pipe that breaks has ended too
		over.Store(true)
	}()
	x := uint64(1)
	for !over.Load() {
		for range 1 << 16 {
			x = x*step + 1
		}
	}
	runtime.KeepAlive(x) // else the loop is for nothing, and a compiler may see it
	return 0
}
