package blockdb

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"os"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// The files that lie beside the log, in Options.Dir.
const (
	fileLock    = "LOCK"
	fileBoot    = "boot"    // the boot id that the database belongs to
	fileEpoch   = "epoch"   // the upper part of the generations of the database
	fileWitness = "witness" // how far the log reached, or "all is void"
	fileBallast = "ballast" // bytes to give back when the disk is full
	dirLog      = "db"      // Pebble
	dirAside    = "aside."  // a database that could not be trusted; a number follows
)

const bootHeader = "kvxfer-blockdb-boot 1\n"

// readBoot returns "" for a file that is absent or unreadable: both mean "not this boot".
func readBoot(fs vfs.FS, dir string) string {
	b, err := readAll(fs, fs.PathJoin(dir, fileBoot))
	if err != nil {
		return ""
	}
	id, ok := strings.CutPrefix(string(b), bootHeader)
	if !ok || !strings.HasSuffix(id, "\n") {
		return ""
	}
	return strings.TrimSuffix(id, "\n")
}

func writeBoot(fs vfs.FS, dir, id string) error {
	return replaceFile(fs, dir, fileBoot, []byte(bootHeader+id+"\n"))
}

// A generation is an epoch of the database (24 bits) and a counter (40 bits). Every fresh database takes the next
// epoch, so that a generation which a client still vouches for cannot return with other bytes behind it.
const (
	counterBits = 40
	counterMask = 1<<counterBits - 1
	epochMask   = 1<<(64-counterBits) - 1
)

// nextEpoch counts the file up, fsynced, before the value is used. A file that is lost or damaged gives a random
// epoch: what was vouched for under the old ones meets it with a chance of 2^-24.
func nextEpoch(fs vfs.FS, dir string) (uint64, error) {
	var epoch uint64
	b, err := readAll(fs, fs.PathJoin(dir, fileEpoch))
	if err == nil && len(b) == 12 && crc32.Checksum(b[:8], castagnoli) == le.Uint32(b[8:]) {
		epoch = (le.Uint64(b) + 1) & epochMask
	} else {
		epoch = rand.Uint64() & epochMask
	}
	if epoch == 0 {
		epoch = 1 // generation 0 means "none"
	}
	b = le.AppendUint64(nil, epoch)
	b = le.AppendUint32(b, crc32.Checksum(b, castagnoli))
	return epoch, replaceFile(fs, dir, fileEpoch, b)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// witness holds the ordinal of the last batch whose commit was acknowledged. A log that ends before it has lost a
// suffix, which Pebble itself takes for a normal end after a crash. The value "all" is the void marker: no log
// reaches it. The file is made once, so that writing either value needs no space on a full disk.
type witness struct {
	f   vfs.File
	buf [witnessLen]byte
}

const (
	witnessLen   = 20
	witnessMagic = "kvxwit01"
	witnessVoid  = ^uint64(0)
)

func openWitness(fs vfs.FS, dir string) (*witness, error) {
	f, err := fs.OpenReadWrite(fs.PathJoin(dir, fileWitness), vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, err
	}
	return &witness{f: f}, nil
}

// read returns the last acknowledged batch; an error means that nothing can be said about the log.
func (w *witness) read() (uint64, error) {
	var b [witnessLen]byte
	if n, err := w.f.ReadAt(b[:], 0); n < witnessLen {
		if err == nil || errors.Is(err, io.EOF) {
			err = fmt.Errorf("witness file holds %d of %d bytes", n, witnessLen)
		}
		return 0, err
	}
	if string(b[:8]) != witnessMagic || crc32.Checksum(b[:16], castagnoli) != le.Uint32(b[16:]) {
		return 0, errors.New("witness file is damaged")
	}
	return le.Uint64(b[8:]), nil
}

// write is one pwrite of bytes that lie in one page: a kill leaves the old or the new value.
func (w *witness) write(seq uint64) error {
	copy(w.buf[:], witnessMagic)
	le.PutUint64(w.buf[8:], seq)
	le.PutUint32(w.buf[16:], crc32.Checksum(w.buf[:16], castagnoli))
	_, err := w.f.WriteAt(w.buf[:], 0)
	return err
}

// makeBallast writes a file of n bytes. They are not zeros: a file system that compresses would keep nothing.
func makeBallast(fs vfs.FS, dir string, n int64) (err error) {
	name := fs.PathJoin(dir, fileBallast)
	if fi, err := fs.Stat(name); err == nil && fi.Size() == n {
		return nil
	}
	f, err := fs.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, f.Close())
		if err != nil {
			err = errors.Join(err, fs.Remove(name))
		}
	}()
	src := rand.NewChaCha8([32]byte{1})
	buf := make([]byte, 256<<10)
	for n > 0 {
		p := buf[:min(n, int64(len(buf)))]
		_, _ = src.Read(p) // never fails
		if _, err := f.Write(p); err != nil {
			return err
		}
		n -= int64(len(p))
	}
	return nil
}

// setAside renames the log's directory and keeps the newest `keep` of such directories.
func setAside(fs vfs.FS, dir string, keep int) (string, error) {
	ls, err := fs.List(dir)
	if err != nil {
		return "", err
	}
	var old []int
	for _, name := range ls {
		var n int
		if _, err := fmt.Sscanf(name, dirAside+"%d", &n); err == nil && n >= 0 {
			old = append(old, n)
		}
	}
	next := 1
	for _, n := range old {
		next = max(next, n+1)
	}
	for _, n := range old {
		if n <= next-keep {
			if err := fs.RemoveAll(fs.PathJoin(dir, fmt.Sprint(dirAside, n))); err != nil {
				return "", err
			}
		}
	}
	to := fs.PathJoin(dir, fmt.Sprint(dirAside, next))
	if err := fs.Rename(fs.PathJoin(dir, dirLog), to); err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	return to, nil
}

func readAll(fs vfs.FS, name string) ([]byte, error) {
	f, err := fs.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return io.ReadAll(io.LimitReader(f, 4096))
}

// replaceFile leaves the old or the new content, on the disk, whatever happens.
func replaceFile(fs vfs.FS, dir, name string, content []byte) error {
	tmp := fs.PathJoin(dir, name+".tmp")
	f, err := fs.Create(tmp, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := fs.Rename(tmp, fs.PathJoin(dir, name)); err != nil {
		return err
	}
	return syncDir(fs, dir)
}

func syncDir(fs vfs.FS, dir string) error {
	d, err := fs.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// HostBootID reads the kernel's id of this boot.
func HostBootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b)), err
}
