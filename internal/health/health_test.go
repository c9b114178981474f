package health

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait; nothing depends on how much of it is used.
const patience = 60 * time.Second

// serve starts a server; stop ends it and gives what Serve returned.
func serve(t *testing.T, o Options) (addr string, stop func() error) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	o.Listener = ln
	if o.Status == nil {
		o.Status = func() any { return wire.Status{Node: "a", Leases: 3} }
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, o) }()
	var once atomic.Bool
	stop = func() error {
		cancel()
		if once.Swap(true) {
			return nil
		}
		return <-done
	}
	t.Cleanup(func() { assert.NoError(t, stop()) })
	return ln.Addr().String(), stop
}

func ask(t *testing.T, method, addr, path string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequest(method, "http://"+addr+path, nil)
	require.NoError(t, err)
	tr := &http.Transport{DisableKeepAlives: true}
	defer tr.CloseIdleConnections()
	resp, err := tr.RoundTrip(req)
	require.NoError(t, err)
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return resp, string(b)
}

func TestAnswers(t *testing.T) {
	var live, ready atomic.Pointer[error]
	get := func(p *atomic.Pointer[error]) func() error {
		return func() error {
			if e := p.Load(); e != nil {
				return *e
			}
			return nil
		}
	}
	addr, _ := serve(t, Options{Live: get(&live), Ready: get(&ready)})
	for _, path := range []string{"/healthz", "/readyz"} {
		resp, text := ask(t, "GET", addr, path)
		assert.Equal(t, 200, resp.StatusCode)
		assert.Equal(t, "ok\n", text)
		assert.Equal(t, "nosniff", resp.Header.Get("X-Content-Type-Options"))
		assert.Equal(t, "no-store", resp.Header.Get("Cache-Control"))
	}
	draining := error(fault.New(fault.Draining, "ready", "the node is shutting down"))
	ready.Store(&draining)
	resp, text := ask(t, "GET", addr, "/readyz")
	assert.Equal(t, 503, resp.StatusCode)
	assert.Contains(t, text, "the node is shutting down")
	resp, _ = ask(t, "GET", addr, "/healthz")
	assert.Equal(t, 200, resp.StatusCode, "draining is alive")
	broken := errors.New("the store is gone")
	live.Store(&broken)
	resp, text = ask(t, "GET", addr, "/healthz")
	assert.Equal(t, 503, resp.StatusCode)
	assert.Equal(t, "the store is gone\n", text)

	resp, text = ask(t, "GET", addr, "/status?pretty=1")
	assert.Equal(t, 200, resp.StatusCode)
	assert.Equal(t, "application/json", resp.Header.Get("Content-Type"))
	var s wire.Status
	require.NoError(t, json.Unmarshal([]byte(text), &s))
	assert.Equal(t, wire.Status{Node: "a", Leases: 3}, s)

	resp, text = ask(t, "HEAD", addr, "/status")
	assert.Equal(t, 200, resp.StatusCode)
	assert.Positive(t, resp.ContentLength)
	assert.Empty(t, text)
}

func TestNothingElseIsServed(t *testing.T) {
	addr, _ := serve(t, Options{})
	for _, path := range []string{"/", "/healthz/", "/debug/pprof/", "//status", "/../status", "/metrics"} {
		resp, _ := ask(t, "GET", addr, path)
		assert.Equal(t, 404, resp.StatusCode, path)
	}
	for _, m := range []string{"POST", "PUT", "DELETE", "PATCH", "OPTIONS"} {
		resp, _ := ask(t, m, addr, "/status")
		assert.Equal(t, 405, resp.StatusCode, m)
		assert.Equal(t, "GET, HEAD", resp.Header.Get("Allow"))
	}
}

func TestStatusThatCannotBeShown(t *testing.T) {
	addr, _ := serve(t, Options{Status: func() any { return math.NaN() }})
	resp, text := ask(t, "GET", addr, "/status")
	assert.Equal(t, 500, resp.StatusCode)
	assert.NotContains(t, text, "NaN")
}

