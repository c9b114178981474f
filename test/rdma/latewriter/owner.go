package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	kvxfer "github.com/kvxfer/kvxfer/sdk/go"
)

// owner leases its memory and takes it back.
type owner struct {
	settings
	client *kvxfer.Client
	cache  *kvxfer.Cache
	region *kvxfer.Region
	blocks *watched // nil where another process holds the memory
	raw    *watched

	mu      sync.Mutex
	victims map[int]*victim
}

func newOwner(ctx context.Context, s settings, client *kvxfer.Client, t *talk) (*owner, error) {
	o := &owner{settings: s, client: client, victims: map[int]*victim{}}
	spec := kvxfer.CacheSpec{Name: s.name, Model: "late", Layout: s.layout(), NumBlocks: s.units}
	if s.memory != "" {
		return o, o.adopt(ctx, spec)
	}
	var err error
	if o.cache, err = client.AllocateCache(ctx, spec); err != nil {
		return nil, err
	}
	if o.region, err = client.AllocateRegion(ctx, s.name+".raw", s.units*s.unitBytes()); err != nil {
		return nil, err
	}
	tell := func(l late) { t.say(l) }
	o.blocks = watch("blocks", o.cache.Memory(), shape{2 * s.layers, s.units, s.piece}, tell)
	o.raw = watch("raw", o.region.Memory(), shape{1, s.units, s.unitBytes()}, tell)
	return o, nil
}

