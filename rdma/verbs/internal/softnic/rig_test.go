package softnic_test

import (
	"context"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/rdma/verbs/internal/softnic"
	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bound is how long a test waits for what must happen.
const (
	bound = time.Minute
	tick  = time.Millisecond
)

func seed(t *testing.T) uint64 {
	s := rand.Uint64()
	if v := os.Getenv("KVXFER_SEED"); v != "" {
		n, err := strconv.ParseUint(v, 10, 64)
		require.NoError(t, err)
		s = n
	}
	t.Logf("seed %d", s)
	return s
}

func gid4(a, b, c, d byte) [16]byte {
	return [16]byte{10: 0xff, 11: 0xff, 12: a, 13: b, 14: c, 15: d}
}

func port(addr [16]byte) nic.PortInfo {
	return nic.PortInfo{Active: true, GIDs: []nic.GIDInfo{{Index: 1, GID: addr, Type: nic.RoCEv2}}}
}

// memory is a page-aligned mapping outside the Go heap.
func memory(t *testing.T, n int) []byte {
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, unix.Munmap(b)) })
	return b
}

func addr(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(&b[0]))) }

func ptr(b []byte) unsafe.Pointer { return unsafe.Pointer(&b[0]) }

const all = nic.LocalWrite | nic.RemoteWrite | nic.RemoteRead | nic.WindowBind

// end is one side of a connection with its memory.
type end struct {
	t    *testing.T
	dev  nic.Device
	qp   nic.QP
	mem  []byte
	mr   nic.MR
	gid  [16]byte
	next []nic.Completion
}

// rig is two hosts with a device each.
type rig struct {
	t    *testing.T
	seed uint64
	f    *softnic.Fabric
	a, b *end
	// from a to b, and back
	there, back *softnic.Wire
	hosts       [2]*softnic.Host
}

const size = 1 << 20

func newRig(t *testing.T, change ...func(*softnic.Device)) *rig {
	r := &rig{t: t, seed: seed(t)}
	r.f = softnic.New(softnic.Options{Seed: r.seed})
	for i, name := range []string{"a", "b"} {
		g := gid4(10, 0, 0, byte(i+1))
		d := softnic.Device{Name: "soft0", Windows2B: true, Ports: []nic.PortInfo{port(g)}}
		for _, c := range change {
			c(&d)
		}
		h := r.f.Host(name, d)
		dev, err := h.Open("soft0")
		require.NoError(t, err)
		e := &end{t: t, dev: dev, gid: g, mem: memory(t, size)}
		e.mr, err = dev.Register(unsafe.Pointer(&e.mem[0]), size, all)
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, dev.Close()) })
		e.newQP()
		r.hosts[i] = h
		if i == 0 {
			r.a = e
		} else {
			r.b = e
		}
	}
	r.there, r.back = r.f.Wire("a", "soft0", "b", "soft0"), r.f.Wire("b", "soft0", "a", "soft0")
	return r
}

func (e *end) newQP() {
	var err error
	e.qp, err = e.dev.NewQP(nic.QPConfig{MaxSend: 256, MaxRecv: 64, MaxSGE: 4, MaxSignaled: 256})
	require.NoError(e.t, err)
}

// conn is a connection with short time-outs: 4 ms, six times.
func conn(peer *end, own, other uint32) nic.Connection {
	return nic.Connection{PeerQPN: peer.qp.Num(), PSN: own, PeerPSN: other, ReadInit: 4, ReadResp: 4, Timeout: 10, Retries: 6, RNRTimer: 1, RNRRetries: 6,
		Access: nic.RemoteWrite | nic.RemoteRead}
}

func path(peer *end) nic.Path {
	return nic.Path{Port: 1, GIDIndex: 1, Global: true, GID: peer.gid, MTU: 4096}
}

// connect connects the two; change edits what both sides use.
func (r *rig) connect(change ...func(*nic.Path, *nic.Connection)) {
	r.connectPSN(rand.Uint32N(1<<24), rand.Uint32N(1<<24), change...)
}

func (r *rig) connectPSN(psnA, psnB uint32, change ...func(*nic.Path, *nic.Connection)) {
	pa, ca := path(r.b), conn(r.b, psnA, psnB)
	pb, cb := path(r.a), conn(r.a, psnB, psnA)
	for _, c := range change {
		c(&pa, &ca)
		c(&pb, &cb)
	}
	require.NoError(r.t, r.a.qp.Connect(pa, ca))
	require.NoError(r.t, r.b.qp.Connect(pb, cb))
}

func patient(_ *nic.Path, c *nic.Connection) { c.Timeout = 18 } // a second: no time-out while a test holds packets

// wr is one request on the whole of local memory at off.
func (e *end) post(op nic.Opcode, id uint64, off, n int, remote uint64, rkey uint32) {
	sges := []nic.SGE{{Addr: addr(e.mem) + uint64(off), Len: uint32(n), LKey: e.mr.LKey()}}
	taken, err := e.qp.Post([]nic.WR{{ID: id, Remote: remote, RKey: rkey, Count: 1, Op: op, Signaled: true}}, sges)
	require.NoError(e.t, err)
	require.Equal(e.t, 1, taken)
}

func (e *end) recv(id uint64, off, n int) {
	taken, err := e.qp.PostRecv([]uint64{id}, []nic.SGE{{Addr: addr(e.mem) + uint64(off), Len: uint32(n), LKey: e.mr.LKey()}})
	require.NoError(e.t, err)
	require.Equal(e.t, 1, taken)
}

// wait gives the next completion.
func (e *end) wait() nic.Completion {
	e.t.Helper()
	stop := time.Now().Add(bound)
	for len(e.next) == 0 {
		require.True(e.t, time.Now().Before(stop), "no completion")
		buf := make([]nic.Completion, 16)
		n, err := e.dev.Next(buf, 0, time.Second)
		require.NoError(e.t, err)
		e.next = buf[:n]
	}
	c := e.next[0]
	e.next = e.next[1:]
	return c
}

func (e *end) expect(id uint64, s nic.Status) nic.Completion {
	e.t.Helper()
	c := e.wait()
	require.Equal(e.t, id, c.ID)
	require.Equal(e.t, s.String(), c.Status.String(), "request %d", id)
	return c
}

// quiet says that nothing completed.
func (e *end) quiet() {
	e.t.Helper()
	require.Empty(e.t, e.next)
	n, err := e.dev.Next(make([]nic.Completion, 1), 0, 0)
	require.NoError(e.t, err)
	require.Zero(e.t, n)
}

func fill(b []byte, s uint64) {
	g := rand.NewPCG(s, 1)
	for i := 0; i+8 <= len(b); i += 8 {
		v := g.Uint64()
		for k := range 8 {
			b[i+k] = byte(v >> (8 * k))
		}
	}
}

func held(t *testing.T, w *softnic.Wire, n int) {
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	require.NoError(t, w.AwaitHeld(ctx, n))
}
