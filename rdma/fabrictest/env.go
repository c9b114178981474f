package fabrictest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

// What operations end with where rdma's documentation leaves no choice; one place, so that the suite is of one mind.
const (
	endAfterDeadline = fault.LeaseExpired
	endWrongAccess   = fault.PermissionDenied
)

// env is what one test runs in: a pair, its pumps, and the account of what was posted.
type env struct {
	t     *testing.T
	h     Harness
	bound time.Duration
	clock *Clock
	pair  Pair
	a, b  *node
	caps  rdma.Caps // of A; both nodes are of one provider
	seed  uint64
	rng   *rand.Rand // of the test's goroutine
	ids   atomic.Uint64

	drivers     sync.WaitGroup // of sessions that are attached to
	stopDrivers chan struct{}

	mu      sync.Mutex
	regions []*region
	release []func()
	over    bool // the test has ended: goroutines that a failure left behind may report no more
}

func newEnv(t *testing.T, h Harness) *env {
	e := &env{t: t, h: h, bound: h.Bound, clock: NewClock(), seed: uint64(time.Now().UnixNano()), stopDrivers: make(chan struct{})}
	if e.bound == 0 {
		e.bound = 20 * time.Second
	}
	if v, err := strconv.ParseUint(os.Getenv("KVXFER_SEED"), 10, 64); err == nil {
		e.seed = v
	}
	t.Logf("seed %d", e.seed)
	e.rng = rand.New(rand.NewPCG(e.seed, 0))

	// Cleanups run last to first: the nodes close, what the harness started ends, then nothing may be left running.
	// Memory is unmapped last of all.
	ignore := goleak.IgnoreCurrent()
	t.Cleanup(func() {
		for _, r := range e.regions {
			r.mem.free(t)
		}
		e.mu.Lock()
		e.over = true
		e.mu.Unlock()
	})
	t.Cleanup(func() {
		if t.Failed() || t.Skipped() {
			return
		}
		e.noGoroutines(ignore)
	})
	e.pair = h.New(t, e.clock)
	e.a, e.b = newNode(e, "A", e.pair.A), newNode(e, "B", e.pair.B)
	e.caps = e.pair.A.Caps()
	t.Cleanup(e.tearDown)
	return e
}

// less is how much of n is moved, or how often something is repeated: all of it, or on a slow fabric a quarter.
func (e *env) less(n int) int {
	if e.h.Slow {
		return max(n/4, 1)
	}
	return n
}

func (e *env) noGoroutines(ignore goleak.Option) {
	end := time.Now().Add(e.bound)
	for {
		err := goleak.Find(ignore)
		if err == nil {
			return
		}
		if time.Now().After(end) {
			e.errorf("goroutines are left after both providers were closed: %v", err)
			return
		}
	}
}

// require skips the test where the pair or its providers lack an ability, with the stated reason.
func (e *env) require(n need) {
	absent := func(bit need, has bool, why string) {
		switch {
		case n&bit == 0 || has:
		case why == "":
			e.t.Fatal("the harness lacks an ability and states no reason (Harness.NoCut, Harness.NoStall)")
		default:
			e.t.Skip(why)
		}
	}
	absent(needCut, e.pair.Cut != nil, e.h.NoCut)
	absent(needStall, e.pair.Stall != nil, e.h.NoStall)
	absent(needWrite, e.caps.Write, "Caps.Write is false")
	absent(needRead, e.caps.Read, "Caps.Read is false")
	absent(needDeadline, e.caps.ChecksDeadline, "Caps.ChecksDeadline is false")
	absent(needBounds, e.caps.ChecksBounds, "Caps.ChecksBounds is false")
}

// kinds lists the directions that the provider can do.
func (e *env) kinds() []rdma.OpKind {
	var k []rdma.OpKind
	if e.caps.Write {
		k = append(k, rdma.OpWrite)
	}
	if e.caps.Read {
		k = append(k, rdma.OpRead)
	}
	return k
}

func kindName(k rdma.OpKind) string {
	if k == rdma.OpRead {
		return "READ"
	}
	return "WRITE"
}

func accessOf(k rdma.OpKind) rdma.Access {
	if k == rdma.OpRead {
		return rdma.AccessRead
	}
	return rdma.AccessWrite
}

