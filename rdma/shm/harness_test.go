package shm

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/fabrictest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait of the tests. It is only ever used up by a defect.
const patience = 60 * time.Second

// node is a provider and the events that no test has asked for yet.
type node struct {
	*Provider
	queue []rdma.Event
}

func newNode(t testing.TB, opt Options) *node {
	if opt.Path == "" {
		opt.Path = filepath.Join(t.TempDir(), "s")
	}
	p, err := New(opt)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return &node{Provider: p}
}

// pair is a session from a to b, and memory on both sides.
type pair struct {
	a, b     *node
	ini      *initiator
	tgt      *target
	src, dst *fabrictest.Memory
	srcR     rdma.Region
	dstR     rdma.Region
}

func newPair(t testing.TB, size int, oa, ob Options) *pair {
	p := &pair{src: fabrictest.Alloc(t, size, 0), dst: fabrictest.Alloc(t, size, 0)}
	p.a, p.b = newNode(t, oa), newNode(t, ob)
	p.tgt, p.ini = connect(t, p.a, p.b, 1)
	p.srcR, p.dstR = register(t, p.a, p.src.Host("src")), register(t, p.b, p.dst.Host("dst"))
	return p
}

func connect(t testing.TB, a, b *node, id rdma.SessionID) (*target, *initiator) {
	tgt, par, err := b.Accept(id)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	ini, err := a.Connect(ctx, id, "", par)
	require.NoError(t, err)
	own := tgt.(*target)
	eventually(t, "the target to take the session up", func() bool { // it answers first
		own.mu.Lock()
		defer own.mu.Unlock()
		return own.page != nil
	})
	return own, ini.(*initiator)
}

func register(t testing.TB, n *node, m rdma.Memory) rdma.Region {
	r, err := n.Register(m)
	require.NoError(t, err)
	return r
}

// grant opens a window on all of the target's memory.
func (p *pair) grant(t testing.TB, access rdma.Access, deadline rdma.Instant) rdma.Key {
	n := p.dstR.Memory().Len
	s, err := rdma.NewSpans(n, rdma.Span{Len: n})
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

// do posts an operation and returns its completion.
func (p *pair) do(t testing.TB, op rdma.Op) rdma.Event {
	p.post(t, op)
	return p.a.next(t, rdma.EventCompletion)
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
				return e
			}
		}
		require.NoError(t, n.Wait(ctx), "no event of kind %d; have %v", kind, n.queue)
		n.queue = append(n.queue, buf[:n.Poll(buf[:])]...)
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

// within runs f and fails when it does not return.
func within(t testing.TB, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatalf("%s has not returned within %s", what, patience)
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

// openFDs counts this process's descriptors, mapped its mappings of memfds.
func openFDs(t testing.TB) int {
	d, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(d)
}

func mapped(t testing.TB) int {
	b, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	return strings.Count(string(b), "/memfd:")
}

// mappingsOf counts the mappings of one memfd.
func mappingsOf(t testing.TB, fd int) (n int) {
	var st unix.Stat_t
	require.NoError(t, unix.Fstat(fd, &st))
	b, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	for _, line := range strings.Split(string(b), "\n") {
		if strings.Contains(line, fmt.Sprintf(" %d ", st.Ino)) && strings.Contains(line, "/memfd:") {
			n++
		}
	}
	return n
}

// syncWriter is a log that several goroutines write.
type syncWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (w *syncWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.w.Write(b)
}

// stopped enters a permission as a worker does whose process is stopped there.
func stopped(t testing.TB, s *session, slot uint32, word uint64) *permit {
	s.mu.Lock()
	p, ok := s.permit(slot, word)
	s.mu.Unlock()
	require.True(t, ok)
	require.Zero(t, p.enter())
	return &p
}
