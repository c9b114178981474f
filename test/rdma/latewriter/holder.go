package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// holder keeps memory whose owner is killed, and watches it from when the daemon has let it go.
type holder struct {
	fd      int
	inode   uint64
	watched *watched
}

func newHolder(s settings, t *talk) (*holder, error) {
	size := s.units * s.unitBytes()
	fd, err := unix.MemfdCreate("latewriter", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	if err := unix.Fallocate(fd, 0, 0, int64(size)); err != nil {
		return nil, fmt.Errorf("fallocate: %w", err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		return nil, fmt.Errorf("seals: %w", err)
	}
	mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mmap: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("fstat: %w", err)
	}
	return &holder{fd: fd, inode: st.Ino, watched: watch("killed", mem, shape{2 * s.layers, s.units, s.piece}, func(l late) { t.say(l) })}, nil
}

func (h *holder) handle(do string, args json.RawMessage) (any, error) {
	switch do {
	case "where":
		return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), h.fd), nil
	case "give":
		a, err := into[victimArgs](args)
		if err == nil {
			h.watched.give(a.Units)
		}
		return nil, err
	case "begun":
		return h.begun(args)
	case "let go":
		return h.letGo(args)
	case "look":
		a, err := into[waitArgs](args)
		if err != nil {
			return nil, err
		}
		time.Sleep(time.Duration(a.MS) * time.Millisecond)
		h.watched.lookAgain()
		return nil, nil
	}
	return nil, unknown(do)
}

// begun waits for a first byte, no longer than the time that TTL says.
func (h *holder) begun(args json.RawMessage) (any, error) {
	a, err := into[victimArgs](args)
	if err != nil {
		return nil, err
	}
	for end := time.Now().Add(time.Duration(a.TTL) * time.Millisecond); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if h.watched.begun(a.Units) {
			return true, nil
		}
	}
	return false, nil
}

// letGo waits until the daemon maps the memory no more, which is when it is free, and marks it.
func (h *holder) letGo(args json.RawMessage) (any, error) {
	a, err := into[struct {
		victimArgs
		PID int `json:"pid"` // the daemon's
		MS  int `json:"ms"`
	}](args)
	if err != nil {
		return nil, err
	}
	for end := time.Now().Add(time.Duration(a.MS) * time.Millisecond); ; time.Sleep(time.Millisecond) {
		maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", a.PID))
		if err != nil {
			return nil, err
		}
		if !strings.Contains(string(maps), fmt.Sprintf(" %d ", h.inode)) {
			break
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("the daemon still maps the memory of a killed client after %d ms", a.MS)
		}
	}
	some, whole := h.watched.take(a.Units, a.Mark, a.Way)
	return ending{ID: a.ID, End: "killed", Some: some, Whole: whole}, nil
}
