package softnic_test

import (
	"bytes"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma/verbs/internal/softnic"
	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
)

var _ nic.Host = (*softnic.Host)(nil)

func (e *end) event() nic.Event {
	ev, err := e.dev.NextEvent()
	require.NoError(e.t, err)
	return ev
}

// write is one WRITE of the first n bytes; it gives its status.
func (r *rig) write(n int) nic.Status {
	r.a.post(nic.Write, 77, 0, n, addr(r.b.mem), r.b.mr.RKey())
	c := r.a.wait()
	require.Equal(r.t, uint64(77), c.ID)
	return c.Status
}

func TestPortsAndEvents(t *testing.T) {
	r := newRig(t)
	r.connect(patient)
	b := r.hosts[1].Adapter("soft0")
	b.SetPortActive(1, false)
	b.SetPortActive(1, false)
	b.SetPortActive(1, true)
	b.ChangePort(1, func(p *nic.PortInfo) {
		p.GIDs = append(p.GIDs, nic.GIDInfo{Index: 3, GID: gid4(10, 0, 0, 9), Type: nic.RoCEv2})
	})
	assert.Equal(t, nic.Event{Kind: nic.PortDown, Port: 1}, r.b.event())
	assert.Equal(t, nic.Event{Kind: nic.PortUp, Port: 1}, r.b.event())
	assert.Equal(t, nic.Event{Kind: nic.PortChanged, Port: 1}, r.b.event())
	p, err := r.b.dev.Port(1)
	require.NoError(t, err)
	assert.Equal(t, "ACTIVE", p.State)
	assert.Equal(t, 4096, p.MTU)
	assert.Len(t, p.GIDs, 2)
	_, err = r.b.dev.Port(2)
	require.ErrorIs(t, err, fault.ErrInvalidArgument)
	list, err := r.hosts[1].Devices()
	require.NoError(t, err)
	require.Len(t, list, 1)
	assert.Equal(t, p, list[0].Ports[0])

	require.Equal(t, nic.Success, r.write(64))
	require.True(t, b.FailQP(r.b.qp.Num()))
	require.False(t, b.FailQP(r.b.qp.Num()))
	assert.Equal(t, nic.QPFatal, r.b.event().Kind)
}

// TestPortComesBack: what was sent while a port was down is sent again.
func TestPortComesBack(t *testing.T) {
	r := newRig(t)
	r.connect(func(_ *nic.Path, c *nic.Connection) { c.Timeout, c.Retries = 12, 7 })
	fill(r.a.mem, 1)
	b := r.hosts[1].Adapter("soft0")
	b.SetPortActive(1, false)
	r.a.post(nic.Write, 1, 0, size, addr(r.b.mem), r.b.mr.RKey())
	n, err := r.a.dev.Next(make([]nic.Completion, 1), 0, 50*tick)
	require.NoError(t, err)
	require.Zero(t, n)
	assert.Equal(t, make([]byte, size), r.b.mem)
	b.SetPortActive(1, true)
	r.a.expect(1, nic.Success)
	assert.True(t, bytes.Equal(r.a.mem, r.b.mem))
}

func TestRemovedDevice(t *testing.T) {
	r := newRig(t)
	r.connect()
	r.back.Hold()
	r.a.post(nic.Write, 1, 0, size, addr(r.b.mem), r.b.mr.RKey())
	r.hosts[0].Adapter("soft0").Remove()
	assert.Equal(t, nic.DeviceFatal, r.a.event().Kind)
	_, err := r.a.dev.Next(make([]nic.Completion, 4), 0, 0)
	require.ErrorIs(t, err, fault.ErrPeerLost)
	_, err = r.a.dev.Port(1)
	require.ErrorIs(t, err, fault.ErrPeerLost)
	_, err = r.a.qp.Post(nil, nil)
	require.ErrorIs(t, err, fault.ErrPeerLost)
	require.ErrorIs(t, r.a.qp.Reset(), fault.ErrPeerLost)
	require.ErrorIs(t, r.a.qp.Destroy(), fault.ErrPeerLost)
	require.ErrorIs(t, r.a.mr.Close(), fault.ErrPeerLost)
	list, err := r.hosts[0].Devices()
	require.NoError(t, err)
	assert.Empty(t, list)
	_, err = r.hosts[0].Open("soft0")
	require.ErrorIs(t, err, fault.ErrNotSupported)
	require.NoError(t, r.a.dev.Close())
}

