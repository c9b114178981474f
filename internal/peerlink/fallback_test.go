package peerlink

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

// logBuffer is a log that several goroutines write.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// twoFabrics gives a node a second provider, which it prefers.
func twoFabrics(near *fabric, more ...func(*Options)) func(*Options) {
	return func(o *Options) {
		o.Providers = append([]rdma.Provider{near}, o.Providers...)
		for _, f := range more {
			f(o)
		}
	}
}

var errNoSocket = &fault.Error{Code: fault.PeerUnreachable, Op: "connect", Detail: "/state/near.sock", Err: errText("no such file or directory")}

type errText string

func (e errText) Error() string { return string(e) }

// A provider that both have and that does not reach the peer: the next is taken at once, the reason says so, and the
// provider is neither tried for the next link nor forgotten for ever.
func TestProviderThatDoesNotReach(t *testing.T) {
	nearA, nearB := newFabric("near"), newFabric("near")
	var tries, conns atomic.Int32
	var broken atomic.Bool
	broken.Store(true)
	nearA.connect = func(context.Context) error {
		tries.Add(1)
		if broken.Load() {
			return errNoSocket
		}
		return nil
	}
	log := new(logBuffer)
	a := newNode(t, "a", epochA, twoFabrics(nearA, func(o *Options) {
		o.Logger = slog.New(slog.NewTextHandler(log, nil))
		o.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conns.Add(1)
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		}
	}))
	b := newNode(t, "b", epochB, twoFabrics(nearB))
	again := func() (name, reason string) {
		l := dial(t, a, b.ref())
		name, reason = l.Provider()
		l.Close(nil)
		eventually(t, "the link to go", func() bool { return a.h.reason(l) != nil })
		return name, reason
	}
	name, reason := again()
	assert.Equal(t, "tcp", name)
	assert.Equal(t, "tcp: near is not usable: connect /state/near.sock: no such file or directory", reason)
	assert.EqualValues(t, 1, tries.Load())
	assert.EqualValues(t, 2, conns.Load(), "one control connection for each provider that was tried")

	broken.Store(false)
	name, reason = again()
	assert.Equal(t, "tcp", name, "it is not tried for every link")
	assert.Contains(t, reason, "near is not usable")
	assert.EqualValues(t, 1, tries.Load())
	assert.Equal(t, 1, strings.Count(log.String(), "provider does not reach the peer"))

	a.mu.Lock() // the minute is over
	for k, x := range a.shuns {
		x.until = time.Now().Add(-time.Second)
		a.shuns[k] = x
	}
	a.mu.Unlock()
	name, reason = again()
	assert.Equal(t, "near", name)
	assert.Equal(t, "near: the dialer's first choice of near, tcp", reason)
	eventually(t, "the sessions of both sides to end", func() bool {
		targets, _ := nearB.open()
		_, initiators := nearA.open()
		return targets+initiators == 0
	})
}

// What was learned is of one incarnation: another one of the same name is tried afresh.
func TestShunnedByEpoch(t *testing.T) {
	near := newFabric("near")
	a := newNode(t, "a", epochA, twoFabrics(near))
	ref := (&node{Links: &Links{opt: Options{Node: "b", Epoch: epochB}}}).ref()
	a.shun(ref, "near", errNoSocket)
	offer, without := a.usable(ref)
	assert.Equal(t, []string{"tcp"}, offer)
	require.Len(t, without, 1)
	ref.Epoch = epochA
	offer, _ = a.usable(ref)
	assert.Equal(t, []string{"near", "tcp"}, offer)
}

// Only what is the provider's own affair moves on to the next one, and the last one's error is the dial's.
func TestWhatEndsADial(t *testing.T) {
	for _, c := range []struct {
		name      string
		near, far error
		want      error
	}{
		{"another error", &fault.Error{Code: fault.ProtocolViolation, Op: "connect"}, nil, fault.ErrProtocolViolation},
		{"none reaches", errNoSocket, &fault.Error{Code: fault.PeerUnreachable, Op: "connect", Detail: "lanes"}, fault.ErrPeerUnreachable},
	} {
		t.Run(c.name, func(t *testing.T) {
			nearA, nearB := newFabric("near"), newFabric("near")
			nearA.connect = func(context.Context) error { return c.near }
			a, b := newNode(t, "a", epochA, twoFabrics(nearA)), newNode(t, "b", epochB, twoFabrics(nearB))
			a.fab.connect = func(context.Context) error { return c.far }
			e := dialFails(t, a, b.ref(), c.want)
			if c.far != nil {
				assert.Equal(t, "lanes", e.Detail)
			}
		})
	}
}

// A peer without the provider is no failure of it.
func TestPeerWithoutTheProvider(t *testing.T) {
	a, b := newNode(t, "a", epochA, twoFabrics(newFabric("near"))), newNode(t, "b", epochB)
	name, reason := dial(t, a, b.ref()).Provider()
	assert.Equal(t, "tcp", name)
	assert.Equal(t, "tcp: the only provider both nodes have; the accepting node has no near", reason)
	assert.Empty(t, a.shuns)
}

func TestReasonIsBounded(t *testing.T) {
	long := fault.Wrap(fault.PeerUnreachable, "connect", errText(strings.Repeat("x", 5000)))
	text := fallback("tcp", []shunned{{provider: "near", why: inWords(long)}, {provider: "nearer", why: inWords(errNoSocket)}})
	assert.LessOrEqual(t, len(text), 1024)
	assert.Equal(t, "tcp: near is not usable: why; nearer is not usable: too", fallback("tcp", []shunned{{provider: "near", why: "why"}, {provider: "nearer", why: "too"}}))
}
