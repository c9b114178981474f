package shm

import (
	"bytes"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/fabrictest"
)

// asProcess describes the same memory as another process sees it.
func asProcess(t testing.TB, m *fabrictest.Memory) rdma.Memory {
	f, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	h := m.Host("process")
	return rdma.Memory{Kind: rdma.MemoryProcess, FD: int(f.Fd()), Addr: uint64(uintptr(h.Base)), Len: h.Len, Name: "process"}
}

// TestKindsOfMemory moves bytes between every two kinds, both ways, by ranges small and large.
func TestKindsOfMemory(t *testing.T) {
	const size = 1<<20 + 77
	for _, kinds := range [][2]rdma.MemoryKind{{rdma.MemoryHost, rdma.MemoryProcess}, {rdma.MemoryProcess, rdma.MemoryHost}, {rdma.MemoryProcess, rdma.MemoryProcess}} {
		for _, kind := range []rdma.OpKind{rdma.OpWrite, rdma.OpRead} {
			t.Run(fmt.Sprintf("%v to %v, kind %d", kinds[0], kinds[1], kind), func(t *testing.T) {
				p := newPair(t, size, Options{}, Options{})
				if kinds[0] == rdma.MemoryProcess {
					p.srcR = register(t, p.a, asProcess(t, p.src))
				}
				if kinds[1] == rdma.MemoryProcess {
					p.dstR = register(t, p.b, asProcess(t, p.dst))
				}
				from, to := p.src, p.dst
				op := write(p.grant(t, rdma.AccessWrite, 0), 1, p.srcR)
				if kind == rdma.OpRead {
					from, to = p.dst, p.src
					op = read(p.grant(t, rdma.AccessRead, 0), 1, p.srcR)
				}
				fabrictest.Fill(from.Bytes(), fabrictest.ClassSource, 5)
				op.Ranges = []rdma.Range{{Len: size - 5000}, {Local: size - 5000, Remote: size - 5000, Len: 3}, {Local: size - 4997, Remote: size - 4997, Len: 4997}}
				ev := p.do(t, op)
				require.Zero(t, ev.Status, ev.Status.String())
				require.Empty(t, fabrictest.Diff(from.Bytes(), to.Bytes()))
				require.NoError(t, from.GuardsIntact())
				require.NoError(t, to.GuardsIntact())
			})
		}
	}
}

// TestProcessGone: memory of a process that ends is a MemoryFault from then on, on either side, and the session goes on.
func TestProcessGone(t *testing.T) {
	child := exec.Command("sleep", "3600")
	require.NoError(t, child.Start())
	end := func() { _ = child.Process.Kill(); _ = child.Wait() }
	defer end()
	var from, to uint64
	eventually(t, "the child's stack", func() bool {
		maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", child.Process.Pid))
		require.NoError(t, err)
		for _, line := range strings.Split(string(maps), "\n") {
			if strings.HasSuffix(line, "[stack]") && strings.Contains(line, "rw-p") {
				_, err := fmt.Sscanf(line, "%x-%x", &from, &to)
				return err == nil
			}
		}
		return false
	})
	f, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", child.Process.Pid), os.O_RDWR, 0)
	if err != nil {
		t.Skip("this user may not open its own child's memory: ", err)
	}
	defer f.Close()
	p := newPair(t, 1<<20, Options{}, Options{})
	theirs := rdma.Memory{Kind: rdma.MemoryProcess, FD: int(f.Fd()), Addr: to - 8192, Len: 8192, Name: "child"}
	src := register(t, p.a, theirs)
	k := p.grant(t, rdma.AccessWrite, 0)
	stack := func() []byte {
		b := make([]byte, 8192)
		_, err := f.ReadAt(b, int64(to-8192))
		require.NoError(t, err)
		return b
	}
	op := uint64(100)
	eventually(t, "the child at rest", func() bool { // until it sleeps it writes to its stack
		before := stack()
		op++
		require.Zero(t, p.do(t, write(k, op, src, rdma.Range{Len: 8192})).Status)
		if !bytes.Equal(before, stack()) {
			return false
		}
		assert.Equal(t, before, p.dst.Bytes()[:8192])
		return true
	})

	end()
	ev := p.do(t, write(k, 2, src, rdma.Range{Len: 8192}))
	assert.Equal(t, fault.MemoryFault, ev.Status)
	assert.True(t, ev.Wrote)
	p.dstR = register(t, p.b, theirs)
	ev = p.do(t, write(p.grant(t, rdma.AccessWrite, 0), 3, p.srcR, rdma.Range{Len: 8192}))
	assert.Equal(t, fault.MemoryFault, ev.Status)
	ev = p.do(t, read(p.grant(t, rdma.AccessRead, 0), 4, p.srcR, rdma.Range{Len: 8192}))
	assert.Equal(t, fault.MemoryFault, ev.Status)
	require.Zero(t, p.do(t, write(k, 5, p.srcR, rdma.Range{Len: 8192})).Status, "the session goes on")
}

