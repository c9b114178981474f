package tcp

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"os"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/eventqueue"
)

// rawLane is a lane spoken by hand: a peer that does what it likes.
type rawLane struct {
	net.Conn
	t testing.TB
}

func dialRaw(t testing.TB, addr string, opening []byte) *rawLane {
	c, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
	_, err = c.Write(opening)
	require.NoError(t, err)
	return &rawLane{c, t}
}

func (r *rawLane) answer() fault.Code {
	b := make([]byte, answerLen)
	_, err := io.ReadFull(r, b)
	require.NoError(r.t, err)
	a, err := parseAnswer(b)
	require.NoError(r.t, err)
	return a.status
}

// lone is a target with a hand-made peer on its only lane.
func lone(t *testing.T) (*node, rdma.Target, []byte, *rawLane, rdma.Key) {
	b := newNode(t, Options{Lanes: 1, SocketBuffer: small, HelloTimeout: patience}, "127.0.0.1:0")
	tgt, par, err := b.Accept(1)
	require.NoError(t, err)
	h := helloFor(t, par, 0)
	l := dialRaw(t, b.addr, h.bytes())
	require.Zero(t, l.answer())
	require.NoError(t, <-b.lanes)
	dst := mapped(t, 8<<20)
	s, err := rdma.NewSpans(8<<20, rdma.Span{Len: 8 << 20})
	require.NoError(t, err)
	k, err := tgt.Grant(rdma.Window{Region: register(t, b.Provider, dst, "dst"), Access: rdma.AccessWrite, Bounds: s})
	require.NoError(t, err)
	return b, tgt, dst, l, k
}

func helloFor(t testing.TB, par []byte, lane uint16) hello {
	p, err := parseParams(par)
	require.NoError(t, err)
	return hello{minVersion: 1, maxVersion: 1, lane: lane, session: p.session, secret: p.secret}
}

// frame makes a frame's bytes; status ^0 leaves the trailer out.
func frame(h header, descs []desc, payload []byte, status fault.Code) []byte {
	b := make([]byte, headerLen)
	h.count, h.payload = uint16(len(descs)), uint32(len(payload))
	h.put(b)
	for _, d := range descs {
		var x [descLen]byte
		d.put(x[:])
		b = append(b, x[:]...)
	}
	b = append(b, payload...)
	if status != ^fault.Code(0) {
		var x [trailerLen]byte
		putTrailer(x[:], status)
		b = append(b, x[:]...)
	}
	return b
}

func TestHelloIsChecked(t *testing.T) {
	b := newNode(t, Options{Lanes: 2, HelloTimeout: patience}, "127.0.0.1:0")
	_, par, err := b.Accept(1)
	require.NoError(t, err)
	good := helloFor(t, par, 0)
	change := func(f func(*hello)) []byte {
		h := good
		f(&h)
		return h.bytes()
	}
	for _, c := range []struct {
		name  string
		bytes []byte
		want  fault.Code
	}{
		{"wrong secret", change(func(h *hello) { h.secret[31] ^= 1 }), fault.PermissionDenied},
		{"unknown session", change(func(h *hello) { h.session++ }), fault.NotFound},
		{"lane beyond", change(func(h *hello) { h.lane = 2 }), fault.ProtocolViolation},
		{"newer", change(func(h *hello) { h.minVersion, h.maxVersion = 2, 9 }), fault.VersionMismatch},
		{"older", change(func(h *hello) { h.minVersion, h.maxVersion = 0, 0 }), fault.VersionMismatch},
		{"range", change(func(h *hello) { h.maxVersion = 9 }), 0},
		{"taken", good.bytes(), fault.AlreadyExists},
		{"feature", change(func(h *hello) { h.required = 4 }), fault.FeatureRequired},
		{"garbage", append([]byte(LaneMagic), bytes.Repeat([]byte{0xff}, 60)...), fault.VersionMismatch},
	} {
		require.Equal(t, c.want, dialRaw(t, b.addr, c.bytes).answer(), c.name)
		require.Equal(t, c.want, fault.CodeOf(<-b.lanes), c.name)
	}
	hasty := newNode(t, Options{HelloTimeout: 50 * time.Millisecond}, "127.0.0.1:0")
	slow := dialRaw(t, hasty.addr, good.bytes()[:40])
	requireCode(t, fault.DeadlineExceeded, <-hasty.lanes)
	_, err = slow.Read(make([]byte, 1))
	require.Error(t, err)
	dialRaw(t, b.addr, good.bytes()[:40]).Close()
	requireCode(t, fault.PeerLost, <-b.lanes)

	c1, c2 := net.Pipe()
	defer c2.Close()
	requireCode(t, fault.NotSupported, b.ServeLane(c1, []byte(LaneMagic)))
	_, _, err = b.Accept(1)
	requireCode(t, fault.InvalidArgument, err)
}

