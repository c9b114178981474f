package tcp

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

func over(done chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// Somebody is inside the gate, as a lane in its system call: the fence returns only after it left, and lets nobody
// else in meanwhile.
func TestFenceWaitsForWhoeverIsInside(t *testing.T) {
	p := newPair(t, 4096, Options{}, Options{})
	k := p.grant(t, rdma.AccessWrite, 0)
	w := p.tgt.(*target).window(k)
	require.Zero(t, w.enter())
	first, second := make(chan struct{}), make(chan struct{})
	for _, done := range []chan struct{}{first, second} {
		go func() {
			defer close(done)
			_ = p.tgt.Fence(k)
		}()
	}
	eventually(t, "a fence waits or is over", func() bool {
		return w.Shutting() || over(first) || over(second)
	})
	require.False(t, over(first) || over(second), "the fence did not wait")
	w.leave()
	<-first
	<-second
	require.Equal(t, fault.StaleKey, w.enter())
}

// The same for local memory: a completion comes only after whoever reads it left.
func TestCancelWaitsForWhoeverIsInside(t *testing.T) {
	p, x := newProxied(t, 4096, Options{}, Options{})
	k := p.grant(t, rdma.AccessWrite, 0)
	x.valve.set(0)
	p.post(t, write(k, 1, p.srcR, rdma.Range{Len: 4096}))
	i := p.ini.(*initiator)
	i.mu.Lock()
	o := i.byID[1]
	i.mu.Unlock()
	require.Zero(t, o.enter())
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.ini.Cancel(1)
	}()
	eventually(t, "the cancel waits or is over", func() bool {
		if i.mu.TryLock() {
			i.mu.Unlock()
			return over(done)
		}
		return true
	})
	require.Empty(t, p.a.drain(), "the completion did not wait")
	o.leave()
	<-done
	require.Equal(t, fault.Cancelled, p.a.next(t, rdma.EventCompletion).Status)
}
