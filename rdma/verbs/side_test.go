package verbs

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/testseed"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/verbs/internal/softnic"
)

// rawSide is a side channel spoken by hand: a peer that says what it likes.
type rawSide struct {
	net.Conn
	t testing.TB
}

func dialRaw(t testing.TB, addr string, opening []byte) *rawSide {
	c, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
	_, err = c.Write(opening)
	require.NoError(t, err)
	return &rawSide{c, t}
}

func (r *rawSide) answer() fault.Code {
	b := make([]byte, answerLen)
	_, err := io.ReadFull(r, b)
	require.NoError(r.t, err)
	a, err := parseAnswer(b)
	require.NoError(r.t, err)
	return a.status
}

func (r *rawSide) say(ms ...message) {
	for _, m := range ms {
		_, err := r.Write(framed(m))
		require.NoError(r.t, err)
	}
}

func (r *rawSide) hear() message {
	head := make([]byte, 5)
	_, err := io.ReadFull(r, head)
	require.NoError(r.t, err)
	body := make([]byte, binary.LittleEndian.Uint32(head)-1)
	_, err = io.ReadFull(r, body)
	require.NoError(r.t, err)
	m, err := parseMessage(kind(head[4]), body)
	require.NoError(r.t, err)
	return m
}

func helloFor(t testing.TB, par []byte) hello {
	p, err := parseParams(par)
	require.NoError(t, err)
	return hello{minVersion: 1, maxVersion: 1, session: p.session, secret: p.secret}
}

// lone is a target whose peer is made by hand; id names its session.
func (p *pair) lone(t testing.TB, id rdma.SessionID) (*target, *rawSide) {
	tgt, par, err := p.b.Accept(id)
	require.NoError(t, err)
	h := helloFor(t, par)
	s := dialRaw(t, p.b.addr, h.bytes())
	require.Zero(t, s.answer())
	return tgt.(*target), s
}

// laneOf asks for a lane as an initiator does that has a queue pair of that number.
func laneOf(lane uint16, gen uint32) *laneOpen {
	m := &laneOpen{laneRef: laneRef{lane, gen}, mtu: 4096, qpn: 77, psn: 5, readInit: 1}
	m.toGID, m.fromGID = softDevices(2)[0].Ports[0].GIDs[0].GID, softDevices(1)[0].Ports[0].GIDs[0].GID
	return m
}

// owned counts a node's queue pairs that belong to a lane.
func owned(n *suiteNode) (all int) {
	for _, d := range n.devices {
		d.mu.RLock()
		all += len(d.owners)
		d.mu.RUnlock()
	}
	return all
}

func TestHelloIsChecked(t *testing.T) {
	p := unconnected(t, 4096, 1, Options{HelloTimeout: patience})
	_, par, err := p.b.Accept(1)
	require.NoError(t, err)
	good := helloFor(t, par)
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
		{"newer", change(func(h *hello) { h.minVersion, h.maxVersion = 2, 9 }), fault.VersionMismatch},
		{"older", change(func(h *hello) { h.minVersion, h.maxVersion = 0, 0 }), fault.VersionMismatch},
		{"feature", change(func(h *hello) { h.required = 4 }), fault.FeatureRequired},
		{"other magic", append([]byte("KVXL"), good.bytes()[4:]...), fault.ProtocolViolation},
		{"reserved", append(good.bytes()[:helloLen-1], 1), fault.ProtocolViolation},
		{"garbage", append([]byte(SideMagic), bytes.Repeat([]byte{0xff}, helloLen-4)...), fault.VersionMismatch},
		{"range", change(func(h *hello) { h.maxVersion = 9 }), 0},
		{"second channel", good.bytes(), fault.AlreadyExists},
	} {
		require.Equal(t, c.want, dialRaw(t, p.b.addr, c.bytes).answer(), c.name)
	}
	require.Zero(t, owned(p.b))

	// What a listener has read already counts, and may not be more than a hello.
	here, there := net.Pipe()
	defer here.Close()
	requireCode(t, fault.ProtocolViolation, p.b.ServeSide(there, make([]byte, helloLen+1)))
	here2, there2 := net.Pipe()
	require.NoError(t, here2.Close())
	requireCode(t, fault.PeerLost, p.b.ServeSide(there2, []byte(SideMagic)))

	hasty := unconnected(t, 4096, 1, Options{HelloTimeout: 20 * time.Millisecond})
	here3, there3 := net.Pipe()
	defer here3.Close()
	requireCode(t, fault.DeadlineExceeded, hasty.b.ServeSide(there3, []byte(SideMagic)))
	require.NoError(t, hasty.b.Close())
	here4, there4 := net.Pipe()
	defer here4.Close()
	requireCode(t, fault.Closed, hasty.b.ServeSide(there4, nil))
}

