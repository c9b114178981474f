package doctor

import (
	"fmt"
	"math"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

func size(n uint64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%d KiB", n>>10)
}

// capIPCLock is the bit of the capability to whose bearers the limit does not apply.
const capIPCLock = 14

// memlock looks at what a registration with an RDMA device counts against: the daemon's own limit where it runs, else that of who
// asks, which need not be the same.
func (s *Subject) memlock() Check {
	soft, _, err := s.Host.Rlimit(unix.RLIMIT_MEMLOCK)
	whose, status := "of this command", s.Host.text("/proc/self/status")
	if s.Daemon != nil && s.Daemon.PID > 0 {
		dir := "/proc/" + strconv.Itoa(s.Daemon.PID)
		if n, known := lockedMemory(s.Host.text(dir + "/limits")); known {
			soft, err, whose, status = n, nil, "of the daemon", s.Host.text(dir+"/status")
		}
	}
	pinned, known := field(status, "VmPin")
	text := ""
	if known && whose == "of the daemon" {
		text = ", " + size(pinned) + " registered now"
	}
	switch {
	case err != nil:
		return warn("look at ulimit -l", "RLIMIT_MEMLOCK cannot be read: %v", err)
	case soft == math.MaxUint64:
		return ok("unlimited%s", text)
	case len(s.devices().devices) == 0:
		return ok("%s; without an RDMA device nothing locks memory", size(soft))
	case capable(status, capIPCLock):
		return ok("%s, which CAP_IPC_LOCK %s lifts%s", size(soft), whose, text)
	}
	return warn("raise the limit: LimitMEMLOCK=infinity of the unit, ulimit -l unlimited, --ulimit memlock=-1 of a container: RDMA devices lock the memory that they reach",
		"%s, the limit %s%s: regions that do not fit are not reached by RDMA", size(soft), whose, text)
}

// lockedMemory finds the soft limit in /proc/PID/limits.
func lockedMemory(limits string) (uint64, bool) {
	for line := range strings.Lines(limits) {
		rest, found := strings.CutPrefix(line, "Max locked memory")
		if f := strings.Fields(rest); found && len(f) > 0 {
			if f[0] == "unlimited" {
				return math.MaxUint64, true
			}
			n, err := strconv.ParseUint(f[0], 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

// capable says whether /proc/PID/status has a capability as effective.
func capable(status string, bit int) bool {
	for line := range strings.Lines(status) {
		if set, found := strings.CutPrefix(line, "CapEff:"); found {
			n, err := strconv.ParseUint(strings.TrimSpace(set), 16, 64)
			return err == nil && n>>bit&1 == 1
		}
	}
	return false
}

// Descriptors that a daemon uses besides those for clients, regions and peers, and how many make it comfortable.
const (
	fewFiles  = 256
	someFiles = 4096
)

func (h *Host) openFiles() Check {
	soft, hard, err := h.Rlimit(unix.RLIMIT_NOFILE)
	// The Go runtime raises the soft limit to the hard one at its start, so that is what a daemon gets.
	n := max(soft, hard)
	switch {
	case err != nil:
		return warn("look at ulimit -n", "RLIMIT_NOFILE cannot be read: %v", err)
	case n < fewFiles:
		return fail("raise the limit: ulimit -n, LimitNOFILE= of the unit", "%d, needed at least %d", n, fewFiles)
	case n < someFiles:
		return warn("raise the limit: ulimit -n, LimitNOFILE= of the unit", "%d; each client takes two and one a region, each peer as many as it has lanes", n)
	case n == math.MaxUint64:
		return ok("unlimited")
	}
	return ok("%d", n)
}

// memory tells what this process's control group leaves it. The pages of caches count against the clients who allocate them.
func (h *Host) memory() Check {
	available, known := h.field("/proc/meminfo", "MemAvailable")
	if !known {
		return warn("mount /proc", "/proc/meminfo cannot be read")
	}
	limit, where := h.cgroupLimit()
	const least = 256 << 20
	text := size(available) + " available"
	if where != "" {
		text += fmt.Sprintf(", of the control group at most %s (%s)", size(limit), where)
		available = min(available, limit)
	}
	if available < least {
		return warn(fmt.Sprintf("give the daemon at least %s; caches come on top, in the clients' limits", size(least)), "%s", text)
	}
	return ok("%s", text)
}

// cgroupLimit is the smallest limit on the way from this process's group (version 2) to the root; "" where: none.
func (h *Host) cgroupLimit() (limit uint64, where string) {
	limit = math.MaxUint64
	for line := range strings.Lines(h.text("/proc/self/cgroup")) {
		group, found := strings.CutPrefix(strings.TrimSpace(line), "0::")
		if !found {
			continue
		}
		for dir := path.Clean("/" + group); ; dir = path.Dir(dir) {
			if n, ok := h.number(path.Join("/sys/fs/cgroup", dir, "memory.max")); ok && n < limit {
				limit, where = n, path.Join(dir, "memory.max")
			}
			if dir == "/" {
				break
			}
		}
	}
	return limit, where
}

func (h *Host) hugePages() Check {
	shm := chosen(h.text("/sys/kernel/mm/transparent_hugepage/shmem_enabled"))
	total, _ := h.field("/proc/meminfo", "HugePages_Total")
	if shm == "" {
		shm = "not known"
	}
	return ok("transparent ones for shared memory: %s; reserved: %d. Regions work with either and without", shm, total)
}

func (h *Host) cpu() Check {
	if !h.HasAVX2() {
		return warn("use a processor with AVX2 where large blocks move between workers of one host", "%d processors, no AVX2: shm copies large operations through the caches", h.CPUs)
	}
	return ok("%d processors, AVX2", h.CPUs)
}

func (h *Host) numa() Check {
	nodes := h.text("/sys/devices/system/node/online")
	if nodes == "" {
		return ok("one node")
	}
	_, last, many := strings.Cut(nodes, "-")
	if n, err := strconv.Atoi(last); many && err == nil && n > 0 {
		return ok("nodes %s; bind daemon, worker and network card to the same one where latency counts (numactl)", nodes)
	}
	return ok("node %s", nodes)
}

// timeError is adjtimex's state of a clock that nobody keeps right.
const timeError = 5

// clock: leases are ended by the owner's monotonic clock, so a wrong time of day harms traces and certificates alone.
func (h *Host) clock() Check {
	source := h.text("/sys/devices/system/clocksource/clocksource0/current_clocksource")
	if source == "" {
		source = "not known"
	}
	state, err := h.Adjtimex()
	switch {
	case err != nil:
		return ok("source %s; whether the time of day is kept right cannot be asked: %v", source, err)
	case state == timeError:
		return warn("run a time service (chrony, systemd-timesyncd): traces of several nodes and certificates' dates use the time of day; leases do not",
			"source %s, the time of day is not synchronised", source)
	case source == "hpet" || source == "acpi_pm" || source == "jiffies":
		return warn("find out why the kernel gave up tsc (dmesg): each look at this clock costs a microsecond", "source %s", source)
	}
	return ok("source %s, synchronised", source)
}