func TestConnectFails(t *testing.T) {
	a, b := newNode(t, Options{}, "127.0.0.1:0"), newNode(t, Options{}, "127.0.0.1:0")
	_, par, err := b.Accept(1)
	require.NoError(t, err)
	ctx := context.Background()
	bad := bytes.Clone(par)
	bad[20] ^= 1
	_, err = a.Connect(ctx, 1, b.addr, bad)
	requireCode(t, fault.PermissionDenied, err)
	bad = bytes.Clone(par)
	bad[8] ^= 1
	_, err = a.Connect(ctx, 1, b.addr, bad)
	requireCode(t, fault.NotFound, err)
	for _, x := range [][]byte{nil, par[:40], append(bytes.Clone(par), 0)} {
		_, err = a.Connect(ctx, 1, b.addr, x)
		requireCode(t, fault.InvalidArgument, err)
	}
	bad = bytes.Clone(par)
	bad[0] = 2
	_, err = a.Connect(ctx, 1, b.addr, bad)
	requireCode(t, fault.VersionMismatch, err)

	mute, err := net.Listen("tcp", "127.0.0.1:0") // connects and never answers
	require.NoError(t, err)
	defer mute.Close()
	ctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	_, err = a.Connect(ctx, 1, mute.Addr().String(), par)
	requireCode(t, fault.PeerUnreachable, err)
	_ = mute.Close()
	_, err = a.Connect(context.Background(), 1, mute.Addr().String(), par)
	requireCode(t, fault.PeerUnreachable, err)

	_, err = a.Connect(context.Background(), 1, b.addr, par)
	require.NoError(t, err)
	_, err = a.Connect(context.Background(), 1, b.addr, par)
	requireCode(t, fault.InvalidArgument, err)
}

func TestIPv6(t *testing.T) {
	if ln, err := net.Listen("tcp", "[::1]:0"); err != nil {
		t.Skipf("this machine has no IPv6 loop-back: %v", err)
	} else {
		_ = ln.Close()
	}
	p := &pair{src: mapped(t, 4096), dst: mapped(t, 4096)}
	p.a, p.b = newNode(t, Options{}, "127.0.0.1:0"), newNode(t, Options{}, "[::1]:0")
	p.connect(t, p.b.addr)
	p.srcR, p.dstR = register(t, p.a.Provider, p.src, "src"), register(t, p.b.Provider, p.dst, "dst")
	pattern(p.src, 1)
	p.post(t, write(p.grant(t, rdma.AccessWrite, 0), 1, p.srcR, rdma.Range{Len: 4096}))
	require.Zero(t, p.a.next(t, rdma.EventCompletion).Status)
	require.Equal(t, p.src, p.dst)
}

