package nodecmd

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/kvxfer/kvxfer/cmd/kvxfer/internal/command"
	"github.com/kvxfer/kvxfer/internal/wire"
)

const cachesHelp = `Usage:
  kvxfer caches [--node NODE] [--socket PATH] [--tenant NAME | --all-tenants] [--json]

Lists the caches of all nodes that the registry knows: model, layout, memory, size, and of an engine's rank which one it is.
LAYOUT is the order of a block, then layers (L), KV heads (H), head dimension (D) and tokens a block (T), the element type and
the tensor parallel rank; NUMA, where a cache has it, is the host's memory node. While the registry is away the list is what it said last, and says so.

Flags:
  --node NODE     caches of this node alone
` + tenantFlags + commonFlags + `
Examples:
  kvxfer caches
  kvxfer caches --node decode-0 --json | jq '[.caches[].bytes] | add'
` + exitCodes

// Caches is `kvxfer caches`.
func Caches(args []string, stdout, stderr io.Writer) int {
	v := begin("caches", cachesHelp, stdout, stderr)
	v.tenants()
	node := v.fs.String("node", "", "")
	if _, code, done := v.parse(args, 0, 0, "none"); done {
		return code
	}
	all, info, err := rows[wire.CacheRow](context.Background(), v, wire.Inspect{What: wire.InspectCaches, Node: *node}, 0)
	if err != nil {
		return v.Fail(err)
	}
	if v.JSON {
		return v.PrintJSON(struct {
			Stale  bool            `json:"stale"`
			Caches []wire.CacheRow `json:"caches"`
		}{info.Stale, all})
	}
	head := []string{"CACHE", "NODE", "MODEL", "REVISION", "COMPAT", "LAYOUT", "MEMORY", "BLOCKS", "SIZE", "INSTANCE"}
	if slices.ContainsFunc(all, func(c wire.CacheRow) bool { return c.NUMANode != nil }) {
		head = append(head, "NUMA")
	}
	t := command.NewTable(head...)
	for _, c := range all {
		instance := ""
		if c.Instance != "" {
			instance = fmt.Sprintf("%s %d/%d", c.Instance, c.Rank, c.Ranks)
		}
		numa := ""
		if c.NUMANode != nil {
			numa = strconv.Itoa(*c.NUMANode)
		}
		t.Row(v.memory(c.Tenant, c.Cache), c.Node, c.Model, c.Revision, c.Compat, c.LayoutText, c.MemoryKind, c.Blocks, command.Bytes(uint64(max(0, c.Bytes))), instance, numa)
	}
	return v.print(yes(info.Stale, staleNotice) + t.String())
}
