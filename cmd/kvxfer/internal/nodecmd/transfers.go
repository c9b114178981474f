package nodecmd

import (
	"context"
	"io"
	"strconv"

	"github.com/kvxfer/kvxfer/cmd/kvxfer/internal/command"
	"github.com/kvxfer/kvxfer/internal/wire"
)

const transfersHelp = `Usage:
  kvxfer transfers [--all] [--cache NAME] [--socket PATH] [--tenant NAME | --all-tenants] [--json]
  kvxfer transfers show ID [--socket PATH] [--tenant NAME | --all-tenants] [--json]

Lists the transfers that clients of this node have begun (pushes, pulls, scatters of raw memory), each with what it waits for and
for how long without progress. What peers write here or read from here are leases: see kvxfer leases.
MOVED is what is placed, TOOK the time since the request, LEFT what is left of its own, FOR the time without progress;
docs/commands.md explains the words of WAITS FOR.

show says everything about one: ID is the beginning of its id, or of the id of a transfer that holds a lease of this node.
Of an unfinished one it says what it waits for, from the state that this node is in: the link to the peer (which address is
dialled), the peer's answer, this node's client (which layers it has not handed over), the provider (operations outstanding and
queued), a fence (whose).

Flags:
  --all           also the last 256 that are over, the latest first
  --cache NAME    transfers of this cache or region alone
` + tenantFlags + commonFlags + `
Examples:
  kvxfer transfers --all
  kvxfer transfers show 7f03
  kvxfer transfers --json | jq '.transfers[] | select(.moved_ms > 5000) | .waiting'

Exit codes: 0 done; 1 the daemon could not be asked, or no transfer or several have that ID; 2 wrong usage.
`

// Transfers is `kvxfer transfers`.
func Transfers(args []string, stdout, stderr io.Writer) int {
	if len(args) > 0 && args[0] == "show" {
		return show(args[1:], stdout, stderr)
	}
	v := begin("transfers", transfersHelp, stdout, stderr)
	v.tenants()
	ended := v.fs.Bool("all", false, "")
	memory := v.fs.String("cache", "", "")
	if _, code, done := v.parse(args, 0, 0, "none, or show ID"); done {
		return code
	}
	q := wire.Inspect{What: wire.InspectTransfers, Cache: *memory, Ended: *ended}
	if err := q.Validate(); err != nil {
		return v.Misused("%v", err)
	}
	all, _, err := rows[wire.TransferRow](context.Background(), v, q, 0)
	if err != nil {
		return v.Fail(err)
	}
	if v.JSON {
		return v.PrintJSON(struct {
			Transfers []wire.TransferRow `json:"transfers"`
		}{all})
	}
	t := command.NewTable("TRANSFER", "KIND", "STATE", "MEMORY", "BLOCKS", "PEER", "PROVIDER", "MOVED", "TOOK", "LEFT", "CLIENT", "WAITS FOR", "FOR", "ENDED")
	for _, x := range all {
		what, since := waiting(x.Waiting)
		state, left, ago := x.State, remaining(x.RemainingMs), ""
		if x.State == "ENDED" {
			state, left, ago = x.Result, "", command.Millis(x.EndedMs)+" ago"
		}
		t.Row(short(x.TransferID), x.Kind, state, v.memory(x.Tenant, x.Memory), yes(x.Blocks > 0, strconv.Itoa(x.Blocks)), x.Peer, x.Provider, command.Bytes(x.Bytes), command.Millis(x.AgeMs), left,
			owner(x.Process, x.Pid), what, since, ago)
	}
	return v.print(t.String())
}