// A peer that breaks the protocol loses its session, with a reason, and nothing of it is left; others go on.
func TestAbuseOfATarget(t *testing.T) {
	rng := testseed.New(t)
	p := unconnected(t, 64<<10, 1, quick(Options{}))
	garbage := make([]byte, 200)
	for k := range garbage {
		garbage[k] = byte(rng.Uint32())
	}
	binary.LittleEndian.PutUint32(garbage, 150)
	garbage[4] = 200
	id := rdma.SessionID(10)
	for _, c := range []struct {
		name string
		say  []byte
		want fault.Code
	}{
		{"unknown kind", garbage, fault.ProtocolViolation},
		{"no kind", []byte{0, 0, 0, 0, 0}, fault.ProtocolViolation},
		{"too long", []byte{0xff, 0xff, 0xff, 0xff, 1}, fault.ProtocolViolation},
		{"short body", []byte{2, 0, 0, 0, byte(kindQuery), 1}, fault.ProtocolViolation},
		{"long body", append(binary.LittleEndian.AppendUint32(nil, 10), byte(kindQuery), 1, 2, 3, 4, 5, 6, 7, 8, 9), fault.ProtocolViolation},
		{"a target's message", framed(&revokeMsg{1}), fault.ProtocolViolation},
		{"a lane's answer", framed(&laneReady{}), fault.ProtocolViolation},
		{"lane beyond", framed(laneOf(maxLanes, 1)), fault.ProtocolViolation},
		{"generation twice", append(framed(laneOf(0, 2)), framed(laneOf(0, 2))...), fault.ProtocolViolation},
		{"generation back", append(framed(laneOf(0, 2)), framed(laneOf(0, 1))...), fault.ProtocolViolation},
		{"end of no lane", framed(&laneShut{laneRef{5, 1}}), fault.ProtocolViolation},
		{"end of a later lane", append(framed(laneOf(0, 1)), framed(&laneShut{laneRef{0, 2}})...), fault.ProtocolViolation},
		{"records of a lane that is up", append(framed(laneOf(0, 1)), framed(&recordsMsg{laneRef: laneRef{0, 1}})...), fault.ProtocolViolation},
		{"records of no lane", framed(&recordsMsg{laneRef: laneRef{7, 1}}), fault.ProtocolViolation},
		{"half a message", []byte{9, 0}, fault.PeerLost},
	} {
		id++
		tgt, s := p.lone(t, id)
		bounds, err := rdma.NewSpans(uint64(len(p.dst)), rdma.Span{Len: uint64(len(p.dst))})
		require.NoError(t, err)
		w := rdma.Window{Region: p.dstR, Access: rdma.AccessWrite, Bounds: bounds}
		key, err := tgt.Grant(w)
		require.NoError(t, err)
		_, err = s.Write(c.say)
		require.NoError(t, err)
		if c.want == fault.PeerLost {
			require.NoError(t, s.Close())
		}
		e := p.next(t, p.b, rdma.EventDown)
		require.Equal(t, id, e.Session, c.name)
		require.Equal(t, c.want.String(), e.Status.String(), c.name)
		require.Eventually(t, func() bool { return owned(p.b) == 0 }, patience, time.Millisecond, c.name)
		_, err = tgt.Grant(w)
		requireCode(t, fault.PeerLost, err)
		require.NoError(t, tgt.Fence(key))
		require.NoError(t, tgt.Close())
	}
	require.NoError(t, p.b.Close())
}