func TestMalformedFramesEndTheSession(t *testing.T) {
	good := header{kind: kindWrite, seq: 1, key: 1, total: 8}
	eight := make([]byte, 8)
	none := ^fault.Code(0)
	at := func(b []byte, off int, v uint64, n int) []byte {
		var x [8]byte
		binary.LittleEndian.PutUint64(x[:], v)
		copy(b[off:off+n], x[:n])
		return b
	}
	whole := frame(good, []desc{{0, 8}}, eight, 0)
	next := func(h header) []byte { return append(bytes.Clone(whole), frame(h, []desc{{0, 8}}, eight, 0)...) }
	for name, b := range map[string][]byte{
		"garbage":           bytes.Repeat([]byte("GET / HTTP/1.1\r\n"), 8),
		"kind":              at(bytes.Clone(whole), 4, 9, 1),
		"reserved":          at(bytes.Clone(whole), 60, 1, 4),
		"count":             at(bytes.Clone(whole), 6, 257, 2),
		"payload":           at(bytes.Clone(whole), 8, 1<<20+1, 4),
		"sum":               at(bytes.Clone(whole), 8, 7, 4),
		"empty desc":        at(bytes.Clone(whole), 72, 0, 8),
		"desc overflow":     frame(header{kind: kindWrite, seq: 1, key: 1, total: 8}, []desc{{0, ^uint64(0)}, {0, 9}}, eight, 0),
		"seq 0":             at(bytes.Clone(whole), 16, 0, 8),
		"beyond its total":  at(bytes.Clone(whole), 40, 7, 8),
		"begins late":       at(at(bytes.Clone(whole), 40, 16, 8), 48, 8, 8),
		"trailer":           append(frame(good, []desc{{0, 8}}, eight, none), make([]byte, 8)...),
		"seq again":         next(good),
		"goes on after all": next(header{kind: kindWrite, seq: 1, key: 1, total: 16, offset: 8}),
		"target's kind":     frame(header{kind: kindData, seq: 1, total: 8}, nil, eight, 0),
		"result":            append(frame(header{kind: kindResult}, []desc{{1, 1}}, nil, none), make([]byte, 8)...),
		"request":           frame(header{kind: kindRequest, seq: 1, key: 1, total: 8}, []desc{{0, 9}}, nil, none),
	} {
		t.Run(name, func(t *testing.T) {
			n, tgt, _, l, _ := lone(t)
			_, err := l.Write(b)
			require.NoError(t, err)
			require.Equal(t, fault.ProtocolViolation, n.next(t, rdma.EventDown).Status)
			_, err = io.Copy(io.Discard, l)
			if err != nil {
				require.ErrorIs(t, err, unix.ECONNRESET)
			}
			require.NoError(t, tgt.Close())
		})
	}
	t.Run("truncated", func(t *testing.T) {
		n, _, dst, l, _ := lone(t)
		pattern(eight, 3)
		_, err := l.Write(whole[:headerLen+descLen+5])
		require.NoError(t, err)
		eventually(t, "five bytes", func() bool { return landed(dst, whole[headerLen+descLen:headerLen+descLen+5]) == 5 })
		_ = l.Close()
		require.Equal(t, fault.PeerLost, n.next(t, rdma.EventDown).Status)
		require.Empty(t, n.drain())
	})
}

// An initiator may give an operation up between two frames; the next one is served as if it had never been.
func TestAnAbandonedOpIsForgotten(t *testing.T) {
	n, _, dst, l, k := lone(t)
	five := []byte("hello")
	var b []byte
	b = append(b, frame(header{kind: kindWrite, seq: 3, key: uint64(k), total: 9}, []desc{{0, 5}}, five, 0)...)
	b = append(b, frame(header{kind: kindWrite, seq: 4, key: uint64(k), tag: 6, total: 5}, []desc{{100, 5}}, five, fault.Cancelled)...)
	b = append(b, frame(header{kind: kindWrite, seq: 9, key: uint64(k), tag: 7, total: 5}, []desc{{200, 5}}, five, 0)...)
	_, err := l.Write(b)
	require.NoError(t, err)
	require.Equal(t, rdma.Event{Kind: rdma.EventArrival, Session: 1, Bytes: 5, Key: k, Tag: 7}, n.next(t, rdma.EventArrival))
	back := make([]byte, headerLen+resultLen)
	_, err = io.ReadFull(l, back)
	require.NoError(t, err)
	r, err := parseResult(back[headerLen:])
	require.NoError(t, err)
	require.Equal(t, result{seq: 9, bytes: 5}, r)
	require.Equal(t, "hello", string(dst[200:205]))
}