// adopt makes the cache of another process's memfd, which outlives this one.
func (o *owner) adopt(ctx context.Context, spec kvxfer.CacheSpec) error {
	f, err := os.OpenFile(o.memory, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, spec.NumBlocks*spec.Layout.BlockBytes(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	o.cache, err = o.client.RegisterCache(ctx, spec, mem, kvxfer.AdoptMemfd(int(f.Fd())))
	return err
}

func (o *owner) stop() {
	if o.blocks != nil {
		o.blocks.stop()
		o.raw.stop()
	}
}

func (o *owner) handle(do string, args json.RawMessage) (any, error) {
	switch do {
	case "open":
		return o.open(args)
	case "read":
		return o.read(args)
	case "begun":
		return o.begun(args)
	case "take":
		return o.take(args)
	case "wait":
		return o.wait(args)
	case "look":
		return o.look(args)
	case "idle":
		return nil, idle(o.client, args)
	case "reconnect":
		return nil, reconnect(o.client, args)
	}
	return nil, unknown(do)
}

// victimArgs is one victim as the conductor wants it.
type victimArgs struct {
	ID     int    `json:"id"`
	Kind   string `json:"kind"` // push, raw, pull
	Way    string `json:"way"`
	Units  []int  `json:"units"`
	From   []int  `json:"from"`   // the source's units
	TTL    int    `json:"ttl"`    // ms: of the lease; of a pull its time-out
	Ticket string `json:"ticket"` // of a pull: the source's
	Mark   byte   `json:"mark"`
}

type ticket struct {
	ID     int    `json:"id"`
	Ticket string `json:"ticket"`
}

// open leases memory for pushes and raw writes and returns their tickets. All or none: with an error the conductor gives up.
func (o *owner) open(args json.RawMessage) (any, error) {
	list, err := into[[]victimArgs](args)
	if err != nil {
		return nil, err
	}
	out := make([]ticket, len(list))
	return out, each(len(list), func(i int) error {
		v := newVictim(list[i])
		out[i].ID = v.ID
		ctx := context.Background()
		ttl := time.Duration(v.TTL) * time.Millisecond
		switch v.Kind {
		case "push":
			v.area = o.blocks
			v.give()
			l, err := o.cache.Lease(ctx, v.Units, kvxfer.LeaseOptions{TTL: ttl})
			if err != nil {
				return err
			}
			v.handle, v.revoke, v.renew, out[i].Ticket = l, l.Revoke, l.Renew, l.Ticket()
			v.evict = func(ctx context.Context) error { return o.cache.Evict(ctx, v.Units) }
		case "raw":
			v.area = o.raw
			v.give()
			parts := make([]kvxfer.Part, len(v.Units))
			for k, u := range v.Units {
				parts[k] = kvxfer.Part{Offset: int64(u * o.unitBytes()), Length: int64(o.unitBytes())}
			}
			a, err := o.region.Advertise(ctx, kvxfer.AdvertiseOptions{Parts: parts, Uses: 1, TTL: ttl})
			if err != nil {
				return err
			}
			v.handle, v.revoke, v.renew, out[i].Ticket = a, a.Revoke, a.Renew, a.Ticket()
		default:
			return fmt.Errorf("kind: %q, allowed push, raw", v.Kind)
		}
		o.add(v)
		return nil
	})
}

// read begins pulls, whose tickets are the source's.
func (o *owner) read(args json.RawMessage) (any, error) {
	list, err := into[[]victimArgs](args)
	if err != nil {
		return nil, err
	}
	return len(list), each(len(list), func(i int) error {
		v := newVictim(list[i])
		v.area = o.blocks
		v.give()
		p, err := o.pull(v)
		if err != nil {
			return err
		}
		v.handle, v.cancel = p, p.Cancel
		o.add(v)
		return nil
	})
}

// pull reads in the time that v has, or in more where the own daemon needs more for its answer alone: then the first attempt is
// cancelled when the answer comes, and its blocks are busy until that.
func (o *owner) pull(v *victim) (*kvxfer.Pull, error) {
	for limit, end := time.Duration(v.TTL)*time.Millisecond, time.Now().Add(time.Minute); ; {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		p, err := o.cache.Read(ctx, v.Units, v.Ticket)
		cancel()
		switch {
		case err == nil || time.Now().After(end):
			return p, err
		case errors.Is(err, kvxfer.ErrDeadlineExceeded):
			limit *= 2
		case errors.Is(err, kvxfer.ErrBlocksBusy):
			time.Sleep(10 * time.Millisecond)
		default:
			return nil, err
		}
	}
}

func (o *owner) add(v *victim) {
	o.mu.Lock()
	o.victims[v.ID] = v
	o.mu.Unlock()
	go v.settle()
}

// named are the victims that have these numbers.
func (o *owner) named(ids []int) ([]*victim, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := make([]*victim, len(ids))
	for i, id := range ids {
		if out[i] = o.victims[id]; out[i] == nil {
			return nil, fmt.Errorf("id: %d is no victim", id)
		}
	}
	return out, nil
}

type waitArgs struct {
	IDs []int `json:"ids"`
	MS  int   `json:"ms"`
}

// begun waits until bytes of one of the victims have arrived or it is over, or the time has passed; which of it does not matter.
func (o *owner) begun(args json.RawMessage) (any, error) {
	a, err := into[waitArgs](args)
	if err != nil {
		return nil, err
	}
	victims, err := o.named(a.IDs)
	if err != nil {
		return nil, err
	}
	for end := time.Now().Add(time.Duration(a.MS) * time.Millisecond); time.Now().Before(end); time.Sleep(time.Millisecond) {
		for _, v := range victims {
			if v.isOver() || v.area != nil && v.area.begun(v.Units) {
				return true, nil
			}
		}
	}
	return false, nil
}

// take takes memory back from the victims, each in its way and after so many milliseconds, and returns what each act said and
// how long it took.
func (o *owner) take(args json.RawMessage) (any, error) {
	type act struct {
		ID    int    `json:"id"`
		After int    `json:"after,omitempty"` // ms
		Code  string `json:"code"`
		MS    int64  `json:"ms"`
	}
	acts, err := into[[]act](args)
	if err != nil {
		return nil, err
	}
	ids := make([]int, len(acts))
	for i := range acts {
		ids[i] = acts[i].ID
	}
	victims, err := o.named(ids)
	if err != nil {
		return nil, err
	}
	return acts, each(len(acts), func(i int) error {
		time.Sleep(time.Duration(acts[i].After) * time.Millisecond)
		began := time.Now()
		err := victims[i].takeBack()
		acts[i].MS = time.Since(began).Milliseconds()
		if acts[i].Code = codeOf(err); acts[i].Code == "" {
			return err
		}
		return nil
	})
}

// wait waits until the victims' memory is the owner's again, and returns their ends; they are forgotten then.
func (o *owner) wait(args json.RawMessage) (any, error) {
	a, err := into[waitArgs](args)
	if err != nil {
		return nil, err
	}
	victims, err := o.named(a.IDs)
	if err != nil {
		return nil, err
	}
	out, late := make([]ending, len(victims)), time.After(time.Duration(a.MS)*time.Millisecond)
	for i, v := range victims {
		select {
		case <-v.over:
			out[i] = v.ending
		case <-late:
			return nil, fmt.Errorf("victim %d (%s, %s) is not over after %d ms: ended %t, released %t, %v", v.ID, v.Kind, v.Way, a.MS, v.ended(), v.handle.Released(), v.handle.Err())
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, id := range a.IDs {
		delete(o.victims, id)
	}
	return out, nil
}

// look looks at everything for so many milliseconds and once more.
func (o *owner) look(args json.RawMessage) (any, error) {
	a, err := into[waitArgs](args)
	if err != nil {
		return nil, err
	}
	time.Sleep(time.Duration(a.MS) * time.Millisecond)
	o.blocks.lookAgain()
	o.raw.lookAgain()
	return nil, nil
}

// each calls f for 0..n-1, all at once, and returns the first error.
func each(n int, f func(i int) error) error {
	errs := make(chan error, n)
	for i := range n {
		go func() { errs <- f(i) }()
	}
	var first error
	for range n {
		if err := <-errs; err != nil && first == nil {
			first = err
		}
	}
	return first
}

// idle waits until the daemon knows of no lease and no transfer.
func idle(c *kvxfer.Client, args json.RawMessage) error {
	a, err := into[waitArgs](args)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(a.MS)*time.Millisecond)
	defer cancel()
	for {
		s, err := c.Status(ctx)
		if err != nil {
			return err
		}
		if s.Leases+s.Transfers == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the daemon has %d leases and %d transfers after %d ms", s.Leases, s.Transfers, a.MS)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// reconnect attaches again where the daemon was lost.
func reconnect(c *kvxfer.Client, args json.RawMessage) error {
	a, err := into[waitArgs](args)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(a.MS)*time.Millisecond)
	defer cancel()
	_, err = c.Reconnect(ctx)
	return err
}
