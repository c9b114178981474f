package main

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	kvxfer "github.com/kvxfer/kvxfer/sdk/go"
)

// rangeBytes is one range of a raw write.
const rangeBytes = 2048

// source has the bytes. The first half of its blocks is written to peers, the second is what they read.
type source struct {
	settings
	shape
	client *kvxfer.Client
	cache  *kvxfer.Cache
	region *kvxfer.Region

	mu        sync.Mutex
	transfers map[int]*sending
}

// sending is one transfer or read lease, from this side.
type sending struct {
	handle handle
	cancel func()
	revoke func(context.Context) error
	marked chan struct{} // of a read lease: closed when its blocks hold the owner's marks
}

func newSource(ctx context.Context, s settings, client *kvxfer.Client) (*source, error) {
	src := &source{settings: s, client: client, shape: shape{2 * s.layers, s.units, s.piece}, transfers: map[int]*sending{}}
	var err error
	src.cache, err = client.AllocateCache(ctx, kvxfer.CacheSpec{Name: s.name, Model: "late", Layout: s.layout(), NumBlocks: s.units})
	if err != nil {
		return nil, err
	}
	if src.region, err = client.AllocateRegion(ctx, s.name+".raw", s.units*s.unitBytes()); err != nil {
		return nil, err
	}
	whole := shape{1, s.units, s.unitBytes()}
	for u := range s.units {
		src.refill(u)
		content(whole.at(src.region.Memory(), 0, u), u, 0)
	}
	return src, nil
}

func (s *source) refill(unit int) {
	for p := range s.planes {
		content(s.at(s.cache.Memory(), p, unit), unit, p)
	}
}

func (s *source) handle(do string, args json.RawMessage) (any, error) {
	if out, ok, err := s.steps(do, args); ok {
		return out, err
	}
	switch do {
	case "offer":
		return s.offer(args)
	case "push":
		return s.push(args)
	case "cancel", "revoke":
		return nil, s.end(do, args)
	case "wait":
		return s.wait(args)
	case "idle":
		return nil, idle(s.client, args)
	case "reconnect":
		return nil, reconnect(s.client, args)
	}
	return nil, unknown(do)
}

// offer leases blocks for reading, and marks them as soon as nobody may read them: no pull that ends well holds a mark.
func (s *source) offer(args json.RawMessage) (any, error) {
	list, err := into[[]victimArgs](args)
	if err != nil {
		return nil, err
	}
	out := make([]ticket, len(list))
	return out, each(len(list), func(i int) error {
		a := list[i]
		for _, u := range a.From {
			s.refill(u)
		}
		l, err := s.cache.LeaseRead(context.Background(), a.From, kvxfer.LeaseOptions{TTL: time.Duration(a.TTL) * time.Millisecond})
		if err != nil {
			return err
		}
		out[i] = ticket{a.ID, l.Ticket()}
		t := &sending{handle: l, revoke: l.Revoke, marked: make(chan struct{})}
		s.add(a.ID, t)
		go func() {
			<-l.WhenReleased()
			for _, u := range a.From {
				for p := range s.planes {
					fill(s.at(s.cache.Memory(), p, u), a.Mark)
				}
			}
			close(t.marked)
		}()
		return nil
	})
}

// pushArgs is one write, of units From to the ticket's; of a raw one Units are the target's. Parts spreads a write of blocks over so many
// hand-overs of layers, the last of which never comes where Open is set.
type pushArgs struct {
	victimArgs
	Only string `json:"only"` // provider; "": any
	Open bool   `json:"open"`
}

// push begins writes, all at once.
func (s *source) push(args json.RawMessage) (any, error) {
	list, err := into[[]pushArgs](args)
	if err != nil {
		return nil, err
	}
	return len(list), each(len(list), func(i int) error {
		a := list[i]
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(a.TTL)*time.Millisecond)
		defer cancel()
		var options []kvxfer.TransferOption
		if a.Only != "" {
			options = append(options, kvxfer.OnlyProvider(a.Only))
		}
		if a.Kind == "raw" {
			t, err := s.region.Writev(ctx, s.ranges(a), a.Ticket, options...)
			if err != nil {
				return err
			}
			s.add(a.ID, &sending{handle: t, cancel: t.Cancel})
			return nil
		}
		t, err := s.cache.Write(ctx, a.From, a.Ticket, append(options, kvxfer.Layerwise())...)
		if err != nil {
			return err
		}
		s.add(a.ID, &sending{handle: t, cancel: t.Cancel})
		for l := range s.layers {
			if err := t.Layer(l); err != nil {
				return err
			}
		}
		if a.Open { // it is never committed
			return nil
		}
		return t.Finish(nil)
	})
}

func (s *source) ranges(a pushArgs) []kvxfer.Range {
	var out []kvxfer.Range
	for i, from := range a.From {
		for at := 0; at < s.unitBytes(); at += rangeBytes {
			n := min(rangeBytes, s.unitBytes()-at)
			out = append(out, kvxfer.Range{Local: int64(from*s.unitBytes() + at), Remote: int64(a.Units[i]*s.unitBytes() + at), Length: int64(n)})
		}
	}
	return out
}

func (s *source) add(id int, t *sending) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.transfers[id] = t
}

func (s *source) named(id int) (*sending, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.transfers[id]; t != nil {
		return t, nil
	}
	return nil, fmt.Errorf("id: %d is no transfer", id)
}

// end cancels transfers or revokes read leases.
func (s *source) end(do string, args json.RawMessage) error {
	a, err := into[waitArgs](args)
	if err != nil {
		return err
	}
	return each(len(a.IDs), func(i int) error {
		t, err := s.named(a.IDs[i])
		if err != nil {
			return err
		}
		if do == "cancel" && t.cancel != nil {
			t.cancel()
			return nil
		}
		if t.revoke == nil {
			return fmt.Errorf("id: %d cannot be ended by %s", a.IDs[i], do)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := t.revoke(ctx); codeOf(err) == "" {
			return err
		}
		return nil
	})
}

// wait waits until everything that is named has ended and released its memory, and returns the ends.
func (s *source) wait(args json.RawMessage) (any, error) {
	a, err := into[waitArgs](args)
	if err != nil {
		return nil, err
	}
	out, late := make([]ending, len(a.IDs)), time.After(time.Duration(a.MS)*time.Millisecond)
	for i, id := range a.IDs {
		t, err := s.named(id)
		if err != nil {
			return nil, err
		}
		for _, c := range []<-chan struct{}{t.handle.Done(), t.handle.WhenReleased(), t.marked} {
			if c == nil {
				continue
			}
			select {
			case <-c:
			case <-late:
				return nil, fmt.Errorf("transfer %d is not over after %d ms: released %t, %v", id, a.MS, t.handle.Released(), t.handle.Err())
			}
		}
		err = t.handle.Err()
		if out[i] = (ending{ID: id, End: codeOf(err)}); err != nil {
			out[i].Error, out[i].May = err.Error(), mayHaveWritten(err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range a.IDs {
		delete(s.transfers, id)
	}
	return out, nil
}
