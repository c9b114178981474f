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
	Do     string `json:"do"` // open, fill, check, lease, move, wait or close; see worker.go; the others: prepared.go
	Case   Case   `json:"case,omitzero"`
	Side   side   `json:"side,omitzero"`
	Op     string `json:"op,omitempty"` // write or read
	Seed   uint64 `json:"seed,omitzero"`
	Ticket string `json:"ticket,omitempty"`
	Way    string `json:"way,omitempty"`   // transfers or prepared: what open opens for
	Count  int    `json:"count,omitempty"` // of run
}

// reply is a worker's line back.
type reply struct {
	Error    string `json:"error,omitempty"`
	Ticket   string `json:"ticket,omitempty"`
	Took     int64  `json:"took,omitempty"`   // nanoseconds from the call to the transfer's end
	Submit   int64  `json:"submit,omitempty"` // nanoseconds that the starting call held its caller
	Provider string `json:"provider,omitempty"`

	Runs   []int64 `json:"runs,omitempty"`   // nanoseconds of each
	Socket string  `json:"socket,omitempty"` // why posts go over the socket; "": they go through a ring
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

// pair is two nodes with a client each, or one node with both clients, and what computes beside them.
type pair struct {
	daemons []*daemon  // the local side's and the remote one's, or one for both
	workers [2]*worker // local, remote
	busy    []*child
}

// startPair starts both nodes, each with extra arguments, which may use the provider and no other, and their clients. With one it
// starts one node for both clients; busy is the number of processes that compute beside them.
func startPair(ctx context.Context, exe, dir, provider string, extra [2][]string, one bool, busy int) (p *pair, err error) {
	p = &pair{}
	defer func() {
		if err != nil {
			_ = p.close()
		}
	}()
	only := func(i int, more ...string) []string {
		return slices.Concat([]string{"--providers", provider}, extra[i], more)
	}
	d, err := startDaemon(ctx, exe, dir, "local", only(0, "--nats-listen", "127.0.0.1:0")...)
	if err != nil {
		return nil, err
	}
	p.daemons = append(p.daemons, d)
	if !one {
		if d, err = startDaemon(ctx, exe, dir, "remote", only(1, "--nats", d.nats)...); err != nil {
			return nil, err
		}
		p.daemons = append(p.daemons, d)
	}
	for i, name := range []string{"local", "remote"} {
		if p.workers[i], err = startWorker(ctx, exe, dir, name, p.daemons[min(i, len(p.daemons)-1)].socket); err != nil {
			return nil, err
		}
	}
	for i := range busy {
		c, err := spawn(ctx, fmt.Sprintf("busy %d", i+1), dir, environment(), exe, "bench", busyName)
		if err != nil {
			return nil, err
		}
		p.busy = append(p.busy, c)
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
	for _, c := range p.busy {
		errs = append(errs, c.end(0))
	}
	for _, d := range slices.Backward(p.daemons) { // the one with the registry last
		errs = append(errs, d.end(syscall.SIGTERM))
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
	if err := measured(moved.Provider, provider); err != nil {
		return reply{}, err
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

// cpu is what the daemons and both clients have used.
func (p *pair) cpu() (time.Duration, error) {
	children := []*child{p.workers[0].child, p.workers[1].child}
	for _, d := range p.daemons {
		children = append(children, d.child)
	}
	return cpuOf(children)
}

func cpuOf(children []*child) (time.Duration, error) {
	var sum time.Duration
	for _, c := range children {
		t, err := c.cpu()
		if err != nil {
			return 0, err
		}
		sum += t
	}
	return sum, nil
}

// rss is what the daemons hold besides their clients' memory.
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
