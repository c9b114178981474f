package node

import (
	"bytes"
	"context"
	"encoding/binary"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

// batch is the most operations that one Post hands over.
const batch = 16

// Stream makes count operations of size bytes each, with at most depth of them in flight, and says how long they took from the
// first Post to the last completion. Their places go round in the memory, of which size is at most the whole. What arrived is compared.
func (p *Pair) Stream(ctx context.Context, kind rdma.OpKind, size uint64, count, depth int) (time.Duration, error) {
	from, to := p.near.bytes(), p.far.bytes()
	if kind == rdma.OpRead {
		from, to = to, from
	}
	used := min(p.bytes/size, uint64(count)) * size
	for at := uint64(0); at < used; at += size {
		stamp(from[at:at+size], p.ops+at)
	}
	took, err := p.stream(ctx, kind, size, count, depth, nil)
	if err == nil && !bytes.Equal(from[:used], to[:used]) {
		err = errOtherBytes
	}
	return took, err
}

// Latency makes count operations one after the other and says how long each took from Post to its completion.
func (p *Pair) Latency(ctx context.Context, kind rdma.OpKind, size uint64, count int) ([]time.Duration, error) {
	each := make([]time.Duration, 0, count)
	_, err := p.stream(ctx, kind, size, count, 1, func(d time.Duration) { each = append(each, d) })
	return each, err
}

// stamp makes both ends of a place what they have not been before.
func stamp(place []byte, n uint64) {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], n*0x9e3779b97f4a7c15+1)
	copy(place, b[:])
	copy(place[max(0, len(place)-8):], b[:])
}

// stream is Stream without the bytes. With a depth of 1 done gets the time of each operation.
func (p *Pair) stream(ctx context.Context, kind rdma.OpKind, size uint64, count, depth int, done func(time.Duration)) (time.Duration, error) {
	access := rdma.AccessWrite
	if kind == rdma.OpRead {
		access = rdma.AccessRead
	}
	key, err := p.target.Grant(rdma.Window{Region: p.far.reg, Access: access, Bounds: rdma.Spans{{Len: p.bytes}}})
	if err != nil {
		return 0, err
	}
	var ops [batch]rdma.Op
	var ranges [batch][1]rdma.Range
	places, first := p.bytes/size, p.ops+1
	posted, completed := 0, 0
	begun := time.Now()
	last := begun
	for completed < count {
		for posted < count && posted-completed < depth {
			n := min(count-posted, depth-(posted-completed), batch)
			for i := range n {
				at := uint64(posted+i) % places * size
				ranges[i][0] = rdma.Range{Local: at, Remote: at, Len: size}
				ops[i] = rdma.Op{Kind: kind, ID: first + uint64(posted+i), Local: p.near.reg, Remote: key, Ranges: ranges[i][:], Tag: uint64(posted + i)}
			}
			taken, err := p.initiator.Post(ops[:n])
			if err != nil {
				return 0, fault.From("check", err)
			}
			posted += taken
			p.ops += uint64(taken)
			if taken < n {
				break
			}
		}
		n := p.near.Poll(p.events[:])
		if n == 0 {
			if err := p.near.Wait(ctx); err != nil {
				return 0, fault.From("check", err)
			}
			continue
		}
		for i := range p.events[:n] {
			switch ev := &p.events[i]; {
			case ev.Kind == rdma.EventDown:
				return 0, fault.New(ev.Status, "check", "the session ended")
			case ev.Kind != rdma.EventCompletion || ev.Op < first:
			case ev.Status != 0:
				return 0, fault.New(ev.Status, "check", "an operation failed")
			default:
				completed++
				if done != nil {
					now := time.Now()
					done(now.Sub(last))
					last = now
				}
			}
		}
	}
	took := time.Since(begun)
	return took, p.target.Fence(key)
}
