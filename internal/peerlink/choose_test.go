package peerlink

import (
	"io"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/peertls/certtest"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/rdma"
)

// laneDoor lets a test's lanes in as rdma/tcp's.
func laneDoor(l LaneServer) map[string]LaneServer { return map[string]LaneServer{"KVXL": l} }

func absent(why string) []wire.Absence { return []wire.Absence{{Provider: "verbs", Why: why}} }

// TestWhoLacksWhat: a reason names what one side would rather have taken and the other lacks, with the lacking side's own words;
// what both lack, and what would not have been taken, is in no reason.
func TestWhoLacksWhat(t *testing.T) {
	const only, first = "tcp: the only provider both nodes have", "shm: the dialer's first choice of shm, tcp"
	for name, c := range map[string]struct {
		dialer, own side
		reason      string
	}{
		"the dialer lacks it":               {side{[]string{"shm", "tcp"}, absent("no device")}, side{[]string{"verbs", "tcp"}, nil}, only + "; the accepting node has no shm; the dialing node has no verbs (no device)"},
		"the target lacks it":               {side{[]string{"verbs", "tcp"}, nil}, side{[]string{"tcp"}, absent("no device")}, only + "; the accepting node has no verbs (no device)"},
		"the target was told to be without": {side{[]string{"verbs", "tcp"}, nil}, side{[]string{"tcp"}, nil}, only + "; the accepting node has no verbs"},
		"the dialer was told to be without": {side{[]string{"tcp"}, nil}, side{[]string{"verbs", "tcp"}, nil}, only},
		"both lack it":                      {side{[]string{"shm", "tcp"}, absent("a")}, side{[]string{"shm", "tcp"}, absent("b")}, first},
		"a better one is there":             {side{[]string{"shm", "tcp"}, absent("a")}, side{[]string{"shm", "verbs", "tcp"}, nil}, first},
		"a better one is there, reversed":   {side{[]string{"shm", "verbs", "tcp"}, nil}, side{[]string{"shm", "tcp"}, absent("a")}, first},
	} {
		_, reason, err := choose(c.dialer, c.own)
		require.NoError(t, err, name)
		assert.Equal(t, c.reason, reason, name)
	}
	_, reason, err := choose(side{[]string{"verbs", "tcp"}, nil}, side{[]string{"tcp"}, absent(strings.Repeat("ü", 512))})
	require.NoError(t, err)
	assert.LessOrEqual(t, len(reason), wire.MaxText)
	assert.NoError(t, checkAnswer(&wire.Hello{MinVersion: 1, MaxVersion: 1, Version: 1, Node: "b", Epoch: epochB, Provider: "tcp", Reason: reason},
		&wire.Hello{MinVersion: 1, MaxVersion: 1, WantNode: "b", WantEpoch: epochB, Providers: []string{"tcp"}}))
}

// TestBothSidesHearWhoLacksIt: the reason of the side that lacks a provider comes with its HELLO, so that both links have it.
func TestBothSidesHearWhoLacksIt(t *testing.T) {
	a := newNode(t, "a", epochA, func(o *Options) { o.Absent = absent("libibverbs.so.1 is not there") })
	b := newNode(t, "b", epochB, twoFabrics(newFabric("verbs")))
	const want = "tcp: the only provider both nodes have; the dialing node has no verbs (libibverbs.so.1 is not there)"
	name, reason := dial(t, a, b.ref()).Provider()
	assert.Equal(t, []string{"tcp", want}, []string{name, reason})
	_, reason = accepted(t, b, 0).Provider()
	assert.Equal(t, want, reason)

	_, reason = dial(t, b, a.ref()).Provider()
	assert.Equal(t, "tcp: the only provider both nodes have; the accepting node has no verbs (libibverbs.so.1 is not there)", reason)
	ref := b.ref()
	ref.Provider = "verbs"
	assert.Contains(t, dialFails(t, a, ref, fault.ErrNotSupported).Detail, "verbs: libibverbs.so.1 is not there")
}

// TestTargetThatTakesNoSession: a provider whose accepting half cannot be made is replaced as one that does not reach the peer is;
// an error that has another reason is the dial's.
func TestTargetThatTakesNoSession(t *testing.T) {
	near := newFabric("near")
	near.accept = fault.New(fault.ResourceExhausted, "accept", "no queue pair is left")
	a, b := newNode(t, "a", epochA, twoFabrics(newFabric("near"))), newNode(t, "b", epochB, twoFabrics(near))
	l := dial(t, a, b.ref())
	name, reason := l.Provider()
	assert.Equal(t, []string{"tcp", "tcp: near is not usable: accept no queue pair is left"}, []string{name, reason})
	ref := b.ref()
	ref.Provider = "near"
	assert.Contains(t, dialFails(t, a, ref, fault.ErrResourceExhausted).Detail, "no queue pair is left")
	near.mu.Lock()
	near.accept = fault.New(fault.Internal, "accept", "a defect")
	near.mu.Unlock()
	l.Close(nil)
	eventually(t, "the link to go", func() bool { return a.h.reason(l) != nil })
	dialFails(t, a, b.ref(), fault.ErrInternal)
}

