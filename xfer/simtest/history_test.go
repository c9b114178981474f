package simtest_test

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/testseed"
	"github.com/kvxfer/kvxfer/rdma/simfabric"
	"github.com/kvxfer/kvxfer/xfer/protocol"
	"github.com/kvxfer/kvxfer/xfer/simtest"
)

const (
	historyBlocks = 24
	slack         = time.Millisecond // deadlines travel in whole milliseconds, rounded up
)

// rounds is large on request: go test ./xfer/simtest -run RandomHistories -rounds 100000 -timeout 1h
var rounds = flag.Int("rounds", 300, "rounds of TestRandomHistories on each kind of fabric")

// fabrics are what histories meet, a world each.
var fabrics = []struct {
	name   string
	nodes  int
	faults simfabric.Faults
}{
	{"calm", 2, simfabric.Faults{Delay: time.Millisecond}},
	{"shuffled", 3, simfabric.Faults{Delay: time.Millisecond, Jitter: 20 * time.Millisecond}},
	{"late", 2, simfabric.Faults{Delay: time.Millisecond, Jitter: 5 * time.Millisecond, Duplicate: 0.1, Late: 0.2, Hold: 0.02, LateBy: 20 * time.Second}},
	{"lossy", 3, simfabric.Faults{Delay: time.Millisecond, Jitter: 5 * time.Millisecond, Loss: 0.15, MaxLosses: 4, Late: 0.1, LateBy: 5 * time.Second}},
}

// TestRandomHistories runs rounds of a few pushes, pulls and transfers of raw memory each, in which leases are revoked,
// evicted and renewed and expire, transfers are cancelled and time out, clients die, regions are given up, caches are dropped, links break and nodes stop, at random instants.
func TestRandomHistories(t *testing.T) {
	seed := testseed.Seed(t)
	for i, f := range fabrics {
		t.Run(f.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHistory(t, seed+uint64(i), simtest.Options{Nodes: f.nodes, Faults: f.faults})
				for range *rounds {
					h.round()
				}
				h.w.Pass(time.Minute) // what is late comes now
				h.w.Check()
				t.Logf("%d transfers: %v; %d renewals, %d restarts, %d blocks served again", h.transfers, h.ends, h.renewals, h.restarts, h.vouched)
				for _, good := range []string{"committed", "pulled", "write raw", "read raw"} {
					assert.Positive(t, h.ends[good], good)
				}
				assert.Positive(t, h.renewals)
			})
		})
	}
}

// history is one world and the account of what was done to it.
type history struct {
	t         *testing.T
	w         *simtest.World
	rng       *rand.Rand
	clients   []*simtest.Client // a node each; replaced when it dies
	raws      []*simtest.Raw    // the same
	transfers int
	lives     bool // no session dies of its losses
	ends      map[string]int
	renewals  int
	restarts  int
	vouched   int       // blocks that were served again after a restart
	round0    time.Time // when the round began
	resumed   time.Time // when the last pause of the round ended
}

func newHistory(t *testing.T, seed uint64, o simtest.Options) *history {
	o.Seed = seed
	h := &history{t: t, lives: o.Faults.MaxLosses == 0, rng: rand.New(rand.NewPCG(seed, 3)), ends: map[string]int{}}
	o.Skew = func(int) time.Duration { return time.Duration(h.rng.IntN(1000)) * time.Hour }
	h.w = simtest.NewWorld(t, o)
	for i := range h.w.Nodes {
		h.clients, h.raws = append(h.clients, nil), append(h.raws, nil)
		h.attach(i)
		h.attachRaw(i)
	}
	return h
}

func (h *history) attach(i int) {
	h.clients[i] = h.w.Nodes[i].Client(fmt.Sprintf("cache-%d", i), simtest.Small, historyBlocks, h.rng.Uint64())
}

func (h *history) attachRaw(i int) {
	h.raws[i] = h.w.Nodes[i].Raw(fmt.Sprintf("raw-%d", i), rawSlots*slotSize, h.rng.Uint64())
}

// life is a permission and the transfers under it.
type life interface {
	hush(quiet bool)  // false: something else disturbs it
	ended(h *history) // looks at every end, when all must be over
}

