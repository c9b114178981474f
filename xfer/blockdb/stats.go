package blockdb

// Stats counts what the database did since Open, and says how it stands.
type Stats struct {
	Attaches, Served          uint64 // caches attached; blocks served again by that
	Grants, BlocksGranted     uint64
	Commits, BlocksCommitted  uint64
	Publishes                 uint64
	Revokes, Frees, Evictions uint64 // evictions in blocks
	Refused                   uint64 // steps refused with StoreFailed
	Unlogged                  uint64 // steps done in memory alone after the log failed
	LogWrites, LogBytes       uint64

	Attached, Detached int    // caches, now
	OpenLeases         int    // now
	Committed          int    // blocks of attached caches, now
	DiskFull           bool   // the ballast is gone; grants are refused
	Voided             bool   // the next start serves nothing
	DiskBytes          uint64 // what the log takes on disk, without the ballast
	Failed             string // why the log is not written any more, "" while it is
}

// Stats returns the counts.
func (d *DB) Stats() Stats {
	d.wmu.Lock()
	defer d.wmu.Unlock()
	s := d.stats
	s.Attached, s.Detached = len(d.attached), len(d.dormant)
	for _, c := range d.attached {
		s.OpenLeases += len(c.leases)
		s.Committed += c.committed
	}
	s.DiskFull, s.Voided = d.full.Load(), d.voided
	if !d.closed {
		s.DiskBytes = d.p.Metrics().DiskSpaceUsage()
	}
	if err := d.failure(); err != nil {
		s.Failed = err.Error()
	}
	return s
}
