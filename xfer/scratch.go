package xfer

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"unsafe"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// scratch is the memory of one side of a probe, with a client inside of this process that owns it, so that a probe goes the
// ways of every other transfer. It has three parts of equal size: what the peer writes, what is sent, and what own reads
// bring. What is sent is made from the probe's seed, for each side another text, so both sides know what has to arrive.
type scratch struct {
	e      *Engine
	id     ClientID
	region *region
	bytes  uint64
	mem    []byte
	seed   [wire.ProbeSeedBytes]byte
	asker  bool // this side asked for the probe
	ended  chan wire.TransferEvent

	// Of the peer's side, under Engine.mu.
	ls      *linkState
	running bool
	stop    func() bool
}

const probeRegion = "probe"

// newScratch takes ownership of nothing that is left after an error.
func (e *Engine) newScratch(ctx context.Context, tenant string, size uint64, seed []byte, asker bool) (*scratch, error) {
	const op = "probe"
	if e.o.Scratch == nil {
		return nil, fault.New(fault.NotSupported, op, "this node was made without memory for probes")
	}
	s := &scratch{e: e, bytes: size, seed: [wire.ProbeSeedBytes]byte(seed), asker: asker, ended: make(chan wire.TransferEvent, 4)}
	m, err := e.o.Scratch(3 * size)
	if err != nil {
		return nil, fault.From(op, err)
	}
	s.mem = unsafe.Slice((*byte)(m.Memory().Base), 3*size)
	s.fill(s.mem[size : 2*size]) // before anybody else knows of it
	if s.id, err = e.AddClient(ClientInfo{Tenant: tenant, Process: probeRegion}, probeSink{s.ended}); err != nil {
		_ = m.Close()
		return nil, err
	}
	info, err := e.RegisterRegion(ctx, s.id, wire.RegisterRegion{Name: probeRegion, ID: hex16(random16()), Kind: wire.RegionMemfd, Size: 3 * size}, m)
	if err != nil {
		_ = m.Close()
		e.ClientGone(s.id)
		return nil, fault.From(op, err)
	}
	if s.region, err = e.ownRegion(op, s.id, info.Region); err != nil { // the engine is being closed
		e.ClientGone(s.id)
		return nil, err
	}
	return s, nil
}

// close ends all that uses the memory and returns at once; the memory goes when it is fenced.
func (s *scratch) close() { s.e.ClientGone(s.id) }

// text is the stream of bytes that a side sends.
func (s *scratch) text(asker bool) *rand.ChaCha8 {
	seed := s.seed
	if asker {
		seed[0] ^= 1
	}
	return rand.NewChaCha8(seed)
}

func (s *scratch) fill(part []byte) { _, _ = s.text(s.asker).Read(part) }

// arrived says whether a part of the memory holds what the other side sends. The memory stays mapped meanwhile, whoever ends
// the probe.
func (s *scratch) arrived(part int) bool {
	if s.region.use("probe") != nil {
		return false
	}
	defer s.region.unuse()
	have := s.mem[uint64(part)*s.bytes:][:s.bytes]
	want, chunk := s.text(!s.asker), make([]byte, 4<<10)
	for len(have) > 0 {
		n := min(len(have), len(chunk))
		_, _ = want.Read(chunk[:n])
		if !bytes.Equal(have[:n], chunk[:n]) {
			return false
		}
		have = have[n:]
	}
	return true
}

// Parts of a scratch.
const (
	partIn = iota
	partOut
	partGot
)

// tickets advertises the part that the peer may write and the one that it may read, for one transfer each.
func (s *scratch) tickets(ctx context.Context, ttlMillis int64) (write, read string, err error) {
	for _, x := range [...]struct {
		mode string
		part uint64
		to   *string
	}{{wire.ModeWrite, partIn, &write}, {wire.ModeRead, partOut, &read}} {
		info, err := s.e.Advertise(ctx, s.id, wire.Advertise{Region: s.region.id, Mode: x.mode, Uses: 1, TTLMillis: ttlMillis},
			[]wire.RegionSpan{{Off: x.part * s.bytes, Len: s.bytes}})
		if err != nil {
			return "", "", err
		}
		*x.to = info.Ticket
	}
	return write, read, nil
}

// step makes one transfer under a peer's ticket and looks at what a read brought.
func (s *scratch) step(mode, ticket, provider string, timeoutMillis int64) wire.ProbeStep {
	out := wire.ProbeStep{Op: mode, From: s.e.o.Node}
	r := wire.ScatterRange{Local: partOut * s.bytes, Remote: partIn * s.bytes, Len: s.bytes}
	if mode == wire.ModeRead {
		r.Local, r.Remote = partGot*s.bytes, partOut*s.bytes
	}
	begun := s.e.o.Clock.Now()
	info, err := s.e.Scatter(s.id, wire.ScatterRequest{Region: s.region.id, Mode: mode, Ticket: ticket, TimeoutMillis: timeoutMillis,
		TransferIdentity: wire.TransferIdentity{Provider: provider}}, []wire.ScatterRange{r})
	if err != nil {
		out.Error = fault.ToWire(fault.From("probe", err))
		return out
	}
	ev, err := s.await(info.Transfer)
	if err != nil {
		out.Error = fault.ToWire(err)
		return out
	}
	out.Provider, out.Reason, out.Bytes, out.Error = ev.Provider, ev.Reason, ev.Bytes, ev.Error
	out.Nanos = int64(s.e.o.Clock.Now() - begun)
	if x := out.Error; x != nil && x.Code == fault.DeadlineExceeded && ev.Provider == "" { // its time was over before there was a link
		out.Error = fault.ToWire(&fault.Error{Code: fault.PeerUnreachable, Op: x.Op, Peer: x.Peer, Detail: fmt.Sprintf("no link within %d ms", timeoutMillis)})
	}
	if out.Error == nil && mode == wire.ModeRead && !s.arrived(partGot) {
		out.Error = fault.ToWire(changed())
	}
	return out
}

// await takes the event of a transfer. Its deadline brings one, the engine's end too.
func (s *scratch) await(transfer uint64) (wire.TransferEvent, error) {
	for {
		select {
		case ev := <-s.ended:
			if ev.Transfer == transfer {
				return ev, nil
			}
		case <-s.e.ctx.Done():
			return wire.TransferEvent{}, fault.New(fault.Draining, "probe", "node %s is draining", s.e.o.Node)
		}
	}
}

// changed is what is wrong when a transfer ended well and its bytes are not those that were sent.
func changed() error {
	return fault.New(fault.Internal, "probe", "the transfer was reported as done, and its bytes are not those that were sent")
}

// probeSink tells a probe of its transfers' ends; there are few, so the channel has room.
type probeSink struct{ ended chan<- wire.TransferEvent }

func (p probeSink) Prepared(wire.PreparedEvent) {}

func (p probeSink) TransferEnded(ev wire.TransferEvent) {
	select {
	case p.ended <- ev:
	default:
	}
}
func (probeSink) LayersVisible(wire.LayersVisible)     {}
func (probeSink) LeaseEnded(wire.LeaseEvent, []byte)   {}
func (probeSink) Granted(wire.GrantedEvent, []uint32)  {}
func (probeSink) Released(wire.Released)               {}
func (probeSink) HolderEnded(wire.HolderEvent, []byte) {}

// probeTime is how long the scratch memory of a probe may be there: for each step its time, and one for the requests.
func probeTime(stepMillis int64) int64 { return min(6*stepMillis, wire.MaxProbeMillis) }