// transfer is a lease and the push to it; either may be absent, when the call that would begin it was refused.
type transfer struct {
	l     *simtest.Lease
	p     *simtest.Transfer
	quiet bool // nothing disturbs it, so it must commit
}

func (x *transfer) hush(quiet bool) { x.quiet = x.quiet && quiet }

// action is something that happens at an instant of a round, at a node unless that is nil. Nobody calls a node that is
// paused: such an action is left out.
type action struct {
	at time.Duration
	on *simtest.Node
	do func()
}

const span = 500 * time.Millisecond // of a round's actions

func (h *history) some(d time.Duration) time.Duration { return time.Duration(h.rng.Int64N(int64(d))) }

// times is usually long, sometimes so short that it ends in the middle.
func (h *history) times() time.Duration {
	if h.rng.IntN(5) == 0 {
		return time.Millisecond + h.some(span).Truncate(time.Millisecond)
	}
	return time.Minute
}

// round runs a few transfers side by side, waits for all of them and looks at what they left.
func (h *history) round() {
	h.round0 = time.Now()
	h.resumed = h.round0
	free := map[*simtest.Client][]int{}
	for _, c := range h.clients {
		free[c] = h.rng.Perm(historyBlocks)
	}
	take := func(c *simtest.Client, n int) (out []uint32) {
		if n > len(free[c]) {
			return nil
		}
		for _, b := range free[c][:n] {
			out = append(out, uint32(b))
		}
		free[c] = free[c][n:]
		return out
	}
	rawFree := map[*simtest.Raw][]int{}
	for _, r := range h.raws {
		rawFree[r] = h.rng.Perm(rawSlots)
	}
	takeRaw := func(r *simtest.Raw, n int) []int {
		if n > len(rawFree[r]) {
			return nil
		}
		out := rawFree[r][:n:n]
		rawFree[r] = rawFree[r][n:]
		return out
	}
	var acts []action
	var all []life
	for range 1 + h.rng.IntN(4) {
		two := h.rng.Perm(len(h.clients))
		src, dst, n := h.clients[two[0]], h.clients[two[1]], 1+h.rng.IntN(3)
		switch h.rng.IntN(4) {
		case 0, 1:
			if from, to := take(src, n), take(dst, n); from != nil && to != nil {
				x := &transfer{}
				all = append(all, x)
				h.begin(x, src, dst, from, to, &acts)
			}
		case 2:
			if from := take(src, n); from != nil {
				all = append(all, h.beginPull(src, dst, from, func() []uint32 { return take(dst, n) }, &acts))
			}
		case 3:
			if x := h.beginScatter(h.raws[two[0]], h.raws[two[1]], takeRaw, &acts); x != nil {
				all = append(all, x)
			}
		}
	}
	before := len(acts)
	h.trouble(&acts)
	for _, x := range all {
		x.hush(len(acts) == before && h.lives)
	}
	slices.SortStableFunc(acts, func(a, b action) int { return cmp.Compare(a.at, b.at) })
	for _, a := range acts {
		h.w.Pass(time.Until(h.round0.Add(a.at)))
		if a.on == nil || !a.on.Paused() && !a.on.Dead() {
			a.do()
		}
	}
	for _, n := range h.w.Nodes {
		if n.Paused() {
			n.Resume()
			h.resumed = time.Now()
		}
	}
	h.w.Pass(time.Minute + time.Second) // every deadline of the round with its grace
	for _, x := range all {
		x.ended(h)
	}
	h.mend()
	h.w.Check()
}

