package doctor

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// release reads "6.8.0-31-generic" as 6, 8.
func release(text string) (major, minor int, ok bool) {
	n, _ := fmt.Sscanf(text, "%d.%d", &major, &minor)
	return major, minor, n == 2
}

func (h *Host) kernel() Check {
	text := h.Release()
	major, minor, known := release(text)
	switch {
	case !known:
		return warn("run Linux 6.5 or later", "release %q cannot be read", text)
	case major < 5 || major == 5 && minor < 3:
		return fail("run Linux 5.3 or later, better 6.5", "Linux %s has no pidfd: the death of clients and daemons cannot be watched", text)
	case major < 6 || major == 6 && minor < 5:
		return warn("run Linux 6.5 or later, or keep clients in the daemon's pid namespace (docs/containers.md)",
			"Linux %s has no SO_PEERPIDFD: clients of another pid namespace are watched by their connection alone", text)
	}
	return ok("Linux %s", text)
}

const memfdSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// memfd makes what a client hands over.
func (h *Host) memfd() Check {
	const remedy = "run a kernel with memfd_create and seals, and let no seccomp profile forbid them"
	fd, err := unix.MemfdCreate("kvxfer-doctor", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return fail(remedy, "memfd_create: %v", err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Fallocate(fd, 0, 0, 4096); err != nil {
		return fail("allow this process more memory", "a memfd of 4096 bytes: %v", err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, memfdSeals); err != nil {
		return fail(remedy, "sealing a memfd: %v", err)
	}
	b, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fail(remedy, "mapping a sealed memfd: %v", err)
	}
	_ = unix.Munmap(b)
	return ok("a sealed memfd can be made and mapped")
}

func (h *Host) pidfd() Check {
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return fail("run Linux 5.3 or later, and let no seccomp profile forbid pidfd_open", "pidfd_open: %v", err)
	}
	_ = unix.Close(fd)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fail("allow this process more open files", "a pair of sockets: %v", err)
	}
	defer func() { _ = unix.Close(pair[0]); _ = unix.Close(pair[1]) }()
	peer, err := unix.GetsockoptInt(pair[0], unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	if err != nil {
		return warn("run Linux 6.5 or later, or keep clients in the daemon's pid namespace (docs/containers.md)",
			"no SO_PEERPIDFD (%v): clients of another pid namespace are watched by their connection alone", err)
	}
	_ = unix.Close(peer)
	return ok("processes can be watched, also those behind a socket")
}

// processMemory tries the second way, by which memory that cannot be shared is reached.
func (h *Host) processMemory() Check {
	const remedy = "memory of type memfd works all the same; for the second way mount /proc and let no security module forbid /proc/self/mem"
	f, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
	if err != nil {
		return warn(remedy, "%v", err)
	}
	defer func() { _ = f.Close() }()
	want := [8]byte{1, 2, 3, 4, 5, 6, 7, 8}
	page, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return fail("allow this process more memory", "a page: %v", err)
	}
	defer func() { _ = unix.Munmap(page) }()
	at := int64(uintptr(unsafe.Pointer(&page[0])))
	var got [8]byte
	if _, err = f.WriteAt(want[:], at); err == nil {
		_, err = f.ReadAt(got[:], at)
	}
	if err != nil || got != want {
		return warn(remedy, "reading and writing /proc/self/mem: %v", err)
	}
	return ok("memory that cannot be shared is reached through /proc/PID/mem")
}
