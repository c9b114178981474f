package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// fileSystems are the magic numbers that make a difference for a state directory.
var fileSystems = map[int64]struct {
	name    string
	network bool
	memory  bool
}{
	0xef53: {name: "ext4"}, 0x58465342: {name: "xfs"}, 0x9123683e: {name: "btrfs"}, 0x2fc12fc1: {name: "zfs"}, 0xf2f52010: {name: "f2fs"},
	0x794c7630: {name: "overlay"}, 0x01021994: {name: "tmpfs", memory: true}, 0x858458f6: {name: "ramfs", memory: true},
	0x6969: {name: "nfs", network: true}, 0xff534d42: {name: "cifs", network: true}, 0xfe534d42: {name: "smb2", network: true},
	0x517b: {name: "smb", network: true}, 0x00c36400: {name: "ceph", network: true}, 0x0bd00bd0: {name: "lustre", network: true},
	0x47504653: {name: "gpfs", network: true}, 0x01021997: {name: "9p", network: true}, 0x65735546: {name: "fuse", network: true},
}

// What a state directory needs: the journal is small, and it gives up a ballast when the disk is full.
const (
	leastFree = 64 << 20
	someFree  = 1 << 30
)

func (s *Subject) stateDir() Check {
	if s.Config == nil {
		return unknown()
	}
	dir := s.Config.StateDir
	at, made, c := s.directory(dir, true)
	if c != nil {
		return *c
	}
	st, err := s.Host.Statfs(at)
	if err != nil {
		return fail("give it a directory that can be reached (--state-dir)", "%s: %v", dir, err)
	}
	kind := fileSystems[int64(st.Type)&0xffffffff]
	if kind.name == "" {
		kind.name = fmt.Sprintf("file system %#x", int64(st.Type)&0xffffffff)
	}
	free := st.Bavail * uint64(st.Bsize)
	text := fmt.Sprintf("%s, %s%s, %s free", dir, kind.name, s.Host.disk(at), size(free))
	if !made {
		text += ", not made yet"
	}
	switch {
	case kind.network:
		return fail("use a directory on a local file system (--state-dir): the lock and the journal need its guarantees", "%s: it may be on another machine", text)
	case free < leastFree:
		return fail("make room, or use another file system (--state-dir)", "%s, needed at least %s", text, size(leastFree))
	case free < someFree:
		return warn("make room: a full file system ends leases instead of granting them", "%s", text)
	case kind.memory:
		return warn("use a disk where committed blocks are to outlive a restart of the container (--state-dir); those never outlive the machine", "%s: it is memory", text)
	}
	return ok("%s; each grant waits for its fsync", text)
}

var partition = regexp.MustCompile(`^(.*\d)p\d+$|^(.*\D)\d+$`)

// disk says what the file system of a path is on; it decides what an fsync costs. "" where the kernel does not tell.
func (h *Host) disk(path string) string {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return ""
	}
	name := ""
	for line := range strings.Lines(h.text(fmt.Sprintf("/sys/dev/block/%d:%d/uevent", unix.Major(st.Dev), unix.Minor(st.Dev)))) {
		if v, found := strings.CutPrefix(line, "DEVNAME="); found {
			name = strings.TrimSpace(v)
		}
	}
	for _, disk := range append([]string{name}, partition.FindStringSubmatch(name)...) {
		switch h.text("/sys/class/block/" + disk + "/queue/rotational") {
		case "0":
			return " on " + name + " (not rotating)"
		case "1":
			return " on " + name + " (rotating, by its word: an fsync waits for it to turn)"
		}
	}
	return ""
}

func (s *Subject) socket() Check {
	dir := filepath.Dir(s.Socket)
	at, made, c := s.directory(dir, false)
	if c != nil {
		return *c
	}
	if !made {
		return ok("%s; its directory is not made yet, %s is there", s.Socket, at)
	}
	st, err := os.Lstat(s.Socket)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return ok("%s is free", s.Socket)
	case err != nil:
		return fail("let this user reach it, or name another one (--socket)", "%v", err)
	case st.Mode()&fs.ModeSocket == 0:
		return fail("remove it, or name another path (--socket)", "%s is no socket", s.Socket)
	case s.Daemon == nil && !s.silent() && !s.refused():
		return ok("%s is left from a former daemon or of another user's; a daemon that starts replaces what nobody serves", s.Socket)
	}
	return ok("%s is served, mode %04o", s.Socket, st.Mode().Perm())
}

// directory finds dir, or the part of the way to it that is there (made false), and says what is wrong with it. private: it
// must be this user's alone.
func (s *Subject) directory(dir string, private bool) (at string, made bool, wrong *Check) {
	for at = dir; ; at = filepath.Dir(at) {
		st, err := os.Stat(at)
		if errors.Is(err, fs.ErrNotExist) && at != "/" {
			continue
		}
		bad := func(c Check) (string, bool, *Check) { return at, at == dir, &c }
		switch {
		case err != nil:
			return bad(fail("let this user reach it", "%v", err))
		case !st.IsDir():
			return bad(fail("name another path", "%s is no directory", at))
		}
		if unix.Access(at, unix.W_OK|unix.X_OK) != nil {
			return bad(fail(fmt.Sprintf("make %s, and let user %d write in it", dir, s.Host.UID), "user %d may not write in %s", s.Host.UID, at))
		}
		sys, known := st.Sys().(*syscall.Stat_t)
		m := st.Mode()
		switch entries, _ := os.ReadDir(at); {
		case at != dir || !known:
		case private && m.Perm()&0o077 != 0 && len(entries) > 0:
			return bad(fail("chmod 700 "+dir+", or name another one (--state-dir)", "%s has mode %04o: it holds what lets others write into clients' memory", dir, m.Perm()))
		case private && int(sys.Uid) != s.Host.UID:
			return bad(warn("run this command as its owner, who runs the daemon", "%s belongs to user %d, this is user %d", dir, sys.Uid, s.Host.UID))
		case m.Perm()&0o022 != 0 && m&fs.ModeSticky == 0 && !private:
			return bad(fail("chmod go-w "+dir+", or name another path (--socket)", "%s has mode %04o: others can replace the socket in it", dir, m.Perm()))
		}
		return at, at == dir, nil
	}
}