// What a target cannot do for a peer it says of the lane; the session goes on.
func TestLanesThatCannotBeOpened(t *testing.T) {
	p := unconnected(t, 4096, 1, quick(Options{}))
	_, s := p.lone(t, 1)
	for k, c := range []struct {
		change func(m *laneOpen)
		want   fault.Code
	}{
		{func(m *laneOpen) { m.rail = 9 }, fault.ProtocolViolation},
		{func(m *laneOpen) { m.toGID[15]++ }, fault.PeerUnreachable},
		{func(m *laneOpen) { m.mtu = 255 }, fault.PeerUnreachable},
		{func(m *laneOpen) { m.mtu = 1000 }, fault.InvalidArgument},
		{func(m *laneOpen) { m.psn = 1 << 24 }, fault.InvalidArgument},
	} {
		m := laneOf(0, uint32(k+1))
		c.change(m)
		s.say(m)
		d, ok := s.hear().(*laneDead)
		require.True(t, ok)
		require.Equal(t, c.want.String(), d.code.String())
		require.NotEmpty(t, d.text)
		s.say(&laneShut{m.laneRef}) // which is no news
		require.Equal(t, &laneDead{laneRef: m.laneRef}, s.hear())
	}
	p.hb.Adapter("soft0").Refuse(refuse("Connect"))
	s.say(laneOf(0, 50))
	require.NotZero(t, s.hear().(*laneDead).code)
	p.hb.Adapter("soft0").Refuse(nil)
	s.say(laneOf(0, 51))
	require.IsType(t, &laneReady{}, s.hear())
	require.Equal(t, 1, owned(p.b))
}

// A peer may have as many lanes as the limit says, and make them anew; each generation's end is told before the next begins.
func TestEveryLaneOfASession(t *testing.T) {
	p := unconnected(t, 4096, 1, quick(Options{}))
	tgt, s := p.lone(t, 1)
	for gen := uint32(1); gen <= 2; gen++ {
		for lane := range uint16(maxLanes) {
			s.say(laneOf(lane, gen))
			if gen > 1 {
				require.Equal(t, &laneDead{laneRef: laneRef{lane, gen - 1}}, s.hear())
			}
			require.Equal(t, laneRef{lane, gen}, s.hear().(*laneReady).laneRef)
		}
		require.Equal(t, maxLanes, owned(p.b))
	}
	require.NoError(t, tgt.Close())
	require.Eventually(t, func() bool { return owned(p.b) == 0 }, patience, time.Millisecond)
	require.NoError(t, p.b.Close())
}

