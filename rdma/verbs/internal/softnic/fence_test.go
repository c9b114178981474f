package softnic_test

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/rdma/verbs/internal/softnic"
	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
)

// flood posts a WRITE of everything and waits until n of its packets are held on the way.
func (r *rig) flood(rkey uint32, n int) {
	fill(r.a.mem, 3)
	r.there.Hold()
	r.a.post(nic.Write, 1, 0, size, addr(r.b.mem), rkey)
	held(r.t, r.there, n)
}

// settle waits until the wire there has delivered everything that it was given. What is sent meanwhile counts too.
func (r *rig) settle(w *softnic.Wire) {
	require.Eventually(r.t, func() bool {
		s := w.Stats()
		return s.Held == 0 && s.Delivered+s.Lost == s.Sent+s.Doubled
	}, bound, tick)
}

// TestFencesStopPackets holds packets of a WRITE, does one thing at one side, recycles the memory and lets the packets go.
func TestFencesStopPackets(t *testing.T) {
	for _, x := range []struct {
		name  string
		fence func(r *rig)
		clean bool
	}{
		{"nothing", func(*rig) {}, false},
		{"initiator fails", func(r *rig) {
			require.NoError(t, r.a.qp.Fail())
			r.a.expect(1, nic.Flushed)
		}, false},
		{"initiator resets", func(r *rig) { require.NoError(t, r.a.qp.Reset()) }, false},
		{"initiator destroys", func(r *rig) { require.NoError(t, r.a.qp.Destroy()) }, false},
		{"initiator deregisters", func(r *rig) { require.NoError(t, r.a.mr.Close()) }, false},
		{"initiator closes its device", func(r *rig) { require.NoError(t, r.a.dev.Close()) }, false},
		{"target fails", func(r *rig) { require.NoError(t, r.b.qp.Fail()) }, true},
		{"target resets", func(r *rig) { require.NoError(t, r.b.qp.Reset()) }, true},
		{"target destroys", func(r *rig) { require.NoError(t, r.b.qp.Destroy()) }, true},
		{"target deregisters", func(r *rig) { require.NoError(t, r.b.mr.Close()) }, true},
		{"target closes its device", func(r *rig) { require.NoError(t, r.b.dev.Close()) }, true},
		{"target's device is removed", func(r *rig) { r.hosts[1].Adapter("soft0").Remove() }, true},
	} {
		t.Run(x.name, func(t *testing.T) {
			r := newRig(t)
			r.connect(patient)
			r.flood(r.b.mr.RKey(), 256)
			x.fence(r)
			fill(r.b.mem, 4)
			want := bytes.Clone(r.b.mem)
			r.there.Release()
			r.settle(r.there)
			assert.Equal(t, x.clean, bytes.Equal(want, r.b.mem), "late bytes")
		})
	}
}

// TestInvalidationStopsPackets does the same with a window's key.
func TestInvalidationStopsPackets(t *testing.T) {
	for _, fence := range []bool{false, true} {
		r := newRig(t)
		r.connect(patient)
		w, err := r.b.dev.NewWindow()
		require.NoError(t, err)
		key, err := r.b.qp.Bind(10, w, r.b.mr, addr(r.b.mem), size, nic.RemoteWrite)
		require.NoError(t, err)
		r.b.expect(10, nic.Success)
		r.flood(key, 256)
		if fence {
			require.NoError(t, r.b.qp.Invalidate(11, key))
			r.b.expect(11, nic.Success)
		}
		fill(r.b.mem, 4)
		want := bytes.Clone(r.b.mem)
		r.there.Release()
		if fence {
			r.a.expect(1, nic.RemoteAccess)
		} else {
			r.a.expect(1, nic.Success)
		}
		assert.Equal(t, fence, bytes.Equal(want, r.b.mem))
	}
}

// TestFenceInMidMessage ends a key between two packets of one WRITE: what came before is there, the rest never.
func TestFenceInMidMessage(t *testing.T) {
	r := newRig(t)
	r.connect(patient)
	fill(r.a.mem, 3)
	r.there.SetFaults(softnic.Faults{Delay: tick, Jitter: 20 * tick})
	r.a.post(nic.Write, 1, 0, size, addr(r.b.mem), r.b.mr.RKey())
	require.Eventually(t, func() bool { return r.there.Stats().Delivered > 0 }, bound, tick)
	require.NoError(t, r.b.mr.Close())
	got := bytes.Clone(r.b.mem)
	if r.there.Stats().Delivered < 256 {
		r.a.expect(1, nic.RemoteAccess)
	}
	r.settle(r.there)
	assert.Equal(t, got, r.b.mem)
}

// TestReadFences: what stops a READ's answers is the reader's own queue pair, and what they carry is the memory at their sending.
func TestReadFences(t *testing.T) {
	for _, x := range []struct {
		name  string
		fence func(r *rig)
		clean bool
	}{
		{"nothing", func(*rig) {}, false},
		{"source deregisters", func(r *rig) { require.NoError(t, r.b.mr.Close()) }, false},
		{"source resets", func(r *rig) { require.NoError(t, r.b.qp.Reset()) }, false},
		{"reader fails", func(r *rig) { require.NoError(t, r.a.qp.Fail()) }, true},
		{"reader resets", func(r *rig) { require.NoError(t, r.a.qp.Reset()) }, true},
		{"reader deregisters", func(r *rig) { require.NoError(t, r.a.mr.Close()) }, true},
	} {
		t.Run(x.name, func(t *testing.T) {
			r := newRig(t)
			r.connect(patient)
			fill(r.b.mem, 5)
			old := bytes.Clone(r.b.mem)
			r.back.Hold()
			r.a.post(nic.Read, 1, 0, size, addr(r.b.mem), r.b.mr.RKey())
			held(t, r.back, 256)
			fill(r.b.mem, 6)
			fill(r.a.mem, 7)
			want := bytes.Clone(r.a.mem)
			x.fence(r)
			r.back.Release()
			r.settle(r.back)
			if x.clean {
				assert.Equal(t, want, r.a.mem)
			} else {
				assert.Equal(t, old, r.a.mem)
			}
		})
	}
}

