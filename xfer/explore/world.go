package explore

import (
	"fmt"
	"slices"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/xfer/protocol"
)

// token is who wrote a piece last: a block's number and the version of its contents, of the owner's client or (fromSource)
// of the source's. Two pieces are equal exactly when their tokens are.
type token uint16

const fromSource token = 0x8000

func ownerToken(block, pattern uint8) token  { return token(block)<<8 | token(pattern) }
func sourceToken(block, version uint8) token { return fromSource | ownerToken(block, version) }

// view is what the owner's client may take a block for.
type view uint8

const (
	own         view = iota // its own: nobody else writes it, and it wrote a pattern of its own at once
	leased                  // a lease is out: contents undefined
	committed               // holds what Block.want says
	quarantined             // never given back
	unmapped                // the client is dead and the daemon's mapping is gone
)

// block is a block of the owner's cache.
type block struct {
	mem     []token // by layer
	view    view
	lease   int8    // leased
	want    []token // committed: what it must hold, by layer
	pattern uint8
	// What the owner's client vouches for after a restart: the last contents that were committed, also while a lease is
	// out. A careful client would forget them at the lease; that they are not served then is the journal's work.
	vouch     uint8 // generation, 0: nothing
	vouchWant []token
	gen       uint8 // committed in the log under this generation, 0: not
}

// lease is a lease of the owner, with the journal's record of it.
type lease struct {
	granted   bool
	epoch     uint8
	number    uint8 // within its epoch
	m         *protocol.Lease
	o         *protocol.Offer
	bind      int8 // Write: the transfer that owns it, -1: none
	bound     uint8
	committed int8 // Write: the transfer that committed it, -1: none
	lapsed    bool // its time was over while it was alive: it must not become anything good
	open      bool // in the log
	seen      uint64
	want      []token // Read: what its blocks held at the grant, by piece
	released  bool    // Read: the owner was told that its blocks are free
}

// frame is a control message.
type frame struct {
	kind      frameKind
	code      fault.Code
	remaining rdma.Instant
}

type frameKind uint8

const (
	bindFrame frameKind = iota + 1
	boundFrame
	refusedFrame
	finFrame // FIN, or of a reader RELEASE
	abortFrame
	doneFrame // DONE, or the OK to RELEASE
	endedFrame
)

// link is the control connection of one transfer with its payload session. Transfers do not share links: what a cut does
// to several at a time is what several cuts do.
type link struct {
	open                    bool
	cut                     bool
	ownerKnows, sourceKnows bool // that it is cut
	epoch                   uint8
	toOwner, toSource       []frame
}

// window is what the owner granted on the fabric.
type window struct {
	open     bool
	lease    uint8
	epoch    uint8
	key      uint8
	deadline rdma.Instant
}

// op is an operation: one piece.
type op struct {
	posted, done bool
	sent         uint8
	placed       bool
	refused      fault.Code
}

// transfer is a transfer at its initiator, with what the owner keeps for it on its link.
type transfer struct {
	started   bool
	m         *protocol.Transfer // nil: not started, or lost in a crash
	dialling  bool
	link      link
	known     bool // in the source's tables: news of the link reach it
	ops       []op
	cancelled bool
	timers    []rdma.Instant
	handed    uint8 // layers handed over; Layers+1: finished
	fin       bool  // FIN or RELEASE was sent
	reported  bool
	outcome   fault.Code
	released  bool
	clean     bool    // Write: its client was told that no byte can have been written
	hit       bool    // Write: a byte was
	want      []token // Write: what the source held at the start, by piece
	mem       []token // Read: the reader's memory
	watch     []token // Read: what it must hold from now on, nil: undefined

	// At the owner.
	handle bool // the link's table of leases has it
	win    window
	fence  bool // a fence is under way
}

// packet is bytes (or a read's request) under way.
type packet struct {
	x, piece, copy uint8
	token          token
	epoch, key     uint8
	answer         bool // Read: the owner's memory was read, token travels to the reader
	inside         bool // in the gate
	into           uint8
}

// arrival is news for the owner's lease that a piece is placed in the window of transfer x.
type arrival struct{ x, piece uint8 }

// node is what the two nodes have besides.
type node struct {
	now    rdma.Instant
	wall   int8 // what its wall clock is wrong by, in units of ttl
	client bool // alive
	mourns bool // the daemon learned that it is dead
}

// World is one state of the model. Make it with New; Actions lists what can happen and Do lets it happen.
type World struct {
	cfg       *Config
	owner     node
	source    node
	up        bool // the owner's daemon
	epoch     uint8
	grants    uint8 // in this epoch
	keys      uint8 // in this epoch
	blocks    []block
	leases    []lease
	transfers []transfer
	versions  []uint8 // of the source's blocks
	holds     []uint8
	packets   []packet
	arrivals  []arrival
	pending   []entry // steps that the log may still lose
	used      [kinds]uint8
	faults    uint8
	choices   uint8

	asking      int8  // the transfer whose BIND is being answered
	windowFails bool  // the fabric opens no window now
	marks       Marks // what happened in the last action
	bad         *Violation
}

// Violation is a broken invariant.
type Violation struct {
	Rule string // which invariant, see doc.go
	Text string
}

func (v *Violation) Error() string { return v.Rule + ": " + v.Text }

