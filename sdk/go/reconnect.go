package kvxfer

import (
	"context"
	"slices"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// Reconnect attaches again after the daemon was lost, and hands caches and regions over again with what they still hold. It
// returns for each cache's name the ids of the blocks that are served again.
//
// Memory, contents and names stay; old leases and transfers have ended. Where it is the same daemon, they are released too:
// it takes memory again only when everything of the lost connection there is fenced. Blocks that a lease or a pull committed
// or that were published, and that were neither evicted nor leased again since, are vouched for: the daemon serves those that
// it knows as well. It tries until ctx ends, 30 seconds where it has no deadline, so it may be called while the daemon
// restarts. While the connection is alive it changes nothing.
//
// Errors: DaemonUnavailable, no daemon in time; any other, a cache was refused: the connection is closed again and the call
// may be repeated.
func (c *Client) Reconnect(ctx context.Context) (served map[string][]uint32, err error) {
	const op = "reconnect"
	ctx, cancel := bounded(ctx, slowTimeout)
	defer cancel()
	c.coming.Lock()
	defer c.coming.Unlock()
	if _, err := c.use(op); err != nil {
		return nil, err
	}
	c.mu.Lock()
	old, places := c.session, slices.Clone(c.places)
	c.mu.Unlock()
	// A daemon that has just died leaves a connection whose end was not read yet.
	if gone, _ := old.conn.hasExited(); old.conn.alive() && !gone {
		return vouchedFor(places), nil
	}
	select { // its handles have their outcome
	case <-old.conn.ended:
	case <-ctx.Done():
		return nil, newError(contextEnded(ctx, op, "the lost connection has not ended"), false, nil)
	}
	var s *session
	if fe := c.retry(ctx, func() (fe *fault.Error) { s, fe = c.greet(ctx); return fe }); fe != nil {
		return nil, newError(again(fe, op), false, nil)
	}
	made, fe := c.registerAgain(ctx, s, places)
	if fe == nil {
		c.mu.Lock()
		if c.closed {
			fe = fault.New(fault.Closed, op, "the client was closed")
		} else {
			c.session = s
			c.old = slices.DeleteFunc(append(c.old, old), func(s *session) bool { return s.letGo() })
			for p, at := range made {
				if slices.Contains(c.places, p) {
					p.base().attach(&at)
				}
			}
		}
		c.mu.Unlock()
	}
	if fe != nil {
		s.conn.close()
		s.conn.dispose()
		return nil, newError(fe, false, nil)
	}
	c.tellFenced(s, places)
	c.flushSpans()
	return vouchedFor(places), nil
}

// letGo disposes of a session that nothing waits for any more.
func (s *session) letGo() bool {
	if s.awaitsExit() {
		return false
	}
	s.conn.close()
	go s.conn.dispose() // its goroutines are about to end; who reconnects has better to do than wait
	return true
}

// retry repeats f while the daemon restarts or still ends the old session.
func (c *Client) retry(ctx context.Context, f func() *fault.Error) *fault.Error {
	pause := 20 * time.Millisecond
	for {
		fe := f()
		if fe == nil {
			return nil
		}
		switch fe.Code {
		case fault.DaemonUnavailable, fault.Draining, fault.AlreadyExists:
		default:
			return fe
		}
		select {
		case <-ctx.Done():
			return fe
		case <-c.closing:
			return fault.New(fault.Closed, "reconnect", "the client was closed")
		case <-time.After(pause):
		}
		pause = min(2*pause, 500*time.Millisecond)
	}
}

// registerAgain hands everything over to a new session, with what it still holds.
func (c *Client) registerAgain(ctx context.Context, s *session, places []place) (map[place]attachment, *fault.Error) {
	made := map[place]attachment{}
	for _, p := range places {
		fe := c.retry(ctx, func() *fault.Error {
			at, served, fe := p.register(ctx, "reconnect", s)
			if fe == nil {
				p.keepOnly(served)
				made[p] = at
			}
			return fe
		})
		if fe != nil {
			return nil, fe
		}
	}
	return made, nil
}

// tellFenced ends what the new session's existence has fenced. The same daemon registers memory again only when everything
// of its old session there is fenced. Of another one only its exit says so, which the old session's reader watches; where
// the exit cannot be seen, the node's rule counts: it starts only when its predecessor is gone.
func (c *Client) tellFenced(s *session, places []place) {
	c.mu.Lock()
	olds := slices.Clone(c.old)
	c.mu.Unlock()
	for _, p := range places {
		for _, old := range olds {
			_, known := old.conn.hasExited()
			if old.hello.Epoch == s.hello.Epoch || !known && old.hello.Node == s.hello.Node {
				old.fenced(p.base().name)
			}
		}
	}
}

// vouchedFor are the block ids that each cache vouches for.
func vouchedFor(places []place) map[string][]uint32 {
	out := map[string][]uint32{}
	for _, p := range places {
		if c, ok := p.(*Cache); ok {
			v, _ := wire.Vouches(c.vouched.packed())
			ids := make([]uint32, len(v))
			for i := range v {
				ids[i] = v[i].Block
			}
			out[c.name] = ids
		}
	}
	return out
}
