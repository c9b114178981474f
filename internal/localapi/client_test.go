package localapi

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/pidfd"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/xfer"
)

func TestAnswerComesBeforeEvents(t *testing.T) {
	e := newEngine(t)
	e.lease = func(sink xfer.Sink) error {
		sink.LayersVisible(wire.LayersVisible{Lease: 11, Layers: []uint32{0, 1}})
		sink.LeaseEnded(wire.LeaseEvent{Lease: 11, Bytes: 4096}, []byte("note"))
		return nil
	}
	c := attach(t, serve(t, options(t, e)))
	body[wire.LeaseInfo](t, c.ask(wire.KindLease, &wire.LeaseRequest{Mode: "write", TTLMillis: 1}, nil))
	f := c.recv()
	assert.Equal(t, wire.KindEventLayers, f.Kind)
	assert.Zero(t, f.Request)
	assert.Empty(t, f.JSON)
	v, err := wire.ParseLayersVisible(f.Array)
	require.NoError(t, err)
	assert.Equal(t, wire.LayersVisible{Lease: 11, Layers: []uint32{0, 1}}, v)
	f = c.recv()
	assert.Equal(t, wire.KindEventLease, f.Kind)
	assert.Equal(t, "note", string(f.Array))
	e.sink(1).TransferEnded(wire.TransferEvent{Transfer: 4})
	e.sink(1).Released(wire.Released{Transfer: 4})
	assert.Equal(t, wire.KindEventTransfer, c.recv().Kind)
	assert.Equal(t, wire.KindEventReleased, c.recv().Kind)
}

func TestEventsKeepTheirOrder(t *testing.T) {
	e := newEngine(t)
	c := attach(t, serve(t, options(t, e)))
	const n = 20_000
	go func() {
		sink := e.sink(1)
		for i := range n {
			sink.LayersVisible(wire.LayersVisible{Lease: uint64(i), Layers: []uint32{0}})
		}
	}()
	in := bufio.NewReader(c.conn)
	for i := range n {
		f, err := wire.ReadFrame(in, wire.LocalLimits)
		require.NoError(t, err)
		v, err := wire.ParseLayersVisible(f.Array)
		require.NoError(t, err)
		require.Equal(t, uint64(i), v.Lease)
	}
}

func TestClientThatDoesNotRead(t *testing.T) {
	for name, lim := range map[string]Limits{"count": {EventFrames: 100}, "bytes": {EventBytes: 100_000}} {
		t.Run(name, func(t *testing.T) {
			e := newEngine(t)
			o := options(t, e)
			o.Limits = lim
			s := serve(t, o)
			attach(t, s)
			sink := e.sink(1)
			until := time.Now().Add(patience)
			for gone := false; !gone; {
				require.Less(t, time.Now(), until, "never cut off")
				for range 100 {
					sink.LayersVisible(wire.LayersVisible{Lease: 1, Layers: make([]uint32, 100)})
				}
				e.mu.Lock()
				gone = e.count("gone") > 0
				e.mu.Unlock()
			}
			sink.Released(wire.Released{Transfer: 1}) // late ones are harmless
		})
	}
}

func TestWriteTimeout(t *testing.T) {
	e := newEngine(t)
	e.blocks = make([]byte, 16<<20)
	o := options(t, e)
	o.Limits.Write = 20 * time.Millisecond
	c := attach(t, serve(t, o))
	c.send(wire.KindBlocks, &wire.BlocksQuery{}, nil)
	c.send(wire.KindBlocks, &wire.BlocksQuery{}, nil)
	e.wait("gone", 1)
	assert.NotContains(t, e.log()[2:], "blocks 0", "the second waits until the first is out")
}

func TestLargeAnswers(t *testing.T) {
	e := newEngine(t)
	e.blocks = make([]byte, 3<<20)
	for i := range e.blocks {
		e.blocks[i] = byte(i * 7)
	}
	c := attach(t, serve(t, options(t, e)))
	for range 5 {
		c.send(wire.KindBlocks, &wire.BlocksQuery{}, nil)
	}
	for range 5 {
		require.Equal(t, e.blocks, c.recv().Array)
	}
	big := make([]byte, 8<<20)
	for i := range big {
		big[i] = byte(i * 3)
	}
	id := c.send(wire.KindEvict, &wire.Evict{Cache: 1}, big)
	f := c.recv()
	assert.Equal(t, id, f.Request)
	assert.Equal(t, wire.KindOK, f.Kind)
}

