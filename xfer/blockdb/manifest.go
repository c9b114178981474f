package blockdb

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/record"
)

// checkManifest reads the log's list of tables to its very end. Pebble takes a record that cannot be read for the end that a
// crash left, and goes on with the tables named before it; newer records in the write-ahead log then hide from the witness
// that a table in the middle is missing. A process's death leaves whole records here, as each is one write into the page
// cache, so anything else than a clean end is damage.
func (d *DB) checkManifest() (err error) {
	dir := d.fs.PathJoin(d.o.Dir, dirLog)
	desc, err := pebble.Peek(dir, d.fs)
	if err != nil || !desc.Exists {
		return err // without one Pebble makes a new database, which the witness notices
	}
	f, err := d.fs.Open(desc.ManifestFilename)
	if errors.Is(err, os.ErrNotExist) {
		return nil // Pebble says so
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	r := record.NewReader(f, 0)
	for n := 0; ; n++ {
		rec, err := r.Next()
		if err == nil {
			_, err = io.Copy(io.Discard, rec)
		}
		if err == io.EOF { // the end between two records
			return nil
		}
		if err != nil {
			return fmt.Errorf("the list of tables is damaged behind record %d: %w", n, err)
		}
	}
}
