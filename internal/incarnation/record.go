package incarnation

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// recordFormat is the version of the record. A newer one is refused: it may say things that this version must heed.
const recordFormat = 1

// record says which process was the directory's last incarnation.
type record struct {
	Format     int    `json:"format"`
	Pid        int    `json:"pid"`
	StartTicks uint64 `json:"start_ticks"` // clock ticks from boot to the process's start
	BootID     string `json:"boot_id"`
	Epoch      string `json:"epoch"`
	Node       string `json:"node"`
	Closed     bool   `json:"closed,omitempty"` // given up by Close: everything is fenced, also if the process lives on
}

// readRecord returns the zero record when there is none.
func readRecord(dir string) (record, error) {
	path := filepath.Join(dir, recordName)
	raw, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return record{}, nil
	}
	if err != nil {
		return record{}, fault.Wrap(fault.StoreFailed, op, err)
	}
	r, err := parseRecord(raw)
	if err != nil {
		e := fault.New(fault.StoreFailed, op, "%s does not say whether a daemon still runs; delete it only when none does", path)
		e.Err = err
		return record{}, e
	}
	return r, nil
}

func parseRecord(raw []byte) (record, error) {
	var r record
	if err := json.Unmarshal(raw, &r); err != nil {
		return record{}, err
	}
	if r.Format != recordFormat {
		return record{}, fmt.Errorf("format %d, allowed %d", r.Format, recordFormat)
	}
	if r.Pid < 1 || r.BootID == "" {
		return record{}, errors.New("pid or boot_id is missing")
	}
	return r, nil
}

// write replaces the record as a whole and makes it durable.
func (r record) write(dir string) error {
	raw, err := json.Marshal(r)
	if err != nil {
		return fault.Wrap(fault.Internal, op, err)
	}
	path := filepath.Join(dir, recordName)
	tmp := path + ".new" // only the holder of the lock writes it
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fault.Wrap(fault.StoreFailed, op, err)
	}
	_, err = f.Write(append(raw, '\n'))
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(tmp, path)
	}
	if err == nil {
		err = syncDir(dir)
	}
	return fault.Wrap(fault.StoreFailed, op, err)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	if errors.Is(err, unix.EINVAL) { // a file system that cannot sync directories
		err = nil
	}
	return errors.Join(err, d.Close())
}

// startTicks returns when the process started, in clock ticks since boot; os.ErrNotExist when there is none.
func startTicks(pid int) (uint64, error) {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if errors.Is(err, unix.ESRCH) { // it was reaped between open and read
		return 0, os.ErrNotExist
	}
	if err != nil {
		return 0, err
	}
	return parseStat(string(raw))
}

// parseStat reads field 22 of /proc/PID/stat. The name, field 2, may itself hold blanks and parentheses.
func parseStat(s string) (uint64, error) {
	i := strings.LastIndexByte(s, ')')
	if i < 0 {
		return 0, errors.New("/proc/PID/stat has no name")
	}
	f := strings.Fields(s[i+1:])
	const startTime = 22 - 3 // the first field behind the name is field 3
	if len(f) <= startTime {
		return 0, fmt.Errorf("/proc/PID/stat has %d fields", len(f)+2)
	}
	return strconv.ParseUint(f[startTime], 10, 64)
}
