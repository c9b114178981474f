package ring

import (
	"os/exec"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/kvxfer/kvxfer/internal/wire"
)

// BenchmarkRoundTrip is a post and its end, both sides awake; busy: while as many other processes as there are processors compute.
func BenchmarkRoundTrip(b *testing.B) {
	for _, busy := range []bool{false, true} {
		b.Run(map[bool]string{false: "idle", true: "busy"}[busy], func(b *testing.B) {
			c, d := pair(b, 256)
			var stop atomic.Bool
			ended := make(chan error)
			go func() { ended <- serve(d, stop.Load) }()
			for range runtime.NumCPU() {
				if !busy {
					break
				}
				hog := exec.Command("sh", "-c", "while :; do :; done")
				if err := hog.Start(); err != nil {
					b.Fatal(err)
				}
				defer func() { _, _ = hog.Process.Kill(), hog.Wait() }()
			}
			var s Spin
			b.ReportAllocs()
			for b.Loop() {
				c.Submit(wire.Post{Cookie: 1})
				next(b, c, &s)
			}
			stop.Store(true)
			d.Ring()
			if err := <-ended; err != nil {
				b.Fatal(err)
			}
		})
	}
}

// BenchmarkSubmit is a post without its end, the daemon awake and far behind or not.
func BenchmarkSubmit(b *testing.B) {
	c, d := pair(b, wire.MaxRingEntries)
	posts := make([]wire.Post, wire.MaxRingEntries)
	ends := make([]wire.Posted, wire.MaxRingEntries)
	b.ReportAllocs()
	for b.Loop() {
		if !c.Submit(wire.Post{Cookie: 1}) {
			b.StopTimer()
			n, err := d.Take(posts)
			if err != nil {
				b.Fatal(err)
			}
			d.Complete(ends[:n]...)
			for ok := true; ok; _, ok = c.Next() {
			}
			b.StartTimer()
		}
	}
}

func BenchmarkTakeNothing(b *testing.B) {
	_, d := pair(b, 16)
	var posts [16]wire.Post
	b.ReportAllocs()
	for b.Loop() {
		if n, err := d.Take(posts[:]); n != 0 || err != nil {
			b.Fatal(n, err)
		}
	}
}