// A peer that asks for data and reads none is not served for ever: what it sends backs up. Nothing else suffers.
func TestAPeerThatDoesNotReadIsHeldBack(t *testing.T) {
	n, tgt, _, l, _ := lone(t)
	mem := mapped(t, 1<<20)
	s, err := rdma.NewSpans(1<<20, rdma.Span{Len: 1 << 20})
	require.NoError(t, err)
	k, err := tgt.Grant(rdma.Window{Region: register(t, n.Provider, mem, "out"), Access: rdma.AccessRead, Bounds: s})
	require.NoError(t, err)
	require.NoError(t, l.SetWriteDeadline(time.Now().Add(2*time.Second)))
	_ = l.Conn.(*net.TCPConn).SetWriteBuffer(small)
	_ = l.Conn.(*net.TCPConn).SetReadBuffer(small)
	for seq := uint64(1); err == nil; seq++ {
		_, err = l.Write(frame(header{kind: kindRequest, seq: seq, key: uint64(k), total: 1 << 20}, []desc{{0, 1 << 20}}, nil, ^fault.Code(0)))
		require.Less(t, seq, uint64(1<<20), "the target takes requests without end")
	}
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, tgt.Fence(k))
	require.NoError(t, tgt.Close())
}

// A peer that writes one byte again and again does not fill this node with arrivals: its lane waits for whoever polls,
// and Close does not wait for the lane.
func TestArrivalsThatNobodyPollsHoldTheLaneBack(t *testing.T) {
	n, tgt, _, l, k := lone(t)
	go func() { _, _ = io.Copy(io.Discard, l) }()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		const batch = 256
		for seq := uint64(1); seq < 3*eventqueue.MaxEvents; {
			var b []byte
			for range batch {
				b = append(b, frame(header{kind: kindWrite, seq: seq, key: uint64(k), total: 1}, []desc{{0, 1}}, []byte{1}, 0)...)
				seq++
			}
			if _, err := l.Write(b); err != nil {
				return
			}
		}
	}()
	queued := n.events.Len
	full := func() bool { return queued() >= eventqueue.MaxEvents }
	eventually(t, "a full queue", full)
	for range 200 { // each place that is made is taken by one more; a lane tells of several at a time
		require.Less(t, queued(), eventqueue.MaxEvents+maxPlaced)
		require.Equal(t, maxPlaced, n.Poll(make([]rdma.Event, maxPlaced)))
		eventually(t, "a full queue again", full)
	}
	require.NoError(t, tgt.Fence(k))
	require.NoError(t, tgt.Close())
	<-sent
	require.Less(t, queued(), eventqueue.MaxEvents+maxPlaced)
}

// Memory with a page that nobody may touch: the kernel answers EFAULT, and the lane goes on.
func TestMemoryFaults(t *testing.T) { clearAndTLS(t, testMemoryFaults) }

