package main

import (
	"context"
	"fmt"
	"time"

	kvxfer "github.com/kvxfer/kvxfer/sdk/go"
)

// handle is what leases, advertisements and pulls have in common.
type handle interface {
	kvxfer.Ended
	WhenReleased() <-chan struct{}
}

// victim is one transfer whose memory is taken back.
type victim struct {
	victimArgs
	area   *watched // nil: another process watches
	handle handle
	began  time.Time

	// What the owner can do; nil: not with this kind.
	revoke func(context.Context) error
	renew  func(context.Context, time.Duration) error
	evict  func(context.Context) error
	cancel func()

	over   chan struct{} // closed when the memory is the owner's again, and marked
	ending ending        // valid then
}

// ending is how it went.
type ending struct {
	ID    int    `json:"id"`
	End   string `json:"end"` // "good", or the error's code
	Some  bool   `json:"some"`
	Whole bool   `json:"whole"`           // of the bytes had arrived when the memory was taken
	Wrong int    `json:"wrong,omitempty"` // bytes that are not the source's after a good end
	MS    int64  `json:"ms"`              // from the lease to that moment
	Error string `json:"error,omitempty"`
	May   bool   `json:"may,omitempty"` // at the source: it may have written
	By    string `json:"by,omitempty"`  // provider, after a good end
}

func newVictim(a victimArgs) *victim {
	return &victim{victimArgs: a, over: make(chan struct{}), began: time.Now()}
}

func (v *victim) give() {
	if v.area != nil {
		v.area.give(v.Units)
	}
}

// settle marks the memory as soon as the SDK says that it is the owner's.
func (v *victim) settle() {
	<-v.handle.Done()
	<-v.handle.WhenReleased()
	err := v.handle.Err()
	v.ending = ending{ID: v.ID, End: codeOf(err), MS: time.Since(v.began).Milliseconds()}
	if err != nil {
		v.ending.Error = err.Error()
	} else {
		v.ending.By = v.provider()
	}
	if v.area != nil {
		if err == nil && v.From != nil {
			v.ending.Wrong = v.area.wrong(v.Units, v.From)
		}
		v.ending.Some, v.ending.Whole = v.area.take(v.Units, v.Mark, v.Kind+": "+v.Way)
	}
	close(v.over)
}

// provider is what moved the bytes of a good end.
func (v *victim) provider() string {
	ctx := context.Background()
	switch h := v.handle.(type) {
	case *kvxfer.Lease:
		r, _ := h.Wait(ctx)
		return r.Provider
	case *kvxfer.Pull:
		r, _ := h.Wait(ctx)
		return r.Provider
	case *kvxfer.Advertisement:
		if ends := h.Holders(); len(ends) > 0 {
			return ends[0].Provider
		}
	}
	return ""
}

func (v *victim) isOver() bool {
	select {
	case <-v.over:
		return true
	default:
		return false
	}
}

// ended says whether the call has its outcome, released or not.
func (v *victim) ended() bool {
	select {
	case <-v.handle.Done():
		return true
	default:
		return false
	}
}

// takeBack is the owner's part of the way. An error with a code is the SDK's and no failure: it may be over already.
func (v *victim) takeBack() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	switch {
	case (v.Way == "revoke" || v.Way == "keep") && v.revoke != nil: // what was to be kept may have lost its source
		return v.revoke(ctx)
	case v.Way == "evict" && v.evict != nil:
		return v.evict(ctx)
	case v.Way == "renew, revoke" && v.renew != nil:
		_ = v.renew(ctx, 5*time.Second) // it is over, perhaps, and revoke says so too
		return v.revoke(ctx)
	case v.Way == "shorten" && v.renew != nil:
		return v.renew(ctx, time.Millisecond)
	case v.Way == "cancel" && v.cancel != nil:
		v.cancel()
		return nil
	}
	return fmt.Errorf("way: the owner has no part in %q of a %s", v.Way, v.Kind)
}