func TestClientGone(t *testing.T) {
	e := newEngine(t)
	e.evict = func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	}
	s := serve(t, options(t, e))
	c := attach(t, s)
	require.NoError(t, c.conn.Close())
	e.wait("gone", 1)

	c = attach(t, s)
	c.send(wire.KindEvict, &wire.Evict{}, nil)
	e.wait("evict", 1)
	require.NoError(t, c.conn.CloseWrite(), "half an end is an end")
	e.wait("gone", 2)
	c.ended()

	dial(t, s).conn.Close()
	c = dial(t, s)
	c.raw([]byte("KVXF"))
	require.NoError(t, c.conn.Close())
	require.Eventually(t, func() bool { return s.Clients() == 0 }, patience, time.Millisecond)
	e.mu.Lock()
	defer e.mu.Unlock()
	assert.Equal(t, map[xfer.ClientID]int{1: 1, 2: 1}, e.gone)
}

const childSocket = "KVXFER_TEST_LOCALAPI_SOCKET"

// childMain is a client that leaves its socket to a child of its own and waits to be killed.
func childMain(path string) {
	fail := func(err error) {
		fmt.Println("error", err)
		os.Exit(1)
	}
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		fail(err)
	}
	f, err := wire.NewFrame(wire.KindHello, 1, hello(), nil)
	if err != nil {
		fail(err)
	}
	if _, err := conn.Write(wire.Append(nil, f)); err != nil {
		fail(err)
	}
	if a, err := wire.ReadFrame(conn, wire.LocalLimits); err != nil || a.Kind != wire.KindHelloOK {
		fail(fmt.Errorf("%v %v", a.Kind, err))
	}
	file, err := conn.File()
	if err != nil {
		fail(err)
	}
	heir := exec.Command("sleep", "600")
	heir.ExtraFiles = []*os.File{file}
	if err := heir.Start(); err != nil {
		fail(err)
	}
	fmt.Println("heir", heir.Process.Pid)
	_, _ = os.Stdin.Read(make([]byte, 1))
}

func TestProcessExit(t *testing.T) {
	e := newEngine(t)
	s := serve(t, options(t, e))
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childSocket+"="+s.Addr().String())
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	text, ok := strings.CutPrefix(strings.TrimSpace(line), "heir ")
	require.True(t, ok, line)
	heir, err := strconv.Atoi(text)
	require.NoError(t, err)
	defer func() { _ = unix.Kill(heir, unix.SIGKILL) }()

	require.NoError(t, cmd.Process.Signal(unix.SIGSTOP))
	assert.Equal(t, 1, s.Clients(), "a stopped process lives")
	require.NoError(t, cmd.Process.Kill())
	e.wait("gone", 1)
	require.NoError(t, unix.Kill(heir, 0), "the child of the client still holds the socket")
	_ = cmd.Wait()
	_ = in.Close()
}

func TestUnseenProcess(t *testing.T) {
	e := newEngine(t)
	watched := func(c *testClient) bool {
		var h wire.Hello
		f := c.ask(wire.KindHello, hello(), nil)
		require.NoError(t, f.Decode(&h))
		return h.ProcessWatched
	}
	o := options(t, e)
	o.ofPeer = func(syscall.Conn, int) (*pidfd.Handle, error) { return pidfd.Open(0) } // an old kernel, another pid namespace
	c := dial(t, serve(t, o))
	assert.False(t, watched(c))
	assert.Equal(t, wire.KindOK, c.ask(wire.KindPing, nil, nil).Kind, "it is served all the same")
	require.NoError(t, c.conn.Close())
	e.wait("gone", 1)

	o = options(t, e)
	assert.True(t, watched(dial(t, serve(t, o))))

	o = options(t, e)
	o.ofPeer = func(syscall.Conn, int) (*pidfd.Handle, error) { return nil, pidfd.ErrGone }
	c = dial(t, serve(t, o))
	c.ended() // whoever holds the other end is not who connected
}

