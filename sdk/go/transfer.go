package kvxfer

import (
	"bytes"
	"context"
	"sync"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// TransferResult is how a transfer ended well. After a push the target's blocks are COMMITTED, after a pull the own ones.
type TransferResult struct {
	Blocks         int    // 0 of raw regions
	Bytes          uint64 // payload bytes
	Peer           string // the node on the other side
	Provider       string // what moved the bytes
	ProviderReason string // why it was chosen
	TransferID     string // 32 hex digits, the same on both nodes
	TraceID        string // 32 hex digits
	// Times on the daemon's clock, from the request to the first posted byte and to the last completion, and with bytes in
	// flight.
	First, Last, Busy time.Duration
	Generation        uint64 // of a pull: what the own blocks are COMMITTED under; else 0
	Guarantee         string // "full", or "live-client-only" where own memory is of that kind
}

// TransferOption is an option of [Cache.Write], [Cache.Read], [Cache.ReadFrom], [Region.Writev] and [Region.Readv], and of what
// prepares a transfer.
type TransferOption func(*transferOptions)

type transferOptions struct {
	layerwise bool
	note      []byte
	identity  wire.TransferIdentity
	attempt   int
	lasting   time.Duration // with lasts
	lasts     bool
}

// Layerwise makes a write read bytes only after [Push.Layer], and end by [Push.Finish]. Without it all bytes are final when
// Write is called.
func Layerwise() TransferOption { return func(o *transferOptions) { o.layerwise = true } }

// Notify gives the other side's owner up to 64 KiB, once the data is visible there or was read. A layer-wise push gives them
// to [Push.Finish] instead.
func Notify(note []byte) TransferOption { return func(o *transferOptions) { o.note = note } }

// TransferID names the transfer, 32 lower-case hex digits: where several ranks make it together all give the same, and who
// repeats one gives it again. The default is a random one.
func TransferID(id string) TransferOption {
	return func(o *transferOptions) { o.identity.TransferID = id }
}

// Attempt numbers the attempts of a transfer, from 1 on. A further one needs the fence of the former, a lease of its own and a
// higher number.
func Attempt(n int) TransferOption { return func(o *transferOptions) { o.attempt = n } }

// OfInstance names the caller's engine, for people.
func OfInstance(name string) TransferOption {
	return func(o *transferOptions) { o.identity.Instance = name }
}

// OnlyProvider names the one provider that may carry the transfer, "shm", "verbs" (RDMA) or "tcp". Where it does not reach the peer the transfer
// ends with PeerUnreachable, where one of the nodes does not have it, or not with this memory, with NotSupported, and the reason is told; nothing falls back.
func OnlyProvider(name string) TransferOption {
	return func(o *transferOptions) { o.identity.Provider = name }
}

func transferOptionsOf(op string, options []TransferOption) (o transferOptions, err error) {
	o.attempt = 1
	for _, f := range options {
		f(&o)
	}
	if o.identity.TransferID != "" {
		if err := checkHex32(op, "transfer_id", o.identity.TransferID); err != nil {
			return o, err
		}
	}
	if o.identity.Instance != "" {
		if err := checkName(op, "instance", o.identity.Instance); err != nil {
			return o, err
		}
	}
	if o.identity.Provider != "" {
		if err := checkName(op, "provider", o.identity.Provider); err != nil {
			return o, err
		}
	}
	if o.attempt < 1 || int64(o.attempt) > 1<<32-1 {
		return o, invalid(op, "attempt", "%d, allowed 1..4294967295", o.attempt)
	}
	if o.lasts && op != opPrepare {
		return o, invalid(op, "lasting", "%s, allowed where a transfer is prepared", o.lasting)
	}
	if o.attempt > 1 {
		o.identity.Attempt = uint32(o.attempt)
	}
	o.note = bytes.Clone(o.note) // it may travel after the caller's return
	return o, checkNotification(op, o.note)
}

// transfer is bytes on their way between own memory and a peer's: what pushes, pulls and scatters have in common.
type transfer struct {
	held[TransferResult]
	until time.Time // the caller's deadline

	tmu                              sync.Mutex
	number                           uint64 // the daemon's; with begun
	begun                            bool   // the daemon has agreed
	finishing                        bool   // and has taken the request's finish
	transferID, traceID, traceparent string
	afterAccept                      func() // in the reader, behind the number
	endedWell                        func(TransferResult)
}

func (t *transfer) init(s *session, op, place string, ids []uint32, guarantee string, self Ended, timeout time.Duration, sp *span) {
	t.held.init(s, op, place, ids, guarantee, self, sp)
	t.describe = t.describeTransfer
	t.until = time.Now().Add(timeout)
	t.deadline = t.until.Add(grace)
}

// TransferID is its name in traces and logs of both nodes, 32 hex digits; "" until the daemon has agreed.
func (t *transfer) TransferID() string {
	t.tmu.Lock()
	defer t.tmu.Unlock()
	return t.transferID
}

// TraceID is the trace's, 32 hex digits; "" until the daemon has agreed.
func (t *transfer) TraceID() string {
	t.tmu.Lock()
	defer t.tmu.Unlock()
	return t.traceID
}

// Traceparent is the W3C context of the call's span; "" until the daemon has agreed.
func (t *transfer) Traceparent() string {
	t.tmu.Lock()
	defer t.tmu.Unlock()
	return t.traceparent
}

// start asks the daemon and waits for its word that the transfer has begun.
func (t *transfer) start(ctx context.Context, r request, h transferHandle, discard func()) *fault.Error {
	r.onOK = func(f *wire.Frame) error { return t.accepted(f, h, discard) }
	r.onLate = discard
	fe, over := t.sess.conn.request(ctx, r)
	if fe != nil {
		if !over {
			fe.MayHaveWritten = true
			t.mu.Lock()
			t.quiet = true // nobody has it, and its answer may still come
			t.mu.Unlock()
		} else {
			t.setReleased()
		}
		t.endRefused(fe)
	}
	return fe
}

// endRefused ends the span of what never began.
func (t *transfer) endRefused(fe *fault.Error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	sp := t.span
	if t.span = nil; sp != nil {
		sp.set("kvxfer.result", fe.Code.String())
		t.sess.endSpan(sp, fe)
	}
}

func (t *transfer) accepted(f *wire.Frame, h transferHandle, expire func()) error {
	var info wire.PushInfo
	if err := f.Decode(&info); err != nil {
		return err
	}
	t.mu.Lock()
	traceparent := ""
	if t.span != nil {
		t.span.joinTrace(info.TraceID, info.ParentID, info.Sampled)
		traceparent = t.span.traceparent()
	}
	t.mu.Unlock()
	t.tmu.Lock()
	t.number, t.begun, t.transferID, t.traceID, t.traceparent = info.Transfer, true, info.TransferID, info.TraceID, traceparent
	t.finishing = info.Finished
	t.tmu.Unlock()
	t.sess.addTransfer(info.Transfer, h)
	t.endAt(t.until.Add(grace), func() { t.expire(expire) })
	if t.afterAccept != nil {
		t.afterAccept()
	}
	return nil
}

// cancel ends the transfer early at the daemon; false where the daemon has not agreed yet.
func (t *transfer) cancel() bool {
	t.tmu.Lock()
	n, begun := t.number, t.begun
	t.tmu.Unlock()
	if begun && !t.isOver() {
		// A lost connection ends the transfer by itself.
		_ = t.sess.conn.notify(wire.KindPushCancel, &wire.PushCancel{Transfer: n}, nil)
	}
	return begun
}

func (t *transfer) expire(discard func()) {
	if t.isOver() {
		return
	}
	discard()
	t.fail(&fault.Error{Code: fault.DeadlineExceeded, Op: t.op, MayHaveWritten: true,
		Detail: "the deadline has passed and the daemon has not said how the transfer ended"})
}

// For the session.

func (t *transfer) exitFences() bool { return true }

func (t *transfer) onFenced() {
	t.fail(&fault.Error{Code: fault.Cancelled, Op: t.op, Detail: "its memory was given back", MayHaveWritten: true})
	t.onReleased()
}

func (t *transfer) onTransfer(e *wire.TransferEvent) bool {
	if e.Error != nil {
		fe := fault.From(t.op, fault.FromWire(e.Error))
		if fe.Op == "" {
			fe.Op = t.op
		}
		if e.Released {
			t.setReleased()
		}
		t.fail(fe)
	} else {
		r := TransferResult{Blocks: int(e.Blocks), Bytes: e.Bytes, Peer: e.Peer, Provider: e.Provider, ProviderReason: e.Reason,
			TransferID: e.TransferID, TraceID: t.TraceID(), First: time.Duration(e.FirstNanos), Last: time.Duration(e.LastNanos),
			Busy: time.Duration(e.BusyNanos), Generation: e.Generation, Guarantee: guaranteeOf(e.Guarantee)}
		if r.TransferID == "" {
			r.TransferID = t.TransferID()
		}
		if t.endedWell != nil {
			t.endedWell(r)
		}
		if e.Released {
			t.setReleased()
		}
		t.finish(r)
	}
	if e.Released {
		t.tellReleased()
	}
	return e.Released
}

func (t *transfer) onReleased() {
	t.setReleased()
	t.tellReleased()
}

func (t *transfer) describeTransfer(sp *span, v *TransferResult) {
	if id := t.TransferID(); id != "" {
		sp.set("kvxfer.transfer.id", id)
	}
	if len(t.ids) > 0 {
		sp.set("kvxfer.blocks", len(t.ids))
	}
	if v != nil {
		sp.set("kvxfer.bytes", v.Bytes)
		sp.set("kvxfer.peer", v.Peer)
		sp.set("kvxfer.provider", v.Provider)
		sp.set("kvxfer.provider.reason", v.ProviderReason)
	}
}
