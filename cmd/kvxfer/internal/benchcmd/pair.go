package benchcmd

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"
)

// request is a line to a worker: what a client of this run has to do.
type request struct {
	Do     string `json:"do"` // open, fill, check, lease, move, wait or close; see worker.go
	Case   Case   `json:"case,omitzero"`
	Side   side   `json:"side,omitzero"`
	Op     string `json:"op,omitempty"` // write or read
	Seed   uint64 `json:"seed,omitzero"`
	Ticket string `json:"ticket,omitempty"`
}

// reply is a worker's line back.
type reply struct {
	Error    string `json:"error,omitempty"`
	Ticket   string `json:"ticket,omitempty"`
	Took     int64  `json:"took,omitempty"`   // nanoseconds from the call to the transfer's end
	Submit   int64  `json:"submit,omitempty"` // nanoseconds that the starting call held its caller
	Provider string `json:"provider,omitempty"`
}

// worker is a client process.
type worker struct {
	*child
	replies *bufio.Reader
}

func startWorker(ctx context.Context, exe, dir, name, socket string) (*worker, error) {
	c, err := spawn(ctx, "client "+name, dir, environment(), exe, "bench", "worker", socket)
	if err != nil {
		return nil, err
	}
	return &worker{child: c, replies: bufio.NewReader(c.out)}, nil
}

func (w *worker) ask(q request) (reply, error) {
	var r reply
	if err := json.NewEncoder(w.in).Encode(q); err != nil {
		return r, w.lost(err)
	}
	line, err := w.replies.ReadBytes('\n')
	if err != nil {
		return r, w.lost(err)
	}
	if err := json.Unmarshal(line, &r); err != nil {
		return r, fmt.Errorf("%s answers %.200q", w.name, line)
	}
	if r.Error != "" {
		return r, fmt.Errorf("%s: %s: %s", w.name, q.Do, r.Error)
	}
	return r, nil
}

// lost prefers why the process ended to the broken pipe that it left.
func (w *worker) lost(err error) error {
	select {
	case <-w.done:
		return w.ended()
	case <-time.After(patience):
		return fmt.Errorf("%s: %w", w.name, err)
	}
}

// pair is two nodes with a client each.
type pair struct {
	daemons [2]*daemon
	workers [2]*worker // local, remote
}

// startPair starts both nodes, each with extra arguments, which may use the provider and no other, and their clients.
func startPair(ctx context.Context, exe, dir, provider string, extra [2][]string) (p *pair, err error) {
	p = &pair{}
	defer func() {
		if err != nil {
			_ = p.close()
		}
	}()
	only := func(i int, more ...string) []string {
		return slices.Concat([]string{"--providers", provider}, extra[i], more)
	}
	if p.daemons[0], err = startDaemon(ctx, exe, dir, "local", only(0, "--nats-listen", "127.0.0.1:0")...); err != nil {
		return nil, err
	}
	if p.daemons[1], err = startDaemon(ctx, exe, dir, "remote", only(1, "--nats", p.daemons[0].nats)...); err != nil {
		return nil, err
	}
	for i, d := range p.daemons {
		if p.workers[i], err = startWorker(ctx, exe, dir, d.name[len("daemon "):], d.socket); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// close ends the clients, then the daemons, and tells what did not end well.
func (p *pair) close() error {
	var errs []error
	for _, w := range p.workers {
		if w != nil {
			errs = append(errs, w.end(0))
		}
	}
	for i := range p.daemons { // the one with the registry last
		if d := p.daemons[len(p.daemons)-1-i]; d != nil {
			errs = append(errs, d.end(syscall.SIGTERM))
		}
	}
	return errors.Join(errs...)
}

// both asks both workers, with their sides filled in.
func (p *pair) both(q request) error {
	for i, w := range p.workers {
		q.Side = side(i + 1)
		if _, err := w.ask(q); err != nil {
			return err
		}
	}
	return nil
}

// move makes one transfer that the local client starts: a lease on the remote blocks, the transfer, and the lease's end.
func (p *pair) move(op, provider string) (reply, error) {
	leased, err := p.workers[1].ask(request{Do: "lease", Op: op})
	if err != nil {
		return reply{}, err
	}
	moved, err := p.workers[0].ask(request{Do: "move", Op: op, Ticket: leased.Ticket})
	if err != nil {
		return reply{}, err
	}
	if moved.Provider != provider {
		return reply{}, fmt.Errorf("the transfer took provider %q, and %s is measured", moved.Provider, provider)
	}
	_, err = p.workers[1].ask(request{Do: "wait", Op: op})
	return moved, err
}

// ends are the workers that bytes of op come from and go to.
func (p *pair) ends(op string) (from, to *worker) {
	if op == "read" {
		return p.workers[1], p.workers[0]
	}
	return p.workers[0], p.workers[1]
}

// cpu is what all four processes have used.
func (p *pair) cpu() (time.Duration, error) {
	var sum time.Duration
	for _, c := range []*child{p.daemons[0].child, p.daemons[1].child, p.workers[0].child, p.workers[1].child} {
		t, err := c.cpu()
		if err != nil {
			return 0, err
		}
		sum += t
	}
	return sum, nil
}

// rss is what both daemons hold besides their clients' memory.
func (p *pair) rss() (uint64, error) {
	var sum uint64
	for _, d := range p.daemons {
		n, err := d.rss()
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}