// tearDown closes what is open, then checks what every test promises: each operation that was taken ended in exactly
// one completion, nothing completed that was not taken, and no byte beside a region changed.
func (e *env) tearDown() {
	for _, f := range e.release {
		f()
	}
	e.within("Provider.Close of A", func() { e.noErr(e.pair.A.Close(), "Provider.Close of A") })
	e.within("Provider.Close of B", func() { e.noErr(e.pair.B.Close(), "Provider.Close of B") })
	close(e.stopDrivers)
	e.within("Progress and Detach", e.drivers.Wait)
	for _, n := range []*node{e.a, e.b} {
		n.settle("at the end of the test")
		n.close()
	}
	if e.t.Failed() {
		return
	}
	for _, n := range []*node{e.a, e.b} {
		for _, v := range n.violations() {
			e.errorf("node %s: %s", n.name, v)
		}
	}
	for _, r := range e.regions {
		if err := r.mem.GuardsIntact(); err != nil {
			e.errorf("region %s: %v", r.name, err)
		}
	}
}

// errorf reports a failure from any goroutine, also from one that outlives a test that has failed.
func (e *env) errorf(format string, args ...any) {
	e.t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.over {
		e.t.Errorf(format, args...)
	}
}

// noErr reports err without ending the goroutine, so that any goroutine may call it.
func (e *env) noErr(err error, what string, args ...any) bool {
	if err == nil {
		return true
	}
	e.t.Helper()
	e.errorf("%s: %v", fmt.Sprintf(what, args...), err)
	return false
}

// must is noErr for the test's own goroutine: it ends the test.
func (e *env) must(err error, what string, args ...any) {
	e.t.Helper()
	if !e.noErr(err, what, args...) {
		e.t.FailNow()
	}
}

// within runs f and fails the test when f has not returned within the bound.
func (e *env) within(what string, f func()) {
	e.t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	tm := time.NewTimer(e.bound)
	defer tm.Stop()
	select {
	case <-done:
	case <-tm.C:
		e.t.Fatalf("%s has not returned after %v", what, e.bound)
	}
}

// until waits for a condition that no event announces (bytes that change in memory).
func (e *env) until(what string, cond func() bool) {
	e.t.Helper()
	end := time.Now().Add(e.bound)
	for !cond() {
		if time.Now().After(end) {
			e.t.Fatalf("waited %v for %s", e.bound, what)
		}
		time.Sleep(50 * time.Microsecond)
	}
}

// stall holds a session's bytes back; the session is released at the latest when the test ends.
func (e *env) stall(s *session) (release func()) {
	release = sync.OnceFunc(e.pair.Stall(s.Session))
	e.mu.Lock()
	e.release = append(e.release, release)
	e.mu.Unlock()
	return release
}

// region is registered memory and, where a test keeps one, the image of what it must hold.
type region struct {
	rdma.Region
	e    *env
	name string
	mem  *Memory
	want []byte
}

// region registers n bytes on a node, filled with class c.
func (e *env) region(on *node, n, misalign int, c Class) *region {
	e.t.Helper()
	r := &region{e: e, name: fmt.Sprintf("%s%d", on.name, e.ids.Add(1)), mem: alloc(e.t, n, misalign)}
	Fill(r.mem.Bytes(), c, e.rng.Uint64())
	m := r.mem.Host(r.name)
	if e.h.Memory != nil {
		m = e.h.Memory(m)
	}
	reg, err := on.p.Register(m)
	e.must(err, "Register of %d bytes", n)
	r.Region = reg
	e.mu.Lock()
	e.regions = append(e.regions, r)
	e.mu.Unlock()
	r.remember()
	return r
}

func (r *region) bytes() []byte { return r.mem.Bytes() }

// remember takes what the region holds now as what it must hold.
func (r *region) remember() { r.want = append(r.want[:0], r.bytes()...) }

// recycle gives the memory to a new user, as an owner does once it has been promised silence.
func (r *region) recycle() {
	Fill(r.bytes(), ClassLater, r.e.ids.Add(1)^r.e.seed)
	r.remember()
}

// check compares the whole region with what it must hold.
func (r *region) check(what string, args ...any) {
	r.e.t.Helper()
	if d := Diff(r.want, r.bytes()); d != "" {
		r.e.t.Fatalf("%s: region %s: %s", fmt.Sprintf(what, args...), r.name, d)
	}
}

// moved applies a successful operation's ranges to the image of the region they were moved into.
func moved(kind rdma.OpKind, local, remote *region, ranges []rdma.Range) {
	for _, r := range ranges {
		if kind == rdma.OpWrite {
			copy(remote.want[r.Remote:r.Remote+r.Len], local.bytes()[r.Local:r.Local+r.Len])
		} else {
			copy(local.want[r.Local:r.Local+r.Len], remote.bytes()[r.Remote:r.Remote+r.Len])
		}
	}
}

// all is the bounds of a window on a whole region.
func (r *region) all() rdma.Bounds {
	n := uint64(len(r.bytes()))
	s, err := rdma.NewSpans(n, rdma.Span{Off: 0, Len: n})
	r.e.must(err, "NewSpans")
	return s
}
