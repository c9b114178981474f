package natskv

import (
	"context"
	"encoding/json"
	"errors"
	"sort"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvxfer/kvxfer/registry"
)

// A node's sign of life is an entry of its own that hardly anybody watches: as part of the node's entry, which everybody does,
// it would be told to n nodes n times a heartbeat. So somebody has to notice that it is gone, and remove the node's
// entry, which everybody is told. Every node looks after the next ones in the order of names, around the end: no node has to be chosen for
// it, and the work is the same for all. A wrong removal mends itself, since every owner looks at its entry with every heartbeat.
const (
	beatPrefix = "beat."
	// lookAfter is how many live nodes each node looks after, so how many look after it: with two, one may have missed it.
	lookAfter = 2
	// maxLooks bounds one round's requests when many nodes died together; what is left is done in the next.
	maxLooks = 64
)

// beatKey is where the sign of life of an incarnation is: "beat.NAME.EPOCH".
func beatKey(name, epoch string) string {
	return beatPrefix + strings.TrimPrefix(registry.Key{Node: name}.String(), "node.") + "." + epoch
}

func isBeat(key string) bool { return strings.HasPrefix(key, beatPrefix) }

// watched are the keys that the view is fed from, and this node's own heartbeats.
func (d *Directory) watched() []string {
	keys := []string{"node.>", "cache.>"}
	if registry.ValidateName("name", d.opts.Name) == nil {
		keys = append(keys, beatKey(d.opts.Name, "*"))
	}
	return keys
}

// grace is the time in which every owner that lives has given a sign of life, once the registry takes any: while a cluster elects a
// leader it takes none, and then all of them have run out together.
func (d *Directory) grace() time.Duration { return requestTimeout + 2*d.opts.Heartbeat }

// health is what a node that looks after others knows of the registry and of them.
type health struct {
	writable time.Time            // since when our own signs of life are taken; zero: they are not, or there are none
	silent   map[string]time.Time // signs of life that are missing, since when we know
}

// wrote notes how a heartbeat of our own went that began then.
func (h *health) wrote(began time.Time, err error, heartbeat time.Duration) {
	switch now := time.Now(); {
	case err != nil:
		h.writable = time.Time{}
	case h.writable.IsZero() || now.Sub(began) > heartbeat: // it may have waited for a registry that took none
		h.writable = now
	}
}

// condemned says that a missing sign of life is its owner's fault.
func (h *health) condemned(key string, grace time.Duration) bool {
	now := time.Now()
	if h.silent[key].IsZero() {
		h.silent[key] = now
	}
	return now.Sub(h.silent[key]) >= grace || !h.writable.IsZero() && now.Sub(h.writable) >= grace
}

func (d *Directory) entryTTL() time.Duration { return entryTTLs * d.opts.TTL }

// beatNow gives this node's sign of life.
func (d *Directory) beatNow(ctx context.Context) error {
	seq, err := d.bucket.put(ctx, beatKey(d.owner.node.Name, d.owner.node.Epoch), nil, d.opts.TTL, 0)
	d.owner.evidence.acked = max(d.owner.evidence.acked, seq)
	if err == nil {
		d.fresh.note(&d.fresh.beat)
	}
	return err
}

// dead says that a node's entry is one whose owner stopped giving signs of life. An owner gives the first before it writes its
// entry, so there is no time at which a new node looks dead.
func (d *Directory) dead(ctx context.Context, name, epoch string, entry []byte) (bool, error) {
	var e struct {
		Beats bool `json:"beats"`
	}
	if json.Unmarshal(entry, &e) != nil || !e.Beats {
		return false, nil // it lives as long as the entry itself
	}
	_, _, err := d.bucket.latest(ctx, beatKey(name, epoch))
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return true, nil
	}
	return false, err
}

// lookAfterOthers removes the entries of dead nodes behind this one, up to the second that lives. Failures are left to the
// next round, and to the other node that looks after the same one.
func (d *Directory) lookAfterOthers() {
	if !d.nc.IsConnected() || !d.view.Connected() || !d.acquire(d.ctx) {
		return
	}
	self := d.owner.node.Name
	lost := d.owner.lost != nil
	d.release()
	if lost {
		return
	}
	if self == "" {
		self = d.opts.Name
	}
	before := d.health.silent
	d.health.silent = map[string]time.Time{}
	nodes := d.view.Nodes()
	first := sort.Search(len(nodes), func(i int) bool { return nodes[i].Name > self })
	alive := 0
	for i := range min(len(nodes), maxLooks) {
		n := &nodes[(first+i)%len(nodes)]
		if n.Name == self || !n.Beats {
			continue
		}
		key := beatKey(n.Name, n.Epoch)
		switch _, err := d.bucket.get(d.ctx, key); {
		case err == nil:
			if alive++; alive == lookAfter {
				return
			}
		case !errors.Is(err, jetstream.ErrKeyNotFound):
			return
		default:
			if at, ok := before[key]; ok {
				d.health.silent[key] = at
			}
			if d.health.condemned(key, d.grace()) && d.remove(n) != nil {
				return
			}
		}
	}
}

// remove removes a node's entry if its leader agrees that the node is dead, and nothing was written meanwhile.
func (d *Directory) remove(n *registry.Node) error {
	key := n.Key().String()
	value, revision, err := d.bucket.latest(d.ctx, key)
	if err != nil {
		return ignoreMissing(err)
	}
	if _, epoch, err := registry.DecodeClaim(value); err != nil || epoch != n.Epoch {
		return nil
	}
	dead, err := d.dead(d.ctx, n.Name, n.Epoch, value)
	if err != nil || !dead {
		return err
	}
	if err := d.bucket.remove(d.ctx, key, revision); err != nil && !isConflict(err) {
		return err
	}
	d.opts.Logger.Info("registry entry of a silent node removed", "node", n.Name, "epoch", n.Epoch)
	return nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil
	}
	return err
}
