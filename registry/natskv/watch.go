package natskv

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// maxNoted bounds the set of keys whose garbage was logged.
	maxNoted = 1024
	// drainTimeout bounds the wait for a stopped watch to let go of its channel.
	drainTimeout = 5 * time.Second
)

// follower is the state of the goroutine that feeds the view.
type follower struct {
	*Directory
	status chan nats.Status
	noted  map[string]struct{} // keys that hold garbage, so that each is logged once
	stale  bool                // an outage was logged
}

// follow keeps the view fed until Close. The client library makes a watch again after a reconnection only as long
// as the bucket is the same one, and never shows again what was deleted meanwhile; so every connection gets a new
// watch here, which shows the whole bucket.
func (d *Directory) follow() {
	f := &follower{Directory: d, noted: map[string]struct{}{},
		status: d.nc.StatusChanged(nats.CONNECTED, nats.RECONNECTING, nats.CLOSED)}
	defer d.nc.RemoveStatusListener(f.status)
	defer d.feed.Disconnect()
	for d.ctx.Err() == nil {
		err := errDisconnected
		if d.nc.IsConnected() {
			err = f.watch()
		}
		if err == nil || d.ctx.Err() != nil {
			continue
		}
		d.feed.Disconnect()
		if !f.stale {
			f.stale = true
			d.opts.Logger.Warn("registry view is stale", "error", err)
		}
		// The status is a hint that comes early; the timer is what is relied on.
		timer := time.NewTimer(jitter(reconnectWait))
		select {
		case s := <-f.status:
			f.noteStatus(s)
		case <-timer.C:
		case <-d.ctx.Done():
		}
		timer.Stop()
	}
}

var (
	errDisconnected = errors.New("not connected")
	errWatchClosed  = errors.New("the watch was closed")
)

// watch shows the bucket to the feed and then follows it. It returns nil when a new watch is due, and why when the
// directory cannot be followed now.
func (f *follower) watch() error {
	ctx, cancel := context.WithCancel(f.ctx)
	defer cancel()
	if err := f.bucket.open(ctx); err != nil {
		return err
	}
	// The watch lives as long as its context, so only its making is bounded here.
	bound := time.AfterFunc(requestTimeout, cancel)
	w, err := f.bucket.kv.WatchFiltered(ctx, f.watched())
	if !bound.Stop() && err == nil {
		err = context.DeadlineExceeded
	}
	if w != nil {
		defer release(w)
	}
	if err != nil {
		return err
	}

	f.feed.BeginSync()
	// This node's own heartbeats come back through the watch, so one that shows nothing for a TTL is either that of a process
	// without a node, and is cheap to make again, or hangs on a bucket that is no more.
	tick := time.NewTicker(f.opts.TTL / 2)
	defer tick.Stop()
	last := time.Now()
	for {
		select {
		case e, ok := <-w.Updates():
			if !ok {
				return errWatchClosed
			}
			last = time.Now()
			f.fresh.note(&f.fresh.heard)
			if e != nil && isBeat(e.Key()) {
				continue
			}
			if e == nil {
				f.feed.EndSync(last.Add(f.opts.TTL))
				if f.stale {
					f.stale = false
					f.opts.Logger.Info("registry view follows again")
				}
				continue
			}
			f.apply(e)
		case now := <-tick.C:
			f.feed.Expire(now)
			if now.Sub(last) >= f.opts.TTL {
				return nil
			}
		case <-f.resync:
			return nil
		case s := <-f.status:
			f.noteStatus(s)
			if s != nats.CONNECTED {
				return errDisconnected
			}
			return nil
		case <-f.ctx.Done():
			return nil
		}
	}
}

func (f *follower) apply(e jetstream.KeyValueEntry) {
	if e.Operation() != jetstream.KeyValuePut {
		f.feed.Drop(e.Key())
		delete(f.noted, e.Key())
		return
	}
	err := f.feed.Put(e.Key(), e.Value())
	if err == nil {
		f.feed.Told(e.Key(), time.Now())
		delete(f.noted, e.Key())
		return
	}
	if _, ok := f.noted[e.Key()]; !ok && len(f.noted) < maxNoted {
		f.noted[e.Key()] = struct{}{}
		f.opts.Logger.Warn("registry entry ignored", "key", e.Key(), "error", err)
	}
}

func (f *follower) noteStatus(s nats.Status) {
	if s == nats.CONNECTED {
		poke(f.beat)
	}
}

// release ends a watch and empties its channel: the library's delivery blocks on it, and with it the closing.
func release(w jetstream.KeyWatcher) {
	_ = w.Stop() // fails when the connection is gone, and the watch with it
	timeout := time.NewTimer(drainTimeout)
	defer timeout.Stop()
	for {
		select {
		case _, ok := <-w.Updates():
			if !ok {
				return
			}
		case <-timeout.C:
			return
		}
	}
}