// TestDialWithoutAProvider: a reference that excludes a provider gets the best link over another, its own and shared with others
// that exclude the same, and the reason says so.
func TestDialWithoutAProvider(t *testing.T) {
	a, b := newNode(t, "a", epochA, twoFabrics(newFabric("near"))), newNode(t, "b", epochB, twoFabrics(newFabric("near")))
	ref := b.ref()
	best := dial(t, a, ref)
	ref.Without = []string{"near"}
	l := dial(t, a, ref)
	assert.NotSame(t, best, l)
	name, reason := l.Provider()
	assert.Equal(t, []string{"tcp", "tcp: the best without near"}, []string{name, reason})
	assert.Same(t, l, dial(t, a, ref))
	ref.Without = []string{"far"}
	assert.Same(t, best, dial(t, a, ref), "the link that is there does not use it")
	ref.Without = []string{"tcp", "near"}
	e := dialFails(t, a, ref, fault.ErrNotSupported)
	assert.Equal(t, "provider", e.Field)
	ref.Without = nil
	assert.Same(t, best, dial(t, a, ref), "who excludes none keeps the best")

	best.Close(nil)
	eventually(t, "the link to go", func() bool { return a.h.reason(best) != nil })
	a.shun(ref, "near", errNoSocket)
	ref.Without = []string{"tcp"}
	name, _ = dial(t, a, ref).Provider()
	assert.Equal(t, "near", name, "what was learned of the last one that is left keeps nobody from trying it")
}

// TestEveryProviderHasItsLanes: the first four bytes say whose connection it is, in clear and over TLS.
func TestEveryProviderHasItsLanes(t *testing.T) {
	ca := certtest.New("ca")
	lanes, sides := newHallway(), newHallway()
	defer lanes.close()
	defer sides.close()
	door := func(o *Options) {
		o.Lanes = map[string]LaneServer{"KVXL": lanes, "KVXV": LaneFunc(sides.ServeLane)}
	}
	clear := newNode(t, "a", epochA, door)
	secure := newNode(t, "b", epochB, door, over(identityOf(t, ca, "b")))
	for _, c := range []net.Conn{raw(t, clear.addr), raw(t, secure.addr), rawOver(t, secure, identityOf(t, ca, "a"))} {
		send(t, c, []byte("KVXVhello"))
		assert.Equal(t, "KVXV", <-sides.prefixes)
	}
	send(t, raw(t, clear.addr), []byte("KVXL"))
	assert.Equal(t, "KVXL", <-lanes.prefixes)
	sides.mu.Lock()
	for _, c := range sides.conns {
		got := make([]byte, 5)
		_, err := io.ReadFull(c, got)
		require.NoError(t, err)
		assert.Equal(t, "hello", string(got))
	}
	sides.mu.Unlock()
	other := raw(t, clear.addr)
	send(t, other, []byte("KVXM"))
	ends(t, other)
}

func TestLanesAndAbsentAreChecked(t *testing.T) {
	for field, change := range map[string]func(*Options){
		"Lanes":  func(o *Options) { o.Lanes = map[string]LaneServer{"KVXF": newHallway()} },
		"absent": func(o *Options) { o.Absent = absent(strings.Repeat("x", wire.MaxText+1)) },
		"Absent": func(o *Options) {
			o.Absent = make([]wire.Absence, 17)
			for i := range o.Absent {
				o.Absent[i].Provider = "x"
			}
		},
	} {
		o := Options{Node: "a", Epoch: epochA, Providers: []rdma.Provider{newFabric("tcp")}, Handler: newRecorder(t)}
		change(&o)
		_, err := New(o)
		require.ErrorIs(t, err, fault.ErrInvalidArgument)
		assert.Equal(t, field, fault.From("", err).Field)
	}
	for _, prefix := range []string{"\x16\x03\x01\x00", "KVX", "KVXLL"} {
		_, err := New(Options{Node: "a", Epoch: epochA, Providers: []rdma.Provider{newFabric("tcp")}, Handler: newRecorder(t), Lanes: map[string]LaneServer{prefix: newHallway()}})
		require.ErrorIs(t, err, fault.ErrInvalidArgument, "%q", prefix)
	}
}
