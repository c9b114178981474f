package blockdb

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// logFormat is pinned, so that an update of Pebble does not make a database that the previous daemon cannot open.
const logFormat = pebble.FormatWALSyncChunks

// openPebble opens the log. Pebble panics on some kinds of damage; such a panic comes back as an error.
func (d *DB) openPebble() (p *pebble.DB, err error) {
	defer func() {
		if r := recover(); r != nil {
			p, err = nil, fmt.Errorf("pebble: %v", r)
		}
	}()
	d.closing = make(chan struct{})
	return pebble.Open(d.fs.PathJoin(d.o.Dir, dirLog), d.pebbleOptions(d.closing))
}

// pebbleOptions are for a log of small records that is read once, at the start: little memory, one compaction at a
// time, nothing that ticks. The stall thresholds are out of reach because a stalled commit would keep a revoke
// waiting; what ends growth instead is that a failed flush fails the database.
func (d *DB) pebbleOptions(closing <-chan struct{}) *pebble.Options {
	lg := pebbleLogger{d}
	o := &pebble.Options{
		FS: &logFS{
			FS:     vfs.OnDiskFull(d.fs, d.dropBallast),
			fail:   d.fail,
			failed: d.failure,
		},
		FormatMajorVersion:          logFormat,
		Logger:                      lg,
		CacheSize:                   1 << 20,
		MaxOpenFiles:                64,
		MemTableSize:                uint64(d.o.MemTableBytes),
		MemTableStopWritesThreshold: 1000,
		L0CompactionThreshold:       4,
		L0StopWritesThreshold:       1 << 20,
		DisableTableStats:           true,
		CompactionConcurrencyRange:  func() (int, int) { return 1, 1 },
		NoSyncOnClose:               true,
		BytesPerSync:                1 << 30, // unused: no file is synced
		EventListener:               &pebble.EventListener{BackgroundError: func(err error) { d.backgroundError(err, closing) }},
	}
	// Pebble's default asks ten times a second whether more compactions are allowed. Here it is always one.
	o.Experimental.CompactionScheduler = pebble.NewConcurrencyLimitSchedulerWithNoPeriodicGrantingForTest()
	return o
}

// backgroundError is called with Pebble's mutex held. After it Pebble tries the flush again at once, for ever; the
// pause keeps that from taking a core.
func (d *DB) backgroundError(err error, closing <-chan struct{}) {
	d.fail(err)
	select {
	case <-closing:
	case <-time.After(250 * time.Millisecond):
	}
}

// fail records the first failure of the log. From then on nothing is logged any more. It is called from inside
// Pebble, so it takes no lock.
func (d *DB) fail(err error) {
	if d.failed.CompareAndSwap(nil, &err) {
		d.o.Logger.Error("block log failed", "error", err)
	}
}

func (d *DB) failure() error {
	if p := d.failed.Load(); p != nil {
		return *p
	}
	return nil
}

// apply commits a batch and closes it.
func (d *DB) apply(b *pebble.Batch) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("pebble: %v", r)
			d.fail(err)
		}
	}()
	wo := pebble.Sync
	if d.o.trapNoSync {
		wo = pebble.NoSync
	}
	if err := d.p.Apply(b, wo); err != nil {
		d.fail(err)
		return err
	}
	return b.Close()
}

// closePebble never lets a panic of an engine that has failed reach the caller.
func (d *DB) closePebble() (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("pebble: %v", r)
		}
	}()
	p := d.p
	d.p = nil
	close(d.closing)
	return p.Close()
}

// environmental says whether an error speaks of this host rather than of the files' contents: then nothing is set
// aside, because another start may succeed.
func environmental(err error) bool {
	var no syscall.Errno
	if !errors.As(err, &no) {
		return false
	}
	switch no {
	case syscall.ENOSPC, syscall.EDQUOT, syscall.EACCES, syscall.EPERM, syscall.EROFS, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM:
		return true
	}
	return false
}

// pebbleLogger passes Pebble's log on at debug level. Fatalf comes back: what made Pebble call it has failed the
// database, and logFS keeps from the disk whatever Pebble does after it.
type pebbleLogger struct{ d *DB }

func (l pebbleLogger) log(level slog.Level, format string, args []any) {
	if lg := l.d.o.Logger; lg.Enabled(context.Background(), level) {
		lg.Log(context.Background(), level, "pebble", "text", fmt.Sprintf(format, args...))
	}
}

func (l pebbleLogger) Infof(format string, args ...any)  { l.log(slog.LevelDebug, format, args) }
func (l pebbleLogger) Errorf(format string, args ...any) { l.log(slog.LevelDebug, format, args) }
func (l pebbleLogger) Fatalf(format string, args ...any) { l.d.fail(fmt.Errorf(format, args...)) }