// TestRefusedCalls: a test may have any call fail, which then did nothing.
func TestRefusedCalls(t *testing.T) {
	r := newRig(t)
	r.connect()
	no := errors.New("no")
	var calls []string
	r.hosts[1].Adapter("soft0").Refuse(func(call string) error {
		calls = append(calls, call)
		return no
	})
	require.ErrorIs(t, r.b.qp.Reset(), no)
	require.ErrorIs(t, r.b.qp.Fail(), no)
	require.ErrorIs(t, r.b.qp.Destroy(), no)
	require.ErrorIs(t, r.b.mr.Close(), no)
	require.ErrorIs(t, r.b.dev.Close(), no)
	_, err := r.b.dev.Register(ptr(r.b.mem), size, all)
	require.ErrorIs(t, err, no)
	assert.Equal(t, []string{"Reset", "Fail", "Destroy", "MR.Close", "Close", "Register"}, calls)
	require.Equal(t, nic.Success, r.write(64))
	r.hosts[1].Adapter("soft0").Refuse(nil)
	require.NoError(t, r.b.qp.Reset())
}

func TestLimits(t *testing.T) {
	r := newRig(t, func(d *softnic.Device) {
		d.MaxQP, d.MaxPinned, d.MaxMsg, d.MaxSGE, d.MaxCQE, d.MaxReadInit, d.Windows2B = 2, size+4096, 1<<16, 4, 1000, 4, false
	})
	r.connect()
	_, err := r.a.dev.Register(ptr(r.a.mem), 4097, 0)
	require.ErrorIs(t, err, fault.ErrResourceExhausted)
	assert.Contains(t, err.Error(), "RLIMIT_MEMLOCK")
	m, err := r.a.dev.Register(ptr(r.a.mem), 4096, 0)
	require.NoError(t, err)
	require.NoError(t, m.Close())
	_, err = r.a.dev.NewWindow()
	require.ErrorIs(t, err, fault.ErrNotSupported)
	assert.False(t, r.a.dev.Attr().Windows2B)
	_, err = r.a.dev.NewQP(nic.QPConfig{MaxSend: 8, MaxSGE: 5, MaxSignaled: 8})
	require.ErrorIs(t, err, fault.ErrInvalidArgument)
	_, err = r.a.dev.NewQP(nic.QPConfig{MaxSend: 800, MaxSGE: 1, MaxSignaled: 800})
	require.ErrorIs(t, err, fault.ErrResourceExhausted)
	q, err := r.a.dev.NewQP(nic.QPConfig{MaxSend: 8, MaxSGE: 1, MaxSignaled: 8})
	require.NoError(t, err)
	_, err = r.a.dev.NewQP(nic.QPConfig{MaxSend: 8, MaxSGE: 1, MaxSignaled: 8})
	require.ErrorIs(t, err, fault.ErrResourceExhausted)
	_, err = q.Post([]nic.WR{{Op: nic.Write}}, nil)
	require.ErrorIs(t, err, fault.ErrInternal, "RESET")
	c := conn(r.b, 1, 2)
	c.ReadInit = 5
	require.ErrorIs(t, q.Connect(path(r.b), c), fault.ErrInvalidArgument)
	p := path(r.b)
	p.GIDIndex = 2
	require.ErrorIs(t, q.Connect(p, conn(r.b, 1, 2)), fault.ErrInvalidArgument)
	r.hosts[0].Adapter("soft0").ChangePort(1, func(p *nic.PortInfo) { p.MTU = 1024 })
	require.ErrorIs(t, q.Connect(path(r.b), conn(r.b, 1, 2)), fault.ErrInvalidArgument)
	n, err := r.a.qp.Post([]nic.WR{{ID: 1, Op: nic.Send, Signaled: true}, {Op: nic.Write, Count: 1}}, []nic.SGE{{Len: 1<<16 + 1}})
	require.ErrorIs(t, err, fault.ErrInvalidArgument)
	require.Equal(t, 1, n, "the one before was taken")
}

