package localapi

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// What concerns all clients is told to root and the daemon's own user alone; PROBE is for every client.
func TestReportsAreTheOperators(t *testing.T) {
	e := newEngine(t)
	o := options(t, e)
	o.Report = func(what string) ([]byte, error) { return []byte("the " + what), nil }
	s := serve(t, o)
	c := attach(t, s)
	f := c.ask(wire.KindReport, &wire.Report{What: wire.ReportLog}, nil)
	assert.Equal(t, wire.KindOK, f.Kind)
	assert.Equal(t, "the log", string(f.Array))
	c.refused(c.send(wire.KindReport, &wire.Report{What: "everything"}, nil), fault.ErrInvalidArgument, "what")

	probe := &wire.Probe{Node: "n", Provider: "tcp", Bytes: 5, TimeoutMillis: 5}
	assert.Equal(t, wire.ProbeInfo{Node: "n"}, body[wire.ProbeInfo](t, c.ask(wire.KindProbe, probe, nil)))
	assert.Contains(t, e.log(), "probe n tcp 5")
	probe.Bytes = wire.MaxProbeBytes + 1
	c.refused(c.send(wire.KindProbe, probe, nil), fault.ErrInvalidArgument, "bytes")

	raw, err := wire.NewFrame(wire.KindReport, 1, &wire.Report{What: wire.ReportLog}, nil)
	require.NoError(t, err)
	for uid, want := range map[int]error{0: nil, os.Geteuid(): nil, 1 << 30: fault.ErrPermissionDenied} {
		_, _, err := (&client{s: s, uid: uid}).report(&request{Frame: raw})
		require.ErrorIs(t, err, want)
	}
}
