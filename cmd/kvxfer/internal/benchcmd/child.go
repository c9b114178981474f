package benchcmd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// patience bounds every wait for a child: nothing that works takes anywhere near it.
const patience = 60 * time.Second

// child is a process of this run. It has a process group of its own, so that the terminal's interrupt reaches this
// process alone, which then ends the children in order; and the kernel kills it if this process is killed.
type child struct {
	name string
	cmd  *exec.Cmd
	log  string // what it wrote to stderr
	in   *os.File
	out  *os.File
	done chan struct{} // closed when it has ended; err is set before
	err  error
}

// spawn starts a child whose stderr goes to a file in dir. It is called by the thread that lives as long as the run:
// the kernel's promise to kill the child is bound to it.
func spawn(ctx context.Context, name, dir string, env []string, path string, args ...string) (*child, error) {
	c := &child{name: name, log: filepath.Join(dir, strings.ReplaceAll(name, " ", "-")+".log"), done: make(chan struct{})}
	log, err := os.OpenFile(c.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	theirIn, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer theirIn.Close()
	out, theirOut, err := os.Pipe()
	if err != nil {
		_ = in.Close()
		return nil, err
	}
	defer theirOut.Close()
	c.in, c.out = in, out
	c.cmd = exec.CommandContext(ctx, path, args...)
	c.cmd.Env, c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = env, theirIn, theirOut, log
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	c.cmd.Cancel = func() error { return c.cmd.Process.Signal(syscall.SIGTERM) }
	c.cmd.WaitDelay = patience
	if err := c.cmd.Start(); err != nil {
		_, _ = in.Close(), out.Close()
		return nil, fmt.Errorf("%s does not start: %w", name, err)
	}
	go func() {
		c.err = c.cmd.Wait()
		close(c.done)
	}()
	return c, nil
}

// end closes the child's input, sends it the signal if there is one, and waits. A child that does not end is killed.
func (c *child) end(sig syscall.Signal) error {
	_ = c.in.Close()
	if sig != 0 {
		_ = c.cmd.Process.Signal(sig)
	}
	defer c.out.Close()
	select {
	case <-c.done:
	case <-time.After(patience):
		_ = c.cmd.Process.Kill()
		<-c.done
		return fmt.Errorf("%s did not end within %s and was killed%s", c.name, patience, c.tail())
	}
	if c.err != nil {
		return fmt.Errorf("%s: %w%s", c.name, c.err, c.tail())
	}
	return nil
}

// tail is the end of what the child wrote to stderr, for an error's text.
func (c *child) tail() string {
	b, err := os.ReadFile(c.log)
	if err != nil || len(b) == 0 {
		return ""
	}
	return "\nits last lines:\n" + string(bytes.TrimSpace(b[max(0, len(b)-2000):]))
}

// ended says why a child that should run does not.
func (c *child) ended() error {
	if c.err != nil {
		return fmt.Errorf("%s ended: %w%s", c.name, c.err, c.tail())
	}
	return fmt.Errorf("%s ended%s", c.name, c.tail())
}

// cpu is the processor time that the child has used.
func (c *child) cpu() (time.Duration, error) {
	t, err := clockOf(c.cmd.Process.Pid)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", c.name, err)
	}
	return t, nil
}

// rss is the child's resident memory in bytes without shared memory objects: those are its clients' caches.
func (c *child) rss() (uint64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	var all, shared uint64
	for line := range strings.Lines(string(b)) {
		_, _ = fmt.Sscanf(line, "VmRSS: %d kB", &all)
		_, _ = fmt.Sscanf(line, "RssShmem: %d kB", &shared)
	}
	if all == 0 || shared > all {
		return 0, errors.New("/proc/PID/status tells no VmRSS and RssShmem")
	}
	return (all - shared) << 10, nil
}

// daemon is a node of this run.
type daemon struct {
	*child
	socket string
	nats   string // its registry's URL, where it has one for others
}

// startDaemon starts a node and returns when it serves.
func startDaemon(ctx context.Context, exe, dir, name string, args ...string) (*daemon, error) {
	state := filepath.Join(dir, name)
	if err := os.Mkdir(state, 0o700); err != nil {
		return nil, err
	}
	d := &daemon{socket: filepath.Join(dir, name+".sock")}
	args = append([]string{"serve", "--node", name, "--state-dir", state, "--socket", d.socket, "--listen", "127.0.0.1:0",
		"--http", "off", "--log-level", "warn"}, args...)
	var err error
	if d.child, err = spawn(ctx, "daemon "+name, dir, environment(), exe, args...); err != nil {
		return nil, err
	}
	for limit := time.After(patience); ; {
		var info struct {
			PID  int    `json:"pid"`
			NATS string `json:"nats_url"`
		}
		if b, err := os.ReadFile(filepath.Join(state, "node.json")); err == nil && json.Unmarshal(b, &info) == nil && info.PID == d.cmd.Process.Pid {
			d.nats = info.NATS
			return d, nil
		}
		select {
		case <-d.done:
			return nil, d.ended()
		case <-limit:
			_ = d.end(syscall.SIGKILL)
			return nil, fmt.Errorf("%s does not serve within %s%s", d.name, patience, d.tail())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// environment is this process's, without settings that would change what is measured.
func environment() []string {
	var out []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "KVXFER_") && !strings.HasPrefix(v, "OTEL_") {
			out = append(out, v)
		}
	}
	return out
}
