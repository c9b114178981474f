package tcp

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/rdma"
)

type shape struct{ n, size int }

var shapes = []shape{{1, 4 << 10}, {64, 4 << 10}, {1024, 4 << 10}, {1024, 16 << 10}, {64, 1 << 20}}

func (s shape) String() string { return fmt.Sprintf("%dx%dKiB", s.n, s.size>>10) }

func report(b *testing.B, s shape) {
	ns := float64(b.Elapsed().Nanoseconds())
	b.ReportMetric(float64(b.N)*float64(s.n*s.size)/ns, "GB/s")
	b.ReportMetric(ns/float64(b.N)/float64(s.n), "ns/block")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkOps moves scatter lists, keeping up to 8 of them in flight.
func BenchmarkOps(b *testing.B) { benchOps(b, 8, newPair) }

// BenchmarkOpsOverTLS moves them over lanes that carry TLS.
func BenchmarkOpsOverTLS(b *testing.B) { benchOps(b, 8, newSecurePair) }

// BenchmarkLatency moves them one after another.
func BenchmarkLatency(b *testing.B) { benchOps(b, 1, newPair) }

func benchOps(b *testing.B, depth int, newPair makePair) {
	for _, kind := range []rdma.OpKind{rdma.OpWrite, rdma.OpRead} {
		for _, s := range shapes {
			b.Run(fmt.Sprintf("%s/%s", map[rdma.OpKind]string{rdma.OpWrite: "write", rdma.OpRead: "read"}[kind], s), func(b *testing.B) {
				const mem = 64 << 20
				p := newPair(b, mem, benchOptions(), benchOptions())
				pattern(p.src, 1)
				pattern(p.dst, 2)
				key := p.grant(b, rdma.Access(kind), 0)
				ranges := make([]rdma.Range, s.n)
				for i := range ranges {
					slots := mem / s.size
					ranges[i] = rdma.Range{Local: uint64(i * s.size), Remote: uint64((i * 7 % slots) * s.size), Len: uint64(s.size)}
				}
				ctx := context.Background()
				var evs [64]rdma.Event
				op := []rdma.Op{{Kind: kind, Local: p.srcR, Remote: key, Ranges: ranges}}
				stop, drained := context.WithCancel(ctx)
				var wg sync.WaitGroup
				wg.Go(func() {
					var evs [64]rdma.Event
					for p.b.Wait(stop) == nil {
						p.b.Poll(evs[:])
					}
				})
				b.ReportAllocs()
				b.ResetTimer()
				posted, done := 0, 0
				for done < b.N {
					for posted < b.N && posted-done < depth {
						op[0].ID = uint64(posted)
						n, err := p.ini.Post(op)
						require.NoError(b, err)
						if n == 0 {
							break
						}
						posted += n
					}
					_ = p.a.Wait(ctx)
					for _, e := range evs[:p.a.Poll(evs[:])] {
						if e.Status != 0 {
							b.Fatal(e)
						}
						done++
					}
				}
				b.StopTimer()
				report(b, s)
				drained()
				wg.Wait()
			})
		}
	}
}

// BenchmarkRaw is what the machine gives: 4 connections, contiguous, plain Write and Read of mapped memory.
func BenchmarkRaw(b *testing.B) {
	s := shape{64, 1 << 20}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(b, err)
	defer ln.Close()
	b.ResetTimer()
	var wg sync.WaitGroup
	for range 4 {
		out, err := net.Dial("tcp", ln.Addr().String())
		require.NoError(b, err)
		in, err := ln.Accept()
		require.NoError(b, err)
		src, dst := mapped(b, 16<<20), mapped(b, 16<<20)
		pattern(src, 1)
		pattern(dst, 2)
		wg.Add(2)
		b.ResetTimer()
		go func() {
			defer wg.Done()
			defer out.Close()
			for range b.N {
				for off := 0; off < len(src); off += 1 << 20 {
					_, _ = out.Write(src[off : off+1<<20])
				}
			}
		}()
		go func() {
			defer wg.Done()
			defer in.Close()
			for left, off := b.N*len(dst), 0; left > 0; {
				n, err := in.Read(dst[off:min(len(dst), off+1<<20)])
				if err != nil {
					return
				}
				left -= n
				off = (off + n) % len(dst)
			}
		}()
	}
	wg.Wait()
	report(b, s)
}

// benchOptions takes lanes and buffers from the environment, to compare settings with one binary.
func benchOptions() Options {
	o := Options{MaxInFlightLen: 1 << 30}
	o.Lanes, _ = strconv.Atoi(os.Getenv("KVXFER_BENCH_LANES"))
	o.SocketBuffer, _ = strconv.Atoi(os.Getenv("KVXFER_BENCH_BUFFER"))
	return o
}
