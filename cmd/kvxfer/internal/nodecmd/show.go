package nodecmd

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/kvxfer/kvxfer/cmd/kvxfer/internal/command"
	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// mostNamed bounds the ids that an error lists.
const mostNamed = 8

// show is `kvxfer transfers show`. A transfer that peers began is known here by the lease it holds.
func show(args []string, stdout, stderr io.Writer) int {
	v := begin("transfers show", transfersHelp, stdout, stderr)
	v.tenants()
	names, code, done := v.parse(args, 1, 1, "1: the beginning of a transfer's id")
	if done {
		return code
	}
	q := wire.Inspect{What: wire.InspectTransfers, ID: names[0], Ended: true, Detail: true}
	if err := q.Validate(); err != nil || q.ID == "" {
		return v.Misused("%q is not the beginning of an id: allowed are 1 to 32 lower-case hex digits", names[0])
	}
	ctx := context.Background()
	conn, err := v.dial(ctx)
	if err != nil {
		return v.Fail(err)
	}
	defer conn.Close()
	transfers, _, err := pages[wire.TransferRow](ctx, conn, v, q, 0)
	if err != nil {
		return v.Fail(err)
	}
	q.What, q.Ended = wire.InspectLeases, false
	leases, _, err := pages[wire.LeaseRow](ctx, conn, v, q, 0)
	if err != nil {
		return v.Fail(err)
	}
	leases = held(leases, q.ID)
	if err := one(q.ID, conn.Hello.Node, transfers, leases); err != nil {
		return v.Fail(err)
	}
	if v.JSON {
		return v.PrintJSON(struct {
			Transfers []wire.TransferRow `json:"transfers"`
			Leases    []wire.LeaseRow    `json:"leases"`
		}{transfers, leases})
	}
	text := transferDetails(transfers)
	if len(leases) > 0 {
		text += yes(text != "", "\n") + v.leaseDetails(leases)
	}
	return v.print(text)
}

// held keeps the leases that a transfer with that id holds: the daemon also lists those whose own id begins so.
func held(all []wire.LeaseRow, id string) []wire.LeaseRow {
	out := []wire.LeaseRow{}
	for _, l := range all {
		hit := strings.HasPrefix(l.TransferID, id)
		for _, h := range l.Holders {
			hit = hit || strings.HasPrefix(h.TransferID, id)
		}
		if hit {
			out = append(out, l)
		}
	}
	return out
}

// one refuses what is no transfer or several. One transfer may be several rows: of an engine's ranks, attempts, both ends.
func one(id, node string, transfers []wire.TransferRow, leases []wire.LeaseRow) error {
	ids := map[string]bool{}
	var names []string
	add := func(x string) {
		if strings.HasPrefix(x, id) && !ids[x] {
			ids[x] = true
			names = append(names, x)
		}
	}
	for _, t := range transfers {
		add(t.TransferID)
	}
	for _, l := range leases {
		add(l.TransferID)
		for _, h := range l.Holders {
			add(h.TransferID)
		}
	}
	switch n := len(names); {
	case n == 0:
		return fault.New(fault.NotFound, "transfers show", "no transfer that runs on node %s, and none of its last ones, has an id that begins with %q; what peers did here is forgotten when it ends", node, id)
	case n > 1:
		return fault.Invalid("transfers show", "id", "%q begins the ids of %d transfers, allowed is that of one: %s", id, n, strings.Join(names[:min(n, mostNamed)], ", "))
	}
	return nil
}

func transferDetails(all []wire.TransferRow) (text string) {
	for i := range all {
		x := &all[i]
		t := command.NewTable("transfer", x.TransferID)
		t.Row("kind", fmt.Sprintf("%s, to %s, attempt %d", x.Kind, x.Mode, x.Attempt))
		if x.State == "ENDED" {
			t.Row("result", fmt.Sprintf("%s, %s ago, after %s", x.Result, command.Millis(x.EndedMs), command.Millis(x.AgeMs)))
		} else {
			t.Row("state", fmt.Sprintf("%s, begun %s ago, %s at the latest", x.State, command.Millis(x.AgeMs), ends(x.RemainingMs)))
			addWaiting(t, x.Waiting)
			t.Row("progress", "last "+command.Millis(x.MovedMs)+" ago")
			add(t, "told", x.Result)
		}
		if err := fault.FromWire(x.Error); err != nil {
			t.Row("error", err)
		}
		t.Row("memory", fmt.Sprintf("%s of tenant %s%s", x.Memory, x.Tenant, blocksText(x.Blocks)))
		t.Row("peer", fmt.Sprintf("%s at %s, lease %s", x.Peer, x.PeerAddr, x.LeaseID))
		if x.Provider != "" {
			t.Row("provider", fmt.Sprintf("%s (%s)", x.Provider, x.Reason))
		}
		t.Row("pieces", fmt.Sprintf("%d: %d handed over, %d placed, %d outstanding", x.Pieces, x.HandedOver, x.Placed, x.Outstanding))
		t.Row("bytes", fmt.Sprintf("%s placed, some on their way for %s", command.Bytes(x.Bytes), command.Millis(x.BusyMs)))
		if x.State != "ENDED" && x.Provider != "" {
			t.Row("operations", fmt.Sprintf("%d posted, %d parts queued, %d of all transfers on the link", x.Operations, x.Queued, x.Depth))
		}
		addMissing(t, "not handed over", x.Missing)
		add(t, "instance", x.Instance)
		add(t, "trace", x.TraceID)
		add(t, "client", owner(x.Process, x.Pid))
		text += yes(i > 0, "\n") + t.String()
	}
	return text
}
