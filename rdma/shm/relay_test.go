package shm

import (
	"net"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// relay stands between the two sides of sessions: it passes messages on with their descriptors, and can hold them back.
// What memory both sides have is beyond it, as it is beyond everybody.
type relay struct {
	ln     *net.UnixListener
	to     string
	wg     sync.WaitGroup
	mu     sync.Mutex
	change *sync.Cond
	held   int
	dead   bool
	conns  []*net.UnixConn
}

func newRelay(t testing.TB, to string) *relay {
	ln, err := net.ListenUnix(network, &net.UnixAddr{Net: network, Name: filepath.Join(t.TempDir(), "r")})
	require.NoError(t, err)
	r := &relay{ln: ln, to: to}
	r.change = sync.NewCond(&r.mu)
	r.wg.Go(r.accept)
	t.Cleanup(func() {
		_ = ln.Close()
		r.cut()
		r.wg.Wait()
	})
	return r
}

func (r *relay) path() string { return r.ln.Addr().String() }

func (r *relay) accept() {
	for {
		in, err := r.ln.AcceptUnix()
		if err != nil {
			return
		}
		out, err := net.DialUnix(network, nil, &net.UnixAddr{Net: network, Name: r.to})
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
func (r *relay) pass(to, from *net.UnixConn) {
	defer to.Close()
	buf, oob := make([]byte, maxMessage), make([]byte, unix.CmsgSpace(64))
	for {
		n, k, _, _, err := from.ReadMsgUnix(buf, oob)
		if err != nil {
			return
		}
		fds, _ := descriptors(oob[:k])
		r.mu.Lock()
		for r.held > 0 && !r.dead {
			r.change.Wait()
		}
		dead := r.dead
		r.mu.Unlock()
		if !dead {
			_, _, err = to.WriteMsgUnix(buf[:n], oob[:k], nil)
		}
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
		if dead || err != nil {
			return
		}
	}
}

func (r *relay) stall() func() {
	r.mu.Lock()
	r.held++
	r.mu.Unlock()
	return sync.OnceFunc(func() {
		r.mu.Lock()
		r.held--
		r.change.Broadcast()
		r.mu.Unlock()
	})
}

// cut ends every connection without a word, as the death of a process does.
func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dead = true
	r.change.Broadcast()
	for _, c := range r.conns {
		_ = c.Close()
	}
}
