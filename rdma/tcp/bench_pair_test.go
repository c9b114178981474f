package tcp

import (
	"bufio"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/rdma"
)

// Lists between two processes, beside a contiguous stream of as many bytes over 4 connections in blocking calls, turn by
// turn in one run: the "raw" metric is the one's speed through the other's. The test binary runs itself as the target.

const (
	benchChildEnv = "KVXFER_TCP_BENCH_TARGET"
	benchMemory   = 128 << 20
	rawLanes      = 4
)

func init() {
	if os.Getenv(benchChildEnv) != "" {
		benchTarget()
		os.Exit(0)
	}
}

// benchTarget is the other process: it prints its port, parameters and keys, and ends with its input.
func benchTarget() {
	check := func(err error) {
		if err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
	}
	p, err := New(benchOptions())
	check(err)
	p.Deliver(func([]rdma.Event) {})
	tgt, par, err := p.Accept(1)
	check(err)
	mem, err := mapAnon(benchMemory, unix.PROT_READ|unix.PROT_WRITE)
	check(err)
	tile(mem, 2)
	r, err := p.Register(rdma.Memory{Kind: rdma.MemoryHost, Base: unsafe.Pointer(unsafe.SliceData(mem)), Len: benchMemory})
	check(err)
	s, err := rdma.NewSpans(benchMemory, rdma.Span{Len: benchMemory})
	check(err)
	var keys [2]rdma.Key
	for i, a := range []rdma.Access{rdma.AccessWrite, rdma.AccessRead} {
		keys[i], err = tgt.Grant(rdma.Window{Region: r, Access: a, Bounds: s})
		check(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				b := make([]byte, len(LaneMagic))
				if _, err := io.ReadFull(c, b); err == nil && string(b) == LaneMagic {
					_ = p.ServeLane(c, b)
					return
				}
				rawTarget(c, mem, int(b[0])) // a stream that opened with its own number
			}()
		}
	}()
	fmt.Println(ln.Addr(), hex.EncodeToString(par), uint64(keys[0]), uint64(keys[1]))
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// tile touches all of b; the pattern alone takes longer than a benchmark.
func tile(b []byte, seed uint64) {
	const n = 1 << 20
	pattern(b[:n], seed)
	for at := n; at < len(b); at += copy(b[at:], b[:n]) {
	}
}

// blocking gives a connection's descriptor with calls that block.
func blocking(c net.Conn) int {
	f, err := c.(*net.TCPConn).File()
	if err != nil {
		panic(err)
	}
	fd, err := unix.Dup(int(f.Fd())) // Fd makes it blocking
	if err != nil {
		panic(err)
	}
	_ = f.Close()
	_ = unix.SetNonblock(fd, false)
	return fd
}

// rawTarget reads what 8 bytes announce, and says so with one.
func rawTarget(c net.Conn, mem []byte, index int) {
	runtime.LockOSThread()
	fd := blocking(c)
	mem = mem[len(mem)/rawLanes*index:]
	var n [8]byte
	for {
		if k, err := unix.Read(fd, n[:]); k != 8 || err != nil {
			return
		}
		left := int(*(*uint64)(unsafe.Pointer(&n)))
		for at := 0; left > 0; {
			k, err := unix.Read(fd, mem[at:at+min(left, 1<<20)])
			if k <= 0 || err != nil {
				return
			}
			at, left = at+k, left-k
		}
		_, _ = unix.Write(fd, n[:1])
	}
}

type benchPair struct {
	p    *Provider
	ini  rdma.Initiator
	mem  []byte
	reg  rdma.Region
	keys [2]rdma.Key
	left atomic.Int64
	done chan struct{}
	raw  [rawLanes]chan uint64
	back chan struct{}
}