// begin writes down a transfer's life: lease and push at once, then layers in any order and an end.
func (h *history) begin(x *transfer, src, dst *simtest.Client, from, to []uint32, acts *[]action) {
	ttl, timeout, start := h.times(), h.times(), h.some(span/2)
	x.quiet = ttl == time.Minute && timeout == time.Minute
	add := func(at time.Duration, on *simtest.Node, do func()) { *acts = append(*acts, action{at, on, do}) }
	add(start, dst.Node, func() {
		var err error
		if x.l, err = dst.Lease(ttl, to...); err != nil {
			h.refused(err)
		}
	})
	add(start, src.Node, func() {
		if x.l == nil {
			return
		}
		var err error
		if x.p, err = src.Push(x.l.Ticket, timeout, from...); err != nil {
			h.refused(err)
		}
	})
	push := func(f func(p *simtest.Transfer)) func() {
		return func() {
			if x.p != nil {
				f(x.p)
			}
		}
	}
	last := start
	for _, layer := range h.rng.Perm(int(simtest.Small.Layers)) {
		at := start + h.some(span/4)
		last = max(last, at)
		add(at, src.Node, push(func(p *simtest.Transfer) { p.Layer(uint32(layer)) }))
	}
	if h.rng.IntN(10) > 0 {
		add(last, src.Node, push(func(p *simtest.Transfer) { p.Finish([]byte("note")) }))
	} else {
		x.quiet = false
	}
	if h.rng.IntN(8) == 0 {
		x.quiet = false
		add(start+h.some(span/4), src.Node, push((*simtest.Transfer).Cancel))
	}
	lease := func(f func(l *simtest.Lease)) func() {
		return func() {
			if x.l != nil {
				f(x.l)
			}
		}
	}
	switch h.rng.IntN(12) {
	case 0, 1:
		x.quiet = false
		add(start+h.some(span/4), dst.Node, lease(func(l *simtest.Lease) { _ = l.Revoke() })) // Closed where the client is gone, which ends it too
	case 2:
		x.quiet = false
		add(start+h.some(span/4), dst.Node, lease(func(*simtest.Lease) { h.evict(dst, to[:1]) }))
	case 3: // of the source's own use
		add(start+h.some(span/4), src.Node, push(func(p *simtest.Transfer) { h.evict(src, from) }))
	case 4:
		x.quiet = false
		fallthrough
	case 5: // long before its end comes, unless that is short
		again := time.Minute
		if !x.quiet {
			again = h.times()
		}
		add(start+h.some(ttl/2), dst.Node, lease(func(l *simtest.Lease) { h.renewal(l.Renew(again)) }))
	}
}

// refused is the answer of a call that met the end of a client or a cache.
func (h *history) refused(err error) {
	require.Contains(h.t, []fault.Code{fault.Closed, fault.NotFound}, fault.CodeOf(err), "%v", err)
}

// trouble adds what goes wrong in a round.
func (h *history) trouble(acts *[]action) {
	for range h.rng.IntN(3) {
		h.oneTrouble(acts)
	}
}

func (h *history) oneTrouble(acts *[]action) {
	i := h.rng.IntN(len(h.clients))
	c := h.clients[i]
	add := func(do func()) { *acts = append(*acts, action{h.some(span), c.Node, do}) }
	switch h.rng.IntN(9) {
	case 8:
		r := h.raws[i]
		add(func() {
			if err := r.Deregister(); err != nil {
				h.refused(err)
			}
		})
	case 0:
		*acts = append(*acts, action{h.some(span), nil, h.w.CutLinks})
	case 1:
		if add(c.Kill); h.rng.IntN(2) == 0 {
			add(h.raws[i].Kill)
		}
	case 2:
		// It returns when everything on the cache is fenced, which takes no time of a clock: fences wait for nobody.
		add(func() {
			if err := c.Drop(); err != nil {
				h.refused(err)
			}
		})
	case 3:
		// Its client comes back in mend.
		add(func() { h.w.Restart(i) })
	case 4, 5:
		stop := h.some(span)
		*acts = append(*acts, action{stop, c.Node, c.Node.Pause}, action{stop + 1 + h.some(2*span), nil, func() {
			if c.Node.Paused() {
				c.Node.Resume()
				h.resumed = time.Now()
			}
		}})
	}
}

