package shm

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/fabrictest"
)

// raw connects to a provider as somebody who need not keep the protocol.
func raw(t testing.TB, path string) *net.UnixConn {
	c, err := net.DialUnix(network, nil, &net.UnixAddr{Net: network, Name: path})
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
	return c
}

func send(t testing.TB, c *net.UnixConn, b []byte, fds ...int) {
	_, _, err := c.WriteMsgUnix(b, unix.UnixRights(fds...), nil)
	require.NoError(t, err)
}

// ends reads until the other side closes.
func ends(t testing.TB, c *net.UnixConn) {
	b := make([]byte, maxMessage)
	for {
		if _, err := c.Read(b); err != nil {
			require.False(t, os.IsTimeout(err), "the connection stays open")
			return
		}
	}
}

// guest is a session whose initiator the test plays.
type guest struct {
	*net.UnixConn
	own, peer *page
}

const guestSlots = 8

func newGuest(t testing.TB, n *node, par []byte) *guest {
	p, err := parseParams(par)
	require.NoError(t, err)
	g := &guest{UnixConn: raw(t, n.Path())}
	g.own, err = newPage(guestSlots, windowSlots)
	require.NoError(t, err)
	h := hello{minVersion: 1, maxVersion: 1, slots: guestSlots, session: p.session, secret: p.secret}
	send(t, g.UnixConn, h.bytes(), g.own.fd)
	b, fd, err := readHello(g.UnixConn, helloAnswerLen)
	require.NoError(t, err)
	st, err := parseHelloAnswer(b)
	require.NoError(t, err)
	require.Zero(t, st)
	g.peer, err = peersPage(fd, windowSlots, guestSlots)
	require.NoError(t, err)
	require.NoError(t, unix.Close(fd))
	t.Cleanup(func() { g.own.close(); g.peer.close() })
	return g
}

func TestHelloIsChecked(t *testing.T) {
	n := newNode(t, Options{})
	_, b, err := n.Accept(5)
	require.NoError(t, err)
	par, err := parseParams(b)
	require.NoError(t, err)
	good := hello{minVersion: 1, maxVersion: 1, slots: guestSlots, session: par.session, secret: par.secret}
	pg, err := newPage(guestSlots, windowSlots)
	require.NoError(t, err)
	defer pg.close()
	open, err := unix.MemfdCreate("unsealed", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	require.NoError(t, err)
	defer unix.Close(open)
	require.NoError(t, unix.Fallocate(open, 0, 0, int64(pageSize(guestSlots, windowSlots))))
	small, err := newPage(1, 1)
	require.NoError(t, err)
	defer small.close()
	var pipe [2]int
	require.NoError(t, unix.Pipe2(pipe[:], unix.O_CLOEXEC))
	defer unix.Close(pipe[0])
	defer unix.Close(pipe[1])
	before := openFDs(t)
	for name, c := range map[string]struct {
		change func(h *hello)
		fds    []int
		want   fault.Code
	}{
		"secret":          {func(h *hello) { h.secret[31] ^= 1 }, []int{pg.fd}, fault.PermissionDenied},
		"session":         {func(h *hello) { h.session++ }, []int{pg.fd}, fault.NotFound},
		"version":         {func(h *hello) { h.minVersion = 2; h.maxVersion = 3 }, []int{pg.fd}, fault.VersionMismatch},
		"feature":         {func(h *hello) { h.required = 4 }, []int{pg.fd}, fault.FeatureRequired},
		"slots":           {func(h *hello) { h.slots = maxSlots + 1 }, []int{pg.fd}, fault.ProtocolViolation},
		"no page":         {func(h *hello) {}, nil, fault.Internal},
		"no memfd":        {func(h *hello) {}, []int{pipe[0]}, fault.ProtocolViolation},
		"page unsealed":   {func(h *hello) {}, []int{open}, fault.ProtocolViolation},
		"page too small":  {func(h *hello) {}, []int{small.fd}, fault.ProtocolViolation},
		"two descriptors": {func(h *hello) {}, []int{pg.fd, small.fd}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			h := good
			c.change(&h)
			conn := raw(t, n.Path())
			defer conn.Close()
			send(t, conn, h.bytes(), c.fds...)
			if c.want == 0 { // not even a hello
				ends(t, conn)
				return
			}
			answer, fd, err := readHello(conn, helloAnswerLen)
			require.NoError(t, err)
			assert.Equal(t, -1, fd)
			st, err := parseHelloAnswer(answer)
			require.NoError(t, err)
			assert.Equal(t, c.want.String(), st.String())
			ends(t, conn)
		})
	}
	for _, junk := range [][]byte{{}, {1}, []byte("GET / HTTP/1.1\r\n\r\n"), make([]byte, helloLen), make([]byte, 4096)} {
		conn := raw(t, n.Path())
		send(t, conn, junk, pg.fd)
		ends(t, conn)
		_ = conn.Close()
	}
	eventually(t, "descriptors to be closed", func() bool { return openFDs(t) <= before })
	// None of it has taken the session's place; the second who comes with the secret finds it taken.
	newGuest(t, n, b)
	conn := raw(t, n.Path())
	send(t, conn, good.bytes(), pg.fd)
	answer, _, err := readHello(conn, helloAnswerLen)
	require.NoError(t, err)
	st, err := parseHelloAnswer(answer)
	require.NoError(t, err)
	assert.Equal(t, fault.AlreadyExists, st)
}