// TestKeys: a number comes back at once, the key does not.
func TestKeys(t *testing.T) {
	r := newRig(t)
	last := uint32(0)
	for i := range 10 {
		m, err := r.a.dev.Register(ptr(r.a.mem), size, all)
		require.NoError(t, err)
		if i > 0 {
			assert.Equal(t, last>>8, m.RKey()>>8)
			assert.NotEqual(t, last, m.RKey())
		}
		last = m.RKey()
		require.NoError(t, m.Close())
	}
	w, first := r.boundWindow()
	require.ErrorIs(t, r.a.mr.Close(), fault.ErrInternal, "a window is bound to it")
	require.NoError(t, r.a.qp.Invalidate(2, first))
	r.a.expect(2, nic.Success)
	second, err := r.a.qp.Bind(3, w, r.a.mr, addr(r.a.mem), size, nic.RemoteRead)
	require.NoError(t, err)
	r.a.expect(3, nic.Success)
	assert.NotEqual(t, first, second)
	a := r.hosts[0].Adapter("soft0")
	assert.Equal(t, softnic.Objects{Devices: 1, QPs: 1, MRs: 1, Windows: 1}, a.Objects())
	require.NoError(t, w.Close())
	require.NoError(t, r.a.mr.Close())
	assert.Equal(t, softnic.Objects{Devices: 1, QPs: 1}, a.Objects())
	_, err = r.a.dev.NewWindow()
	require.NoError(t, err)
	require.NoError(t, r.a.dev.Close())
	assert.Zero(t, a.Objects())
}

func (r *rig) boundWindow() (nic.Window, uint32) {
	r.connect()
	return r.a.window(0, size, nic.RemoteRead)
}

// TestWhoReachesWhom: the subnet, the type of the GID and the link layer must agree.
func TestWhoReachesWhom(t *testing.T) {
	gid6 := func(net, host byte) [16]byte { return [16]byte{0: 0xfd, 7: net, 15: host} }
	eth := func(g [16]byte, k nic.GIDType) nic.PortInfo {
		return nic.PortInfo{Active: true, GIDs: []nic.GIDInfo{{Index: 1, GID: g, Type: k}}}
	}
	ib := func(lid uint16) nic.PortInfo { return nic.PortInfo{Active: true, LinkLayer: nic.InfiniBand, LID: lid} }
	for name, x := range map[string]struct {
		a, b nic.PortInfo
		ok   bool
	}{
		"v4, one subnet":    {eth(gid4(10, 7, 0, 1), nic.RoCEv2), eth(gid4(10, 7, 0, 2), nic.RoCEv2), true},
		"v4, two subnets":   {eth(gid4(10, 7, 0, 1), nic.RoCEv2), eth(gid4(10, 7, 1, 2), nic.RoCEv2), false},
		"v6, one subnet":    {eth(gid6(1, 1), nic.RoCEv2), eth(gid6(1, 2), nic.RoCEv2), true},
		"v6, two subnets":   {eth(gid6(1, 1), nic.RoCEv2), eth(gid6(2, 2), nic.RoCEv2), false},
		"v1 and v2":         {eth(gid4(10, 7, 0, 1), nic.RoCEv1), eth(gid4(10, 7, 0, 2), nic.RoCEv2), false},
		"InfiniBand by LID": {ib(3), ib(4), true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			for i, p := range []nic.PortInfo{x.a, x.b} {
				d, err := r.f.Host("more"+string(rune('0'+i)), softnic.Device{Name: "x", Ports: []nic.PortInfo{p}}).Open("x")
				require.NoError(t, err)
				e := []*end{r.a, r.b}[i]
				require.NoError(t, e.dev.Close())
				e.dev = d
				t.Cleanup(func() { assert.NoError(t, d.Close()) })
				e.mr, err = d.Register(ptr(e.mem), size, all)
				require.NoError(t, err)
				e.newQP()
				if len(p.GIDs) > 0 {
					e.gid = p.GIDs[0].GID
				}
			}
			other := uint16(4)
			r.connect(func(p *nic.Path, _ *nic.Connection) {
				if p.Global = x.a.LinkLayer != nic.InfiniBand; !p.Global {
					p.LID = other
					other = 3
				}
			})
			if x.ok {
				assert.Equal(t, nic.Success, r.write(9000))
			} else {
				assert.Equal(t, nic.RetriesExceeded, r.write(9000))
			}
		})
	}
}