func connect(t *testing.T, addr string) net.Conn {
	t.Helper()
	c, err := net.DialTimeout("tcp", addr, patience)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
	return c
}

func TestSlowClientIsCutOff(t *testing.T) {
	addr, _ := serve(t, Options{Timeout: 50 * time.Millisecond})
	for _, text := range []string{"", "GET /healthz HT", "GET /healthz HTTP/1.1\r\nHost: a\r\n", "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"} {
		c := connect(t, addr)
		_, err := io.WriteString(c, text)
		require.NoError(t, err)
		_, err = io.ReadAll(c)
		var ne net.Error
		assert.False(t, errors.As(err, &ne) && ne.Timeout(), "%q keeps its connection", text)
	}
	c := connect(t, addr)
	_, err := io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: a\r\nX: "+strings.Repeat("x", 64<<10)+"\r\n\r\n")
	if err == nil {
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err == nil { // else the reset came first
			assert.Equal(t, http.StatusRequestHeaderFieldsTooLarge, resp.StatusCode)
			_ = resp.Body.Close()
		}
	}
}

func TestConnectionsAreBounded(t *testing.T) {
	addr, stop := serve(t, Options{MaxConns: 1, Timeout: patience})
	first := connect(t, addr)
	_, err := io.WriteString(first, "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
	require.NoError(t, err)
	resp, err := http.ReadResponse(bufio.NewReader(first), nil)
	require.NoError(t, err)
	_ = resp.Body.Close()

	second := connect(t, addr)
	_, err = io.WriteString(second, "GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
	require.NoError(t, err)
	answered := make(chan error, 1)
	go func() {
		_, err := io.ReadAll(second)
		answered <- err
	}()
	select {
	case <-answered:
		t.Fatal("two connections at a time")
	case <-time.After(20 * time.Millisecond): // a wrong server is caught now and then, a right one never fails
	}
	require.NoError(t, first.Close())
	require.NoError(t, <-answered)

	third := connect(t, addr) // holds the place while the server ends
	_, err = io.WriteString(third, "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
	require.NoError(t, err)
	resp, err = http.ReadResponse(bufio.NewReader(third), nil)
	require.NoError(t, err)
	_ = resp.Body.Close()
	require.NoError(t, stop())
}

func TestShutdown(t *testing.T) {
	asked, release := make(chan struct{}), make(chan struct{})
	addr, stop := serve(t, Options{Timeout: patience, Status: func() any {
		close(asked)
		<-release
		return wire.Status{Node: "late"}
	}})
	c := connect(t, addr)
	_, err := io.WriteString(c, "GET /status HTTP/1.1\r\nHost: a\r\n\r\n")
	require.NoError(t, err)
	<-asked
	done := make(chan error, 1)
	go func() { done <- stop() }()
	require.Eventually(t, func() bool {
		c, err := net.DialTimeout("tcp", addr, patience)
		if err == nil {
			_ = c.Close()
		}
		return err != nil
	}, patience, time.Millisecond, "no new connection is taken")
	close(release)
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	require.NoError(t, err)
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	assert.Contains(t, string(b), "late")
	require.NoError(t, <-done)
}

func TestListenerFails(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, ln.Close())
	err = Serve(context.Background(), Options{Listener: ln, Status: func() any { return nil }})
	assert.ErrorIs(t, err, fault.ErrInternal)
	for field, o := range map[string]Options{
		"Listener": {Status: func() any { return nil }},
		"Status":   {Listener: ln},
		"Timeout":  {Listener: ln, Status: func() any { return nil }, Timeout: -1},
		"MaxConns": {Listener: ln, Status: func() any { return nil }, MaxConns: -1},
	} {
		err := Serve(context.Background(), o)
		require.ErrorIs(t, err, fault.ErrInvalidArgument)
		assert.Equal(t, field, fault.From("", err).Field)
	}
}
