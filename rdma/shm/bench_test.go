package shm

import (
	"fmt"
	"testing"

	"github.com/kvxfer/kvxfer/rdma"
)

// BenchmarkMove keeps operations of 1 MiB in flight, cut into blocks that lie scattered on both sides. An iteration is a
// block. What is moved is far more than a cache holds.
func BenchmarkMove(b *testing.B) {
	const size, opLen = 256 << 20, 1 << 20
	for _, kind := range []rdma.OpKind{rdma.OpWrite, rdma.OpRead} {
		for _, block := range []int{4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20} {
			b.Run(fmt.Sprintf("%s/%dKiB", map[rdma.OpKind]string{rdma.OpWrite: "WRITE", rdma.OpRead: "READ"}[kind], block>>10), func(b *testing.B) {
				p := newPair(b, size, Options{}, Options{})
				op := rdma.Op{Kind: kind, Local: p.srcR, Remote: p.grant(b, rdma.Access(kind), 0)}
				per, blocks := opLen/block, size/block
				op.Ranges = []rdma.Range{{Len: size}} // first, so that both daemons' page tables are there
				p.do(b, op)
				op.Ranges = make([]rdma.Range, per)
				var events [64]rdma.Event
				b.ReportAllocs()
				b.SetBytes(int64(block))
				b.ResetTimer()
				posted, ended := 0, 0
				for ended < b.N {
					for posted < b.N {
						for i := range op.Ranges {
							n := posted + i
							op.Ranges[i] = rdma.Range{Local: uint64(n % blocks * block), Remote: uint64((n*7 + n/blocks) % blocks * block), Len: uint64(block)}
						}
						op.ID++
						k, err := p.ini.Post([]rdma.Op{op})
						if err != nil {
							b.Fatal(err)
						}
						if k == 0 {
							break
						}
						posted += per
					}
					if err := p.a.Wait(b.Context()); err != nil {
						b.Fatal(err)
					}
					for _, e := range events[:p.a.Poll(events[:])] {
						if e.Status != 0 {
							b.Fatal(e.Status)
						}
						ended += per
					}
					for p.b.Poll(events[:]) > 0 {
					}
				}
			})
		}
	}
}

// BenchmarkLatency is one small operation after the other, from Post to its completion.
func BenchmarkLatency(b *testing.B) {
	for _, kind := range []rdma.OpKind{rdma.OpWrite, rdma.OpRead} {
		b.Run(map[rdma.OpKind]string{rdma.OpWrite: "WRITE", rdma.OpRead: "READ"}[kind], func(b *testing.B) {
			p := newPair(b, 1<<20, Options{}, Options{})
			ops := []rdma.Op{{Kind: kind, Local: p.srcR, Remote: p.grant(b, rdma.Access(kind), 0), Ranges: []rdma.Range{{Len: 4096}}}}
			var events [64]rdma.Event
			b.ReportAllocs()
			for b.Loop() {
				ops[0].ID++
				if n, err := p.ini.Post(ops); n != 1 || err != nil {
					b.Fatal(n, err)
				}
				for p.a.Poll(events[:]) == 0 {
					if err := p.a.Wait(b.Context()); err != nil {
						b.Fatal(err)
					}
				}
				for p.b.Poll(events[:]) > 0 {
				}
			}
		})
	}
}
