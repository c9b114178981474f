package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	kvxfer "github.com/kvxfer/kvxfer/sdk/go"
)

// Requests of the source for faults in the middle of a transfer: it hands over half of the layers, and the rest when it is told to,
// so that what happens in between is in the middle on machines of any speed.

// result is how a write ended, as the source is told.
type result struct {
	ending
	Reason string `json:"reason,omitempty"` // why that provider, after a good end
}

// steps handles begin, go on and results; false: it is another request.
func (s *source) steps(do string, args json.RawMessage) (out any, ours bool, err error) {
	switch do {
	case "begin":
		err = s.begin(args)
	case "go on":
		err = s.goOn(args)
	case "results":
		out, err = s.results(args)
	default:
		return nil, false, nil
	}
	return out, true, err
}

// begin begins writes of blocks and hands over the first half of their layers.
func (s *source) begin(args json.RawMessage) error {
	list, err := into[[]pushArgs](args)
	if err != nil {
		return err
	}
	return each(len(list), func(i int) error {
		a := list[i]
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(a.TTL)*time.Millisecond)
		defer cancel()
		options := []kvxfer.TransferOption{kvxfer.Layerwise()}
		if a.Only != "" {
			options = append(options, kvxfer.OnlyProvider(a.Only))
		}
		t, err := s.cache.Write(ctx, a.From, a.Ticket, options...)
		if err != nil {
			return err
		}
		s.add(a.ID, &sending{handle: t, cancel: t.Cancel})
		for l := range s.layers / 2 {
			if err := t.Layer(l); err != nil {
				return err
			}
		}
		return nil
	})
}

// goOn hands over the rest.
func (s *source) goOn(args json.RawMessage) error {
	a, err := into[waitArgs](args)
	if err != nil {
		return err
	}
	return each(len(a.IDs), func(i int) error {
		t, err := s.write(a.IDs[i])
		if err != nil {
			return err
		}
		for l := s.layers / 2; l < s.layers; l++ {
			if err := t.Layer(l); err != nil {
				return err
			}
		}
		return t.Finish(nil)
	})
}

func (s *source) write(id int) (*kvxfer.Push, error) {
	t, err := s.named(id)
	if err != nil {
		return nil, err
	}
	p, ok := t.handle.(*kvxfer.Push)
	if !ok {
		return nil, fmt.Errorf("id: %d is no write of blocks", id)
	}
	return p, nil
}

// results waits until writes have ended and released their memory.
func (s *source) results(args json.RawMessage) (any, error) {
	a, err := into[waitArgs](args)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(a.MS)*time.Millisecond)
	defer cancel()
	out := make([]result, len(a.IDs))
	for i, id := range a.IDs {
		p, err := s.write(id)
		if err != nil {
			return nil, err
		}
		if r, err := p.Wait(ctx); err == nil {
			out[i].By, out[i].Reason = r.Provider, r.ProviderReason
		}
	}
	ends, err := s.wait(args)
	if err != nil {
		return nil, err
	}
	for i, e := range ends.([]ending) {
		e.By = out[i].By
		out[i].ending = e
	}
	return out, nil
}
