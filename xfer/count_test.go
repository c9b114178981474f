package xfer

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

// TestCountingAnOperationAllocatesNothing: what is counted for every operation is an atomic addition.
func TestCountingAnOperationAllocatesNothing(t *testing.T) {
	f, p := newFabricMetrics("tcp"), &transfer{write: true}
	ev := &rdma.Event{Kind: rdma.EventCompletion, Bytes: 1 << 20}
	assert.Zero(t, testing.AllocsPerRun(1000, func() { f.completed(p, ev); f.arrived(ev) }))
	assert.EqualValues(t, 1001<<20, f.sent.Load())
	assert.EqualValues(t, 1001<<20, f.received.Load())
	ev.Status = fault.PeerLost
	f.completed(p, ev)
	assert.EqualValues(t, 1001<<20, f.sent.Load(), "bytes of a failed operation are placed or not")
}

func TestCodesThatNobodyKnowsAreCounted(t *testing.T) {
	var c codeCells
	for _, code := range []fault.Code{fault.Internal, 10, 127, 128, 65535} {
		c.add(code)
	}
	assert.EqualValues(t, 5, c[fault.Internal].Load())
}

// BenchmarkCountOperation is what metrics cost an operation (of up to 256 ranges or 1 MiB) on both its sides.
func BenchmarkCountOperation(b *testing.B) {
	f, p := newFabricMetrics("tcp"), &transfer{write: true}
	ev := &rdma.Event{Kind: rdma.EventCompletion, Bytes: 1 << 20}
	b.ReportAllocs()
	for b.Loop() {
		f.completed(p, ev)
		f.arrived(ev)
	}
}
