package nodecmd

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/kvxfer/kvxfer/cmd/kvxfer/internal/command"
	"github.com/kvxfer/kvxfer/internal/wire"
)

const nodesHelp = `Usage:
  kvxfer nodes [--socket PATH] [--json]

Lists the nodes that the registry knows, as this host's daemon sees them. "*" marks the daemon that answers; TOLD is how long
ago the registry last told of a node, which is no sign of life: a node that gives none is taken out of the list. While the
registry is away the list is what it said last, and says so.

Flags:
` + commonFlags + `
Examples:
  kvxfer nodes
  kvxfer nodes --json | jq -r '.nodes[] | select(.draining) | .node'
` + exitCodes

// Nodes is `kvxfer nodes`.
func Nodes(args []string, stdout, stderr io.Writer) int {
	v := begin("nodes", nodesHelp, stdout, stderr)
	if _, code, done := v.parse(args, 0, 0, "none"); done {
		return code
	}
	all, info, err := rows[wire.NodeRow](context.Background(), v, wire.Inspect{What: wire.InspectNodes}, 0)
	if err != nil {
		return v.Fail(err)
	}
	if v.JSON {
		return v.PrintJSON(struct {
			Stale bool           `json:"stale"`
			Nodes []wire.NodeRow `json:"nodes"`
		}{info.Stale, all})
	}
	t := command.NewTable("NODE", "ADDRESS", "VERSION", "PROTOCOL", "PROVIDERS", "MEMORY", "STATE", "TOLD", "EPOCH")
	for _, n := range all {
		state := "serving"
		if n.Draining {
			state = "draining"
		}
		t.Row(n.Node+yes(n.Own, " *"), n.PeerAddr, n.Version, fmt.Sprintf("%d-%d", n.MinProtocol, n.MaxProtocol), strings.Join(n.Providers, ","),
			strings.Join(n.MemoryKinds, ","), state, command.Millis(n.ToldMs), short(n.Epoch))
	}
	return v.print(yes(info.Stale, staleNotice) + t.String())
}
