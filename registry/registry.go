package registry

import "context"

// TakeOver lets a restarted daemon have its name back at once instead of waiting for its old entry's time to live.
type TakeOver struct {
	// OldEpoch is the epoch that this host's previous daemon announced, from its own state directory. The caller
	// vouches that this process is gone. An entry with exactly this epoch is replaced; any other is a live claim.
	// "" takes nothing over.
	OldEpoch string
}

// Directory is one process's access to the registry: it announces at most one node, publishes that node's caches,
// and keeps a View. Methods may be called from several goroutines. Errors are *fault.Error.
//
// Writes that fail with RegistryUnavailable after Announce succeeded are not lost: what was to be said is
// remembered and said by a later heartbeat, so a caller may log the error and go on.
type Directory interface {
	// Announce claims n.Name for n.Epoch and keeps the claim with heartbeats until Close. It tries until ctx ends
	// and then fails with RegistryUnavailable. NameTaken: another epoch holds the name. AlreadyExists: this
	// directory announced a node before. InvalidArgument names the field. Format is set by the directory. A name is
	// only as safe as the directory's memory: after it lost everything, a name is free until its owner's next
	// heartbeat, and an owner that comes too late hears so from Err.
	Announce(ctx context.Context, n Node, t TakeOver) error

	// SetDraining changes the announced node's Draining and publishes it.
	SetDraining(ctx context.Context, draining bool) error

	// PutCache publishes or replaces the announced node's cache of that tenant and name. Format, Node and Epoch are the
	// directory's to set: Node and Epoch may be left empty, and are refused when they name somebody else.
	PutCache(ctx context.Context, c Cache) error

	// DropCache withdraws a tenant's cache; NotFound when this node has none of that name in that tenant.
	DropCache(ctx context.Context, tenant, name string) error

	// View is the local view, the same one on every call. It may be read after Close, then unconnected.
	View() *View

	// Err delivers one error when the announced name was taken over by another epoch (NameTaken). The node must
	// stop granting; this directory writes nothing any more.
	Err() <-chan error

	// Close withdraws this node's entries and ends. When ctx ends first, what is left expires by its time to live
	// and RegistryUnavailable says so; the directory is closed all the same.
	Close(ctx context.Context) error
}
