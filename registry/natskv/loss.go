package natskv

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// A directory that lost its contents has forgotten who held which name. Whoever comes first then gets it, and without more
// that may be a second daemon that was given a name by mistake, while the one that has served under it all the time would end.
// So an owner that can show the loss takes its name back, once a bucket, unless it was itself stopped for longer than its time to
// live: then it had lost the name anyway, and the other may have relied on that.

// mayReplace says why another epoch's claim on our name must stay: NameTaken, or errSuspect for as long as it is not clear. nil where
// its owner is dead, or where it is there only because the directory forgot us; then renewed is set.
func (d *Directory) mayReplace(ctx context.Context, epoch string, entry []byte, revision uint64, renewed *bool) error {
	o := &d.owner
	dead, err := d.dead(ctx, o.node.Name, epoch, entry)
	switch {
	case err != nil:
		return err
	case dead && !o.suspicion.ripe(epoch, d.grace()):
		return errSuspect
	case !dead && !d.wasLost(ctx, revision):
		return &fault.Error{Code: fault.NameTaken, Op: "announce", Peer: o.node.Name, Detail: "a node with another epoch holds this name"}
	case !dead:
		d.opts.Logger.Warn("registry lost this node's name to another daemon and gets it back", "node", o.node.Name, "other", epoch)
		*renewed, o.entry = true, 0
	}
	return nil
}

// errSuspect says that the name's holder gives no sign of life, which is not yet reason enough.
var errSuspect = errors.New("a node that gives no sign of life holds this name; it gets time to give one")

// suspicion is about one holder of our name.
type suspicion struct {
	epoch string
	since time.Time
}

// ripe says that an epoch has been under suspicion for the grace.
func (s *suspicion) ripe(epoch string, grace time.Duration) bool {
	if s.epoch != epoch {
		s.epoch, s.since = epoch, time.Now()
	}
	return time.Since(s.since) >= grace
}

// evidence is what an owner remembers of the bucket in which it last had its name.
type evidence struct {
	created time.Time // of the bucket; zero: unknown
	acked   uint64    // the latest sequence that the bucket gave one of our writes
}

// remember notes the bucket that our entry was just written to.
func (d *Directory) remember(ctx context.Context, revision uint64) {
	e := evidence{acked: revision}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if s, err := d.bucket.js.Stream(ctx, "KV_"+d.bucket.name); err == nil {
		e.created = s.CachedInfo().Created
	}
	d.owner.evidence = e
}

// wasLost says that the bucket which holds somebody else's claim in our place, at that revision, is not the one that held ours, or
// not with what it had then: within one bucket sequences only grow, and a claim over ours comes behind it.
func (d *Directory) wasLost(ctx context.Context, revision uint64) bool {
	o := &d.owner
	if !o.announced || d.pulse.stopped(d.opts.TTL) {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	s, err := d.bucket.js.Stream(ctx, "KV_"+d.bucket.name)
	if err != nil {
		return false
	}
	info := s.CachedInfo()
	return !o.evidence.created.IsZero() && !info.Created.Equal(o.evidence.created) || info.State.LastSeq < o.evidence.acked || revision < o.entry
}

// pulse tells whether this process ran: a process that was stopped cannot know what others concluded from its silence.
type pulse struct {
	mu   sync.Mutex
	last time.Time
	gap  time.Duration // the longest between two ticks since the last success
}

// keepPulse ticks until Close. It has a goroutine of its own because everything else here may wait for the server.
func (d *Directory) keepPulse() {
	t := time.NewTicker(d.opts.TTL / 4)
	defer t.Stop()
	for {
		select {
		case now := <-t.C:
			d.pulse.tick(now)
		case <-d.ctx.Done():
			return
		}
	}
}

// tick is called several times within a time to live, with or without a connection.
func (p *pulse) tick(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.last.IsZero() {
		p.gap = max(p.gap, now.Sub(p.last))
	}
	p.last = now
}

// heard forgets the gaps: the directory has this node as it is.
func (p *pulse) heard() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gap = 0
}

// stopped says that there was a gap of a time to live since the directory heard of us.
func (p *pulse) stopped(ttl time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.gap >= ttl || !p.last.IsZero() && time.Since(p.last) >= ttl
}
