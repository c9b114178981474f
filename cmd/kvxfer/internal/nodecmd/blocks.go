package nodecmd

import (
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/kvxfer/kvxfer/cmd/kvxfer/internal/command"
	"github.com/kvxfer/kvxfer/internal/wire"
)

const blocksHelp = `Usage:
  kvxfer blocks CACHE [--state STATE] [--each] [--limit N] [--socket PATH] [--tenant NAME | --all-tenants] [--json]

Counts the blocks of a cache of this node by state and lists those that are not FREE, or are HELD. Neighbours that are alike
are one line; a block that is published has a key, of which the beginning is shown. HOLDS counts the pushes and read leases that
have a block read: above 0 it is HELD, and neither leased nor changed.

Flags:
  --state STATE   those in this state alone: FREE, LEASED, COMMITTED, REVOKING, HELD
  --each          a line for each block
  --limit N       at most N blocks (default: all)
` + tenantFlags + commonFlags + `
CACHE is a name; with --all-tenants also TENANT/NAME.

Examples:
  kvxfer blocks decode-0
  kvxfer blocks decode-0 --state LEASED --each
  kvxfer blocks decode-0 --json | jq .counts
` + exitCodes

// Blocks is `kvxfer blocks`.
func Blocks(args []string, stdout, stderr io.Writer) int {
	v := begin("blocks", blocksHelp, stdout, stderr)
	v.tenants()
	state := v.fs.String("state", "", "")
	each := v.fs.Bool("each", false, "")
	limit := v.fs.Int("limit", 0, "")
	names, code, done := v.parse(args, 1, 1, "1: a cache's name")
	if done {
		return code
	}
	q := wire.Inspect{What: wire.InspectBlocks, Cache: names[0], State: *state}
	if err := q.Validate(); err != nil {
		return v.Misused("%v", err)
	}
	if *limit < 0 {
		return v.Misused("--limit %d, allowed 1 and more", *limit)
	}
	all, info, err := rows[wire.BlockRow](context.Background(), v, q, *limit)
	if err != nil {
		return v.Fail(err)
	}
	if v.JSON {
		return v.PrintJSON(struct {
			Cache  string            `json:"cache"`
			Counts *wire.BlockCounts `json:"counts"`
			Blocks []wire.BlockRow   `json:"blocks"`
			More   bool              `json:"more"`
		}{names[0], info.Counts, all, info.Next != ""})
	}
	text := ""
	if n := info.Counts; n != nil {
		text = fmt.Sprintf("%d blocks: %d FREE, %d LEASED, %d COMMITTED, %d REVOKING; %d HELD\n", n.Total, n.Free, n.Leased, n.Committed, n.Revoking, n.Held)
	}
	if len(all) > 0 {
		t := command.NewTable("BLOCKS", "STATE", "GENERATION", "LEASE", "HOLDS", "KEY")
		for _, r := range ranges(all, *each) {
			generation := ""
			if r.Generation != 0 {
				generation = strconv.FormatUint(r.Generation, 10)
			}
			t.Row(r.name(), r.State, generation, short(r.Lease), r.Holds, r.key())
		}
		text += t.String()
	}
	if info.Next != "" {
		text += fmt.Sprintf("More than %d: --limit shows further ones.\n", *limit)
	}
	return v.print(text)
}

// blockRange is neighbouring blocks that differ in nothing but their keys.
type blockRange struct {
	wire.BlockRow // the first
	last          uint32
	keys          int
}

func ranges(all []wire.BlockRow, each bool) (out []blockRange) {
	for _, b := range all {
		keyed := 0
		if b.Key != "" {
			keyed = 1
		}
		if n := len(out) - 1; n >= 0 && !each {
			r := &out[n]
			if b.Block == r.last+1 && b.State == r.State && b.Generation == r.Generation && b.Lease == r.Lease && b.Holds == r.Holds && (b.Key != "") == (r.Key != "") {
				r.last++
				r.keys += keyed
				continue
			}
		}
		out = append(out, blockRange{b, b.Block, keyed})
	}
	return out
}

func (r *blockRange) name() string {
	if r.last == r.Block {
		return strconv.FormatUint(uint64(r.Block), 10)
	}
	return fmt.Sprintf("%d-%d", r.Block, r.last)
}

func (r *blockRange) key() string {
	const most = 16
	switch {
	case r.keys > 1:
		return fmt.Sprintf("%d keys", r.keys)
	case len(r.Key) > most:
		return r.Key[:most] + "..."
	}
	return r.Key
}