func testMemoryFaults(t *testing.T, newPair makePair) {
	p := newPair(t, 8<<20, Options{Lanes: 1}, Options{})
	kw, kr := p.grant(t, rdma.AccessWrite, 0), p.grant(t, rdma.AccessRead, 0)
	pattern(p.src, 1)
	const bad = 5 << 20
	whole := rdma.Range{Len: 8 << 20}
	for _, c := range []struct {
		name string
		mem  []byte
		op   rdma.Op
	}{
		{"target of a write", p.dst, write(kw, 1, p.srcR, whole)},
		{"source of a write", p.src, write(kw, 1, p.srcR, whole)},
		{"source of a read", p.dst, read(kr, 1, p.srcR, whole)},
		{"target of a read", p.src, read(kr, 1, p.srcR, whole)},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.NoError(t, unix.Mprotect(c.mem[bad:bad+4096], unix.PROT_NONE))
			p.post(t, c.op)
			e := p.a.next(t, rdma.EventCompletion)
			require.NoError(t, unix.Mprotect(c.mem[bad:bad+4096], unix.PROT_READ|unix.PROT_WRITE))
			require.Equal(t, fault.MemoryFault, e.Status)
			require.Equal(t, c.op.Kind == rdma.OpWrite, e.Wrote)
			require.LessOrEqual(t, e.Bytes, uint64(bad))
			p.post(t, write(kw, 2, p.srcR, rdma.Range{Local: 9, Remote: 9, Len: 100}))
			require.Zero(t, p.a.next(t, rdma.EventCompletion).Status)
			require.Equal(t, uint64(1002), p.b.next(t, rdma.EventArrival).Tag)
			require.Empty(t, p.b.drain())
		})
	}
}

// A hole in shared memory with no memory left behind it is the fault that a client can cause.
func TestHoleInFullTmpfs(t *testing.T) { clearAndTLS(t, testHoleInFullTmpfs) }

func testHoleInFullTmpfs(t *testing.T, newPair makePair) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("this process may not mount a tmpfs: %v", err)
	}
	defer func() { require.NoError(t, unix.Unmount(dir, 0)) }()
	f, err := os.Create(dir + "/region")
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, f.Truncate(1<<20))
	mem, err := unix.Mmap(int(f.Fd()), 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Munmap(mem)) }()
	clear(mem)
	const hole = 512 << 10
	require.NoError(t, unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, hole, 4096))
	require.NoError(t, os.WriteFile(dir+"/filler", make([]byte, 4096), 0o600))

	p := newPair(t, 1<<20, Options{}, Options{})
	pattern(p.src, 1)
	p.dstR = register(t, p.b.Provider, mem, "holed")
	k := p.grant(t, rdma.AccessWrite, 0)
	p.post(t, write(k, 1, p.srcR, rdma.Range{Len: 1 << 20}))
	e := p.a.next(t, rdma.EventCompletion)
	require.Equal(t, fault.MemoryFault, e.Status)
	require.True(t, e.Wrote)
	require.NoError(t, os.Remove(dir+"/filler"))
	p.post(t, write(k, 2, p.srcR, rdma.Range{Len: 1 << 20}))
	require.Zero(t, p.a.next(t, rdma.EventCompletion).Status)
	require.True(t, bytes.Equal(p.src, mem))
	require.NoError(t, p.dstR.Close())
}

func TestPeerDeath(t *testing.T) {
	p, x := newProxied(t, 1<<20, Options{}, Options{})
	kw, kr := p.grant(t, rdma.AccessWrite, 0), p.grant(t, rdma.AccessRead, 0)
	x.valve.set(0)
	p.post(t, write(kw, 1, p.srcR, rdma.Range{Len: 1 << 20}), read(kr, 2, p.srcR, rdma.Range{Len: 1 << 20}), write(kw, 3, p.srcR))
	eventually(t, "bytes are under way", func() bool {
		i := p.ini.(*initiator)
		i.mu.Lock()
		defer i.mu.Unlock()
		o := i.byID[1]
		o.mu.Lock()
		defer o.mu.Unlock()
		return o.touched
	})
	x.cut()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var all []rdma.Event
	for len(all) < 4 {
		require.NoError(t, p.a.Wait(ctx))
		all = append(all, p.a.drain()...)
	}
	require.Equal(t, rdma.Event{Kind: rdma.EventDown, Status: fault.PeerLost, Session: 2}, all[3])
	seen := map[uint64]bool{}
	for _, e := range all[:3] {
		require.Equal(t, rdma.Event{Kind: rdma.EventCompletion, Status: fault.PeerLost, Wrote: e.Op == 1, Session: 2, Op: e.Op}, e)
		seen[e.Op] = true
	}
	require.Len(t, seen, 3)
	_, err := p.ini.Post([]rdma.Op{write(kw, 9, p.srcR)})
	requireCode(t, fault.PeerLost, err)
	require.Equal(t, rdma.Event{Kind: rdma.EventDown, Status: fault.PeerLost, Session: 1}, p.b.next(t, rdma.EventDown))
	require.NoError(t, p.tgt.Extend(kw, 9), "windows stay until they are fenced")
	require.NoError(t, p.tgt.Fence(kw))
	require.NoError(t, p.ini.Close())
	require.Empty(t, p.a.drain())
}

