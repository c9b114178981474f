package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// running is a command with everything it started: one process group.
type running struct {
	pid   int
	input chan []byte // closed after the last bytes
	once  sync.Once

	mu    sync.Mutex
	ended bool
}

// outputGrace is how long output may still come after a command's end from what it left running; what it started goes on.
const outputGrace = 2 * time.Second

// start runs a command; its end is told when it comes.
func (s *server) start(id uint32, c command) {
	cmd := exec.Command(c.Argv[0], c.Argv[1:]...)
	cmd.Dir = c.Dir
	cmd.Env = os.Environ()
	for k, v := range c.Env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = outputGrace
	cmd.Stdout = stream{s, id, kindStdout}
	cmd.Stderr = stream{s, id, kindStderr}
	var stdin io.WriteCloser
	if c.Stdin {
		stdin, _ = cmd.StdinPipe() // fails only where Stdin is set or the process was started
	}
	if err := cmd.Start(); err != nil {
		s.finish(id, result{RC: 127, Error: err.Error()})
		return
	}
	r := &running{pid: cmd.Process.Pid, input: make(chan []byte, 64)}
	s.mu.Lock()
	s.runs[id] = r
	s.mu.Unlock()
	if stdin != nil {
		go func() {
			defer stdin.Close()
			for b := range r.input {
				if _, err := stdin.Write(b); err != nil {
					return
				}
			}
		}()
	}
	go func() {
		var timer *time.Timer
		var out bool // read after the timer is stopped or fired under r.mu
		if c.Timeout > 0 {
			timer = time.AfterFunc(time.Duration(c.Timeout*float64(time.Second)), func() {
				r.mu.Lock()
				out = !r.ended
				r.mu.Unlock()
				r.signal(syscall.SIGKILL)
			})
		}
		err := cmd.Wait()
		if timer != nil {
			timer.Stop()
		}
		r.mu.Lock()
		r.ended = true
		res := status(cmd, err)
		res.TimedOut = out
		r.mu.Unlock()
		s.mu.Lock()
		delete(s.runs, id)
		s.mu.Unlock()
		s.finish(id, res)
	}()
}

func status(cmd *exec.Cmd, err error) result {
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return result{RC: -int(ws.Signal())}
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) && !errors.Is(err, exec.ErrWaitDelay) {
		return result{RC: 127, Error: err.Error()}
	}
	return result{RC: cmd.ProcessState.ExitCode()}
}

// signal reaches the whole group. It does nothing after the command's end, when its number may be another's.
func (r *running) signal(sig syscall.Signal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.ended {
		_ = syscall.Kill(-r.pid, sig) // fails when the group is gone, which Wait is about to tell
	}
}

// feed passes input on; the host sends little and never more than the channel holds before the command reads.
func (r *running) feed(b []byte) {
	if len(b) == 0 {
		r.once.Do(func() { close(r.input) })
		return
	}
	select {
	case r.input <- b:
	case <-time.After(time.Minute):
		fmt.Println("guest: a command does not read its input")
	}
}

// stream sends what a command writes as frames.
type stream struct {
	s    *server
	id   uint32
	kind byte
}

func (w stream) Write(p []byte) (int, error) {
	return len(p), w.s.send(w.id, w.kind, p)
}
