package localapi

import (
	"os"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// operator says whether a client speaks for who runs the daemon: what concerns all clients is for them alone.
func (c *client) operator() bool { return c.uid == 0 || c.uid == os.Geteuid() }

// report is REPORT. A daemon's log and its configuration name other clients and their tenants.
func (c *client) report(r *request) (body any, array []byte, err error) {
	const op = "report"
	var q wire.Report
	if err := decode(r, &q); err != nil {
		return nil, nil, err
	}
	if !c.operator() {
		return nil, nil, fault.New(fault.PermissionDenied, op, "user %d, allowed are root and the daemon's own user", c.uid)
	}
	if c.s.o.Report == nil {
		return nil, nil, fault.New(fault.NotSupported, op, "this daemon reports nothing of itself")
	}
	text, err := c.s.o.Report(q.What)
	return nil, text, err
}
