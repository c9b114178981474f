package benchcmd

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// copies measures what this machine's memory does with a list inside one process: every way of limit.c, and Go's copy,
// each as an operation of its own. The limit of a case is the fastest of them but Go's.
func (r *run) copies(ctx context.Context, add func(Record)) error {
	for _, c := range r.cases {
		if err := r.copiesOf(ctx, c, add); err != nil {
			return fmt.Errorf("%s: %w", c.Name(), err)
		}
	}
	return nil
}

func (r *run) copiesOf(ctx context.Context, c Case, add func(Record)) error {
	g, err := newGoCopy(c)
	if err != nil {
		return err
	}
	defer g.close()
	var l *limit
	var all []way
	var line way
	if !r.noLimit {
		if l, err = startLimit(ctx, r.program, r.dir, c); err != nil {
			return err
		}
		defer l.close()
		all = ways(r.bench, "copy", c)
		if line, err = l.best(lines(r.bench, "copy"), "line"); err != nil {
			return err
		}
		if _, err = l.best(all, "list"); err != nil { // warms up, and compares what each way copies
			return err
		}
	}
	count := repeats(min(g.round(), g.round()), most)
	took := make([][]time.Duration, len(all))
	var own, lineTook []time.Duration
	before, err := look(nil, l)
	if err != nil {
		return err
	}
	begun := time.Now()
	for i := 0; i < r.rounds && (i < leastRounds || time.Since(begun) < r.limit); i++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		r.seed++
		fill(g.src, g.from, c.BlockBytes, r.seed)
		g.round()
		for range count {
			own = append(own, g.round())
		}
		if err := check(g.dst, g.to, c.BlockBytes, r.seed); err != nil {
			return err
		}
		for k, w := range all {
			s, err := l.warm(w, "list", count)
			if err != nil {
				return err
			}
			took[k] = append(took[k], s...)
		}
		if l != nil {
			s, err := l.warm(line, "line", 1)
			if err != nil {
				return err
			}
			lineTook = append(lineTook, s...)
		}
	}
	after, err := look(nil, l)
	if err != nil {
		return err
	}
	best := samples{line: lineTook, others: others(before, after)}
	for k, w := range all {
		if best.limit == nil || median(took[k]) < median(best.limit) {
			best.limit, best.limitHow = took[k], w.name
		}
	}
	for k, w := range all {
		s := best
		s.moved = took[k]
		add(record(r.bench, c, w.name, &s))
	}
	best.moved = own
	add(record(r.bench, c, "go-1", &best))
	return nil
}

// goCopy copies the case's list by Go's own copy.
type goCopy struct {
	src, dst []byte
	from, to []uint32
	block    int
}

func newGoCopy(c Case) (*goCopy, error) {
	g := &goCopy{from: c.ids(local), to: c.ids(remote), block: c.BlockBytes}
	for _, m := range []*[]byte{&g.src, &g.dst} {
		var err error // shared, as the memory of caches is
		if *m, err = unix.Mmap(-1, 0, c.slots()*c.BlockBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS|unix.MAP_POPULATE); err != nil {
			g.close()
			return nil, fmt.Errorf("no memory for %d blocks of %d bytes: %w", c.slots(), c.BlockBytes, err)
		}
	}
	return g, nil
}

func (g *goCopy) round() time.Duration {
	t := time.Now()
	for i, from := range g.from {
		copy(g.dst[int(g.to[i])*g.block:][:g.block], g.src[int(from)*g.block:][:g.block])
	}
	return time.Since(t)
}

func (g *goCopy) close() {
	for _, m := range [][]byte{g.src, g.dst} {
		if m != nil {
			_ = unix.Munmap(m) // it fails only for what was not mapped
		}
	}
}