// TestLoopback: a device reaches itself, also a queue pair its own.
func TestLoopback(t *testing.T) {
	r := newRig(t)
	fill(r.a.mem[:size/2], 1)
	require.NoError(t, r.a.qp.Connect(path(r.a), conn(r.a, 5, 5)))
	r.a.post(nic.Write, 1, 0, size/2, addr(r.a.mem)+size/2, r.a.mr.RKey())
	r.a.expect(1, nic.Success)
	assert.True(t, bytes.Equal(r.a.mem[:size/2], r.a.mem[size/2:]))
}

// TestNextWaits: completions, Wake and Close end a sleep; nothing does so for less than it.
func TestNextWaits(t *testing.T) {
	r := newRig(t)
	r.connect()
	dst := make([]nic.Completion, 4)
	start := time.Now()
	n, err := r.a.dev.Next(dst, 5*time.Millisecond, 5*time.Millisecond)
	require.NoError(t, err)
	require.Zero(t, n)
	assert.GreaterOrEqual(t, time.Since(start), 10*time.Millisecond)
	r.a.dev.Wake()
	n, err = r.a.dev.Next(dst, 0, bound)
	require.NoError(t, err)
	require.Zero(t, n)
	for _, spin := range []time.Duration{0, bound} {
		time.AfterFunc(tick, r.a.dev.Wake)
		n, err = r.a.dev.Next(dst, spin, bound)
		require.NoError(t, err)
		require.Zero(t, n)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		_, err := r.a.dev.Next(make([]nic.Completion, 4), 0, bound)
		assert.ErrorIs(t, err, fault.ErrClosed)
	})
	wg.Go(func() {
		_, err := r.a.dev.NextEvent()
		assert.ErrorIs(t, err, fault.ErrClosed)
	})
	require.NoError(t, r.a.dev.Close())
	wg.Wait()
	assert.Less(t, time.Since(start), bound)
}

// TestNothingAfterReset: completions that were not polled, and requests that were not over, are gone; the queue pair is as new.
func TestNothingAfterReset(t *testing.T) {
	r := newRig(t)
	r.connect()
	r.a.post(nic.Write, 1, 0, 64, addr(r.b.mem), r.b.mr.RKey())
	require.Eventually(t, func() bool { return r.back.Stats().Delivered > 0 }, bound, tick)
	r.there.Hold()
	for id := range uint64(200) {
		r.a.post(nic.Write, id, 0, 8192, addr(r.b.mem), r.b.mr.RKey())
	}
	r.b.recv(3, 0, 64)
	require.NoError(t, r.a.qp.Reset())
	require.NoError(t, r.b.qp.Reset())
	r.a.quiet()
	r.b.quiet()
	r.there.Cut()
	r.there.Restore()
	r.there.Release()
	r.connect()
	for id := range uint64(256) {
		r.a.post(nic.Write, id, 0, 8192, addr(r.b.mem), r.b.mr.RKey())
	}
	for id := range uint64(256) {
		r.a.expect(id, nic.Success)
	}
	require.NoError(t, r.a.qp.Destroy())
	_, err := r.a.qp.Post(nil, nil)
	require.ErrorIs(t, err, fault.ErrClosed)
}

// TestReopen: what is on the way outlives those who opened the devices, and moves on with the next who does.
func TestReopen(t *testing.T) {
	r := newRig(t)
	r.connect(patient)
	r.flood(r.b.mr.RKey(), 256)
	require.NoError(t, r.a.dev.Close())
	r.there.Release()
	r.settle(r.there)
	assert.True(t, bytes.Equal(r.a.mem, r.b.mem))
	require.NoError(t, r.b.dev.Close())
	d, err := r.hosts[0].Open("soft0")
	require.NoError(t, err)
	require.NoError(t, d.Close())
}

func TestRate(t *testing.T) {
	r := newRig(t)
	r.connect(patient)
	r.there.SetFaults(softnic.Faults{Rate: 50e6})
	start := time.Now()
	require.Equal(t, nic.Success, r.write(size))
	assert.GreaterOrEqual(t, time.Since(start), 20*time.Millisecond, "1 MiB at 50 MB/s")
}