// TestMemoryFaults: pages that cannot be touched end one operation, with the side in the log, and the session goes on.
func TestMemoryFaults(t *testing.T) {
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&syncWriter{w: &log}, nil))
	p := newPair(t, 4<<20, Options{Logger: logger}, Options{Logger: logger})
	kw, kr := p.grant(t, rdma.AccessWrite, 0), p.grant(t, rdma.AccessRead, 0)
	whole := rdma.Range{Len: 4 << 20}
	shut := func(m *fabrictest.Memory, prot int) {
		require.NoError(t, unix.Mprotect(m.Bytes()[2<<20:3<<20], prot))
	}
	shut(p.dst, unix.PROT_READ)
	ev := p.do(t, write(kw, 1, p.srcR, whole))
	assert.Equal(t, fault.MemoryFault, ev.Status)
	assert.True(t, ev.Wrote)
	shut(p.dst, unix.PROT_READ|unix.PROT_WRITE)
	shut(p.src, unix.PROT_READ)
	assert.Equal(t, fault.MemoryFault, p.do(t, read(kr, 2, p.srcR, whole)).Status)
	shut(p.src, unix.PROT_READ|unix.PROT_WRITE)
	assert.Equal(t, 2, strings.Count(log.String(), "a page of the destination cannot be written"), log.String())
	// The client punches a hole into the source: zeros arrive, as a reader of its own would get.
	fabrictest.Fill(p.src.Bytes(), fabrictest.ClassSource, 9)
	h := p.src.Host("")
	require.NoError(t, unix.Fallocate(h.FD, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(h.Addr)+65536, 1<<20))
	require.Zero(t, p.do(t, write(kw, 3, p.srcR, whole)).Status)
	assert.Empty(t, fabrictest.Diff(p.src.Bytes(), p.dst.Bytes()))
	assert.Zero(t, p.dst.Bytes()[65536])
}

// TestTruncatedDestination: own memory that is not sealed loses its end in the middle of WRITEs.
func TestTruncatedDestination(t *testing.T) {
	const size = 8 << 20
	p := newPair(t, size, Options{}, Options{})
	fd, err := unix.MemfdCreate("unsealed", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	defer unix.Close(fd)
	require.NoError(t, unix.Ftruncate(fd, size))
	mem, err := unix.MmapPtr(fd, 0, nil, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.MunmapPtr(mem, size)) }()
	p.dstR = register(t, p.b, rdma.Memory{Kind: rdma.MemoryHost, Base: mem, Len: size, Name: "unsealed", FD: fd})
	k := p.grant(t, rdma.AccessWrite, 0)
	require.Zero(t, p.do(t, write(k, 1, p.srcR, rdma.Range{Len: size})).Status)
	for id := uint64(2); id < 8; id++ {
		p.post(t, write(k, id, p.srcR, rdma.Range{Len: size}))
	}
	require.NoError(t, unix.Ftruncate(fd, 4096))
	p.post(t, write(k, 10, p.srcR, rdma.Range{Len: size}))
	faults := 0
	for range 7 {
		ev := p.a.next(t, rdma.EventCompletion)
		assert.Contains(t, []fault.Code{0, fault.MemoryFault}, ev.Status)
		if ev.Status != 0 {
			faults++
		}
	}
	assert.Positive(t, faults)
	// The peer refuses to map it: it could be truncated under its feet.
	assert.Equal(t, fault.PeerLost, p.do(t, read(p.grant(t, rdma.AccessRead, 0), 11, p.srcR, rdma.Range{Len: 1})).Status)
}

