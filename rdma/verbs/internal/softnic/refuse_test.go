package softnic_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
)

// window binds a window of the target on its queue pair.
func (e *end) window(off, n uint64, access nic.Access) (nic.Window, uint32) {
	w, err := e.dev.NewWindow()
	require.NoError(e.t, err)
	key, err := e.qp.Bind(99, w, e.mr, addr(e.mem)+off, n, access)
	require.NoError(e.t, err)
	e.expect(99, nic.Success)
	require.Equal(e.t, key, w.RKey())
	return w, key
}

// TestRefusals: a request that names the wrong key, range or right writes nothing, fails with RemoteAccess, and ends both queue pairs.
func TestRefusals(t *testing.T) {
	for _, x := range []struct {
		name string
		post func(r *rig)
	}{
		{"unknown key", func(r *rig) { r.a.post(nic.Write, 1, 0, 8192, addr(r.b.mem), r.b.mr.RKey()+1) }},
		{"stale key", func(r *rig) {
			m, err := r.b.dev.Register(ptr(r.b.mem), size, all)
			require.NoError(r.t, err)
			require.NoError(r.t, m.Close())
			r.a.post(nic.Write, 1, 0, 8192, addr(r.b.mem), m.RKey())
		}},
		{"one byte too far", func(r *rig) { r.a.post(nic.Write, 1, 0, 8192, addr(r.b.mem)+size-8191, r.b.mr.RKey()) }},
		{"one byte too early", func(r *rig) { r.a.post(nic.Write, 1, 0, 8192, addr(r.b.mem)-1, r.b.mr.RKey()) }},
		{"READ one byte too far", func(r *rig) { r.a.post(nic.Read, 1, 0, 8192, addr(r.b.mem)+size-8191, r.b.mr.RKey()) }},
		{"registration without the right", func(r *rig) {
			m, err := r.b.dev.Register(ptr(r.b.mem), size, nic.LocalWrite|nic.RemoteRead)
			require.NoError(r.t, err)
			r.a.post(nic.Write, 1, 0, 8192, addr(r.b.mem), m.RKey())
		}},
		{"READ without the right", func(r *rig) {
			m, err := r.b.dev.Register(ptr(r.b.mem), size, nic.LocalWrite|nic.RemoteWrite)
			require.NoError(r.t, err)
			r.a.post(nic.Read, 1, 0, 8192, addr(r.b.mem), m.RKey())
		}},
		{"another protection domain", func(r *rig) {
			d, err := r.hosts[1].Open("soft0")
			require.NoError(r.t, err)
			r.t.Cleanup(func() { assert.NoError(r.t, d.Close()) })
			m, err := d.Register(ptr(r.b.mem), size, all)
			require.NoError(r.t, err)
			r.a.post(nic.Write, 1, 0, 8192, addr(r.b.mem), m.RKey())
		}},
		{"outside the window", func(r *rig) {
			_, key := r.b.window(4096, 8192, nic.RemoteWrite)
			r.a.post(nic.Write, 1, 0, 8192, addr(r.b.mem)+4097, key)
		}},
		{"window without the right", func(r *rig) {
			_, key := r.b.window(4096, 8192, nic.RemoteRead)
			r.a.post(nic.Write, 1, 0, 8192, addr(r.b.mem)+4096, key)
		}},
		{"window closed", func(r *rig) {
			w, key := r.b.window(4096, 8192, nic.RemoteWrite)
			require.NoError(r.t, w.Close())
			r.a.post(nic.Write, 1, 0, 8192, addr(r.b.mem)+4096, key)
		}},
		{"window of another queue pair", func(r *rig) {
			first := r.b.qp
			r.b.newQP()
			require.NoError(r.t, r.b.qp.Connect(path(r.a), conn(r.a, 1, 2)))
			_, key := r.b.window(4096, 8192, nic.RemoteWrite)
			r.b.qp = first
			r.a.post(nic.Write, 1, 0, 8192, addr(r.b.mem)+4096, key)
		}},
	} {
		t.Run(x.name, func(t *testing.T) {
			r := newRig(t)
			r.connect()
			fill(r.a.mem, 1)
			fill(r.b.mem, 2)
			a, b := bytes.Clone(r.a.mem), bytes.Clone(r.b.mem)
			r.b.recv(50, 0, 64)
			x.post(r)
			r.a.post(nic.Write, 2, 0, 64, addr(r.b.mem), r.b.mr.RKey())
			r.a.expect(1, nic.RemoteAccess)
			r.a.expect(2, nic.Flushed)
			r.b.expect(50, nic.Flushed)
			ev, err := r.b.dev.NextEvent()
			require.NoError(t, err)
			assert.Equal(t, nic.QPFatal, ev.Kind)
			assert.Equal(t, r.b.qp.Num(), ev.QPN)
			r.a.post(nic.Write, 3, 0, 64, addr(r.b.mem), r.b.mr.RKey())
			r.a.expect(3, nic.Flushed)
			assert.Equal(t, a, r.a.mem)
			assert.Equal(t, b, r.b.mem)
		})
	}
}

