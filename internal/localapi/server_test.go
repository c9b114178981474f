package localapi

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

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
)

func cancelled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func requireSocketError(t *testing.T, err, sentinel error) {
	t.Helper()
	require.ErrorIs(t, err, sentinel)
	assert.Equal(t, "socket", fault.From("", err).Field)
}

func TestSocketFile(t *testing.T) {
	o := options(t, newEngine(t))
	s := serve(t, o)
	for path, mode := range map[string]os.FileMode{filepath.Dir(o.Path): 0o700, o.Path: 0o600} {
		st, err := os.Stat(path)
		require.NoError(t, err)
		assert.Equal(t, mode, st.Mode().Perm(), path)
	}
	_, err := Serve(context.Background(), o)
	requireSocketError(t, err, fault.ErrAlreadyExists)
	attach(t, s)
	require.NoError(t, s.Close(cancelled()))
	assert.NoFileExists(t, o.Path)

	// What a killed daemon leaves behind.
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: o.Path, Net: "unix"})
	require.NoError(t, err)
	stale.SetUnlinkOnClose(false)
	require.NoError(t, stale.Close())
	require.FileExists(t, o.Path)
	s = serve(t, o)
	attach(t, s)

	// A file that took the place of the socket is not removed with it.
	require.NoError(t, os.Remove(o.Path))
	require.NoError(t, os.WriteFile(o.Path, []byte("data"), 0o600))
	require.NoError(t, s.Close(cancelled()))
	assert.FileExists(t, o.Path)
	_, err = Serve(context.Background(), o)
	requireSocketError(t, err, fault.ErrConfigInvalid)
	assert.FileExists(t, o.Path)
}

func TestSocketOfAnotherProgram(t *testing.T) {
	o := options(t, newEngine(t))
	require.NoError(t, os.Mkdir(filepath.Dir(o.Path), 0o700))
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: o.Path, Net: "unix"})
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	_, err = Serve(context.Background(), o)
	requireSocketError(t, err, fault.ErrAlreadyExists)
	c, err := net.Dial("unix", o.Path)
	require.NoError(t, err, "it still serves")
	require.NoError(t, c.Close())
}

func TestSocketPlace(t *testing.T) {
	dir := t.TempDir()
	for name, path := range map[string]string{
		"empty":    "",
		"abstract": "@kvxfer",
		"long":     "/tmp/" + strings.Repeat("x", 103),
		"NUL":      "/tmp/a\x00b",
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Serve(context.Background(), Options{Path: path, Engine: newEngine(t), Logger: quiet})
			requireSocketError(t, err, fault.ErrConfigInvalid)
		})
	}
	t.Run("directory for everybody", func(t *testing.T) {
		d := filepath.Join(dir, "w")
		require.NoError(t, os.Mkdir(d, 0o700))
		require.NoError(t, os.Chmod(d, 0o777))
		_, err := Serve(context.Background(), Options{Path: filepath.Join(d, "s"), Engine: newEngine(t), Logger: quiet})
		requireSocketError(t, err, fault.ErrConfigInvalid)
		assert.ErrorContains(t, err, "0777")
	})
	t.Run("directory is a file", func(t *testing.T) {
		f := filepath.Join(dir, "f")
		require.NoError(t, os.WriteFile(f, nil, 0o600))
		_, err := Serve(context.Background(), Options{Path: filepath.Join(f, "s"), Engine: newEngine(t), Logger: quiet})
		requireSocketError(t, err, fault.ErrConfigInvalid)
	})
	t.Run("directory of somebody else", func(t *testing.T) {
		if os.Getuid() != 0 {
			t.Skip("only root can give a directory away")
		}
		d := filepath.Join(dir, "foreign")
		require.NoError(t, os.Mkdir(d, 0o700))
		require.NoError(t, os.Chown(d, 12345, 12345))
		_, err := Serve(context.Background(), Options{Path: filepath.Join(d, "s"), Engine: newEngine(t), Logger: quiet})
		requireSocketError(t, err, fault.ErrConfigInvalid)
		assert.ErrorContains(t, err, "12345")
	})
}

func TestMaxClients(t *testing.T) {
	o := options(t, newEngine(t))
	o.MaxClients = 2
	s := serve(t, o)
	a := attach(t, s)
	attach(t, s)
	c := dial(t, s)
	c.refused(c.send(wire.KindHello, hello(), nil), fault.ErrResourceExhausted, "")
	c.ended()
	require.Eventually(t, func() bool { return s.Clients() == 2 }, patience, time.Millisecond)
	for range spareObservers { // who looks why it is full gets in, and so do not more of them than that
		observer(t, s)
	}
	c = dial(t, s)
	c.refused(0, fault.ErrResourceExhausted, "")
	c.ended()
	require.NoError(t, a.conn.Close())
	require.Eventually(t, func() bool { return s.Clients() == 1+spareObservers }, patience, time.Millisecond)
}

func TestListenerOfTheCaller(t *testing.T) {
	o := options(t, newEngine(t))
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
	require.NoError(t, err)
	o.Path, o.Listener = "", l
	s := serve(t, o)
	c := attach(t, s)
	st := body[wire.Status](t, c.ask(wire.KindStatus, nil, nil))
	assert.Equal(t, "node-0", st.Node, "without Options.Status")
}

func TestClose(t *testing.T) {
	e := newEngine(t)
	o := options(t, e)
	s := serve(t, o)
	stays := attach(t, s)
	done := make(chan error, 1)
	go func() { done <- s.Close(context.Background()) }()
	require.Eventually(t, func() bool {
		_, err := net.Dial("unix", o.Path)
		return err != nil
	}, patience, time.Millisecond, "it accepts nobody")
	assert.Equal(t, wire.KindOK, stays.ask(wire.KindPing, nil, nil).Kind, "who is there is served")
	require.NoError(t, stays.conn.Close())
	require.NoError(t, <-done)
	e.wait("gone", 1)

	// The context's end cuts off; the client is told why.
	s = serve(t, o)
	stays, silent := attach(t, s), dial(t, s)
	require.Eventually(t, func() bool { return s.Clients() == 2 }, patience, time.Millisecond)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { done <- s.Close(ctx) }()
	cancel()
	stays.refused(0, fault.ErrDraining, "")
	stays.ended()
	silent.refused(0, fault.ErrDraining, "")
	require.NoError(t, stays.conn.Close())
	require.NoError(t, silent.conn.Close())
	require.NoError(t, <-done)
	e.wait("gone", 2)

	// So does the end of the context of Serve.
	ctx, cancel = context.WithCancel(context.Background())
	s, err := Serve(ctx, o)
	require.NoError(t, err)
	stays = attach(t, s)
	cancel()
	stays.refused(0, fault.ErrDraining, "")
	require.NoError(t, stays.conn.Close())
	require.NoError(t, s.Close(context.Background()))
	require.NoError(t, s.Close(context.Background()), "again")
}
