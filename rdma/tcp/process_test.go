package tcp

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/peertls"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/fabrictest"
)

// selfMem opens this process's own memory, as a client does for the second way.
func selfMem(t testing.TB) int {
	fd, err := unix.Open("/proc/self/mem", unix.O_RDWR|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Close(fd)) })
	return fd
}

// asProcess describes mapped memory of this process as memory of a process, which happens to be this one.
func asProcess(fd int, m rdma.Memory) rdma.Memory {
	return rdma.Memory{Kind: rdma.MemoryProcess, FD: fd, Addr: uint64(uintptr(m.Base)), Len: m.Len, Name: m.Name}
}

// TestProcessConformance runs the contract's suite over memory that is reached through /proc/PID/mem: all of it, and
// every other region, so that each kind meets the other at the other end, over TLS too.
func TestProcessConformance(t *testing.T) {
	for name, c := range map[string]struct {
		mixed, tls bool
		way        fabrictest.Way
	}{"all": {way: fabrictest.Delivered}, "mixed, tls": {mixed: true, tls: true}} {
		t.Run(name, func(t *testing.T) {
			mixed := c.mixed
			var id *peertls.Identity
			if c.tls {
				id = newIdentity(t)
			}
			fd := selfMem(t)
			var n atomic.Uint64
			fabrictest.Run(t, fabrictest.Harness{New: suitePair(id), Ways: []fabrictest.Way{c.way}, Memory: func(m rdma.Memory) rdma.Memory {
				if mixed && n.Add(1)%2 == 0 {
					return m
				}
				return asProcess(fd, m)
			}})
		})
	}
}

func processRegion(t testing.TB, p *Provider, fd int, b []byte, name string) rdma.Region {
	r, err := p.Register(asProcess(fd, rdma.Memory{Base: unsafe.Pointer(unsafe.SliceData(b)), Len: uint64(len(b)), Name: name}))
	require.NoError(t, err)
	return r
}

// newProcessPair is a pair whose memory on both sides is process memory.
func newProcessPair(t testing.TB, size int, opt Options) *pair {
	p := newPair(t, size, opt, opt)
	fd := selfMem(t)
	p.srcR, p.dstR = processRegion(t, p.a.Provider, fd, p.src, "src"), processRegion(t, p.b.Provider, fd, p.dst, "dst")
	return p
}

func TestProcessRegisterChecks(t *testing.T) {
	p, err := New(Options{})
	require.NoError(t, err)
	defer p.Close()
	good := rdma.Memory{Kind: rdma.MemoryProcess, FD: 3, Addr: 4096, Len: 4096, Name: "kv"}
	_, err = p.Register(good)
	require.NoError(t, err)
	for _, c := range []struct {
		field  string
		change func(m *rdma.Memory)
	}{
		{"FD", func(m *rdma.Memory) { m.FD = 0 }},
		{"FD", func(m *rdma.Memory) { m.FD = -1 }},
		{"Addr", func(m *rdma.Memory) { m.Addr = 1 << 62 }},
		{"Addr", func(m *rdma.Memory) { m.Len = 1 << 63 }},
	} {
		m := good
		c.change(&m)
		_, err := p.Register(m)
		requireCode(t, fault.InvalidArgument, err)
		require.Equal(t, c.field, fault.From("", err).Field)
	}
}

// TestProcessNoAllocationPerBlock: the second way is slower and still allocates nothing for a block.
func TestProcessNoAllocationPerBlock(t *testing.T) {
	const blocks = 4096
	p := newProcessPair(t, blocks*512, Options{})
	for _, access := range []rdma.Access{rdma.AccessWrite, rdma.AccessRead} {
		op := []rdma.Op{{Kind: rdma.OpKind(access), ID: 1, Local: p.srcR, Remote: p.grant(t, access, 0), Ranges: make([]rdma.Range, blocks)}}
		for i := range op[0].Ranges {
			op[0].Ranges[i] = rdma.Range{Local: uint64(i) * 512, Remote: uint64(blocks-1-i) * 512, Len: 512}
		}
		per := testing.AllocsPerRun(5, func() {
			p.post(t, op...)
			require.Zero(t, p.a.next(t, rdma.EventCompletion).Status)
		})
		require.Less(t, per, blocks/16.0)
	}
}

