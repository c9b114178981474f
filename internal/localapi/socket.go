package localapi

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// MaxPath is the longest path of a Unix socket in bytes; the kernel's field also holds the NUL behind it.
const MaxPath = len(unix.RawSockaddrUnix{}.Path) - 1

// socket is a listening Unix socket with its file.
type socket struct {
	l    *net.UnixListener
	path string      // "": somebody else's listener
	lock *os.File    // keeps other daemons from the path; see listen
	file os.FileInfo // the socket's file as it was made
}

// listen makes the socket. Its directory is made with mode 0700 and the socket with 0600; with others, who are let in by
// their user id, with 0711 and 0666, since the kernel asks for the right to write before anybody sees the user id. A
// directory that is there already keeps its mode, so with others it must let them through.
//
// A file that is left of a daemon that died is removed. That needs a lock: of two daemons that both saw that nobody
// listens, the second would remove the socket that the first has just made.
func listen(path string, others bool) (*socket, error) {
	if len(path) < 1 || len(path) > MaxPath || path[0] == '@' || strings.IndexByte(path, 0) >= 0 {
		return nil, socketError(fault.ConfigInvalid, nil, "%.120q has %d bytes, allowed a path of 1..%d", path, len(path), MaxPath)
	}
	dirMode, mode := os.FileMode(0o700), os.FileMode(0o600)
	if others {
		dirMode, mode = 0o711, 0o666
	}
	if err := prepareDir(filepath.Dir(path), dirMode); err != nil {
		return nil, err
	}
	// O_NOFOLLOW: in a directory like /tmp the name may be somebody else's link.
	lock, err := os.OpenFile(path+".lock", os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, socketError(fault.ConfigInvalid, err, "the lock beside the socket cannot be made")
	}
	s := &socket{path: path, lock: lock}
	if err := s.open(mode); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *socket) open(mode os.FileMode) error {
	err := unix.Flock(int(s.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == unix.EWOULDBLOCK {
		return socketError(fault.AlreadyExists, nil, "a daemon serves %s", s.path)
	}
	if err != nil {
		return socketError(fault.Internal, err, "flock")
	}
	if err := removeStale(s.path); err != nil {
		return err
	}
	if s.l, err = net.ListenUnix("unix", &net.UnixAddr{Name: s.path, Net: "unix"}); err != nil {
		return socketError(fault.ConfigInvalid, err, "cannot listen")
	}
	s.l.SetUnlinkOnClose(false) // close asks whether the file is still this socket's
	if s.file, err = os.Lstat(s.path); err == nil {
		err = os.Chmod(s.path, mode)
	}
	if err != nil {
		return socketError(fault.Internal, err, "%s", s.path)
	}
	return nil
}

// removeStale removes a socket file that nobody listens on, and refuses everything else that is there.
func removeStale(path string) error {
	st, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return socketError(fault.ConfigInvalid, err, "cannot be examined")
	}
	if st.Mode().Type() != os.ModeSocket {
		return socketError(fault.ConfigInvalid, nil, "%s is there and no socket; remove it or take another path", path)
	}
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err == nil {
		_ = c.Close()
		return socketError(fault.AlreadyExists, nil, "another process listens on %s", path)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) { // a full backlog (EAGAIN) is somebody who lives
		return socketError(fault.AlreadyExists, err, "%s may be in use", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return socketError(fault.ConfigInvalid, err, "the stale socket cannot be removed")
	}
	return nil
}

// prepareDir makes the directory, or refuses one in which others could put a socket of their own in this one's place:
// clients would hand their memory to them.
func prepareDir(dir string, mode os.FileMode) error {
	_, err := os.Stat(dir)
	if errors.Is(err, os.ErrNotExist) {
		if err = os.MkdirAll(dir, mode); err == nil {
			err = os.Chmod(dir, mode) // the umask may have taken bits away
		}
	}
	if err != nil {
		return socketError(fault.ConfigInvalid, err, "its directory cannot be made")
	}
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return socketError(fault.ConfigInvalid, err, "%s", dir)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return socketError(fault.ConfigInvalid, nil, "%s is no directory", dir)
	}
	if st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return socketError(fault.ConfigInvalid, nil, "%s belongs to user %d, allowed root or the daemon's own user", dir, st.Uid)
	}
	if st.Mode&0o022 != 0 && st.Mode&unix.S_ISVTX == 0 {
		return socketError(fault.ConfigInvalid, nil, "%s has mode %#o: others can replace the socket in it", dir, st.Mode&0o7777)
	}
	return nil
}

// close stops listening, removes the file if it is still this socket's, and gives the lock back last.
func (s *socket) close() {
	if s.l != nil {
		_ = s.l.Close()
	}
	if s.file != nil {
		if now, err := os.Lstat(s.path); err == nil && os.SameFile(s.file, now) {
			_ = os.Remove(s.path)
		}
	}
	if s.lock != nil {
		_ = s.lock.Close()
	}
}

func socketError(c fault.Code, cause error, format string, args ...any) error {
	e := fault.New(c, "listen", format, args...)
	e.Field, e.Err = "socket", cause
	return e
}

// peer returns who connected: process (0 if it is in a pid namespace that this one does not see) and user.
func peer(conn *net.UnixConn) (pid, uid int, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, 0, err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) { cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return 0, 0, err
	}
	if credErr != nil {
		return 0, 0, os.NewSyscallError("getsockopt SO_PEERCRED", credErr)
	}
	return int(cred.Pid), int(cred.Uid), nil
}
