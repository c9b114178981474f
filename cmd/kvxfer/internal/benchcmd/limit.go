package benchcmd

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

//go:embed limit.c
var limitSource []byte

// compile builds the program of limit.c in dir and returns its path.
func compile(ctx context.Context, dir string) (string, error) {
	cc, err := exec.LookPath("cc")
	if err != nil {
		return "", errors.New("no C compiler: cc is not in PATH, and the machine's limits are measured by a C program; install one, or leave the limits out with --no-limit")
	}
	source, binary := filepath.Join(dir, "limit.c"), filepath.Join(dir, "limit")
	if err := os.WriteFile(source, limitSource, 0o600); err != nil {
		return "", err
	}
	if out, err := exec.CommandContext(ctx, cc, "-O2", "-pthread", "-o", binary, source).CombinedOutput(); err != nil {
		return "", fmt.Errorf("cc could not build the program that measures the limits (--no-limit leaves them out): %w\n%s", err, out)
	}
	return binary, nil
}

// way is one way to move a list: a command of limit.c without its rounds, and what it is called in a report.
type way struct{ verb, how, name string }

func (w way) line(what string, rounds int) string {
	return fmt.Sprintf("%s %s %s %d", w.verb, what, w.how, rounds)
}

// ways are what limit.c can try for a list: of tcp the numbers of connections and of pieces a call, of all else copies.
func ways(bench, op string, c Case) []way {
	var out []way
	if bench != "tcp" {
		for _, threads := range []int{1, 2} {
			if threads <= c.Blocks {
				for stream, name := range []string{"memcpy", "stream"} {
					out = append(out, way{"copy", fmt.Sprintf("%d %d", threads, stream), fmt.Sprintf("%s-%d", name, threads)})
				}
			}
		}
		return out
	}
	for _, lanes := range []int{1, 2, 4} {
		for _, pieces := range []int{16, 64, 256, 1024} {
			if lanes <= c.Blocks && (pieces == 16 || pieces/4 < c.Blocks/lanes) {
				out = append(out, way{op, fmt.Sprintf("%d %d", lanes, pieces), fmt.Sprintf("%dx%d", lanes, pieces)})
			}
		}
	}
	return out
}

// byThreads are ways of copies with one thread, and those with two if there are any.
func byThreads(all []way) [][]way {
	var out [][]way
	for _, threads := range []string{"1 ", "2 "} {
		var group []way
		for _, w := range all {
			if strings.HasPrefix(w.how, threads) {
				group = append(group, w)
			}
		}
		if group != nil {
			out = append(out, group)
		}
	}
	return out
}

// lines are the ways of the contiguous stream.
func lines(bench, op string) []way {
	if bench != "tcp" {
		return ways(bench, op, Case{Blocks: lineBytes >> 20, BlockBytes: 1 << 20})
	}
	return []way{{op, "4 1", "4x1"}}
}

// limit is a running program of limit.c with one list.
type limit struct {
	child *child
	other int // its second process
	out   *bufio.Reader
}

// startLimit runs the program with c's list. The program ends with close, or with this process.
func startLimit(ctx context.Context, binary, dir string, c Case) (*limit, error) {
	list := filepath.Join(dir, "list")
	if err := c.writeList(list); err != nil {
		return nil, err
	}
	bytes := strconv.Itoa(c.slots() * c.BlockBytes)
	ch, err := spawn(ctx, "limit", dir, os.Environ(), binary, list, bytes, bytes)
	if err != nil {
		return nil, err
	}
	l := &limit{child: ch, out: bufio.NewReader(ch.out)}
	s, err := l.answer()
	if err == nil {
		l.other, err = strconv.Atoi(strings.TrimPrefix(s, "ready "))
	}
	if err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

func (l *limit) answer() (string, error) {
	s, err := l.out.ReadString('\n')
	s = strings.TrimSpace(s)
	if why, bad := strings.CutPrefix(s, "error: "); bad {
		return "", errors.New("the limit's program: " + why)
	}
	if err != nil {
		return "", fmt.Errorf("the limit's program ended: %w", err)
	}
	return s, nil
}

func (l *limit) ask(line string) (string, error) {
	if _, err := io.WriteString(l.child.in, line+"\n"); err != nil {
		if s, told := l.answer(); told != nil {
			return s, told
		}
		return "", err
	}
	return l.answer()
}

// run moves the list (or the line) rounds times.
func (l *limit) run(w way, what string, rounds int) ([]time.Duration, error) {
	s, err := l.ask(w.line(what, rounds))
	if err != nil {
		return nil, err
	}
	out := make([]time.Duration, 0, rounds)
	for f := range strings.FieldsSeq(s) {
		ns, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("the limit's program answered %.80q", s)
		}
		out = append(out, time.Duration(ns))
	}
	if len(out) != rounds {
		return nil, fmt.Errorf("the limit's program answered %d rounds of %d", len(out), rounds)
	}
	return out, nil
}

// warm is run after a round that does not count.
func (l *limit) warm(w way, what string, rounds int) ([]time.Duration, error) {
	s, err := l.run(w, what, rounds+1)
	if err != nil {
		return nil, err
	}
	return s[1:], nil
}

// check has the program compare what arrived.
func (l *limit) check(what string) error {
	_, err := l.ask("check " + what)
	return err
}

// tries is how often each way is tried before one is taken.
const tries = 5

// best tries every way and returns the one with the least median.
func (l *limit) best(all []way, what string) (way, error) {
	var out way
	fastest := 0.0
	for _, w := range all {
		s, err := l.warm(w, what, tries)
		if err != nil {
			return way{}, err
		}
		if err := l.check(what); err != nil {
			return way{}, fmt.Errorf("%s: %w", w.name, err)
		}
		if m := median(s); out.verb == "" || m < fastest {
			out, fastest = w, m
		}
	}
	return out, nil
}

// cpu is the processor time of both processes.
func (l *limit) cpu() (time.Duration, error) {
	one, err := l.child.cpu()
	if err != nil {
		return 0, err
	}
	two, err := clockOf(l.other)
	return one + two, err
}

func (l *limit) close() {
	_ = l.child.end(0) // it has answered; how it ends says nothing more
}