// TestProcessMemoryFaults: a page that cannot be reached ends one operation, typed, and the lane goes on.
func TestProcessMemoryFaults(t *testing.T) {
	const size, bad = 4 << 20, 3 << 20
	for _, c := range []struct {
		name   string
		kind   rdma.OpKind
		target bool // the hole is in the target's memory
	}{
		{"target of a write", rdma.OpWrite, true},
		{"source of a write", rdma.OpWrite, false},
		{"source of a read", rdma.OpRead, true},
		{"target of a read", rdma.OpRead, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newProcessPair(t, size, Options{Lanes: 1})
			pattern(p.src, 1)
			// FOLL_FORCE passes mprotect, so the hole is what lies behind the end of a file.
			holed := endsAt(t, size, bad)
			if fd := selfMem(t); c.target {
				p.dstR = processRegion(t, p.b.Provider, fd, holed, "holed")
			} else {
				p.srcR = processRegion(t, p.a.Provider, fd, holed, "holed")
			}
			k := p.grant(t, rdma.Access(c.kind), 0)
			p.post(t, rdma.Op{Kind: c.kind, ID: 1, Local: p.srcR, Remote: k, Ranges: []rdma.Range{{Len: size}}})
			e := p.a.next(t, rdma.EventCompletion)
			require.Equal(t, fault.MemoryFault, e.Status)
			require.Equal(t, c.kind == rdma.OpWrite, e.Wrote)
			require.LessOrEqual(t, e.Bytes, uint64(bad))
			p.post(t, rdma.Op{Kind: c.kind, ID: 2, Local: p.srcR, Remote: k, Ranges: []rdma.Range{{Local: 9, Remote: 9, Len: 100}}})
			require.Zero(t, p.a.next(t, rdma.EventCompletion).Status)
		})
	}
}

// endsAt is a mapping of size bytes of which only those before end exist.
func endsAt(t testing.TB, size, end int) []byte {
	fd, err := unix.MemfdCreate("kvxfer-tcp-test", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	defer unix.Close(fd)
	require.NoError(t, unix.Ftruncate(fd, int64(end)))
	b, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(b)) })
	return b
}

// TestProcessDeath: memory of a real other process, until it is killed; then operations end typed, and the rest goes on.
func TestProcessDeath(t *testing.T) {
	child := exec.Command("cat") // waits for its input, and leaves the low end of its stack alone
	in, err := child.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	dead := false
	defer func() {
		if !dead {
			_ = child.Process.Kill()
			_ = child.Wait()
		}
	}()
	defer in.Close()
	// Until it has called exec, it is this program still, without the stack that is to be looked for.
	eventually(t, "the child to run cat", func() bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", child.Process.Pid))
		return err == nil && string(b) == "cat\n"
	})
	const size = 8 << 10
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/mem", child.Process.Pid), unix.O_RDWR|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(fd)

	p := newPair(t, size, Options{Lanes: 1}, Options{})
	pattern(p.src, 3)
	own := p.dstR
	p.dstR, err = p.b.Register(rdma.Memory{Kind: rdma.MemoryProcess, FD: fd, Addr: stackOf(t, child.Process.Pid), Len: size, Name: "child"})
	require.NoError(t, err)
	kw, kr := p.grant(t, rdma.AccessWrite, 0), p.grant(t, rdma.AccessRead, 0)
	whole := rdma.Range{Len: size}
	p.post(t, write(kw, 1, p.srcR, whole))
	require.Zero(t, p.a.next(t, rdma.EventCompletion).Status)
	require.Equal(t, uint64(1001), p.b.next(t, rdma.EventArrival).Tag)
	sent := bytes.Clone(p.src)
	clear(p.src)
	p.post(t, read(kr, 2, p.srcR, whole))
	require.Zero(t, p.a.next(t, rdma.EventCompletion).Status)
	require.Equal(t, sent, p.src)

	require.NoError(t, child.Process.Kill())
	_ = child.Wait()
	dead = true
	for id, op := range []rdma.Op{write(kw, 3, p.srcR, whole), read(kr, 4, p.srcR, whole)} {
		p.post(t, op)
		require.Equal(t, fault.MemoryFault, p.a.next(t, rdma.EventCompletion).Status, "operation %d", id)
	}
	p.dstR = own
	p.post(t, write(p.grant(t, rdma.AccessWrite, 0), 5, p.srcR, whole))
	require.Zero(t, p.a.next(t, rdma.EventCompletion).Status)
	require.Equal(t, p.src, p.dst)
}

// stackOf is where a process's stack mapping begins.
func stackOf(t testing.TB, pid int) uint64 {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	require.NoError(t, err)
	for line := range strings.Lines(string(maps)) {
		if strings.Contains(line, "[stack]") {
			from, _, _ := strings.Cut(line, "-")
			at, err := strconv.ParseUint(from, 16, 64)
			require.NoError(t, err)
			return at
		}
	}
	t.Fatalf("process %d has no stack:\n%s", pid, maps)
	return 0
}