// A target that breaks the protocol loses its session too; Connect and what is pending say why.
func TestAbuseOfAnInitiator(t *testing.T) {
	opt := quick(Options{})
	p := unconnected(t, 4096, 1, opt)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	id := rdma.SessionID(10)
	for _, c := range []struct {
		name string
		say  []byte
		want fault.Code
	}{
		{"an initiator's message", framed(&queryMsg{1}), fault.ProtocolViolation},
		{"garbage", []byte{1, 0, 0, 0, 99}, fault.ProtocolViolation},
		{"credits for nothing", framed(&creditMsg{laneRef{0, 1}, 1}), fault.ProtocolViolation},
		{"a lane that took too much", framed(&laneDead{laneRef: laneRef{0, 1}, taken: 1}), fault.ProtocolViolation},
		{"window of no access", framed(&windowMsg{key: 1}), fault.ProtocolViolation},
		{"end", nil, fault.PeerLost},
		{"lanes refused", append(framed(&laneDead{laneRef{0, 1}, 0, fault.ResourceExhausted, "full"}),
			framed(&laneDead{laneRef{1, 1}, 0, fault.ResourceExhausted, "full"})...), fault.ResourceExhausted},
		{"lanes that lead nowhere", append(framed(&laneReady{laneRef: laneRef{0, 1}, qpn: 5, mtu: 4096}),
			framed(&laneReady{laneRef: laneRef{1, 1}, qpn: 6, mtu: 4096})...), fault.PeerUnreachable},
		{"lanes of no MTU", append(framed(&laneReady{laneRef: laneRef{0, 1}}), framed(&laneReady{laneRef: laneRef{1, 1}})...), fault.PeerUnreachable},
	} {
		id++
		_, par, err := p.b.Accept(id)
		require.NoError(t, err)
		done := make(chan error, 1)
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			_, err := p.a.Connect(ctx, id, ln.Addr().String(), par)
			done <- err
		}()
		conn, err := ln.Accept()
		require.NoError(t, err)
		s := &rawSide{conn, t}
		require.NoError(t, s.SetDeadline(time.Now().Add(patience)))
		_, err = io.ReadFull(s, make([]byte, helloLen))
		require.NoError(t, err)
		_, err = s.Write((&answer{version: 1}).bytes())
		require.NoError(t, err)
		require.IsType(t, &laneOpen{}, s.hear())
		require.IsType(t, &laneOpen{}, s.hear())
		_, err = s.Write(c.say)
		require.NoError(t, err)
		if c.say == nil {
			require.NoError(t, s.Close())
		}
		err = <-done
		require.Error(t, err, c.name)
		require.Equal(t, c.want.String(), fault.CodeOf(err).String(), "%s: %v", c.name, err)
		_ = s.Close()
		require.Eventually(t, func() bool { return owned(p.a) == 0 }, patience, time.Millisecond, c.name)
	}
	require.NoError(t, p.a.Close())
}

// A peer that does not read cannot make this side keep more than a bound.
func TestAPeerThatDoesNotReadLosesItsSession(t *testing.T) {
	here, there := net.Pipe()
	defer there.Close()
	s := newSide(here)
	lost := make(chan error, 1)
	s.start(func(message) error { return nil }, func(err error) { lost <- err })
	big := &recordsMsg{}
	for range recvDepth {
		big.records = append(big.records, make([]byte, recordLen))
	}
	size := len(framed(big))
	for range 2 * maxQueued / size {
		s.send(big)
	}
	requireCode(t, fault.PeerLost, <-lost)
	s.mu.Lock()
	require.LessOrEqual(t, len(s.out.b), maxQueued+2*size)
	s.mu.Unlock()
	s.close()
	s.wait()
}

// The end of the side channel is the session's on both sides: everything completes, and queue pairs that packets are on their way
// to are dead.
func TestSideChannelCut(t *testing.T) {
	const size = 256 << 10
	o := quick(Options{})
	o.Timeout = 18
	p := newPair(t, size, 2, o)
	key := p.grant(t, rdma.AccessWrite, 0, size)
	pattern(p.src, 1)
	wires := []*softnic.Wire{p.there(0), p.there(1)}
	for _, w := range wires {
		w.Hold()
	}
	for k := range uint64(16) {
		p.post(t, p.write(key, k, rdma.Range{Len: size}))
	}
	eventually(t, "packets are held", func() bool { return wires[0].Stats().Held > 0 && wires[1].Stats().Held > 0 })
	p.relay.Cut()
	for range 16 {
		require.Equal(t, fault.PeerLost, p.next(t, p.a, rdma.EventCompletion).Status)
	}
	require.Equal(t, fault.PeerLost, p.next(t, p.a, rdma.EventDown).Status)
	require.Equal(t, fault.PeerLost, p.next(t, p.b, rdma.EventDown).Status)
	require.NoError(t, p.tgt.Fence(key))
	pattern(p.dst, 2)
	want := bytes.Clone(p.dst)
	for _, w := range wires {
		deliver(t, w)
	}
	require.Equal(t, want, bytes.Clone(p.dst))
	_, err := p.ini.Post([]rdma.Op{p.write(key, 99, rdma.Range{Len: 1})})
	requireCode(t, fault.PeerLost, err)
	require.NoError(t, p.a.Close())
	require.NoError(t, p.b.Close())
}
