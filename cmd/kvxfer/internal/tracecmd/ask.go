package tracecmd

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/kvxfer/kvxfer/cmd/kvxfer/internal/daemon"
	"github.com/kvxfer/kvxfer/internal/traceview"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// minTimeout and maxTimeout bound --timeout; the protocol takes a day, nobody at a terminal does.
const (
	minTimeout = time.Millisecond
	maxTimeout = time.Hour
)

// ask reads the trace that id names from the daemon, "" for every trace that it keeps. It returns the trace's whole id.
func (c *invocation) ask(id string) (set *traceview.Set, whole string, err error) {
	// The daemon itself answers within the time-out, with what it has by then; this end waits a little longer.
	ctx, cancel := context.WithTimeout(context.Background(), c.timeout+daemon.DefaultTimeout)
	defer cancel()
	conn, err := daemon.Dial(ctx, c.socket, c.tenant)
	if err != nil {
		return nil, "", err
	}
	defer conn.Close()
	q := wire.TraceQuery{ID: strings.ToLower(id), LocalOnly: c.local, TimeoutMillis: c.timeout.Milliseconds()}
	if err := q.Validate(); err != nil {
		return nil, "", err
	}
	var info wire.TraceInfo
	lines, err := conn.Call(ctx, wire.KindTrace, &q, nil, &info)
	if err != nil {
		return nil, "", err
	}
	if len(info.Unasked) > 0 {
		fmt.Fprintf(c.Stderr, "kvxfer trace: did not answer, so what they keep is missing: %s\n", strings.Join(info.Unasked, ", "))
	}
	if info.LeftOff > 0 {
		fmt.Fprintf(c.Stderr, "kvxfer trace: %d spans are left off, an answer of that size does not fit\n", info.LeftOff)
	}
	set, err = traceview.Read(bytes.NewReader(lines))
	return set, info.TraceID, err
}
