package kvxfer

import (
	"context"
	"errors"
	"time"
)

// gaveUp says whether ctx ends the waiting for a post; run: its deadline is the post's own, which until is for.
func gaveUp(ctx context.Context, run bool) bool {
	err := ctx.Err()
	return err != nil && !(run && errors.Is(err, context.DeadlineExceeded))
}

// wait returns when the post has ended, when ctx has, or when its deadline has passed and the daemon had time to say so.
func (o *poster) wait(ctx context.Context, x Post, run bool) {
	s := &o.slots[x.i]
	o.mu.Lock()
	if !s.is(x.turn, slotOut) {
		o.mu.Unlock()
		return
	}
	until := s.until.Add(grace)
	o.users++ // the session has not ended: this would have
	o.mu.Unlock()
	for s.is(x.turn, slotOut) {
		if o.ring != nil && !o.leads.Swap(true) {
			on := o.lead(ctx, x, run, until)
			o.abdicate()
			if !on {
				break
			}
		} else if !o.follow(ctx, x, run, until) {
			break
		}
	}
	o.mu.Lock()
	o.users--
	o.unmap()
	if o.ring != nil && !o.leads.Load() {
		o.rouseNext() // this one may have been called to lead, and had what it waited for, or no time left
	}
	o.mu.Unlock()
}

// lead looks at the ring, and sleeps in it, until the post has ended; false: the time is over.
func (o *poster) lead(ctx context.Context, x Post, run bool, until time.Time) bool {
	s := &o.slots[x.i]
	found := func() bool { return o.ring.Ready() || !s.is(x.turn, slotOut) }
	for looked := !x.p.spins; ; looked = true {
		if o.ring.Ready() {
			o.mu.Lock()
			o.drain()
			o.mu.Unlock()
		}
		if !s.is(x.turn, slotOut) {
			return true
		}
		if !looked && o.spin.Until(found, nil) {
			continue
		}
		now := time.Now()
		if !now.Before(until) || gaveUp(ctx, run) {
			return false
		}
		if o.ring.Ended() { // the session's end will follow
			return o.follow(ctx, x, run, until)
		}
		o.ring.Sleep(min(until.Sub(now), glance))
	}
}

// abdicate lets another one lead.
func (o *poster) abdicate() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.leads.Store(false)
	o.rouseNext()
}

// rouseNext calls somebody who sleeps to lead. The lock is held.
func (o *poster) rouseNext() {
	if o.asleep == 0 {
		return
	}
	for i := range o.slots {
		if s := &o.slots[i]; s.sleeps {
			o.rouse(s)
			return
		}
	}
}

// follow sleeps until the post has ended, or somebody has to lead; false: the time is over.
func (o *poster) follow(ctx context.Context, x Post, run bool, until time.Time) bool {
	s := &o.slots[x.i]
	o.mu.Lock()
	if !s.is(x.turn, slotOut) || o.ring != nil && !o.leads.Load() {
		o.mu.Unlock()
		return true
	}
	wake, left := s.wake, time.Until(until)
	if s.sleeps { // somebody else waits for the same post, which is rare enough to look now and then
		wake, left = nil, min(left, time.Millisecond)
		o.mu.Unlock()
		timer := time.NewTimer(left)
		defer timer.Stop()
		return o.sleep(ctx, run, wake, timer) || time.Now().Before(until) && !gaveUp(ctx, run)
	}
	if s.wake == nil {
		s.wake = make(chan struct{}, 1)
		s.timer = time.NewTimer(left)
		wake = s.wake
	} else {
		select { // a word of a former post
		case <-wake:
		default:
		}
		s.timer.Reset(left)
	}
	s.sleeps = true
	o.asleep++
	timer := s.timer
	o.mu.Unlock()
	on := o.sleep(ctx, run, wake, timer)
	timer.Stop()
	o.mu.Lock()
	if s.sleeps {
		s.sleeps = false
		o.asleep--
	}
	o.mu.Unlock()
	return on || time.Now().Before(until) && !gaveUp(ctx, run)
}

// sleep says whether it was woken.
func (o *poster) sleep(ctx context.Context, run bool, wake chan struct{}, timer *time.Timer) bool {
	done := ctx.Done()
	if run && ctx.Err() != nil && !gaveUp(ctx, run) {
		done = nil
	}
	select {
	case <-wake:
		return true
	case <-done:
	case <-timer.C:
	}
	return false
}