func TestQueuePairWithoutRights(t *testing.T) {
	for _, op := range []nic.Opcode{nic.Write, nic.Read} {
		r := newRig(t)
		r.connect(func(_ *nic.Path, c *nic.Connection) { c.Access = 0 })
		r.a.post(op, 1, 0, 64, addr(r.b.mem), r.b.mr.RKey())
		r.a.expect(1, nic.RemoteAccess)
	}
}

// TestRefusalsOfThisSide: what is wrong here is said after what was posted before has completed.
func TestRefusalsOfThisSide(t *testing.T) {
	for _, x := range []struct {
		name   string
		post   func(r *rig)
		status nic.Status
	}{
		{"local key", func(r *rig) {
			m, err := r.a.dev.Register(ptr(r.a.mem), size, all)
			require.NoError(r.t, err)
			require.NoError(r.t, m.Close())
			old := r.a.mr
			r.a.mr = m
			r.a.post(nic.Write, 2, 0, 8192, addr(r.b.mem), r.b.mr.RKey())
			r.a.mr = old
		}, nic.LocalProtection},
		{"READ into memory that may not be written", func(r *rig) {
			m, err := r.a.dev.Register(ptr(r.a.mem), size, 0)
			require.NoError(r.t, err)
			old := r.a.mr
			r.a.mr = m
			r.a.post(nic.Read, 2, 0, 8192, addr(r.b.mem), r.b.mr.RKey())
			r.a.mr = old
		}, nic.LocalProtection},
		{"window bound twice", func(r *rig) {
			w, _ := r.a.window(0, 64, nic.RemoteRead)
			_, err := r.a.qp.Bind(2, w, r.a.mr, addr(r.a.mem), 64, nic.RemoteRead)
			require.NoError(r.t, err)
		}, nic.BindFailed},
		{"window on memory without the right", func(r *rig) {
			m, err := r.a.dev.Register(ptr(r.a.mem), size, nic.LocalWrite)
			require.NoError(r.t, err)
			w, err := r.a.dev.NewWindow()
			require.NoError(r.t, err)
			_, err = r.a.qp.Bind(2, w, m, addr(r.a.mem), 64, nic.RemoteRead)
			require.NoError(r.t, err)
		}, nic.BindFailed},
		{"invalidation of no key", func(r *rig) { require.NoError(r.t, r.a.qp.Invalidate(2, 12345)) }, nic.Other},
	} {
		t.Run(x.name, func(t *testing.T) {
			r := newRig(t)
			r.connect()
			if x.name != "window bound twice" {
				r.a.post(nic.Write, 1, 0, size, addr(r.b.mem), r.b.mr.RKey())
			}
			x.post(r)
			r.a.post(nic.Write, 3, 0, 64, addr(r.b.mem), r.b.mr.RKey())
			if x.name != "window bound twice" {
				r.a.expect(1, nic.Success)
			}
			r.a.expect(2, x.status)
			r.a.expect(3, nic.Flushed)
		})
	}
}

