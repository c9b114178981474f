package kvxfer

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
)

const (
	// grace is what the SDK gives the daemon to say itself that a deadline has passed, before the SDK says so.
	grace = 500 * time.Millisecond
	// defaultWait bounds a wait without a deadline for something that has none of its own.
	defaultWait = 60 * time.Second
)

// Ended is something that has ended, as [Client.Completed] reports it: a *[Lease], *[ReadLease], *[Advertisement],
// *[Push], *[Pull], *[Scatter] or *[Prepared].
type Ended interface {
	// Done is closed when it has ended.
	Done() <-chan struct{}
	// Err is the error that it ended with; nil while it is pending or when it went well.
	Err() error
	// Released says whether nothing of it can touch the memory any more.
	Released() bool
}

// held is what permissions and transfers have in common: they end, and their memory is reusable then or later.
type held[T any] struct {
	sess      *session
	op        string
	place     string   // the name of the cache or region; "" where it is on other nodes
	ids       []uint32 // the block ids; nil of raw memory
	guarantee string
	self      Ended
	span      *span // nil: none. It ends before the outcome is told
	describe  func(*span, *T)

	done  chan struct{} // closed at the end
	freed chan struct{} // closed when released

	mu       sync.Mutex
	value    T
	err      *fault.Error
	quiet    bool // not reported: nobody was given it
	released bool
	deadline time.Time // zero: none of its own
	timer    *time.Timer
	afterEnd func() // behind the end, without the lock
}

func (h *held[T]) init(s *session, op, place string, ids []uint32, guarantee string, self Ended, sp *span) {
	h.sess, h.op, h.place, h.ids, h.guarantee, h.self, h.span = s, op, place, ids, guarantee, self, sp
	h.done, h.freed = make(chan struct{}), make(chan struct{})
}

// Done is closed when it has ended. That is not the same as being reusable, see Released.
func (h *held[T]) Done() <-chan struct{} { return h.done }

// Wait returns the result as soon as it is there, or the typed error that it ended with. The end of ctx ends only the
// waiting, with DeadlineExceeded or Cancelled, while Err is still nil; a context without a deadline waits for the thing's own, which is 60
// seconds for what has none.
func (h *held[T]) Wait(ctx context.Context) (T, error) {
	if fe := h.await(ctx, h.done); fe != nil {
		var zero T
		return zero, h.leaving(fe)
	}
	return h.value, h.Err()
}

// Err is the error that it ended with; nil while it is pending or when it went well.
func (h *held[T]) Err() error {
	h.mu.Lock()
	fe := h.err
	h.mu.Unlock()
	if fe == nil {
		return nil
	}
	return h.leaving(fe)
}

// Released says whether nothing of this can touch the memory any more; false while it is HELD. It may become true after
// the end: by a later word of the daemon, by [Client.Reconnect] to the same daemon, or because the daemon's process has
// really exited.
func (h *held[T]) Released() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.released
}

// WhenReleased is closed when Released becomes true.
func (h *held[T]) WhenReleased() <-chan struct{} { return h.freed }

// WaitReleased waits until the memory is reusable: DeadlineExceeded (Released false) when ctx ends first, 30 seconds
// where it has no deadline.
func (h *held[T]) WaitReleased(ctx context.Context) error {
	ctx, cancel := bounded(ctx, 30*time.Second)
	defer cancel()
	select {
	case <-h.freed:
		return nil
	case <-ctx.Done():
		return h.leaving(contextEnded(ctx, h.op+".released", "not fenced yet: the memory is HELD"))
	}
}

// Blocks are the block ids, in the order of the call; nil of raw memory. The slice is the caller's.
func (h *held[T]) Blocks() []uint32 { return slices.Clone(h.ids) }

// leaving makes an error what callers see, with what is known now of the memory.
func (h *held[T]) leaving(fe *fault.Error) error {
	e := *fe
	if h.guarantee == wire.GuaranteeLiveClient {
		e.Guarantee = h.guarantee
	}
	return newError(&e, h.Released(), h.Blocks())
}

