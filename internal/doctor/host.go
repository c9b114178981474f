package doctor

import (
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/cpu"
	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
	"github.com/kvxfer/kvxfer/rdma/verbs/route"
)

// Host is the machine as the checks see it.
type Host struct {
	FS       fs.FS // of "/"
	Release  func() string
	Rlimit   func(resource int) (soft, hard uint64, err error)
	Statfs   func(path string) (unix.Statfs_t, error)
	Adjtimex func() (state int, err error)
	HasAVX2  func() bool
	CPUs     int
	UID      int
	// Interfaces lists the network's interfaces with their addresses.
	Interfaces func() ([]Interface, error)
	// Networks are the addresses of the interfaces that are up, with their subnets' prefix lengths.
	Networks func() (map[string][]netip.Prefix, error)
	// Access says why this user may not read and write a file; nil: it may.
	Access func(path string) error
	// RDMA opens RDMA devices, to find out what /sys does not tell. Nil: they are not opened.
	RDMA nic.Host
}

// Interface is a network interface.
type Interface struct {
	Name  string
	MTU   int
	Up    bool
	Addrs []string // IP addresses
}

// This is the machine that the process runs on.
func This() *Host {
	return &Host{FS: os.DirFS("/"), CPUs: cpus(), UID: os.Geteuid(), Interfaces: interfaces, Networks: route.Networks,
		Access: func(path string) error {
			return unix.Faccessat(unix.AT_FDCWD, path, unix.R_OK|unix.W_OK, unix.AT_EACCESS)
		},
		HasAVX2: func() bool { return cpu.X86.HasAVX2 },
		Release: func() string {
			var u unix.Utsname
			if unix.Uname(&u) != nil {
				return ""
			}
			return unix.ByteSliceToString(u.Release[:])
		},
		Rlimit: func(resource int) (uint64, uint64, error) {
			var r unix.Rlimit
			err := unix.Getrlimit(resource, &r)
			return r.Cur, r.Max, err
		},
		Statfs: func(path string) (st unix.Statfs_t, err error) { return st, unix.Statfs(path, &st) },
		Adjtimex: func() (int, error) {
			var t unix.Timex // modes 0: it only reads
			return unix.Adjtimex(&t)
		},
	}
}

// cpus is how many processors this process may run on.
func cpus() int {
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) != nil {
		return 0
	}
	return set.Count()
}

func interfaces() ([]Interface, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	out := make([]Interface, 0, len(all))
	for _, i := range all {
		x := Interface{Name: i.Name, MTU: i.MTU, Up: i.Flags&net.FlagUp != 0}
		addrs, err := i.Addrs()
		if err != nil {
			continue // it went away meanwhile
		}
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok {
				x.Addrs = append(x.Addrs, n.IP.String())
			}
		}
		out = append(out, x)
	}
	return out, nil
}

// text reads a small file; "" where it cannot be read.
func (h *Host) text(path string) string {
	raw, err := fs.ReadFile(h.FS, strings.TrimPrefix(path, "/"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(raw))
}

// entries are the names in a directory; none where it cannot be read.
func (h *Host) entries(path string) (out []string) {
	list, _ := fs.ReadDir(h.FS, strings.TrimPrefix(path, "/"))
	for _, e := range list {
		out = append(out, e.Name())
	}
	return out
}

func (h *Host) exists(path string) bool {
	_, err := fs.Stat(h.FS, strings.TrimPrefix(path, "/"))
	return err == nil
}

// number reads a file with one number in it.
func (h *Host) number(path string) (uint64, bool) {
	n, err := strconv.ParseUint(h.text(path), 10, 64)
	return n, err == nil
}

// field reads "Name: value kB" of a file, in bytes.
func (h *Host) field(path, name string) (uint64, bool) { return field(h.text(path), name) }

func field(text, name string) (uint64, bool) {
	for line := range strings.Lines(text) {
		key, rest, found := strings.Cut(line, ":")
		if f := strings.Fields(rest); found && key == name && len(f) > 0 {
			n, err := strconv.ParseUint(f[0], 10, 64)
			if len(f) > 1 && f[1] == "kB" {
				n *= 1024
			}
			return n, err == nil
		}
	}
	return 0, false
}

// chosen is what of "a [b] c" is in brackets.
func chosen(text string) string {
	_, rest, _ := strings.Cut(text, "[")
	word, _, _ := strings.Cut(rest, "]")
	return word
}
