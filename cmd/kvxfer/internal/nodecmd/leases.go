package nodecmd

import (
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/kvxfer/kvxfer/cmd/kvxfer/internal/command"
	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
)

const leasesHelp = `Usage:
  kvxfer leases [ID] [--cache NAME] [--socket PATH] [--tenant NAME | --all-tenants] [--json]

Lists the leases that this node has given: to write blocks, to read them (what several may bind says how many have), on raw
memory (advertise), and of an engine's ranks (instance). Each line says what the lease waits for and for how long. With ID, which
is the beginning of a lease's id or of its transfer's, it says everything about those: which layers are missing, who holds it.

Flags:
  --cache NAME    leases on this cache or region alone
` + tenantFlags + commonFlags + `
Examples:
  kvxfer leases
  kvxfer leases 1e04
  kvxfer leases --json | jq '.leases[] | select(.waiting.for == "fence")'

Exit codes: 0 done; 1 the daemon could not be asked, or no lease has that ID; 2 wrong usage.
`

// Leases is `kvxfer leases`.
func Leases(args []string, stdout, stderr io.Writer) int {
	v := begin("leases", leasesHelp, stdout, stderr)
	v.tenants()
	memory := v.fs.String("cache", "", "")
	names, code, done := v.parse(args, 0, 1, "at most 1: the beginning of an id")
	if done {
		return code
	}
	q := wire.Inspect{What: wire.InspectLeases, Cache: *memory}
	if len(names) > 0 {
		q.ID, q.Detail = names[0], true
	}
	if len(names) > 0 && q.ID == "" {
		return v.Misused("ID is empty: allowed are 1 to 32 lower-case hex digits, or no ID for all")
	}
	if err := q.Validate(); err != nil {
		return v.Misused("%v", err)
	}
	all, _, err := rows[wire.LeaseRow](context.Background(), v, q, 0)
	if err == nil && q.ID != "" && len(all) == 0 {
		err = fault.New(fault.NotFound, "leases", "no lease of this node has an id, or a transfer, that begins with %q", q.ID)
	}
	if err != nil {
		return v.Fail(err)
	}
	if v.JSON {
		return v.PrintJSON(struct {
			Leases []wire.LeaseRow `json:"leases"`
		}{all})
	}
	if q.ID != "" {
		return v.print(v.leaseDetails(all))
	}
	t := command.NewTable("LEASE", "KIND", "STATE", "MEMORY", "BLOCKS", "PEER", "TRANSFER", "ARRIVED", "ENDS IN", "CLIENT", "WAITS FOR", "FOR")
	for _, l := range all {
		what, since := waiting(l.Waiting)
		t.Row(short(l.LeaseID), l.Kind+yes(l.Part != "", " (part)"), l.State, v.memory(l.Tenant, l.Memory), yes(l.Blocks > 0, strconv.Itoa(l.Blocks)), l.Peer, short(l.TransferID), arrived(&l),
			remaining(l.RemainingMs), owner(l.Process, l.Pid), what, since)
	}
	return v.print(t.String())
}

// arrived is how far a lease is: pieces of a writer's, uses of what several may bind.
func arrived(l *wire.LeaseRow) string {
	switch {
	case l.Pieces > 0:
		return fmt.Sprintf("%d/%d", l.Arrived, l.Pieces)
	case l.Uses > 0:
		return fmt.Sprintf("%d of %d bound", l.Used, l.Uses)
	case l.Kind == "advertise":
		return fmt.Sprintf("%d bound", l.Used)
	}
	return ""
}

// blocksText is empty for raw memory, which has none.
func blocksText(n int) string { return yes(n > 0, fmt.Sprintf(", %d blocks", n)) }

func remaining(ms int64) string {
	if ms < 0 {
		return "over"
	}
	return command.Millis(ms)
}

func ends(ms int64) string {
	if ms < 0 {
		return "its time is over"
	}
	return "ends in " + command.Millis(ms)
}

func (v *invocation) leaseDetails(all []wire.LeaseRow) (text string) {
	for i := range all {
		l := &all[i]
		t := command.NewTable("lease", l.LeaseID)
		t.Row("kind", l.Kind+yes(l.Kind != l.Mode, ", to "+l.Mode))
		add(t, "part of", l.Part)
		t.Row("state", fmt.Sprintf("%s, granted %s ago, %s", l.State, command.Millis(l.AgeMs), ends(l.RemainingMs)))
		addWaiting(t, l.Waiting)
		t.Row("memory", fmt.Sprintf("%s of tenant %s%s", l.Memory, l.Tenant, blocksText(l.Blocks)))
		if l.Generation != 0 {
			t.Row("generation", l.Generation)
		}
		add(t, "arrived", arrived(l))
		t.Row("bytes", command.Bytes(l.Bytes))
		add(t, "peer", l.Peer)
		add(t, "provider", l.Provider)
		add(t, "transfer", l.TransferID)
		add(t, "trace", l.TraceID)
		add(t, "client", owner(l.Process, l.Pid))
		addMissing(t, "not arrived", l.Missing)
		for _, h := range l.Holders {
			t.Row("held by", fmt.Sprintf("transfer %s of %s over %s, %s, without progress for %s", h.TransferID, h.Peer, h.Provider, h.State, command.Millis(h.MovedMs)))
		}
		text += yes(i > 0, "\n") + t.String()
	}
	return text
}

func add(t *command.Table, name, value string) {
	if value != "" {
		t.Row(name, value)
	}
}

func addWaiting(t *command.Table, w *wire.Waiting) {
	if w != nil {
		t.Row("waits for", w.Text)
		t.Row("for", command.Millis(w.Ms)+" ("+w.For+")")
	}
}

// addMissing names layers, neighbours with the same number of pieces together.
func addMissing(t *command.Table, name string, gaps []wire.LayerGap) {
	const most = 20
	for i, lines := 0, 0; i < len(gaps); lines++ {
		j := i + 1
		for j < len(gaps) && gaps[j].Pieces == gaps[i].Pieces && gaps[j].Layer == gaps[j-1].Layer+1 {
			j++
		}
		switch {
		case lines == most:
			t.Row(name, fmt.Sprintf("and %d more layers", len(gaps)-i))
			return
		case j == i+1:
			t.Row(name, fmt.Sprintf("layer %d: %d pieces", gaps[i].Layer, gaps[i].Pieces))
		default:
			t.Row(name, fmt.Sprintf("layers %d-%d: %d pieces each", gaps[i].Layer, gaps[j-1].Layer, gaps[i].Pieces))
		}
		i = j
	}
}