// await waits for ch or the end of the thing itself, which its own deadline bounds, or until ctx ends.
func (h *held[T]) await(ctx context.Context, ch <-chan struct{}) *fault.Error {
	h.mu.Lock()
	own := !h.deadline.IsZero()
	h.mu.Unlock()
	if !own {
		var cancel context.CancelFunc
		ctx, cancel = bounded(ctx, defaultWait)
		defer cancel()
	}
	select { // what is there already counts, also for a context that has ended
	case <-ch:
		return nil
	case <-h.done:
		return nil
	default:
	}
	select {
	case <-ch:
		return nil
	case <-h.done:
		return nil
	case <-ctx.Done():
		fe := contextEnded(ctx, h.op, "still pending when the wait ended")
		fe.MayHaveWritten = h.writes() // it goes on
		return fe
	}
}

// writes says whether it changes bytes of blocks or regions.
func (h *held[T]) writes() bool {
	switch self := h.self.(type) {
	case *ReadLease:
		return false
	case *Advertisement:
		return self.mode == ModeWrite
	}
	return true
}

// layerSpan notes in the span that a layer came or went.
func (h *held[T]) layerSpan(layer int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.span != nil {
		h.span.layer(layer)
	}
}

// isOver says whether it has ended.
func (h *held[T]) isOver() bool {
	select {
	case <-h.done:
		return true
	default:
		return false
	}
}

// For the session.

func (h *held[T]) at() string { return h.place }

func (h *held[T]) onLost(fe *fault.Error) { h.fail(again(fe, h.op)) }

// setReleased is the first half: before the outcome is told, so that who sees the outcome sees this too.
func (h *held[T]) setReleased() {
	h.mu.Lock()
	h.released = true
	h.mu.Unlock()
}

// tellReleased is the second half, behind the outcome.
func (h *held[T]) tellReleased() {
	h.mu.Lock()
	defer h.mu.Unlock()
	select {
	case <-h.freed:
	default:
		close(h.freed)
	}
}

func (h *held[T]) finish(v T) bool           { return h.end(&v, nil) }
func (h *held[T]) fail(fe *fault.Error) bool { return h.end(nil, fe) }
func (h *held[T]) endSpan(v *T, e *fault.Error) {
	sp := h.span
	h.span = nil
	if sp == nil {
		return
	}
	if h.place != "" && h.ids != nil {
		sp.set("kvxfer.cache", h.place)
	}
	if h.describe != nil {
		h.describe(sp, v)
	}
	if e == nil {
		sp.set("kvxfer.result", "DONE")
	} else {
		sp.set("kvxfer.result", e.Code.String())
		if e.MayHaveWritten {
			sp.set("kvxfer.may_have_written", true)
		}
	}
	h.sess.endSpan(sp, e)
}

// end ends it once; false when it had ended already.
func (h *held[T]) end(v *T, fe *fault.Error) bool {
	h.mu.Lock()
	if h.isOver() {
		h.mu.Unlock()
		return false
	}
	// The span ends before the outcome is told, so that a caller who then closes the client loses no span.
	h.endSpan(v, fe)
	if h.err = fe; v != nil {
		h.value = *v
	}
	if h.timer != nil {
		h.timer.Stop()
	}
	if !h.quiet {
		h.sess.client.completed.add(h.self)
	}
	close(h.done)
	h.mu.Unlock()
	if h.afterEnd != nil {
		h.afterEnd()
	}
	return true
}

// endAt calls expire when the deadline has come, unless it has ended before. A later call moves the deadline.
func (h *held[T]) endAt(deadline time.Time, expire func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.deadline = deadline
	switch {
	case deadline.IsZero() || h.isOver():
	case h.timer == nil:
		h.timer = time.AfterFunc(time.Until(deadline), expire)
	default:
		h.timer.Reset(time.Until(deadline))
	}
}