// TestReceives: a SEND waits for a receive for a while; one that is too short, or for no memory, ends the connection.
func TestReceives(t *testing.T) {
	r := newRig(t)
	r.connect(func(_ *nic.Path, c *nic.Connection) { c.RNRTimer, c.RNRRetries = 20, 6 })
	before := r.back.Stats().Delivered
	r.a.post(nic.Send, 1, 0, 64, 0, 0)
	require.Eventually(t, func() bool { return r.back.Stats().Delivered > before }, bound, tick)
	r.b.recv(2, 0, 64)
	r.b.expect(2, nic.Success)
	r.a.expect(1, nic.Success)

	r = newRig(t)
	r.connect()
	r.a.post(nic.Send, 1, 0, 64, 0, 0)
	r.a.expect(1, nic.RNRExceeded)

	r = newRig(t)
	r.connect()
	r.b.recv(2, 0, 63)
	r.a.post(nic.Send, 1, 0, 64, 0, 0)
	r.a.expect(1, nic.RemoteInvalid)
	r.b.expect(2, nic.Other)

	r = newRig(t)
	r.connect()
	_, err := r.b.qp.PostRecv([]uint64{2}, []nic.SGE{{Addr: addr(r.b.mem), Len: 64, LKey: 77}})
	require.NoError(t, err)
	r.a.post(nic.Send, 1, 0, 64, 0, 0)
	r.a.expect(1, nic.RemoteOperation)
	r.b.expect(2, nic.LocalProtection)
}

// TestMismatch: the two sides must agree on the MTU, and on how many READs may be out.
func TestMismatch(t *testing.T) {
	r := newRig(t)
	ca, cb := conn(r.b, 1, 2), conn(r.a, 2, 1)
	pa, pb := path(r.b), path(r.a)
	pb.MTU = 1024
	require.NoError(t, r.a.qp.Connect(pa, ca))
	require.NoError(t, r.b.qp.Connect(pb, cb))
	r.a.post(nic.Write, 1, 0, size, addr(r.b.mem), r.b.mr.RKey())
	r.a.expect(1, nic.RemoteInvalid)

	r = newRig(t)
	ca, cb = conn(r.b, 1, 2), conn(r.a, 2, 1)
	cb.ReadResp = 1
	r.there.Hold()
	require.NoError(t, r.a.qp.Connect(path(r.b), ca))
	require.NoError(t, r.b.qp.Connect(path(r.a), cb))
	for id := range uint64(4) {
		r.a.post(nic.Read, id, 0, size/4, addr(r.b.mem), r.b.mr.RKey())
	}
	held(t, r.there, 4)
	r.there.Release()
	for id := range uint64(4) {
		if c := r.a.wait(); c.Status != nic.Success {
			assert.Equal(t, nic.RemoteInvalid, c.Status)
			assert.NotZero(t, id)
			return
		}
	}
	t.Fatal("more READs than the peer takes")
}

// TestUnreachable: without an answer the retries end, in order and once.
func TestUnreachable(t *testing.T) {
	for name, x := range map[string]func(r *rig){
		"cut":                 func(r *rig) { r.there.Cut() },
		"cut on the way back": func(r *rig) { r.back.Cut() },
		"peer gone":           func(r *rig) { require.NoError(r.t, r.b.qp.Destroy()) },
		"peer failed":         func(r *rig) { require.NoError(r.t, r.b.qp.Fail()) },
		"own port down":       func(r *rig) { r.hosts[0].Adapter("soft0").SetPortActive(1, false) },
		"peer's port down":    func(r *rig) { r.hosts[1].Adapter("soft0").SetPortActive(1, false) },
		"peer's device gone":  func(r *rig) { r.hosts[1].Adapter("soft0").Remove() },
		"peer's address moved": func(r *rig) {
			r.hosts[1].Adapter("soft0").ChangePort(1, func(p *nic.PortInfo) { p.GIDs[0].GID = gid4(10, 0, 1, 2) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.connect()
			x(r)
			r.a.post(nic.Write, 1, 0, size, addr(r.b.mem), r.b.mr.RKey())
			r.a.post(nic.Read, 2, 0, 64, addr(r.b.mem), r.b.mr.RKey())
			r.a.expect(1, nic.RetriesExceeded)
			r.a.expect(2, nic.Flushed)
			r.a.quiet()
		})
	}
}