func TestProviderCloseLeavesNothing(t *testing.T) {
	fds := func() int {
		d, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		return len(d)
	}
	require.NotNil(t, newPair(t, 4096, Options{}, Options{})) // the poller's own descriptors
	before := fds()
	for range 20 {
		t.Run("", func(t *testing.T) {
			p, x := newProxied(t, 1<<20, Options{}, Options{})
			k := p.grant(t, rdma.AccessWrite, 0)
			x.valve.set(100)
			p.post(t, write(k, 1, p.srcR, rdma.Range{Len: 1 << 20}), write(k, 2, p.srcR))
			require.NoError(t, p.a.Close())
			require.NoError(t, p.a.Close())
			es := p.a.drain()
			require.Len(t, es, 2)
			requireCode(t, fault.Closed, p.a.Wait(context.Background()))
			_, err := p.a.Register(rdma.Memory{Kind: rdma.MemoryHost, Base: unsafe.Pointer(&p.src[0]), Len: 1})
			requireCode(t, fault.Closed, err)
			_, _, err = p.a.Accept(7)
			requireCode(t, fault.Closed, err)
			require.NoError(t, p.srcR.Close())
		})
	}
	eventually(t, "the proxies' descriptors are closed", func() bool { return fds() <= before })
}

// FuzzTarget says anything on a lane. Nothing outside the window may change, and the target must come to rest.
func FuzzTarget(f *testing.F) {
	_, frames := golden()
	for i := range frames {
		var b []byte
		for _, x := range frames[4:][:i%6+1] {
			b = append(b, x...)
		}
		f.Add(b)
	}
	f.Add(frame(header{kind: kindWrite, seq: 1, key: 1, total: 8}, []desc{{4090, 4}, {4100, 4}}, make([]byte, 8), 0))
	f.Add(frame(header{kind: kindWrite, seq: 1, key: 1, total: 8}, []desc{{4096, 8}}, []byte("kvxferkv"), 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		n, err := New(Options{Lanes: 1})
		require.NoError(t, err)
		tgt, par, err := n.Accept(1)
		require.NoError(t, err)
		mem := mapped(t, 3*4096)
		_, err = tgt.Grant(rdma.Window{Region: register(t, n, mem, "mem"), Access: rdma.AccessWrite, Bounds: rdma.Spans{{Off: 4096, Len: 4096}}})
		require.NoError(t, err)
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		h := helloFor(t, par, 0)
		l := dialRaw(t, ln.Addr().String(), append(h.bytes(), b...))
		c, err := ln.Accept()
		require.NoError(t, err)
		require.NoError(t, n.ServeLane(c, nil))
		_ = l.Conn.(*net.TCPConn).CloseWrite() // the target may have cut it already
		_, _ = io.Copy(io.Discard, l)          // ends when the target has taken all and closed
		require.NoError(t, n.Close())
		require.NoError(t, ln.Close())
		require.Equal(t, make([]byte, 4096), mem[:4096])
		require.Equal(t, make([]byte, 4096), mem[8192:])
	})
}
