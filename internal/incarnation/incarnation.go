package incarnation

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/pidfd"
)

const op = "start"

// Files in the state directory.
const (
	lockName   = "daemon.lock"
	recordName = "daemon.json"
)

// Incarnation is this process's claim on a state directory.
type Incarnation struct {
	dir      string
	lock     *os.File
	record   record
	previous string
	once     sync.Once
	err      error
}

// Acquire claims the state directory dir, which it makes if it is missing, for a daemon named node. While another
// process has it, Acquire waits until ctx ends and then fails with AlreadyExists, whose detail names the pid. A
// directory that others can read or write is ConfigInvalid; an unreadable record StoreFailed.
func Acquire(ctx context.Context, dir, node string) (*Incarnation, error) {
	if err := prepare(dir); err != nil {
		return nil, err
	}
	boot, err := bootID()
	if err != nil {
		return nil, err
	}
	start, err := startTicks(os.Getpid())
	if err != nil {
		return nil, fault.Wrap(fault.Internal, op, err)
	}
	lock, err := takeLock(ctx, dir)
	if err != nil {
		return nil, err
	}
	old, err := readRecord(dir)
	if err == nil {
		err = awaitExit(ctx, dir, old, boot)
	}
	in := &Incarnation{dir: dir, lock: lock, previous: old.Epoch,
		record: record{Format: recordFormat, Pid: os.Getpid(), StartTicks: start, BootID: boot, Epoch: newEpoch(), Node: node}}
	if err == nil {
		err = in.record.write(dir)
	}
	if err != nil {
		_ = lock.Close()
		return nil, err
	}
	return in, nil
}

// Epoch is 32 lower-case hex digits, new with every Acquire.
func (in *Incarnation) Epoch() string { return in.record.Epoch }

// PreviousEpoch is the epoch of the directory's incarnation before this one, "" when there was none.
func (in *Incarnation) PreviousEpoch() string { return in.previous }

// BootID is the kernel's id of this boot.
func (in *Incarnation) BootID() string { return in.record.BootID }

// Close gives the directory up. The caller promises that every lease is fenced: the next incarnation, which may be in
// this very process, does not wait any more. Without Close the exit of the process does the same.
func (in *Incarnation) Close() error {
	in.once.Do(func() {
		done := in.record
		done.Closed = true
		in.err = errors.Join(done.write(in.dir), in.lock.Close())
	})
	return in.err
}

// prepare makes the directory, or checks that it is nobody else's.
func prepare(dir string) error {
	invalid := func(format string, args ...any) error {
		e := fault.New(fault.ConfigInvalid, op, format, args...)
		e.Field = "state-dir"
		return e
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return invalid("cannot be made: %v", err)
	}
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return invalid("%s: %v", dir, err)
	}
	if int(st.Uid) != os.Geteuid() {
		return invalid("%s belongs to user %d, allowed the daemon's own user %d", dir, st.Uid, os.Geteuid())
	}
	if st.Mode&0o077 == 0 {
		return nil
	}
	// One that somebody made for the daemon with the usual mode is closed to others; one with contents is not touched,
	// since a wrong setting (/tmp) would otherwise lock others out of their files.
	names, err := os.ReadDir(dir)
	if err != nil {
		return invalid("cannot be read: %v", err)
	}
	if len(names) > 0 {
		return invalid("%s has mode %#o, allowed 0700, because it holds what lets others write into clients' memory: chmod 700 it, or take another",
			dir, st.Mode&0o777)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return invalid("%v", err)
	}
	return nil
}

// The lock has no event to wait for (a blocking flock cannot be given up), so it is asked again, less and less often.
const (
	firstPause = 5 * time.Millisecond
	maxPause   = 200 * time.Millisecond
)

func takeLock(ctx context.Context, dir string) (*os.File, error) {
	path := filepath.Join(dir, lockName)
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, fault.Wrap(fault.Internal, op, err)
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil && sameFile(f, path) {
			return f, nil
		}
		_ = f.Close() // also when the file was replaced meanwhile: that lock protects nothing
		if err != nil && err != unix.EWOULDBLOCK && err != unix.EINTR {
			return nil, fault.Wrap(fault.Internal, op, &os.PathError{Op: "flock", Path: path, Err: err})
		}
		select {
		case <-ctx.Done():
			pid := 0
			if r, err := readRecord(dir); err == nil {
				pid = r.Pid
			}
			return nil, inUse(ctx, dir, pid)
		case <-time.After(pause):
		}
	}
}

func sameFile(f *os.File, path string) bool {
	a, errA := f.Stat()
	b, errB := os.Stat(path)
	return errA == nil && errB == nil && os.SameFile(a, b)
}

// awaitExit returns nil when the process of r has exited.
func awaitExit(ctx context.Context, dir string, r record, boot string) error {
	if r.Pid == 0 || r.Closed || r.BootID != boot {
		return nil
	}
	if r.Pid == os.Getpid() {
		if now, err := startTicks(r.Pid); err == nil && now == r.StartTicks {
			// Its own exit cannot be waited for: an Incarnation of this process is still open and its lock file is gone.
			return inUse(ctx, dir, r.Pid)
		}
		return nil
	}
	h, err := pidfd.Open(r.Pid)
	if errors.Is(err, pidfd.ErrGone) {
		return nil
	}
	if err != nil {
		return fault.Wrap(fault.Internal, op, err)
	}
	defer func() { _ = h.Close() }()
	// Looked at after the descriptor was opened: equal means that the descriptor is of that very process.
	start, err := startTicks(r.Pid)
	if errors.Is(err, os.ErrNotExist) || err == nil && start != r.StartTicks {
		return nil
	}
	if err != nil {
		return fault.Wrap(fault.Internal, op, err)
	}
	if err := h.Wait(ctx); err != nil {
		if ctx.Err() != nil {
			return inUse(ctx, dir, r.Pid)
		}
		return fault.Wrap(fault.Internal, op, err)
	}
	return nil
}

func inUse(ctx context.Context, dir string, pid int) error {
	e := fault.New(fault.AlreadyExists, op, "a daemon uses %s", dir)
	if pid != 0 {
		e.Detail = fmt.Sprintf("the daemon with pid %d uses %s", pid, dir)
	}
	e.Field, e.Err = "state-dir", ctx.Err()
	return e
}

func newEpoch() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // it never fails: the runtime ends the process instead
	return hex.EncodeToString(b[:])
}

func bootID() (string, error) {
	raw, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fault.Wrap(fault.Internal, op, err)
	}
	return strings.TrimSpace(string(raw)), nil
}