// TestHugePages: the mapping of a peer's memory begins and ends where huge pages do.
func TestHugePages(t *testing.T) {
	const path, size = "/proc/sys/vm/nr_hugepages", 2 << 20
	before, err := os.ReadFile(path)
	if err != nil {
		t.Skip("the kernel has no huge pages: ", err)
	}
	if os.WriteFile(path, []byte("8"), 0o644) != nil {
		t.Skip("no huge page can be reserved: only root may")
	}
	defer func() { assert.NoError(t, os.WriteFile(path, before, 0o644)) }()
	fd, err := unix.MemfdCreate("huge", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_HUGETLB|unix.MFD_HUGE_2MB)
	if err != nil {
		t.Skip("the kernel has no huge pages of 2 MiB: ", err)
	}
	defer unix.Close(fd)
	if err := unix.Fallocate(fd, 0, 0, size); err != nil {
		t.Skip("the kernel found no huge page: ", err)
	}
	_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	require.NoError(t, err)
	mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Munmap(mem)) }()
	fabrictest.Fill(mem, fabrictest.ClassSource, 4)
	p := newPair(t, size, Options{}, Options{})
	p.srcR = register(t, p.a, rdma.Memory{Kind: rdma.MemoryHost, Base: unsafe.Pointer(&mem[0]), Len: size, Name: "huge", FD: fd})
	require.Zero(t, p.do(t, write(p.grant(t, rdma.AccessWrite, 0), 1, p.srcR, rdma.Range{Len: size})).Status)
	require.Empty(t, fabrictest.Diff(mem, p.dst.Bytes()))
	require.NoError(t, p.srcR.Close())
	eventually(t, "the peer's mapping to go", func() bool { return mappingsOf(t, fd) == 1 })
}

// TestRegionCloseUnmapsAtThePeer: memory that a client takes away does not live on in the other daemon.
func TestRegionCloseUnmapsAtThePeer(t *testing.T) {
	p := newPair(t, 1<<20, Options{}, Options{})
	require.Zero(t, p.do(t, write(p.grant(t, rdma.AccessWrite, 0), 1, p.srcR, rdma.Range{Len: 4096})).Status)
	require.Zero(t, p.do(t, read(p.grant(t, rdma.AccessRead, 0), 2, p.srcR, rdma.Range{Len: 4096})).Status)
	for _, c := range []struct {
		m *fabrictest.Memory
		r rdma.Region
	}{{p.src, p.srcR}, {p.dst, p.dstR}} {
		fd := c.m.Host("").FD
		require.Equal(t, 2, mappingsOf(t, fd))
		require.NoError(t, c.r.Close())
		eventually(t, "the peer's mapping to go", func() bool { return mappingsOf(t, fd) == 1 })
	}
}

// TestNothingIsLeft: sessions that come and go, cleanly or not, leave no descriptor and no mapping. Goroutines: TestMain.
func TestNothingIsLeft(t *testing.T) {
	rng := newRand(t)
	a, b := newNode(t, Options{}), newNode(t, Options{})
	round := func(id rdma.SessionID) {
		tgt, ini := connect(t, a, b, id)
		src, dst := fabrictest.Alloc(t, 1<<16, 0), fabrictest.Alloc(t, 1<<16, 0)
		p := &pair{a: a, b: b, ini: ini, tgt: tgt, src: src, dst: dst, srcR: register(t, a, src.Host("s")), dstR: register(t, b, dst.Host("d"))}
		kw, kr := p.grant(t, rdma.AccessWrite, 0), p.grant(t, rdma.AccessRead, b.opt.Clock.Now()+rdma.Instant(time.Hour))
		p.post(t, write(kw, 1, p.srcR, rdma.Range{Len: 1 << 16}), read(kr, 2, p.srcR, rdma.Range{Len: 1 << 16}))
		if rng.IntN(2) == 0 {
			_ = a.next(t, rdma.EventCompletion)
		}
		for _, k := range rng.Perm(4)[:1+rng.IntN(4)] {
			switch k {
			case 0:
				_ = p.srcR.Close()
			case 1:
				_ = p.dstR.Close()
			case 2:
				_ = ini.conn.Close()
			case 3:
				ini.Cancel(1, 2)
			}
		}
		require.NoError(t, tgt.Close())
		require.NoError(t, ini.Close())
		_, _ = p.srcR.Close(), p.dstR.Close()
		var buf [64]rdma.Event
		for a.Poll(buf[:])+b.Poll(buf[:]) > 0 {
		}
		a.queue = nil
	}
	t.Run("warm up", func(t *testing.T) { round(1) })
	fds, maps := openFDs(t), mapped(t)
	for id := range rdma.SessionID(40) {
		round(2 + id)
	}
	// The memory itself is the test's own until it ends.
	eventually(t, "descriptors and mappings to go", func() bool { return openFDs(t) <= fds+80 && mapped(t) <= maps+80 })
}

