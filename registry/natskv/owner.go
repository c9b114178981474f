package natskv

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/registry"
)

// claimTimeout bounds one attempt to write the node's entry, conflicts and a missing bucket included.
const claimTimeout = 2 * requestTimeout

// owner is what this process has to say in the directory.
type owner struct {
	announced bool
	node      registry.Node
	revision  uint64    // of our node entry as we last wrote it, 0: none that we know of
	written   time.Time // when that was
	entry     uint64    // the revision of our entry in the bucket that evidence is of
	evidence  evidence
	suspicion suspicion
	caches    map[string]*ownCache // by key
	dropped   map[string]time.Time // keys of withdrawn caches still to be removed, and when they are gone anyway
	lost      error                // NameTaken, once another epoch holds our name
	failing   bool                 // an outage was logged
}

// ownCache is one cache of this node.
type ownCache struct {
	key string
	raw []byte
	put time.Time // when it was last written, zero: to be written
}

// acquire takes the owner state; false when ctx ends first.
func (d *Directory) acquire(ctx context.Context) bool {
	select {
	case d.lock <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (d *Directory) release() { <-d.lock }

// begin takes the owner state for a call of the contract and says why the call is not allowed. On success the
// returned context also ends with Close.
func (d *Directory) begin(ctx context.Context, op string, announced bool) (context.Context, func(), error) {
	if !d.acquire(ctx) {
		return nil, nil, unavailable(ctx, op, ctx.Err())
	}
	var err error
	switch o := &d.owner; {
	case d.ctx.Err() != nil:
		err = fault.New(fault.Closed, op, "the directory was closed")
	case o.lost != nil:
		err = o.lost
	case announced && !o.announced:
		err = fault.Invalid(op, "node", "no node is announced here: announce one first")
	case !announced && o.announced:
		err = &fault.Error{Code: fault.AlreadyExists, Op: op, Peer: o.node.Name, Detail: "this directory announced a node before"}
	}
	if err != nil {
		d.release()
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(d.ctx, cancel)
	return ctx, func() { stop(); cancel(); d.release() }, nil
}

// Announce claims the node's name.
func (d *Directory) Announce(ctx context.Context, n registry.Node, t registry.TakeOver) error {
	const op = "announce"
	n.Format, n.Beats = registry.Format, true
	if err := n.Validate(); err != nil {
		return atOp(op, err)
	}
	if t.OldEpoch != "" {
		if err := registry.ValidateEpoch("old_epoch", t.OldEpoch); err != nil {
			return atOp(op, err)
		}
	}
	ctx, end, err := d.begin(ctx, op, false)
	if err != nil {
		return err
	}
	defer end()
	o := &d.owner
	o.node, o.revision = n, 0
	for {
		_, err = d.claim(ctx, t.OldEpoch)
		if err == nil {
			o.announced = true
			return nil
		}
		if errors.Is(err, fault.ErrNameTaken) || errors.Is(err, fault.ErrInvalidArgument) {
			_ = d.bucket.remove(ctx, beatKey(o.node.Name, o.node.Epoch), 0) // else it expires
			return err
		}
		if !sleep(ctx, jitter(reconnectWait)) {
			return unavailable(ctx, op, err)
		}
	}
}

// claim writes the node's entry where there is none, over our own last revision, over our own epoch (a write whose
// answer was lost), over oldEpoch and over a claim whose sign of life is gone. renewed says that an entry that we had was
// gone. The sign of life comes first: an entry without one is a dead node's.
func (d *Directory) claim(ctx context.Context, oldEpoch string) (renewed bool, err error) {
	const op = "announce"
	o := &d.owner
	raw, err := o.node.Encode()
	if err != nil {
		return false, atOp(op, err)
	}
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	key := o.node.Key().String()
	for try := 0; ; try++ {
		if try > 0 && !sleep(ctx, time.Duration(min(try, 10))*10*time.Millisecond) {
			return renewed, ctx.Err()
		}
		err = d.beatNow(ctx)
		var rev uint64
		if err == nil && o.revision != 0 {
			rev, err = d.bucket.put(ctx, key, raw, d.entryTTL(), o.revision)
		} else if err == nil {
			rev, err = d.bucket.create(ctx, key, raw, d.entryTTL())
		}
		if err == nil {
			if o.revision == 0 || rev < o.entry || o.entry == 0 {
				d.remember(ctx, rev)
			}
			o.revision, o.entry, o.written = rev, rev, time.Now()
			o.evidence.acked = max(o.evidence.acked, rev)
			d.pulse.heard()
			return renewed, nil
		}
		if isBucketMissing(err) {
			if err := d.bucket.open(ctx); err != nil {
				return renewed, err
			}
			renewed, o.revision = o.revision != 0 || renewed, 0
			continue
		}
		if !isConflict(err) {
			return renewed, err
		}
		value, revision, err := d.bucket.latest(ctx, key)
		if errors.Is(err, jetstream.ErrKeyNotFound) {
			renewed, o.revision = o.revision != 0 || renewed, 0
			continue
		}
		if err != nil {
			return renewed, err
		}
		_, epoch, err := registry.DecodeClaim(value)
		switch {
		case err != nil:
			// Nobody's heartbeat looks like this, so it is no claim.
			d.opts.Logger.Warn("registry entry replaced", "key", key, "error", err)
		case epoch == o.node.Epoch || epoch == oldEpoch: // an epoch is never empty
		default:
			if err := d.mayReplace(ctx, epoch, value, revision, &renewed); err != nil {
				return renewed, err
			}
		}
		o.revision = revision
	}
}

// SetDraining changes and publishes the node's Draining.
func (d *Directory) SetDraining(ctx context.Context, draining bool) error {
	const op = "set draining"
	ctx, end, err := d.begin(ctx, op, true)
	if err != nil {
		return err
	}
	defer end()
	d.owner.node.Draining = draining
	return d.publishNode(ctx, op)
}

// PutCache publishes a cache of the announced node.
func (d *Directory) PutCache(ctx context.Context, c registry.Cache) error {
	const op = "put cache"
	ctx, end, err := d.begin(ctx, op, true)
	if err != nil {
		return err
	}
	defer end()
	o := &d.owner
	for _, f := range [...]struct{ field, have, want string }{{"node", c.Node, o.node.Name}, {"epoch", c.Epoch, o.node.Epoch}} {
		if f.have != "" && f.have != f.want {
			return fault.Invalid(op, f.field, "%.80q: allowed is this node's, %q, or empty", f.have, f.want)
		}
	}
	c.Format, c.Node, c.Epoch = registry.Format, o.node.Name, o.node.Epoch
	raw, err := c.Encode()
	if err != nil {
		return atOp(op, err)
	}
	oc := &ownCache{key: c.Key().String(), raw: raw}
	o.caches[oc.key] = oc
	delete(o.dropped, oc.key)
	if err := d.ready(op); err != nil {
		return err
	}
	if err := d.putCache(ctx, oc); err != nil {
		poke(d.beat)
		return unavailable(ctx, op, err)
	}
	return nil
}

// DropCache withdraws a cache of the announced node.
func (d *Directory) DropCache(ctx context.Context, tenant, name string) error {
	const op = "drop cache"
	ctx, end, err := d.begin(ctx, op, true)
	if err != nil {
		return err
	}
	defer end()
	o := &d.owner
	c := registry.Cache{Node: o.node.Name, Epoch: o.node.Epoch, Tenant: tenant, Name: name}
	key := c.Key().String()
	if o.caches[key] == nil {
		return &fault.Error{Code: fault.NotFound, Op: op, Region: name, Detail: "this node has published no such cache"}
	}
	delete(o.caches, key)
	o.dropped[key] = time.Now().Add(d.entryTTL())
	if err := d.ready(op); err != nil {
		return err
	}
	if err := d.dropCache(ctx, key); err != nil {
		poke(d.beat)
		return unavailable(ctx, op, err)
	}
	return nil
}

// publishNode writes the node's entry now.
func (d *Directory) publishNode(ctx context.Context, op string) error {
	if err := d.ready(op); err != nil {
		return err
	}
	if err := d.renew(ctx, true); err != nil {
		if errors.Is(err, fault.ErrNameTaken) {
			return err
		}
		return unavailable(ctx, op, err)
	}
	return nil
}

// ready answers at once while there is no connection; the heartbeat catches up later.
func (d *Directory) ready(op string) error {
	if !d.nc.IsConnected() {
		return fault.New(fault.RegistryUnavailable, op, "not connected; it will be published when the registry is back")
	}
	return nil
}

func (d *Directory) putCache(ctx context.Context, oc *ownCache) error {
	if _, err := d.bucket.put(ctx, oc.key, oc.raw, d.entryTTL(), 0); err != nil {
		return err
	}
	oc.put = time.Now()
	return nil
}

func (d *Directory) dropCache(ctx context.Context, key string) error {
	if err := d.bucket.remove(ctx, key, 0); err != nil {
		return err
	}
	delete(d.owner.dropped, key)
	return nil
}

// renew gives the sign of life and notices what the directory lost and who took the name. The node's entry itself is written
// when that is due, when it is not ours as we left it, and when asked for.
func (d *Directory) renew(ctx context.Context, write bool) error {
	o := &d.owner
	if !write && time.Since(o.written) < d.entryTTL()/3 {
		err := d.beatNow(ctx)
		if err == nil {
			var e jetstream.KeyValueEntry
			if e, err = d.bucket.get(ctx, o.node.Key().String()); err == nil && e.Revision() == o.revision {
				d.pulse.heard()
				return nil
			}
		}
		if err != nil && !errors.Is(err, jetstream.ErrKeyNotFound) && !isBucketMissing(err) {
			return err
		}
	}
	renewed, err := d.claim(ctx, "")
	if renewed {
		// Whoever lost our entry lost more: everything is said again, and the view looks at it afresh.
		for _, oc := range o.caches {
			oc.put = time.Time{}
		}
		poke(d.beat)
		poke(d.resync)
		d.opts.Logger.Info("registry had lost this node's entry", "node", o.node.Name)
	}
	if errors.Is(err, fault.ErrNameTaken) {
		o.lost = err
		d.err <- err // has room: lost is set once
		d.opts.Logger.Error("registry name was taken over", "node", o.node.Name)
	}
	return err
}

// heartbeat gives this node's sign of life and looks after others until Close.
func (d *Directory) heartbeat() {
	next := time.Now().Add(jitter(d.opts.Heartbeat))
	timer := time.NewTimer(time.Until(next))
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			d.repeat()
			d.lookAfterOthers()
			next = time.Now().Add(jitter(d.opts.Heartbeat))
		case <-d.beat:
			// Soon, but not at once: after a server's restart all nodes come here together.
			if soon := time.Now().Add(rand.N(d.opts.Heartbeat/2 + 1)); soon.Before(next) {
				next = soon
			}
		case <-d.ctx.Done():
			return
		}
		timer.Reset(time.Until(next))
	}
}

// repeat is one heartbeat: the node, then the caches that are due.
func (d *Directory) repeat() {
	began, err := time.Now(), errDisconnected
	defer func() { d.health.wrote(began, err, d.opts.Heartbeat) }()
	if !d.nc.IsConnected() || !d.acquire(d.ctx) {
		return
	}
	defer d.release()
	o := &d.owner
	if !o.announced || o.lost != nil {
		return
	}
	err = d.renew(d.ctx, false)
	if err == nil {
		err = d.repeatCaches()
	}
	switch {
	case d.ctx.Err() != nil || o.lost != nil:
	case err != nil && !o.failing:
		o.failing = true
		d.opts.Logger.Warn("registry heartbeat failed", "node", o.node.Name, "error", err)
	case err == nil && o.failing:
		o.failing = false
		d.opts.Logger.Info("registry heartbeat goes on", "node", o.node.Name)
	}
}

// repeatCaches writes the caches that were never written or not for a third of their time to live, and removes the
// withdrawn ones that are still there. It stops in time for the next heartbeat; what is left is due then.
func (d *Directory) repeatCaches() error {
	o := &d.owner
	now := time.Now()
	deadline := now.Add(d.opts.Heartbeat / 2)
	for key, gone := range o.dropped {
		if now.After(gone) {
			delete(o.dropped, key)
		} else if err := d.dropCache(d.ctx, key); err != nil {
			return err
		}
	}
	for _, oc := range o.caches {
		if now.Sub(oc.put) < d.entryTTL()/3 {
			continue
		}
		if err := d.putCache(d.ctx, oc); err != nil {
			return err
		}
		if time.Now().After(deadline) {
			poke(d.beat)
			return nil
		}
	}
	return nil
}

// withdraw removes this node's entries: the node first, which hides its caches from every view at once.
func (d *Directory) withdraw(ctx context.Context) error {
	const op = "registry close"
	if !d.acquire(ctx) {
		return unavailable(ctx, op, ctx.Err())
	}
	defer d.release()
	o := &d.owner
	if !o.announced || o.lost != nil {
		return nil
	}
	if ctx.Err() != nil || !d.nc.IsConnected() {
		return fault.New(fault.RegistryUnavailable, op, "the entries were not withdrawn; they expire in %s", d.opts.TTL)
	}
	err := d.withdrawNode(ctx)
	if err == nil {
		err = d.bucket.remove(ctx, beatKey(o.node.Name, o.node.Epoch), 0)
	}
	for _, oc := range o.caches {
		if err == nil {
			err = d.bucket.remove(ctx, oc.key, 0)
		}
	}
	if err != nil {
		return unavailable(ctx, op, err)
	}
	return nil
}

// withdrawNode removes the node's entry if it is still ours. A heartbeat that Close interrupted may have written a
// revision that we never heard of, so a conflict is looked into.
func (d *Directory) withdrawNode(ctx context.Context) error {
	o := &d.owner
	key := o.node.Key().String()
	err := d.bucket.remove(ctx, key, o.revision)
	if !isConflict(err) {
		return err
	}
	value, revision, err := d.bucket.latest(ctx, key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if _, epoch, err := registry.DecodeClaim(value); err != nil || epoch != o.node.Epoch {
		return nil
	}
	return d.bucket.remove(ctx, key, revision)
}

// atOp names the operation in an error of the pure package, which knows none.
func atOp(op string, err error) error {
	e := fault.From(op, err)
	if e.Op == "" {
		c := *e
		c.Op = op
		return &c
	}
	return e
}
