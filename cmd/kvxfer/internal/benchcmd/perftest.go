package benchcmd

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/kvxfer/kvxfer/internal/node"
)

// perftest runs the tools of the package of that name between the same two ports, both ends as children of this process. The ends
// find one another over loop-back.
type perftest struct {
	dir       string
	near, far node.Port
}

// bandwidthTool is the tool for an operation.
func bandwidthTool(op string) string { return "ib_" + op + "_bw" }

// latencyTool exists for writes; of reads nothing is asked.
const latencyTool = "ib_write_lat"

// missing names the first of the tools that is not in PATH; "": none is.
func (p *perftest) missing(ops []string) string {
	tools := []string{latencyTool}
	for _, op := range ops {
		tools = append(tools, bandwidthTool(op))
	}
	for _, t := range tools {
		if _, err := exec.LookPath(t); err != nil {
			return t
		}
	}
	return ""
}

// bandwidth gives the bytes a second of count operations of size bytes over so many queue pairs.
func (p *perftest) bandwidth(ctx context.Context, op string, size, count, pairs int) (float64, error) {
	const mib, average = 1 << 20, 3 // of #bytes #iterations peak average rate
	v, err := p.measure(ctx, bandwidthTool(op), size, average, "-n", strconv.Itoa(max(5, count/pairs)), "-q", strconv.Itoa(pairs))
	return v * mib, err
}

// latency gives the median of half a round trip in microseconds.
func (p *perftest) latency(ctx context.Context, size, count int) (float64, error) {
	const typical = 4 // of #bytes #iterations min max typical ...
	return p.measure(ctx, latencyTool, size, typical, "-n", strconv.Itoa(max(5, count)))
}

// zeroTries is how often a tool is run that prints 0. It does so where it could not find out how fast the processor's counter is, which
// it does anew in each run, and fails to on a busy machine.
const zeroTries = 5

// measure runs a tool until it has measured something, and gives a column of its result.
func (p *perftest) measure(ctx context.Context, tool string, size, at int, args ...string) (float64, error) {
	for try := 1; ; try++ {
		row, err := p.run(ctx, tool, size, args...)
		if err != nil {
			return 0, err
		}
		v, err := column(row, at)
		if err != nil || v > 0 {
			return v, err
		}
		if try == zeroTries {
			return 0, fmt.Errorf("%s printed the row %q %d times: it cannot measure time on this machine now", tool, row, try)
		}
	}
}

func column(row []string, i int) (float64, error) {
	if i >= len(row) {
		return 0, fmt.Errorf("perftest printed the row %q, of which column %d is wanted", row, i+1)
	}
	v, err := strconv.ParseFloat(row[i], 64)
	if err != nil || !(v >= 0) {
		return 0, fmt.Errorf("perftest printed the row %q, whose column %d is no speed or time", row, i+1)
	}
	return v, nil
}

// bindTries is how often another port is tried when somebody took the one that was free.
const bindTries = 3

// run starts a tool's both ends and gives the row of its result.
func (p *perftest) run(ctx context.Context, tool string, size int, args ...string) ([]string, error) {
	path, err := exec.LookPath(tool)
	if err != nil {
		return nil, err
	}
	for try := 1; ; try++ {
		row, bound, err := p.once(ctx, tool, path, size, args)
		if err == nil || bound || try == bindTries || ctx.Err() != nil {
			return row, err
		}
	}
}

// once is one run. bound says that the server had the port.
func (p *perftest) once(ctx context.Context, tool, path string, size int, args []string) (row []string, bound bool, err error) {
	port, err := freePort()
	if err != nil {
		return nil, false, err
	}
	args = append(args, "-s", strconv.Itoa(size), "-p", strconv.Itoa(port), "-F")
	server, err := spawn(ctx, tool+" server", p.dir, os.Environ(), path, append(of(p.far), args...)...)
	if err != nil {
		return nil, false, err
	}
	heard := drain(server)
	defer func() {
		sig := syscall.Signal(0)
		if err != nil {
			sig = syscall.SIGTERM // its client is gone
		}
		if end := server.end(sig); err == nil {
			err = end
		}
		<-heard
	}()
	if err = listening(ctx, server, port); err != nil {
		return nil, false, err
	}
	client, err := spawn(ctx, tool+" client", p.dir, os.Environ(), path, append(append(of(p.near), args...), "127.0.0.1")...)
	if err != nil {
		return nil, true, err
	}
	said, read := io.ReadAll(client.out)
	if err = client.end(0); err != nil {
		return nil, true, fmt.Errorf("%w\n%s", err, said[max(0, len(said)-1000):])
	}
	if read != nil {
		return nil, true, read
	}
	row, err = resultRow(string(said), size)
	return row, true, err
}

// of are the arguments that name a port.
func of(p node.Port) []string {
	out := []string{"-d", p.Device, "-i", strconv.Itoa(p.Port)}
	if p.GIDIndex >= 0 {
		out = append(out, "-x", strconv.Itoa(p.GIDIndex))
	}
	return out
}

// resultRow is the row of numbers that begins with the size.
func resultRow(said string, size int) ([]string, error) {
	for line := range strings.Lines(said) {
		if row := strings.Fields(line); len(row) >= 4 && row[0] == strconv.Itoa(size) {
			return row, nil
		}
	}
	return nil, fmt.Errorf("perftest printed no row for %d bytes:\n%.1000s", size, said)
}

// drain reads what a child prints until it ends; the channel is closed then.
func drain(c *child) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(io.Discard, c.out)
	}()
	return done
}

// freePort is a port of loop-back that nobody has at this moment.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	port := l.Addr().(*net.TCPAddr).Port
	return port, l.Close()
}

// listening waits until somebody listens on the port. To connect would take the one connection that the server is there for.
func listening(ctx context.Context, c *child, port int) error {
	for limit := time.After(patience); ; {
		if there, err := listens(port); there || err != nil {
			return err
		}
		select {
		case <-c.done:
			return c.ended()
		case <-ctx.Done():
			return ctx.Err()
		case <-limit:
			return fmt.Errorf("%s does not listen on port %d within %s%s", c.name, port, patience, c.tail())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// listens looks for the port among the sockets of this network namespace.
func listens(port int) (bool, error) {
	want := fmt.Sprintf(":%04X", port)
	for _, path := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		f, err := os.Open(path)
		if os.IsNotExist(err) { // a kernel without IPv6
			continue
		} else if err != nil {
			return false, err
		}
		s := bufio.NewScanner(f)
		for s.Scan() {
			const listen = "0A"
			if row := strings.Fields(s.Text()); len(row) > 3 && strings.HasSuffix(row[1], want) && row[3] == listen {
				_ = f.Close()
				return true, nil
			}
		}
		_ = f.Close()
		if err := s.Err(); err != nil {
			return false, err
		}
	}
	return false, nil
}
