package tcp

import (
	"context"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/peertls"
	"github.com/kvxfer/kvxfer/rdma"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait of the tests. It is only ever used up by a defect.
const patience = 60 * time.Second

func newRand(t testing.TB) *rand.Rand {
	s := uint64(time.Now().UnixNano())
	if v, err := strconv.ParseUint(os.Getenv("KVXFER_SEED"), 10, 64); err == nil {
		s = v
	}
	t.Logf("seed %d", s)
	return rand.New(rand.NewPCG(s, 7))
}

// mapped is anonymous memory, unmapped with the test.
func mapped(t testing.TB, n int) []byte {
	b, err := mapAnon(n, unix.PROT_READ|unix.PROT_WRITE)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Munmap(b) })
	return b
}

func pattern(b []byte, seed uint64) {
	x := seed*0x9e3779b97f4a7c15 | 1
	for i := range b {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = byte(x)
	}
}

func register(t testing.TB, p *Provider, b []byte, name string) rdma.Region {
	r, err := p.Register(rdma.Memory{Kind: rdma.MemoryHost, Base: unsafe.Pointer(unsafe.SliceData(b)), Len: uint64(len(b)), Name: name})
	require.NoError(t, err)
	return r
}

// node is a provider with a peer port.
type node struct {
	*Provider
	addr  string
	lanes chan error // what ServeLane said, a connection each
	queue []rdma.Event
}

func newNode(t testing.TB, opt Options, listen string) *node {
	return newServedNode(t, opt, listen, nil)
}

// newServedNode makes one whose port speaks TLS where there is an identity.
func newServedNode(t testing.TB, opt Options, listen string, id *peertls.Identity) *node {
	p, err := New(opt)
	require.NoError(t, err)
	ln, err := net.Listen("tcp", listen)
	require.NoError(t, err)
	n := &node{Provider: p, addr: ln.Addr().String(), lanes: make(chan error, 1024)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() { n.lanes <- serveLane(p, id, c, len(LaneMagic)) }()
		}
	}()
	t.Cleanup(func() {
		_ = ln.Close()
		<-done
		require.NoError(t, p.Close())
	})
	return n
}

// pair is a session from a to b, and memory on both sides.
type pair struct {
	a, b     *node
	ini      rdma.Initiator
	tgt      rdma.Target
	src, dst []byte
	srcR     rdma.Region
	dstR     rdma.Region
}

func newPair(t testing.TB, size int, oa, ob Options) *pair {
	p := &pair{src: mapped(t, size), dst: mapped(t, size)}
	p.a, p.b = newNode(t, oa, "127.0.0.1:0"), newNode(t, ob, "127.0.0.1:0")
	p.connect(t, p.b.addr)
	p.srcR, p.dstR = register(t, p.a.Provider, p.src, "src"), register(t, p.b.Provider, p.dst, "dst")
	return p
}

func (p *pair) connect(t testing.TB, addr string) {
	tgt, par, err := p.b.Accept(1)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	ini, err := p.a.Connect(peertls.WithPeer(ctx, laneNode), 2, addr, par)
	require.NoError(t, err)
	p.tgt, p.ini = tgt, ini
}

// grant opens a window on all of the target's memory.
func (p *pair) grant(t testing.TB, access rdma.Access, deadline rdma.Instant) rdma.Key {
	s, err := rdma.NewSpans(uint64(len(p.dst)), rdma.Span{Len: uint64(len(p.dst))})
	require.NoError(t, err)
	k, err := p.tgt.Grant(rdma.Window{Region: p.dstR, Access: access, Bounds: s, Deadline: deadline})
	require.NoError(t, err)
	return k
}

func (p *pair) post(t testing.TB, ops ...rdma.Op) {
	n, err := p.ini.Post(ops)
	require.NoError(t, err)
	require.Equal(t, len(ops), n)
}

// next returns the next event of a kind; others stay for later calls.
func (n *node) next(t testing.TB, kind rdma.EventKind) rdma.Event {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var buf [32]rdma.Event
	for {
		for i, e := range n.queue {
			if e.Kind == kind {
				n.queue = append(n.queue[:i], n.queue[i+1:]...)
				e.Took = 0 // a time, which no test expects
				return e
			}
		}
		require.NoError(t, n.Wait(ctx), "no event of kind %d; have %v", kind, n.queue)
		n.queue = append(n.queue, buf[:n.Poll(buf[:])]...)
	}
}

// drain returns what is there now.
func (n *node) drain() []rdma.Event {
	var buf [256]rdma.Event
	for k := n.Poll(buf[:]); k > 0; k = n.Poll(buf[:]) {
		n.queue = append(n.queue, buf[:k]...)
	}
	q := n.queue
	n.queue = nil
	return q
}

func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %s", what, patience)
		}
	}
}

func write(k rdma.Key, id uint64, local rdma.Region, r ...rdma.Range) rdma.Op {
	return rdma.Op{Kind: rdma.OpWrite, ID: id, Local: local, Remote: k, Ranges: r, Tag: id + 1000}
}

func read(k rdma.Key, id uint64, local rdma.Region, r ...rdma.Range) rdma.Op {
	return rdma.Op{Kind: rdma.OpRead, ID: id, Local: local, Remote: k, Ranges: r}
}

func requireCode(t testing.TB, want fault.Code, err error) {
	t.Helper()
	require.Error(t, err)
	require.Equal(t, want.String(), fault.CodeOf(err).String(), "%v", err)
}
