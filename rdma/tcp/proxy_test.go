package tcp

import (
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// proxy stands between two nodes and delays bytes: one way passes a valve (towards the listener, or back), the other
// is free.
type proxy struct {
	addr  string
	valve *valve
	ln    net.Listener
	wg    sync.WaitGroup
	mu    sync.Mutex
	conns []net.Conn
}

// valve lets a number of bytes pass; -1 is all.
type valve struct {
	mu     sync.Mutex
	change *sync.Cond
	left   int64
	passed int64
	closed bool
}

func newValve() *valve {
	v := &valve{left: -1}
	v.change = sync.NewCond(&v.mu)
	return v
}

func (v *valve) set(n int64) {
	v.mu.Lock()
	v.left = n
	v.change.Broadcast()
	v.mu.Unlock()
}

// take waits for room and returns how many of up to n bytes may pass; 0: the proxy is closed.
func (v *valve) take(n int) int {
	v.mu.Lock()
	defer v.mu.Unlock()
	for v.left == 0 && !v.closed {
		v.change.Wait()
	}
	if v.closed {
		return 0
	}
	if v.left > 0 {
		n = int(min(int64(n), v.left))
		v.left -= int64(n)
	}
	v.passed += int64(n)
	return n
}

// empty reports whether nothing may pass any more.
func (v *valve) empty() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.left == 0
}

func newProxy(t testing.TB, to string) *proxy     { return startProxy(t, to, false) }
func newBackProxy(t testing.TB, to string) *proxy { return startProxy(t, to, true) }

func startProxy(t testing.TB, to string, back bool) *proxy {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	x := &proxy{addr: ln.Addr().String(), valve: newValve(), ln: ln}
	x.wg.Go(func() {
		for {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				_ = in.Close()
				continue
			}
			for _, c := range []net.Conn{in, out} { // so that a shut valve stops the sender soon
				_ = c.(*net.TCPConn).SetReadBuffer(64 << 10)
				_ = c.(*net.TCPConn).SetWriteBuffer(64 << 10)
			}
			x.mu.Lock()
			x.conns = append(x.conns, in, out)
			x.mu.Unlock()
			there, here := x.valve, newValve()
			if back {
				there, here = here, there
			}
			x.wg.Go(func() { x.copy(out, in, there) })
			x.wg.Go(func() { x.copy(in, out, here) })
		}
	})
	t.Cleanup(x.close)
	return x
}

func (x *proxy) copy(to, from net.Conn, v *valve) {
	defer to.Close()
	defer from.Close()
	b := make([]byte, 16<<10)
	for {
		n, err := from.Read(b)
		for at := 0; at < n; {
			k := v.take(n - at)
			if k == 0 {
				return
			}
			if _, err := to.Write(b[at : at+k]); err != nil {
				return
			}
			at += k
		}
		if err != nil {
			return
		}
	}
}

// cut ends the connections.
func (x *proxy) cut() {
	x.valve.mu.Lock()
	x.valve.closed = true
	x.valve.change.Broadcast()
	x.valve.mu.Unlock()
	x.mu.Lock()
	for _, c := range x.conns {
		_ = c.Close()
	}
	x.mu.Unlock()
}

func (x *proxy) close() {
	_ = x.ln.Close()
	x.cut()
	x.wg.Wait()
}

// newProxied is newPair with a proxy in front of the target.
func newProxied(t testing.TB, size int, oa, ob Options) (*pair, *proxy) {
	p := &pair{src: mapped(t, size), dst: mapped(t, size)}
	p.a, p.b = newNode(t, oa, "127.0.0.1:0"), newNode(t, ob, "127.0.0.1:0")
	x := newProxy(t, p.b.addr)
	p.connect(t, x.addr)
	p.srcR, p.dstR = register(t, p.a.Provider, p.src, "src"), register(t, p.b.Provider, p.dst, "dst")
	return p, x
}
