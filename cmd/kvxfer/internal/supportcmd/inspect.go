package supportcmd

import (
	"context"
	"encoding/json"

	"github.com/kvxfer/kvxfer/cmd/kvxfer/internal/daemon"
	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// maxRows bounds the rows of one file: the archive is sent to people.
const maxRows = 20_000

// table is a file of rows that INSPECT answers. The rows are kept as they came, with fields that this build does not know.
type table struct {
	Stale      bool              `json:"stale,omitempty"` // the registry is away: nodes and caches as it said last
	AllTenants bool              `json:"all_tenants"`     // false: who gathers may see the daemon's own tenant alone
	LeftOff    bool              `json:"left_off,omitempty"`
	Rows       []json.RawMessage `json:"rows"`
}

// inspect asks the daemon for rows, with all that it knows of each, of every tenant where it may.
func inspect(what string) func(*asked) ([]byte, error) {
	return func(a *asked) ([]byte, error) {
		if a.noDaemon != nil {
			return nil, a.noDaemon
		}
		t, err := ask(a.ctx, a.conn, wire.Inspect{What: what, AllTenants: true, Ended: true, Detail: true})
		if fault.CodeOf(err) == fault.PermissionDenied {
			t, err = ask(a.ctx, a.conn, wire.Inspect{What: what, Ended: true, Detail: true})
		}
		if err != nil {
			return nil, err
		}
		return asJSON(t)
	}
}

func ask(ctx context.Context, conn *daemon.Conn, q wire.Inspect) (*table, error) {
	t := &table{AllTenants: q.AllTenants, Rows: []json.RawMessage{}}
	for {
		var info wire.InspectInfo
		array, err := conn.Call(ctx, wire.KindInspect, &q, nil, &info)
		if err != nil {
			return nil, err
		}
		rows, err := wire.Rows[json.RawMessage](array)
		if err != nil {
			return nil, err
		}
		t.Rows, t.Stale = append(t.Rows, rows...), t.Stale || info.Stale
		if q.After = info.Next; q.After == "" {
			return t, nil
		}
		if len(t.Rows) >= maxRows {
			t.LeftOff = true
			return t, nil
		}
	}
}