func TestDescriptors(t *testing.T) {
	frame := func(kind wire.Kind, body any, fds uint16) []byte {
		f, err := wire.NewFrame(kind, 9, body, nil)
		require.NoError(t, err)
		f.FDs = fds
		return wire.Append(nil, f)
	}
	const size = 4096
	reg := frame(wire.KindRegisterRegion, region("kv", size), 1)
	many := make([]int, 20)
	for name, c := range map[string]struct {
		fds  int
		send func(c *testClient, fds []int)
		kind wire.Kind
		err  string // field of the ERROR
	}{
		"with the first byte only": {1, func(c *testClient, fds []int) {
			c.raw(reg[:1], fds...)
			c.raw(reg[1:20])
			c.raw(reg[20:])
		}, wire.KindOK, ""},
		"behind other frames": {1, func(c *testClient, fds []int) {
			ping := frame(wire.KindPushCancel, &wire.PushCancel{}, 0)
			for range 50 {
				c.raw(ping)
			}
			c.raw(reg, fds...)
			c.raw(ping)
		}, wire.KindOK, ""},
		"two":                    {2, func(c *testClient, fds []int) { c.raw(frame(wire.KindRegisterRegion, region("kv", size), 2), fds...) }, wire.KindError, "fd_count"},
		"fewer than the header":  {1, func(c *testClient, fds []int) { c.raw(frame(wire.KindRegisterRegion, region("kv", size), 2), fds...) }, wire.KindError, "fd_count"},
		"more than the header":   {3, func(c *testClient, fds []int) { c.raw(reg, fds...) }, wire.KindError, "fd_count"},
		"none in the header":     {1, func(c *testClient, fds []int) { c.raw(frame(wire.KindPing, nil, 0), fds...) }, wire.KindError, "fd_count"},
		"more than allowed":      {20, func(c *testClient, fds []int) { c.raw(reg, fds...) }, wire.KindError, "fd_count"},
		"with a kind that takes": {1, func(c *testClient, fds []int) { c.raw(frame(wire.KindPing, nil, 1), fds...) }, wire.KindError, "fd_count"},
		"with no reply":          {1, func(c *testClient, fds []int) { c.raw(frame(wire.KindPushCancel, &wire.PushCancel{}, 1), fds...) }, wire.KindError, "fd_count"},
		"in the body": {1, func(c *testClient, fds []int) {
			c.raw(reg[:40])
			require.Eventually(c.t, func() bool { return pending(c.t, c.conn) == 0 }, patience, time.Millisecond)
			c.raw(reg[40:], fds...)
		}, wire.KindError, "fd_count"},
		"group after group in one frame": {1, func(c *testClient, fds []int) {
			c.raw(reg[:40], fds...)
			for i := range 3 {
				require.Eventually(c.t, func() bool { return pending(c.t, c.conn) == 0 }, patience, time.Millisecond)
				_, _, _ = c.conn.WriteMsgUnix(reg[40+i:41+i], unix.UnixRights(fds...), nil)
			}
		}, wire.KindError, "fd_count"},
		"body refused": {1, func(c *testClient, fds []int) {
			c.raw(frame(wire.KindRegisterRegion, map[string]any{"name": 1}, 1), fds...)
		}, wire.KindError, "name"},
		"field refused":  {1, func(c *testClient, fds []int) { c.raw(frame(wire.KindRegisterRegion, region("", size), 1), fds...) }, wire.KindError, "name"},
		"memory refused": {1, func(c *testClient, fds []int) { c.raw(frame(wire.KindRegisterRegion, region("kv", 2*size), 1), fds...) }, wire.KindError, "size"},
		"engine refused": {1, func(c *testClient, fds []int) {
			c.raw(frame(wire.KindRegisterRegion, region("refused", size), 1), fds...)
		}, wire.KindError, ""},
		"unknown kind": {1, func(c *testClient, fds []int) { c.raw(frame(0x7f, nil, 1), fds...) }, wire.KindError, "kind"},
	} {
		for _, greeted := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, HELLO %v", name, greeted), func(t *testing.T) {
				s := serve(t, options(t, newEngine(t)))
				cl := dial(t, s)
				want := wire.KindError
				if greeted {
					require.Equal(t, wire.KindHelloOK, cl.ask(wire.KindHello, hello(), nil).Kind)
					want = c.kind
				}
				fd := memfd(t, size)
				for i := range many {
					many[i] = fd
				}
				c.send(cl, many[:c.fds])
				require.NoError(t, unix.Close(fd))
				f := cl.recv()
				assert.Equal(t, want, f.Kind, "%s", f.JSON)
				if greeted && f.Kind == wire.KindError {
					var w fault.Wire
					require.NoError(t, f.Decode(&w))
					assert.Equal(t, c.err, w.Field, "%s", f.JSON)
				}
				require.NoError(t, cl.conn.Close())
				noLeaks(t)
			})
		}
	}
	t.Run("cut off in mid-frame", func(t *testing.T) {
		s := serve(t, options(t, newEngine(t)))
		cl := attach(t, s)
		fd := memfd(t, size)
		cl.raw(reg[:50], fd)
		require.NoError(t, unix.Close(fd))
		require.NoError(t, cl.conn.Close())
		noLeaks(t)
	})
	t.Run("queued at the end", func(t *testing.T) {
		e := newEngine(t)
		e.evict = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		cl := attach(t, serve(t, options(t, e)))
		cl.send(wire.KindEvict, &wire.Evict{}, nil)
		fd := memfd(t, size)
		for range 5 {
			cl.raw(reg, fd)
		}
		require.NoError(t, unix.Close(fd))
		assert.Equal(t, wire.KindOK, cl.ask(wire.KindPing, nil, nil).Kind)
		require.NoError(t, cl.conn.Close())
		e.wait("gone", 1)
		noLeaks(t)
	})
}

