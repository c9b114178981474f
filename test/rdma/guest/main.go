package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	portName = "kvxfer.guest"
	// path of commands: Debian's own tools come before busybox, whose tc and ip lack what is needed here.
	path = "/usr/sbin:/usr/bin:/sbin:/bin"
)

func main() {
	if os.Getpid() != 1 {
		if err := agent(); err != nil {
			fmt.Println("guest:", err)
		}
		return
	}
	err := boot()
	if err == nil {
		err = collect()
	}
	if err != nil {
		fmt.Println("guest:", err)
	}
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

// boot makes the machine usable; a module that does not load is said on the console and in the answer to whoever misses it.
func boot() error {
	for _, m := range []struct{ fs, at string }{
		{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"tmpfs", "/tmp"}, {"tmpfs", "/run"}, {"tmpfs", "/dev/shm"}, {"devpts", "/dev/pts"},
		{"debugfs", "/sys/kernel/debug"},
	} {
		if err := os.MkdirAll(m.at, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.fs, m.at, m.fs, 0, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.at, err)
		}
	}
	order, err := os.ReadFile("/modules/order")
	if err != nil {
		return err
	}
	for _, name := range strings.Fields(string(order)) {
		if err := load(filepath.Join("/modules", name)); err != nil {
			fmt.Printf("guest: module %s: %v\n", name, err)
		}
	}
	// Registered memory is locked memory; tests of the limit lower it for themselves.
	unlimited := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	return unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unlimited)
}

func load(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.FinitModule(int(f.Fd()), "", 0)
}

// collect starts the agent and waits for every process until the agent ends.
func collect() error {
	cmd := exec.Command("/proc/self/exe")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Env = []string{"PATH=" + path, "HOME=/tmp", "TMPDIR=/tmp"}
	if err := cmd.Start(); err != nil {
		return err
	}
	for {
		pid, err := unix.Wait4(-1, nil, 0, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil || pid == cmd.Process.Pid {
			return err
		}
	}
}

// agent serves the host until it hangs up.
func agent() error {
	port, err := openPort()
	if err != nil {
		return err
	}
	return newServer(port).serve()
}

// openPort finds the port by its name: its number depends on the order of the machine's devices.
func openPort() (*os.File, error) {
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		names, _ := filepath.Glob("/sys/class/virtio-ports/*/name")
		for _, n := range names {
			if b, err := os.ReadFile(n); err == nil && strings.TrimSpace(string(b)) == portName {
				return os.OpenFile("/dev/"+filepath.Base(filepath.Dir(n)), os.O_RDWR, 0)
			}
		}
	}
	return nil, fmt.Errorf("no virtio port %s", portName)
}
