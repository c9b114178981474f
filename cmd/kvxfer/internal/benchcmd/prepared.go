package benchcmd

import (
	"context"
	"fmt"
	"slices"
	"time"

	kvxfer "github.com/kvxfer/kvxfer/sdk/go"
)

// What --way names: a transfer with a lease of its own for each sample, or one that is prepared once and run for each.
const (
	transfers = "transfers"
	prepared  = "prepared"
)

// chosenWays are what --way means.
func chosenWays(name string) ([]string, error) {
	both := []string{transfers, prepared}
	switch {
	case name == "all":
		return both, nil
	case slices.Contains(both, name):
		return []string{name}, nil
	}
	return nil, fmt.Errorf("%.80q, allowed transfers, prepared, all", name)
}

// lasting is how long a prepared transfer and what it moves to or from may last: longer than any case is measured.
const lasting = 2 * time.Hour

// prepare has the remote client open its region and the local one prepare the list. It returns why posts go over the socket, if they do.
func (p *pair) prepare(op, provider string) (socket string, err error) {
	opened, err := p.workers[1].ask(request{Do: "advertise", Op: op})
	if err != nil {
		return "", err
	}
	ready, err := p.workers[0].ask(request{Do: "prepare", Op: op, Ticket: opened.Ticket})
	if err != nil {
		return "", err
	}
	return ready.Socket, measured(ready.Provider, provider)
}

// measured holds a transfer to the provider that is measured.
func measured(took, provider string) error {
	if took != provider {
		return fmt.Errorf("the transfer took provider %q, and %s is measured", took, provider)
	}
	return nil
}

// finish ends what prepare began.
func (p *pair) finish() error {
	if _, err := p.workers[0].ask(request{Do: "finish"}); err != nil {
		return err
	}
	_, err := p.workers[1].ask(request{Do: "withdraw"})
	return err
}

// runs is volley's part for prepared transfers: count runs, after one that does not count. The client makes them one behind the
// other, as it would in its own program, so the one that does not count is within the processor time and is taken off.
func (p *pair) runs(count int, s *samples) error {
	before, err := p.cpu()
	if err != nil {
		return err
	}
	r, err := p.workers[0].ask(request{Do: "run", Count: count + 1})
	if err != nil {
		return err
	}
	after, err := p.cpu()
	if err != nil {
		return err
	}
	for _, ns := range r.Runs[1:] {
		s.moved = append(s.moved, time.Duration(ns))
	}
	s.cpu += (after - before) * time.Duration(count) / time.Duration(count+1)
	return nil
}

// rawClient is what a worker has for prepared transfers: a region, and on the local side the transfer, on the remote one what it is open by.
type rawClient struct {
	region *kvxfer.Region
	opened *kvxfer.Advertisement
	list   *kvxfer.Prepared
}

func (w *rawClient) do(ctx context.Context, q request, c Case) (r reply, err error) {
	switch q.Do {
	case "advertise":
		if w.opened, err = w.region.Advertise(ctx, kvxfer.AdvertiseOptions{Mode: kvxfer.Mode(q.Op), TTL: lasting}); err == nil {
			r.Ticket = w.opened.Ticket()
		}
		return r, err
	case "withdraw":
		return r, w.opened.Revoke(ctx)
	case "prepare":
		prepare := w.region.PrepareWrite
		if q.Op == "read" {
			prepare = w.region.PrepareRead
		}
		if w.list, err = prepare(ctx, c.ranges(), q.Ticket, kvxfer.Lasting(lasting)); err != nil {
			return r, err
		}
		r.Provider = w.list.Provider()
		_, r.Socket = w.list.Way()
		return r, nil
	case "run":
		return w.run(ctx, q.Count, uint64(c.Bytes()))
	case "finish":
		_, err := w.list.Finish(ctx, nil)
		return r, err
	}
	return r, fmt.Errorf("nothing is called %q", q.Do)
}

// run moves the list count times and times each.
func (w *rawClient) run(ctx context.Context, count int, bytes uint64) (reply, error) {
	r := reply{Runs: make([]int64, 0, count)}
	for range count {
		begun := time.Now()
		moved, err := w.list.Run(ctx)
		took := time.Since(begun)
		if err != nil {
			return reply{}, err
		}
		if moved.Bytes != bytes {
			return reply{}, fmt.Errorf("the transfer moved %d bytes of %d", moved.Bytes, bytes)
		}
		r.Runs = append(r.Runs, took.Nanoseconds())
	}
	return r, nil
}

// ranges are the list as a region takes it.
func (c Case) ranges() []kvxfer.Range {
	from, to := c.ids(local), c.ids(remote)
	out := make([]kvxfer.Range, len(from))
	for i := range out {
		out[i] = kvxfer.Range{Local: int64(from[i]) * int64(c.BlockBytes), Remote: int64(to[i]) * int64(c.BlockBytes), Length: int64(c.BlockBytes)}
	}
	return out
}
