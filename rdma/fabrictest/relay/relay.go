package relay

import (
	"io"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// Relay passes connections on to one address, both ways, and can hold everything back.
type Relay struct {
	ln     net.Listener
	to     string
	wg     sync.WaitGroup
	mu     sync.Mutex
	change *sync.Cond
	held   int
	dead   bool
	conns  []net.Conn
}

// New starts a relay to an address; it ends with the test.
func New(t testing.TB, to string) *Relay {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r := &Relay{ln: ln, to: to}
	r.change = sync.NewCond(&r.mu)
	r.wg.Go(r.accept)
	t.Cleanup(func() {
		_ = ln.Close()
		r.Cut()
		r.wg.Wait()
	})
	return r
}

// Addr is where it listens.
func (r *Relay) Addr() string { return r.ln.Addr().String() }

func (r *Relay) accept() {
	for {
		in, err := r.ln.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", r.to)
		if err != nil {
			_ = in.Close()
			continue
		}
		r.mu.Lock()
		r.conns = append(r.conns, in, out)
		dead := r.dead
		r.mu.Unlock()
		if dead {
			_, _ = in.Close(), out.Close()
			continue
		}
		r.wg.Go(func() { r.pass(out, in) })
		r.wg.Go(func() { r.pass(in, out) })
	}
}

// pass copies one direction; what it has read while the relay is held is delivered afterwards.
func (r *Relay) pass(to, from net.Conn) {
	defer to.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		r.mu.Lock()
		for r.held > 0 && !r.dead {
			r.change.Wait()
		}
		dead := r.dead
		r.mu.Unlock()
		if dead {
			return
		}
		if _, werr := to.Write(buf[:n]); werr != nil || err != nil {
			if err == io.EOF {
				if c, ok := to.(*net.TCPConn); ok {
					_ = c.CloseWrite()
				}
			}
			return
		}
	}
}

// Stall holds everything back until release is called; its second call does nothing.
func (r *Relay) Stall() func() {
	r.mu.Lock()
	r.held++
	r.mu.Unlock()
	var once sync.Once
	return func() {
		once.Do(func() {
			r.mu.Lock()
			r.held--
			r.change.Broadcast()
			r.mu.Unlock()
		})
	}
}

// Cut resets every connection, as the death of a peer's host does in the end.
func (r *Relay) Cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dead = true
	r.change.Broadcast()
	for _, c := range r.conns {
		if t, ok := c.(*net.TCPConn); ok {
			_ = t.SetLinger(0)
		}
		_ = c.Close()
	}
}