// pending is how many bytes the other side has not read.
func pending(t testing.TB, conn *net.UnixConn) int {
	t.Helper()
	raw, err := conn.SyscallConn()
	require.NoError(t, err)
	var n int
	var ioErr error
	require.NoError(t, raw.Control(func(fd uintptr) { n, ioErr = unix.IoctlGetInt(int(fd), unix.TIOCOUTQ) }))
	require.NoError(t, ioErr)
	return n
}

func noLeaks(t testing.TB) {
	t.Helper()
	require.Eventually(t, func() bool {
		fds, maps := leaks(t)
		return fds == 0 && maps == 0
	}, patience, time.Millisecond, "descriptors or mappings are left")
}

// as connects as another user; only this goroutine's thread changes its user, and it ends with the goroutine.
func as(t *testing.T, uid int, path string) (*net.UnixConn, error) {
	t.Helper()
	type result struct {
		conn *net.UnixConn
		err  error
	}
	got := make(chan result)
	go func() {
		runtime.LockOSThread() // and never unlocked
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); errno != 0 {
			got <- result{err: errno}
			return
		}
		conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
		got <- result{conn, err}
	}()
	r := <-got
	return r.conn, r.err
}

func TestCredentials(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can become other users")
	}
	const friend, stranger = 12345, 54321
	e := newEngine(t)
	o := options(t, e)
	require.NoError(t, os.Chmod(filepath.Dir(filepath.Dir(o.Path)), 0o711))
	o.AllowUIDs = []int{friend}
	s := serve(t, o)

	conn, err := as(t, stranger, o.Path)
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	c := &testClient{t: t, conn: conn}
	fe := c.refused(0, fault.ErrPermissionDenied, "")
	assert.Contains(t, fe.Detail, "54321")
	c.ended()
	assert.Empty(t, e.log())

	conn, err = as(t, friend, o.Path)
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	c = &testClient{t: t, conn: conn}
	require.Equal(t, wire.KindHelloOK, c.ask(wire.KindHello, hello(), nil).Kind)
	assert.Equal(t, friend, e.info(1).Uid)
	attach(t, s) // root itself

	o = options(t, e)
	require.NoError(t, os.Chmod(filepath.Dir(filepath.Dir(o.Path)), 0o711))
	serve(t, o)
	_, err = as(t, stranger, o.Path)
	assert.ErrorIs(t, err, unix.EACCES, "without AllowUIDs the file system keeps others out")
}