// TestReconnectWithOldPackets is why the first sequence numbers are random: packets of an earlier connection between the same
// queue pairs are told from the new one's by nothing else.
func TestReconnectWithOldPackets(t *testing.T) {
	for _, x := range []struct {
		name          string
		before, after uint32
		corrupts      bool
	}{
		{"zero both times", 0, 0, true},
		{"the same number", 0xabcdef, 0xabcdef, true},
		{"a number inside the old range", 0x7ffff0, 0x7ffff0 + 3*16, true},
		{"later numbers", 0x100000, 0x345678, false},
		{"earlier numbers", 0x345678, 0x100000, false},
		{"just behind the old range", 0xffff80, (0xffff80 + 256) & 0xffffff, false},
	} {
		t.Run(x.name, func(t *testing.T) {
			r := newRig(t)
			r.connectPSN(x.before, 0x111111, patient)
			fill(r.a.mem, 3)
			r.there.Hold()
			for i := range 16 {
				r.a.post(nic.Write, 1, i*size/16, size/16, addr(r.b.mem)+uint64(i*size/16), r.b.mr.RKey())
			}
			held(t, r.there, 256)
			require.NoError(t, r.a.qp.Reset())
			require.NoError(t, r.b.qp.Reset())
			fill(r.b.mem, 4)
			want := bytes.Clone(r.b.mem)
			r.connectPSN(x.after, 0x222222, patient)
			r.there.Release()
			r.settle(r.there)
			corrupt := !bytes.Equal(want, r.b.mem)
			assert.Equal(t, x.corrupts, corrupt)
			if !corrupt {
				r.a.post(nic.Write, 2, 0, size, addr(r.b.mem), r.b.mr.RKey())
				r.a.expect(2, nic.Success)
				assert.Equal(t, r.a.mem, r.b.mem)
			}
		})
	}
}

// TestNoLateByte is the table above by chance: both sides write, over wires that do everything to packets, and in the middle
// one side ends a key or the connection, by whatever ends it, and recycles its memory.
func TestNoLateByte(t *testing.T) {
	for name, lazy := range map[string]time.Duration{"plain": 0, "lazy": 5 * time.Millisecond} {
		t.Run(name, func(t *testing.T) { noLateByte(t, lazy) })
	}
}

func noLateByte(t *testing.T, lazy time.Duration) {
	r := newRig(t, func(d *softnic.Device) { d.LazyWrites = lazy })
	g := rand.New(rand.NewPCG(r.seed, 3))
	faults := softnic.Faults{Delay: time.Millisecond, Jitter: time.Millisecond, Loss: 0.01, Double: 0.1, Reorder: 0.1, ReorderBy: 5 * time.Millisecond}
	r.there.SetFaults(faults)
	r.back.SetFaults(faults)
	// Random numbers meet those of packets that are still on the way once in 2^24 tries; here they must not.
	psn := g.Uint32N(1 << 24)
	connect := func() {
		psn = (psn + 1<<20 + g.Uint32N(1<<22)) % (1 << 24)
		r.connectPSN(psn, psn^0x555555, func(_ *nic.Path, c *nic.Connection) { c.Timeout = 12 })
	}
	for range 15 {
		fill(r.a.mem, g.Uint64())
		connect()
		var w nic.Window
		key, what := r.b.mr.RKey(), g.IntN(5)
		if what == 4 {
			w, key = r.b.window(0, size, nic.RemoteWrite)
		}
		from := r.there.Stats().Delivered
		for id := range uint64(16) {
			r.a.post(nic.Write, id, int(id)*size/16, size/16, addr(r.b.mem)+id*size/16, key)
		}
		n := g.Uint64N(256)
		require.Eventually(t, func() bool { return r.there.Stats().Delivered >= from+n }, bound, tick/10)
		switch what {
		case 0:
			require.NoError(t, r.b.qp.Reset())
		case 1:
			require.NoError(t, r.b.qp.Fail())
		case 2:
			require.NoError(t, r.b.qp.Destroy())
			r.b.newQP()
		case 3:
			require.NoError(t, r.b.mr.Close())
		case 4:
			require.NoError(t, r.b.qp.Invalidate(5, key))
			r.b.expect(5, nic.Success)
			require.NoError(t, w.Close())
		}
		fill(r.b.mem, g.Uint64())
		want := bytes.Clone(r.b.mem)
		if what == 3 {
			m, err := r.b.dev.Register(ptr(r.b.mem), size, all)
			require.NoError(t, err)
			r.b.mr = m
		}
		// The next connection is made with the packets of this one still on the way, also between the same two numbers.
		require.NoError(t, r.a.qp.Reset())
		require.NoError(t, r.b.qp.Reset())
		r.a.next, r.b.next = nil, nil
		connect()
		r.settle(r.there)
		require.True(t, bytes.Equal(want, r.b.mem), "late bytes after %d", what)
		require.NoError(t, r.a.qp.Reset())
		require.NoError(t, r.b.qp.Reset())
	}
}