// mend replaces who died and declares again what was dropped.
func (h *history) mend() {
	for i, r := range h.raws {
		if r.Node.Dead() || r.Unmapped() {
			r.Kill() // of a region that was deregistered the process is left
			h.w.Pass(0)
			h.attachRaw(i)
		}
	}
	for i, c := range h.clients {
		s := h.w.Nodes[i].Engine.Stats()
		require.Zero(h.t, s.Leases+s.Transfers, "%+v", s)
		switch {
		case c.Node.Dead() && c.Unmapped(): // the process died before its daemon
			h.attach(i)
		case c.Node.Dead():
			h.restarts++
			heir, vouched, served := c.Reattach(h.w.Nodes[i], h.rng.Uint64())
			slices.Sort(served)
			// Nothing else is served. A commit is late: one that had no time to reach the journal before the kill is lost.
			require.Subset(h.t, vouched, served, "what is served after a restart")
			h.vouched += len(served)
			h.clients[i] = heir
		case c.Unmapped():
			require.Equal(h.t, 1, s.Clients, "the raw one")
			h.attach(i)
		case c.Dropped():
			c.RegisterCache()
		}
		c = h.clients[i]
		info, _, err := c.Node.Engine.Blocks(c.ID, c.Cache)
		require.NoError(h.t, err)
		require.Zero(h.t, info.Leased+info.Revoking+info.Held, "%+v", info)
	}
}

// ended looks at both ends of a transfer.
func (x *transfer) ended(h *history) {
	if x.l == nil {
		return
	}
	h.transfers++
	l := x.l
	if l.Client.Lost() && l.Ends == 0 {
		h.ends["lost"]++
		h.source(x)
		return
	}
	require.Equal(h.t, 1, l.Ends, "events that ended a lease")
	h.inTime(l.EndedAt, l.Deadline.Add(slack))
	require.False(h.t, x.quiet && l.End.Error != nil, "an undisturbed transfer ended with %+v", l.End.Error)
	if l.End.Error == nil {
		h.ends["committed"]++
		require.NotNil(h.t, x.p)
		require.True(h.t, slices.EqualFunc(x.p.Source, l.Brought, bytes.Equal), "a commit that did not bring the source's bytes")
		require.Equal(h.t, []byte("note"), l.Note)
		require.Len(h.t, l.Layers, int(simtest.Small.Layers))
	} else {
		h.ends[l.End.Error.Name]++
		require.Contains(h.t, []fault.Code{fault.LeaseRevoked, fault.LeaseExpired, fault.DeadlineExceeded, fault.Cancelled, fault.PeerLost, fault.ClientGone,
			fault.InvalidArgument}, l.End.Error.Code, "%+v", l.End.Error)
	}
	h.source(x)
}

// source looks at what a transfer's source heard.
func (h *history) source(x *transfer) {
	l, p := x.l, x.p
	if p == nil || p.Client.Lost() && p.Ends*p.Released == 0 {
		return
	}
	require.Equal(h.t, 1, p.Ends, "events that ended a push")
	require.Equal(h.t, 1, p.Released, "times that a source's blocks were given back")
	h.inTime(p.EndedAt, p.Deadline.Add(time.Duration(protocol.ReleaseGrace)))
	h.inTime(p.ReleasedAt, p.Deadline.Add(time.Duration(protocol.ReleaseGrace)))
	switch e := p.End.Error; {
	case l.Ends == 0: // the owner's daemon died, before it could tell its client of a commit perhaps
	case e == nil:
		require.Nil(h.t, l.End.Error, "committed at the source only: %+v", l.End.Error)
	case l.End.Error == nil:
		require.True(h.t, e.MayHaveWritten, "the source lost sight of a commit and says that nothing was written: %+v", e)
	default:
		require.Contains(h.t, []fault.Code{fault.Cancelled, fault.LeaseRevoked, fault.LeaseExpired, fault.DeadlineExceeded, fault.PeerLost, fault.ClientGone,
			fault.PeerUnreachable, fault.StaleEpoch, fault.StaleKey, fault.TicketInvalid, fault.InvalidArgument}, e.Code, "%+v", e)
	}
}

// inTime: an end comes by its time, or as soon as the last paused node goes on.
func (h *history) inTime(at, by time.Time) {
	h.t.Helper()
	if h.resumed.After(by) {
		by = h.resumed.Add(slack)
	}
	require.False(h.t, at.After(by), "it ended %v too late", at.Sub(by))
}
