package verbs

import (
	"bytes"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
)

var errStuck = errors.New("the device does not obey")

func refuse(calls ...string) func(string) error {
	return func(call string) error {
		if slices.Contains(calls, call) {
			return errStuck
		}
		return nil
	}
}

// deafQP takes invalidations and never does them.
type deafQP struct{ nic.QP }

func (deafQP) Invalidate(uint64, uint32) error { return nil }

// Each rung of the ladder is climbed when the one below does not hold, and on each the fence keeps its promise: what was under way
// when it returned nil never lands, although it arrives. Where the last rung does not hold either, Fence says so, every time.
func TestFenceLadder(t *testing.T) {
	for _, c := range []struct {
		name    string
		opt     Options
		refused []string
		deaf    bool
		lanes   bool // the lanes survive
		device  bool // the device survives
		fails   bool
	}{
		{name: "invalidate", lanes: true, device: true},
		{name: "invalidation never completes", deaf: true, device: true},
		{name: "invalidation refused", refused: []string{"Invalidate"}, device: true},
		{name: "reset refused", refused: []string{"Invalidate", "Reset"}, device: true},
		{name: "destroy refused", refused: []string{"Invalidate", "Reset", "Destroy"}},
		{name: "close refused", refused: []string{"Invalidate", "Reset", "Destroy", "MR.Close", "Close"}, fails: true},
		{name: "without windows", opt: Options{NoWindows: true}, device: true},
		{name: "without windows, reset refused", opt: Options{NoWindows: true}, refused: []string{"Reset"}, device: true},
		{name: "without windows, destroy refused", opt: Options{NoWindows: true}, refused: []string{"Reset", "Destroy"}},
		{name: "without windows, close refused", opt: Options{NoWindows: true}, refused: []string{"Reset", "Destroy", "MR.Close", "Close"}, fails: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			const size = 256 << 10
			c.opt.Timeout, c.opt.Drain, c.opt.LostAfter = 18, 5*time.Millisecond, 100*time.Millisecond
			p := newPair(t, size, 1, c.opt)
			key := p.grant(t, rdma.AccessWrite, 0, size)
			whole := rdma.Range{Len: size}
			p.post(t, p.write(key, 1, whole))
			require.Zero(t, p.next(t, p.a, rdma.EventCompletion).Status)
			p.next(t, p.b, rdma.EventArrival)

			pattern(p.src, 1)
			p.there(0).Hold()
			p.post(t, p.write(key, 2, whole))
			held(t, p.there(0), size/4096)
			hard := p.hb.Adapter("soft0")
			hard.Refuse(refuse(c.refused...))
			if c.deaf {
				p.tgt.mu.Lock()
				for _, l := range p.tgt.lanes {
					l.qp = deafQP{l.qp}
				}
				p.tgt.mu.Unlock()
			}
			err := p.tgt.Fence(key)
			if c.fails {
				requireCode(t, fault.Internal, err)
				require.ErrorIs(t, err, errStuck)
				require.Error(t, p.tgt.Fence(key), "what could not be fenced stays so")
				require.Error(t, p.tgt.Close())
				require.Error(t, p.tgt.Fence(key))
				require.Error(t, p.tgt.Close())
				require.Error(t, p.dstR.Close(), "the memory is still registered")
				require.Error(t, p.b.Close())
				p.there(0).Release()
				hard.Refuse(nil)
				require.NoError(t, p.b.devices[0].dev.Close())
				p.b.devices[0].wg.Wait()
				return
			}
			require.NoError(t, err)
			pattern(p.dst, 2)
			want := bytes.Clone(p.dst)
			gens := p.gens()
			deliver(t, p.there(0))
			e := p.next(t, p.a, rdma.EventCompletion)
			require.EqualValues(t, 2, e.Op)
			require.NotZero(t, e.Status)
			require.True(t, e.Wrote)
			if c.device {
				require.Equal(t, fault.StaleKey, e.Status)
				if c.lanes {
					require.Equal(t, []uint32{1, 1}, gens)
				}
				hard.Refuse(nil)
				// The session goes on.
				next := p.grant(t, rdma.AccessRead, 0, size)
				p.post(t, p.read(next, 3, whole))
				require.Zero(t, p.next(t, p.a, rdma.EventCompletion).Status)
				require.Equal(t, want, bytes.Clone(p.src))
			} else {
				p.next(t, p.a, rdma.EventDown) // the only device is closed
				hard.Refuse(nil)
			}
			require.Equal(t, want, bytes.Clone(p.dst), "a packet landed after the fence")
			require.NoError(t, p.ini.Close())
			require.NoError(t, p.tgt.Close())
			require.NoError(t, p.b.Close())
		})
	}
}