func newBenchPair(b *testing.B) *benchPair {
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), benchChildEnv+"=1")
	c.Stderr = os.Stderr
	in, err := c.StdinPipe()
	require.NoError(b, err)
	out, err := c.StdoutPipe()
	require.NoError(b, err)
	require.NoError(b, c.Start())
	b.Cleanup(func() {
		_ = in.Close()
		_ = c.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(b, err)
	var addr, params string
	var kw, kr uint64
	_, err = fmt.Sscan(strings.TrimSpace(line), &addr, &params, &kw, &kr)
	require.NoError(b, err, line)
	par, err := hex.DecodeString(params)
	require.NoError(b, err)

	x := &benchPair{mem: mapped(b, benchMemory), keys: [2]rdma.Key{rdma.Key(kw), rdma.Key(kr)}, done: make(chan struct{}, 1), back: make(chan struct{}, rawLanes)}
	tile(x.mem, 1)
	x.p, err = New(benchOptions())
	require.NoError(b, err)
	b.Cleanup(func() { _ = x.p.Close() })
	x.p.Deliver(x.take)
	x.ini, err = x.p.Connect(context.Background(), 1, addr, par)
	require.NoError(b, err)
	x.reg = register(b, x.p, x.mem, "bench")
	for i := range x.raw {
		c, err := net.Dial("tcp", addr)
		require.NoError(b, err)
		_, err = c.Write([]byte{byte(i), 0, 0, 0})
		require.NoError(b, err)
		x.raw[i] = make(chan uint64)
		fd := blocking(c)
		_ = c.Close()
		b.Cleanup(func() { _ = unix.Close(fd) })
		b.Cleanup(func() { close(x.raw[i]) })
		go x.rawStream(fd, x.raw[i], x.mem[len(x.mem)/rawLanes*i:])
	}
	return x
}

func (x *benchPair) rawStream(fd int, work <-chan uint64, mem []byte) {
	runtime.LockOSThread()
	var b [8]byte
	for n := range work {
		*(*uint64)(unsafe.Pointer(&b)) = n
		_, _ = unix.Write(fd, b[:])
		for at := uint64(0); at < n; {
			k, err := unix.Write(fd, mem[at:min(n, at+1<<20)])
			if err != nil {
				return
			}
			at += uint64(k)
		}
		_, _ = unix.Read(fd, b[:1])
		x.back <- struct{}{}
	}
}

func (x *benchPair) stream(bytes int) time.Duration {
	began := time.Now()
	for _, w := range x.raw {
		w <- uint64(bytes / rawLanes)
	}
	for range x.raw {
		<-x.back
	}
	return time.Since(began)
}

func (x *benchPair) take(evs []rdma.Event) {
	for k := range evs {
		if evs[k].Status != 0 {
			panic(fmt.Sprint("completion: ", evs[k].Status))
		}
	}
	if x.left.Add(-int64(len(evs))) <= 0 {
		select {
		case x.done <- struct{}{}:
		default:
		}
	}
}

// cut makes the operations of a list as the engine does.
func (x *benchPair) cut(kind rdma.OpKind, s shape) []rdma.Op {
	var ranges []rdma.Range
	slots := benchMemory / 2 / s.size
	for i := range s.n {
		ranges = append(ranges, rdma.Range{Local: uint64(i * 2 * s.size), Remote: uint64((i * 7 % slots) * 2 * s.size), Len: uint64(s.size)})
	}
	per := max(1, min(256, 1<<20/s.size))
	var ops []rdma.Op
	for part := range slices.Chunk(ranges, per) {
		ops = append(ops, rdma.Op{Kind: kind, ID: uint64(len(ops)), Local: x.reg, Remote: x.keys[kind-1], Ranges: part, Tag: 1})
	}
	return ops
}

// list moves one list, sleeping until it is over or, attached, fetching its completions.
func (x *benchPair) list(ops []rdma.Op, attached rdma.Progressor) time.Duration {
	began := time.Now()
	x.left.Store(int64(len(ops)))
	for n := 0; n < len(ops); {
		k, err := x.ini.Post(ops[n:])
		if err != nil {
			panic(err)
		}
		n += k
	}
	for attached != nil && x.left.Load() > 0 {
		attached.Progress()
	}
	<-x.done
	return time.Since(began)
}

var lists = []shape{{1, 8}, {1, 4 << 10}, {64, 4 << 10}, {1024, 4 << 10}, {1024, 16 << 10}, {1024, 32 << 10}, {64, 1 << 20}}

// BenchmarkLists moves whole lists between two processes.
func BenchmarkLists(b *testing.B) {
	x := newBenchPair(b)
	for _, mode := range []string{"sleep", "attached"} {
		for _, kind := range []rdma.OpKind{rdma.OpWrite, rdma.OpRead} {
			for _, s := range lists {
				name := fmt.Sprintf("%s/%s/%dx%d", mode, map[rdma.OpKind]string{rdma.OpWrite: "write", rdma.OpRead: "read"}[kind], s.n, s.size)
				b.Run(name, func(b *testing.B) { benchLists(b, x, mode, kind, s) })
			}
		}
	}
}

func benchLists(b *testing.B, x *benchPair, mode string, kind rdma.OpKind, s shape) {
	ops := x.cut(kind, s)
	var attached rdma.Progressor
	if mode == "attached" {
		var ok bool
		if attached, ok = x.ini.(rdma.Progressor); !ok {
			b.Skip("the initiator has no Progress")
		}
		attached.Attach()
		defer attached.Detach()
	}
	beside := os.Getenv("KVXFER_BENCH_RAW") == "" && s.size*s.n >= 1<<20
	var took, raw []time.Duration
	for range 3 {
		x.list(ops, attached)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		if beside {
			b.StopTimer()
			raw = append(raw, x.stream(s.size*s.n))
			b.StartTimer()
		}
		took = append(took, x.list(ops, attached))
	}
	b.StopTimer()
	median := func(d []time.Duration) float64 {
		slices.Sort(d)
		return float64(d[len(d)/2].Nanoseconds())
	}
	m := median(took)
	b.ReportMetric(m/1e3, "us/list")
	if beside {
		b.ReportMetric(float64(s.n*s.size)/m, "GB/s")
		b.ReportMetric(median(raw)/m, "of-raw")
	}
}