// TestLargeDoesNotHoldUpSmall: the pool takes tasks in turn, so that a small copy overtakes a large one.
func TestLargeDoesNotHoldUpSmall(t *testing.T) {
	p := newPool(0)
	src, dst := fabrictest.Alloc(t, 64<<20, 0), fabrictest.Alloc(t, 64<<20, 0)
	var ended []uint64
	done := make(chan struct{}, 2)
	g, err := newPage(1, 1)
	require.NoError(t, err)
	defer g.close()
	word := g.slots[0].open(0)
	for _, n := range []uint64{64 << 20, 128 << 10} {
		x := newTask()
		x.src = memory{kind: rdma.MemoryHost, base: uintptr(src.Host("").Base), size: n}
		x.dst = memory{kind: rdma.MemoryHost, base: uintptr(dst.Host("").Base), size: n}
		x.pieces, x.bytes, x.gate, x.over = []piece{{len: n}}, n, new(op), func() bool { return false }
		x.permit = permit{slot: &g.slots[0], in: &g.in[0], word: word}
		x.done = func(x *task) {
			assert.Zero(t, x.status)
			ended = append(ended, x.bytes)
			done <- struct{}{}
		}
		p.add(x, nil)
	}
	p.wg.Go(p.work) // one worker, so that their order is the queue's
	<-done
	<-done
	p.stop()
	assert.Equal(t, []uint64{128 << 10, 64 << 20}, ended)
	assert.Zero(t, g.in[0].Load())
}

// TestNoAllocationPerBlock: an operation of 256 blocks allocates no more than one of a block.
func TestNoAllocationPerBlock(t *testing.T) {
	const block = 4096
	p := newPair(t, 256*block, Options{}, Options{})
	k := p.grant(t, rdma.AccessWrite, 0)
	var many []rdma.Range
	for i := range uint64(256) {
		many = append(many, rdma.Range{Local: i * block, Remote: (255 - i) * block, Len: block})
	}
	id := uint64(0)
	var buf [8]rdma.Event
	per := func(r []rdma.Range) float64 {
		ops := []rdma.Op{write(k, 0, p.srcR, r...)}
		return testing.AllocsPerRun(200, func() {
			id++
			ops[0].ID = id
			if n, err := p.ini.Post(ops); n != 1 || err != nil {
				t.Error(n, err)
			}
			for p.a.Poll(buf[:]) == 0 {
				if err := p.a.Wait(t.Context()); err != nil {
					t.Error(err)
				}
			}
			for p.b.Poll(buf[:]) > 0 {
			}
		})
	}
	one, all := per(many[:1]), per(many)
	t.Logf("%.1f and %.1f allocations", one, all)
	assert.Less(t, all, one+16, "256 ranges")
}

func newRand(t testing.TB) *rand.Rand {
	s := uint64(time.Now().UnixNano())
	if v := os.Getenv("KVXFER_SEED"); v != "" {
		_, err := fmt.Sscan(v, &s)
		require.NoError(t, err)
	}
	t.Logf("seed %d", s)
	return rand.New(rand.NewPCG(s, 7))
}
