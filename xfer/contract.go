package xfer

import (
	"context"
	"time"

	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/rdma"
)

// Sink is how the engine tells a client what happened. Its methods queue and return: they never block and never call
// back into the engine.
type Sink interface {
	LayersVisible(wire.LayersVisible)
	LeaseEnded(ev wire.LeaseEvent, notification []byte)
	// Granted comes before any other event of a lease that another process of the client's engine asked for.
	Granted(ev wire.GrantedEvent, blocks []uint32)
	// Prepared says that posts of a prepared transfer may begin.
	Prepared(wire.PreparedEvent)
	TransferEnded(wire.TransferEvent)
	Released(wire.Released)
	HolderEnded(ev wire.HolderEvent, notification []byte)
}

// ClientID names an attached client; the engine never reuses it.
type ClientID uint64

// ClientInfo says who a client is.
type ClientInfo struct {
	Tenant  string
	Process string
	Pid     int
	Uid     int
}

// Mapping is memory that a client handed over and this process has mapped. Close unmaps it; the engine calls it when
// nothing can touch the memory any more.
type Mapping interface {
	Memory() rdma.Memory
	// Object identifies the memory object itself: a new memfd has another identity.
	Object() (dev, ino uint64)
	Close() error
}

// PeerRef names the incarnation of a node that a ticket speaks of.
type PeerRef struct {
	Node   string
	Epoch  string
	Addr   string // the peer port that the ticket names; a registry's fresher word goes first
	Tenant string
	// Provider is the only one that may be used; "": the best that reaches the peer and is not one of Without.
	Provider string
	Without  []string
}

// Dialer finds or makes the link to a peer. It returns a live link, or PeerUnreachable, StaleEpoch or VersionMismatch
// at the latest when ctx ends; of a provider that ref names and that cannot be used, NotSupported or PeerUnreachable.
type Dialer interface {
	Dial(ctx context.Context, ref PeerRef) (Link, error)
}

// DialWatcher is a Dialer that says how far it is.
type DialWatcher interface {
	// Dialing tells of the attempt under way to reach a peer; false: there is none.
	Dialing(ref PeerRef) (DialState, bool)
}

// DialState is how far an attempt to reach a peer is.
type DialState struct {
	Addr   string        // that is tried now
	Step   string        // what is done there: "connect", "hello", "session"
	For    time.Duration // for how long
	Before string        // why what was tried before did not work
}

// Link is a control connection with its payload session. The side that dialed is the source of all transfers on it.
type Link interface {
	Peer() PeerRef
	Provider() (name, reason string)
	Session() rdma.SessionID
	Initiator() rdma.Initiator // nil on the side that accepted
	Target() rdma.Target       // nil on the side that dialed
	// Send queues a frame; order is kept and it never blocks. An error says that the link is down.
	Send(f wire.Frame) error
	// Close ends the link and its session; LinkDown follows once, from another goroutine, when no LinkFrame of it runs any more.
	Close(reason error)
}

// Directory is where the engine announces its caches. Failures there never touch the data path, so there are none to
// report: the implementation repeats until the directory has it. Its methods queue and return; calls for one tenant
// and name come in order, and the last one counts.
type Directory interface {
	PutCache(c CacheEntry)
	DropCache(tenant, name string)
}

// CacheEntry is what other nodes may know of a cache. Spec has no instance key.
type CacheEntry struct {
	Tenant     string
	Name       string
	ID         string
	MemoryKind string
	NUMANode   *int // where most of the memory lies; nil: unknown, or a host with one
	Spec       wire.RegisterCache
}

// Finder is what the directory knows of other nodes' caches. It answers from memory, never waits and may be stale: who
// is found is asked, and answers for itself.
type Finder interface {
	// Ranks lists the caches of a tenant that are ranks of an instance, in no order.
	Ranks(tenant, instance string) []Rank
	// Holders lists the nodes that have a cache of a model and tenant, each once, in no order.
	Holders(tenant, model string) []PeerRef
}

// Rank is where one rank of an instance is.
type Rank struct {
	Peer  PeerRef
	Cache string
	Rank  uint32
	Ranks uint32 // of the instance
}