// New makes the first state: all blocks are published (COMMITTED), nothing is leased.
func New(cfg *Config) *World {
	w := &World{cfg: cfg, up: true, epoch: 1, asking: -1, owner: node{client: true}, source: node{client: true},
		blocks: make([]block, cfg.Blocks), leases: make([]lease, len(cfg.Leases)), transfers: make([]transfer, len(cfg.Transfers)),
		versions: make([]uint8, cfg.Sources), holds: make([]uint8, cfg.Sources)}
	for i := range w.blocks {
		b := &w.blocks[i]
		b.mem = make([]token, cfg.Layers)
		w.fill(b.mem, ownerToken(uint8(i), 0))
		b.want = slices.Clone(b.mem)
		b.view, b.gen, b.vouch, b.vouchWant, b.lease = committed, 1, 1, b.want, -1
	}
	for i := range w.leases {
		w.leases[i].bind, w.leases[i].committed = -1, -1
	}
	return w
}

func (w *World) fill(mem []token, t token) {
	for i := range mem {
		mem[i] = t
	}
}

// clone returns a world of its own. What is never changed in place (want lists) is shared.
func (w *World) clone() *World {
	c := *w
	c.blocks = slices.Clone(w.blocks)
	for i := range c.blocks {
		c.blocks[i].mem = slices.Clone(c.blocks[i].mem)
	}
	c.leases = slices.Clone(w.leases)
	for i := range c.leases {
		l := &c.leases[i]
		if l.m != nil {
			l.m = l.m.Clone()
		}
		if l.o != nil {
			l.o = l.o.Clone()
		}
	}
	c.transfers = slices.Clone(w.transfers)
	for i := range c.transfers {
		t := &c.transfers[i]
		if t.m != nil {
			t.m = t.m.Clone()
		}
		t.link.toOwner, t.link.toSource = slices.Clone(t.link.toOwner), slices.Clone(t.link.toSource)
		t.ops, t.timers, t.mem = slices.Clone(t.ops), slices.Clone(t.timers), slices.Clone(t.mem)
	}
	c.versions, c.holds = slices.Clone(w.versions), slices.Clone(w.holds)
	c.packets, c.arrivals, c.pending = slices.Clone(w.packets), slices.Clone(w.arrivals), slices.Clone(w.pending)
	return &c
}

func (w *World) fail(rule, format string, args ...any) {
	if w.bad == nil {
		w.bad = &Violation{rule, fmt.Sprintf(format, args...)}
	}
}

// pieces is the number of pieces of a lease or transfer on n blocks; piece = layer*n + position.
func (w *World) pieces(n int) int { return int(w.cfg.Layers) * n }

func (w *World) broken(d Defect) bool { return w.cfg.Defect == d }

// Do lets an action happen, which must be one of Actions, and returns the first invariant that is broken after it.
func (w *World) Do(a Action) *Violation {
	w.marks = 0
	w.used[a.Kind] += w.counted(a.Kind)
	switch {
	case a.Kind.fault():
		w.faults++
	case a.Kind.choice():
		w.choices++
	}
	w.apply(a)
	w.settle()
	w.check()
	return w.bad
}

func (w *World) counted(k Kind) uint8 {
	if k.fault() || k.choice() {
		return 1
	}
	return 0
}

// settle drops what can have no effect any more, so that histories meet: packets that every gate refuses and whose
// operation is over, arrivals that their lease ignores, frames about a handle that means nothing to their reader.
func (w *World) settle() {
	w.packets = slices.DeleteFunc(w.packets, w.inert)
	w.arrivals = slices.DeleteFunc(w.arrivals, func(a arrival) bool {
		t := &w.transfers[a.x]
		return !t.handle || w.leases[t.win.lease].m == nil || w.leases[t.win.lease].m.Phase() != protocol.LeaseBound
	})
	for i := range w.transfers {
		t := &w.transfers[i]
		l := &t.link
		if !t.known {
			l.toSource = nil
		}
		if len(l.toOwner) > 0 && l.toOwner[0].kind != bindFrame && !t.handle {
			l.toOwner = nil
		}
		if t.m == nil {
			continue
		}
		if t.m.Phase() > protocol.TransferBinding {
			t.dialling = false
		}
		for k := range t.ops {
			if o := &t.ops[k]; o.done {
				*o = op{posted: true, done: true}
			}
		}
	}
}

func (w *World) inert(p packet) bool {
	t := &w.transfers[p.x]
	if t.m != nil && !t.ops[p.piece].done || p.inside {
		return false
	}
	if w.cfg.Mode == Read {
		return true // the reader's provider takes no answer for an operation that is over
	}
	if w.broken(EpochUnchecked) {
		return false
	}
	return p.epoch != w.epoch || !t.win.open
}

// check looks at the memory, in every state.
func (w *World) check() {
	for i := range w.blocks {
		b := &w.blocks[i]
		for layer, t := range b.mem {
			switch {
			case b.view == own && t != ownerToken(uint8(i), b.pattern):
				w.fail("late write", "block %d is its owner's again, but layer %d changed to %s", i, layer, t)
			case b.view == committed && t != b.want[layer]:
				w.fail("torn block", "block %d is committed and layer %d holds %s, not %s", i, layer, t, b.want[layer])
			}
		}
	}
	for i := range w.transfers {
		t := &w.transfers[i]
		for k, want := range t.watch {
			if t.mem[k] != want {
				w.fail("read", "transfer %d was reported, and then piece %d of its client's memory holds %s, not %s", i, k, t.mem[k], want)
			}
		}
	}
}

func (t token) String() string {
	if t&fromSource != 0 {
		return fmt.Sprintf("source block %d version %d", t>>8&0x7f, t&0xff)
	}
	return fmt.Sprintf("owner block %d pattern %d", t>>8, t&0xff)
}
