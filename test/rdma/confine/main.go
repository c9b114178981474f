package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "confine:", err)
		os.Exit(127)
	}
}

func run(args []string) error {
	if len(args) < 2 {
		return fmt.Errorf("arguments: want a number of bytes and a command")
	}
	n, err := strconv.ParseUint(args[0], 10, 64)
	if err != nil {
		return err
	}
	path, err := exec.LookPath(args[1])
	if err != nil {
		return err
	}
	runtime.LockOSThread() // the bounding set is a thread's; exec takes that of the thread that calls it
	if err := unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_IPC_LOCK, 0, 0, 0); err != nil {
		return fmt.Errorf("drop CAP_IPC_LOCK: %w", err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: n, Max: n}); err != nil {
		return fmt.Errorf("set RLIMIT_MEMLOCK: %w", err)
	}
	return unix.Exec(path, args[1:], os.Environ())
}
