package benchcmd

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"
)

// run is what all parts of one invocation share.
type run struct {
	bench    string // copy, tcp, shm, host or verbs
	cases    []Case
	ways     []string // transfers, prepared
	ops      []string
	rounds   int           // at most so many of a case and operation
	limit    time.Duration // at most so long, but leastRounds
	noLimit  bool
	dir      string // everything that the run makes, removed at its end
	program  string // the built limit.c; "" with noLimit
	progress io.Writer
	seed     uint64 // of the last contents
	busy     int    // of host: processes that compute beside it

	// Of verbs alone.
	sizes   []int       // of messages
	devices []string    // none: what the provider finds; one: both sides'; two: the local side's, the remote side's
	extra   [2][]string // arguments of the daemons
}

// leastRounds is how many rounds a case gets, however slow they are.
const leastRounds = 3

// partTime is about how long each part of a round lasts: short enough that what else the machine does meets all of them.
const partTime = 20 * time.Millisecond

// A part of a round is least to most transfers, after one that does not count: it finds the caches as the part before left
// them, and processes that have slept.
const (
	least    = 2
	most     = 64
	mostRuns = 1024 // of a prepared transfer: the ends fall asleep between the parts, and the first runs of each find them waking
)

// repeats is how many of those that take so long are a part of a round.
func repeats(took time.Duration, most int) int {
	if took <= 0 {
		return most
	}
	return min(max(int(partTime/took), least), most)
}

// provider is what moves the bytes.
func (r *run) provider() string {
	if r.bench == "host" {
		return "shm"
	}
	return r.bench
}

// transfers measures all cases through two daemons, or one.
func (r *run) transfers(ctx context.Context, add func(Record)) (err error) {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	p, err := startPair(ctx, exe, r.dir, r.provider(), r.extra, r.bench == "host", r.busy)
	if err != nil {
		return err
	}
	defer func() {
		if end := p.close(); err == nil && ctx.Err() == nil {
			err = end
		}
	}()
	for _, c := range r.cases {
		if err := r.transfersOf(ctx, p, c, add); err != nil {
			return fmt.Errorf("%s: %w", c.Name(), err)
		}
	}
	return nil
}

func (r *run) transfersOf(ctx context.Context, p *pair, c Case, add func(Record)) error {
	var l *limit
	if !r.noLimit {
		var err error
		if l, err = startLimit(ctx, r.program, r.dir, c); err != nil {
			return err
		}
		defer l.close()
	}
	for _, way := range r.ways {
		if err := p.both(request{Do: "open", Case: c, Way: way}); err != nil {
			return err
		}
		for _, op := range r.ops {
			s, err := r.measure(ctx, p, l, c, op, way)
			if err != nil {
				return fmt.Errorf("%s %s: %w", op, way, err)
			}
			rec := record(r.bench, c, op, s)
			rec.Way, rec.Busy = &way, r.busy
			add(rec)
		}
		if err := p.both(request{Do: "close"}); err != nil {
			return err
		}
	}
	return nil
}

// measure measures one case, operation and way.
func (r *run) measure(ctx context.Context, p *pair, l *limit, c Case, op, way string) (*samples, error) {
	if way != prepared {
		return r.measureRounds(ctx, p, l, c, op, way)
	}
	socket, err := p.prepare(op, r.provider())
	if err != nil {
		return nil, err
	}
	if socket != "" {
		fmt.Fprintf(r.progress, "bench %s: posts go over the socket: %s\n", r.bench, socket)
	}
	s, err := r.measureRounds(ctx, p, l, c, op, way)
	if err != nil {
		return nil, err
	}
	return s, p.finish()
}

// rival is a way of the limit's program that a measurement is held against.
type rival struct {
	way   way
	count int // of a round
	took  []time.Duration
}

// rivals are the fastest way of the limit's program, or of host the fastest with one thread and the fastest with two.
func (r *run) rivals(l *limit, c Case, op string) ([]*rival, error) {
	groups := [][]way{ways(r.bench, op, c)}
	if r.bench == "host" {
		groups = byThreads(groups[0])
	}
	var out []*rival
	for _, g := range groups {
		best, err := l.best(g, "list")
		if err != nil {
			return nil, err
		}
		took, err := l.warm(best, "list", leastRounds)
		if err != nil {
			return nil, err
		}
		out = append(out, &rival{way: best, count: repeats(time.Duration(median(took)*float64(time.Second)), most)})
	}
	return out, nil
}

// measureRounds is rounds of transfers, the limit and the contiguous stream, one after the other, so that all three see the
// same machine.
func (r *run) measureRounds(ctx context.Context, p *pair, l *limit, c Case, op, form string) (*samples, error) {
	s := &samples{}
	first, tries, atMost := &samples{}, leastRounds, most // connections are made, pages touched
	if form == prepared {
		tries, atMost = most, mostRuns
	}
	if err := r.volley(p, op, form, tries, first); err != nil {
		return nil, err
	}
	count := repeats(time.Duration(median(first.moved)*float64(time.Second)), atMost)
	var rivals []*rival
	var line way
	if l != nil {
		var err error
		if rivals, err = r.rivals(l, c, op); err != nil {
			return nil, err
		}
		if line, err = l.best(lines(r.bench, op), "line"); err != nil {
			return nil, err
		}
	}
	before, err := look(p, l)
	if err != nil {
		return nil, err
	}
	begun := time.Now()
	for i := 0; i < r.rounds && (i < leastRounds || time.Since(begun) < r.limit); i++ {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := r.volley(p, op, form, count, s); err != nil {
			return nil, err
		}
		if l == nil {
			continue
		}
		for _, v := range rivals {
			took, err := l.warm(v.way, "list", v.count)
			if err != nil {
				return nil, err
			}
			v.took = append(v.took, took...)
		}
		took, err := l.warm(line, "line", 1)
		if err != nil {
			return nil, err
		}
		s.line = append(s.line, took...)
	}
	after, err := look(p, l)
	if err != nil {
		return nil, err
	}
	s.others = others(before, after)
	s.against(rivals, r.bench == "host")
	if l != nil {
		if err := l.check("list"); err != nil {
			return nil, err
		}
	}
	s.rss, err = p.rss()
	return s, err
}

// volley makes count transfers of new contents, after one that does not count, and compares what arrived.
func (r *run) volley(p *pair, op, form string, count int, s *samples) error {
	r.seed++
	from, to := p.ends(op)
	if _, err := from.ask(request{Do: "fill", Seed: r.seed}); err != nil {
		return err
	}
	if form == prepared {
		if err := p.runs(count, s); err != nil {
			return err
		}
		_, err := to.ask(request{Do: "check", Seed: r.seed})
		return err
	}
	if _, err := p.move(op, r.provider()); err != nil {
		return err
	}
	before, err := p.cpu()
	if err != nil {
		return err
	}
	for range count {
		m, err := p.move(op, r.provider())
		if err != nil {
			return err
		}
		s.moved, s.submit = append(s.moved, time.Duration(m.Took)), append(s.submit, time.Duration(m.Submit))
	}
	after, err := p.cpu()
	if err != nil {
		return err
	}
	s.cpu += after - before
	_, err = to.ask(request{Do: "check", Seed: r.seed})
	return err
}
