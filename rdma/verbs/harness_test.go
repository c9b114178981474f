package verbs

import (
	"context"
	"net/netip"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/testseed"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/fabrictest/relay"
	"github.com/kvxfer/kvxfer/rdma/verbs/internal/softnic"
	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
	"github.com/kvxfer/kvxfer/rdma/verbs/pick"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait of the tests. It is only ever used up by a defect.
const patience = time.Minute

// mapped is anonymous memory, unmapped with the test.
func mapped(t testing.TB, n int) []byte {
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Munmap(b) })
	return b
}

// pattern fills b with what seed says; no two seeds' bytes are alike for long.
func pattern(b []byte, seed uint64) {
	x := seed*0x9e3779b97f4a7c15 | 1
	for k := range b {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[k] = byte(x >> 32)
	}
}

func register(t testing.TB, p *Provider, b []byte, name string) rdma.Region {
	r, err := p.Register(rdma.Memory{Kind: rdma.MemoryHost, Base: unsafe.Pointer(unsafe.SliceData(b)), Len: uint64(len(b)), Name: name})
	require.NoError(t, err)
	return r
}

// pair is two hosts of so many rails, a session from a to b whose side channel goes through a relay, and memory on both sides.
type pair struct {
	f        *softnic.Fabric
	ha, hb   *softnic.Host
	a, b     *suiteNode
	relay    *relay.Relay
	ini      *initiator
	tgt      *target
	src, dst []byte
	srcR     rdma.Region
	dstR     rdma.Region
	queue    map[*suiteNode][]rdma.Event
}

// open lets a provider of the tests use simulated devices: every rail reaches every other one of its subnet.
func open(opt Options) Options {
	opt.Networks = func() map[string][]netip.Prefix { return nil }
	opt.Reach = func(pick.Rail, nic.GIDInfo, netip.Addr) bool { return true }
	return opt
}

// unconnected makes the hosts without a session.
func unconnected(t testing.TB, size, rails int, opt Options) *pair {
	f := softnic.New(softnic.Options{Seed: testseed.Seed(t)})
	p := &pair{f: f, ha: f.Host("a", softDevices(1)[:rails]...), hb: f.Host("b", softDevices(2)[:rails]...), src: mapped(t, size), dst: mapped(t, size),
		queue: map[*suiteNode][]rdma.Event{}}
	p.a, p.b = newSuiteNode(t, p.ha, open(opt)), newSuiteNode(t, p.hb, open(opt))
	t.Cleanup(func() {
		_ = p.a.Close() // tests that care look themselves
		_ = p.b.Close()
	})
	p.srcR, p.dstR = register(t, p.a.Provider, p.src, "src"), register(t, p.b.Provider, p.dst, "dst")
	p.relay = relay.New(t, p.b.addr)
	return p
}

func newPair(t testing.TB, size, rails int, opt Options) *pair {
	p := unconnected(t, size, rails, opt)
	tgt, par, err := p.b.Accept(1)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ini, err := p.a.Connect(ctx, 2, p.relay.Addr(), par)
	require.NoError(t, err)
	p.tgt, p.ini = tgt.(*target), ini.(*initiator)
	return p
}

// quick lets lanes that get no answer go after a few milliseconds, and fences wait as short.
func quick(o Options) Options {
	o.Timeout, o.Drain = 8, 5*time.Millisecond
	return o
}

func (p *pair) there(rail int) *softnic.Wire {
	d := "soft" + string(rune('0'+rail))
	return p.f.Wire("a", d, "b", d)
}

func (p *pair) back(rail int) *softnic.Wire {
	d := "soft" + string(rune('0'+rail))
	return p.f.Wire("b", d, "a", d)
}

func (p *pair) grant(t testing.TB, access rdma.Access, off, n int) rdma.Key {
	s, err := rdma.NewSpans(uint64(len(p.dst)), rdma.Span{Off: uint64(off), Len: uint64(n)})
	require.NoError(t, err)
	k, err := p.tgt.Grant(rdma.Window{Region: p.dstR, Access: access, Bounds: s})
	require.NoError(t, err)
	return k
}

func (p *pair) post(t testing.TB, ops ...rdma.Op) {
	n, err := p.ini.Post(ops)
	require.NoError(t, err)
	require.Equal(t, len(ops), n)
}

func (p *pair) write(k rdma.Key, id uint64, r ...rdma.Range) rdma.Op {
	return rdma.Op{Kind: rdma.OpWrite, ID: id, Local: p.srcR, Remote: k, Ranges: r, Tag: id + 1000}
}

func (p *pair) read(k rdma.Key, id uint64, r ...rdma.Range) rdma.Op {
	return rdma.Op{Kind: rdma.OpRead, ID: id, Local: p.srcR, Remote: k, Ranges: r}
}

// next returns a node's next event of a kind; others stay for later calls.
func (p *pair) next(t testing.TB, n *suiteNode, kind rdma.EventKind) rdma.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		q := p.queue[n]
		for k, e := range q {
			if e.Kind == kind {
				p.queue[n] = append(q[:k], q[k+1:]...)
				return e
			}
		}
		require.NoError(t, n.Wait(ctx), "no event of kind %d; have %v", kind, q)
		p.poll(n)
	}
}

// poll takes in what there is.
func (p *pair) poll(n *suiteNode) {
	var buf [64]rdma.Event
	for k := n.Poll(buf[:]); k > 0; k = n.Poll(buf[:]) {
		p.queue[n] = append(p.queue[n], buf[:k]...)
	}
}

func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %s", what, patience)
		}
	}
}

// held waits until n packets are held on a wire.
func held(t testing.TB, w *softnic.Wire, n int) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, w.AwaitHeld(ctx, n))
}

// deliver lets everything that a wire holds go and waits until it has arrived, wherever it went.
func deliver(t testing.TB, w *softnic.Wire) {
	before := w.Stats()
	w.Release()
	eventually(t, "held packets arrive", func() bool {
		s := w.Stats()
		return s.Held == 0 && s.Delivered >= before.Delivered+uint64(before.Held)
	})
}

// gens are the generations of the initiator's lanes.
func (p *pair) gens() (out []uint32) {
	p.ini.mu.Lock()
	defer p.ini.mu.Unlock()
	for _, l := range p.ini.lanes {
		out = append(out, l.gen)
	}
	return out
}