// Connections that say nothing are let go, and there are never many.
func TestSilentConnectionsAreBounded(t *testing.T) {
	n := newNode(t, Options{HelloTimeout: time.Hour})
	before := openFDs(t)
	var conns []*net.UnixConn
	for range 2 * maxHellos {
		conns = append(conns, raw(t, n.Path()))
	}
	closed := func() (k int) {
		for _, c := range conns {
			_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
			if _, err := c.Read(make([]byte, 1)); !os.IsTimeout(err) {
				k++
			}
		}
		return k
	}
	eventually(t, "half of them to be closed", func() bool { return closed() == maxHellos })
	assert.LessOrEqual(t, openFDs(t), before+len(conns)+maxHellos)
	within(t, "Close", func() { require.NoError(t, n.Close()) })
	assert.Equal(t, len(conns), closed())

	slow := newNode(t, Options{HelloTimeout: 10 * time.Millisecond})
	ends(t, raw(t, slow.Path()))
}

func TestTrustedUser(t *testing.T) {
	assert.NoError(t, trustedUser(1000, 1000))
	assert.NoError(t, trustedUser(0, 1000))
	for _, c := range [][2]int{{1001, 1000}, {1000, 0}, {65534, 0}} {
		err := trustedUser(c[0], c[1])
		requireCode(t, fault.PermissionDenied, err)
	}
}

func TestSocketFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "s")
	old, err := net.ListenUnix(network, &net.UnixAddr{Net: network, Name: path})
	require.NoError(t, err)
	old.SetUnlinkOnClose(false)
	require.NoError(t, old.Close())
	p, err := New(Options{Path: path})
	require.NoError(t, err, "what a former daemon left is replaced")
	st, err := os.Stat(path)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), st.Mode().Perm())
	require.NoError(t, p.Close())
	_, err = os.Stat(path)
	assert.ErrorIs(t, err, os.ErrNotExist)

	require.NoError(t, os.WriteFile(path, []byte("precious"), 0o600))
	_, err = New(Options{Path: path})
	requireCode(t, fault.ConfigInvalid, err)
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, "precious", string(b), "only a socket is replaced")

	long, err := New(Options{Path: filepath.Join(dir, strings.Repeat("x", maxPath))})
	require.NoError(t, err)
	assert.LessOrEqual(t, len(long.Path()), maxPath)
	st, err = os.Stat(filepath.Dir(long.Path()))
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o700), st.Mode().Perm())
	require.NoError(t, long.Close())
	_, err = os.Stat(filepath.Dir(long.Path()))
	assert.ErrorIs(t, err, os.ErrNotExist)
}

// Whatever keeps two processes apart is PeerUnreachable with the path and the reason, so that another provider is tried.
func TestUnreachable(t *testing.T) {
	a, b, other := newNode(t, Options{DialTimeout: time.Second}), newNode(t, Options{}), newNode(t, Options{})
	_, good, err := b.Accept(1)
	require.NoError(t, err)
	_, _, err = other.Accept(1) // a session of that number, with another secret
	require.NoError(t, err)
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	silent, err := net.ListenUnix(network, &net.UnixAddr{Net: network, Name: filepath.Join(dir, "silent")})
	require.NoError(t, err)
	defer silent.Close()
	for path, why := range map[string]string{
		filepath.Join(dir, "none"):   "no such file or directory",
		file:                         "connection refused",
		other.Path():                 "another node's",
		filepath.Join(dir, "silent"): "deadline exceeded",
	} {
		par, err := parseParams(good)
		require.NoError(t, err)
		par.path = path
		_, err = a.Connect(context.Background(), 1, "", par.bytes())
		requireCode(t, fault.PeerUnreachable, err)
		assert.Contains(t, err.Error(), path)
		assert.Contains(t, err.Error(), why)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = a.Connect(ctx, 1, "", good)
	requireCode(t, fault.PeerUnreachable, err)
	for _, bad := range [][]byte{nil, good[:10], append([]byte{9}, good[1:]...), append(good[:paramsLen:paramsLen], strings.Repeat("x", 200)...)} {
		_, err = a.Connect(context.Background(), 1, "", bad)
		require.Error(t, err)
		assert.Contains(t, []fault.Code{fault.ProtocolViolation, fault.VersionMismatch}, fault.CodeOf(err))
	}
	// And none of it has used the number up, or the place.
	i, err := a.Connect(context.Background(), 1, "", good)
	require.NoError(t, err)
	require.NoError(t, i.Close())
}

func TestOptionsAreChecked(t *testing.T) {
	for field, o := range map[string]Options{
		"Path": {}, "Workers": {Path: "x", Workers: 257}, "MaxInFlight": {Path: "x", MaxInFlight: maxSlots + 1}, "Grace": {Path: "x", Grace: time.Hour},
	} {
		_, err := New(o)
		requireCode(t, fault.InvalidArgument, err)
		assert.Equal(t, field, fault.From("", err).Field)
	}
}

func TestRegisterRefuses(t *testing.T) {
	n := newNode(t, Options{})
	good := fabrictest.Alloc(t, 4096, 0).Host("m")
	for name, c := range map[string]struct {
		change func(m *rdma.Memory)
		want   fault.Code
	}{
		"no descriptor": {func(m *rdma.Memory) { m.FD = 0 }, fault.NotSupported},
		"cuda":          {func(m *rdma.Memory) { m.Kind = rdma.MemoryCUDA }, fault.NotSupported},
		"no address":    {func(m *rdma.Memory) { m.Base = nil }, fault.InvalidArgument},
		"wrap":          {func(m *rdma.Memory) { m.Len = ^uint64(0) }, fault.InvalidArgument},
	} {
		m := good
		c.change(&m)
		_, err := n.Register(m)
		requireCode(t, c.want, err)
		assert.Equal(t, "m", fault.From("", err).Region, name)
	}
}
