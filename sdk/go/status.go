package kvxfer

import (
	"context"
	"time"

	"github.com/kvxfer/kvxfer/internal/wire"
)

// Status is the daemon as it describes itself.
type Status struct {
	Node              string            // its name
	Epoch             string            // its incarnation, 32 hex digits
	Version           string            // of its software
	PeerAddr          string            // where peers reach it
	HTTPAddr          string            // of its HTTP server, or ""
	Providers         []string          // what can move bytes, best first
	Absent            map[string]string // what the node would have besides and cannot use on its host, each with why
	Draining          bool              // it is shutting down and grants nothing new
	RegistryConnected bool              // the registry answers
	Nodes             []string          // the nodes that it knows

	Clients, Leases, Transfers int // how many it has now
}

// Status asks the daemon for its description of itself. ctx bounds the call, with the client's time-out where it has no
// deadline.
func (c *Client) Status(ctx context.Context) (Status, error) {
	var w wire.Status
	err := c.ask(ctx, request{op: "status", kind: wire.KindStatus, onOK: func(f *wire.Frame) error { return f.Decode(&w) }})
	absent := make(map[string]string, len(w.Absent))
	for _, a := range w.Absent {
		absent[a.Provider] = a.Why
	}
	return Status{Absent: absent, Node: w.Node, Epoch: w.Epoch, Version: w.Version, PeerAddr: w.PeerAddr, HTTPAddr: w.HTTPAddr, Providers: w.Providers,
		Draining: w.Draining, RegistryConnected: w.Registry, Nodes: w.Nodes, Clients: w.Clients, Leases: w.Leases, Transfers: w.Transfers}, err
}

// Ping returns how long a request to the daemon and its answer take. ctx is as for Status.
func (c *Client) Ping(ctx context.Context) (time.Duration, error) {
	start := time.Now()
	err := c.ask(ctx, request{op: "ping", kind: wire.KindPing})
	return time.Since(start), err
}

// BlockState is the state of a block.
type BlockState uint32

// The states. A block that is FREE is not listed.
const (
	StateLeased    = BlockState(wire.StateLeased)
	StateCommitted = BlockState(wire.StateCommitted)
	StateRevoking  = BlockState(wire.StateRevoking)
	StateHeld      = BlockState(wire.StateHeld)
)

// String is the state's name.
func (s BlockState) String() string {
	if names := [...]string{"FREE", "LEASED", "COMMITTED", "REVOKING", "HELD"}; int(s) < len(names) {
		return names[s]
	}
	return "unknown"
}

// BlockEntry is one block's state.
type BlockEntry struct {
	Block uint32
	State BlockState
	// Generation is what a COMMITTED block was committed under, and a LEASED one will be; else 0.
	Generation uint64
}

// BlockStates are the states of a cache's blocks at one moment.
type BlockStates struct {
	Total, Free, Leased, Committed, Revoking, Held int // how many
	Blocks                                         []BlockEntry
}

// BlockStates asks for the state of every block; Blocks has an entry for each that is not FREE. ctx bounds the call, with 5
// seconds where it has no deadline.
func (c *Cache) BlockStates(ctx context.Context) (BlockStates, error) {
	const op = "block_states"
	at, err := c.use(op)
	if err != nil {
		return BlockStates{}, err
	}
	ctx, cancel := bounded(ctx, defaultTimeout)
	defer cancel()
	var info wire.BlocksInfo
	var entries []wire.BlockEntry
	fe, _ := at.session.conn.request(ctx, request{op: op, kind: wire.KindBlocks, body: &wire.BlocksQuery{Cache: at.cache}, onOK: func(f *wire.Frame) (err error) {
		if err = f.Decode(&info); err == nil {
			entries, err = wire.BlockEntries(f.Array)
		}
		return err
	}})
	if fe != nil {
		return BlockStates{}, newError(fe, true, nil)
	}
	out := BlockStates{Total: int(info.Total), Leased: int(info.Leased), Committed: int(info.Committed), Revoking: int(info.Revoking), Held: int(info.Held)}
	out.Free = out.Total - out.Leased - out.Committed - out.Revoking - out.Held
	for _, e := range entries {
		out.Blocks = append(out.Blocks, BlockEntry{e.Block, BlockState(e.State), e.Generation})
	}
	return out, nil
}
