// Code generated from table.json by internal/fault/gen; DO NOT EDIT.

package fault

import "strconv"

// The codes of the error table.
const (
	// Internal: The node met an operating system failure or a defect of its own.
	Internal Code = 1
	// InvalidArgument: A field is outside its allowed range; the message names the field and the range.
	InvalidArgument Code = 2
	// NotSupported: This host or this version cannot do what was asked.
	NotSupported Code = 3
	// NotFound: The named cache, region, lease, transfer or node is not known here.
	NotFound Code = 4
	// AlreadyExists: A cache, region or node of that name is already there.
	AlreadyExists Code = 5
	// BlocksBusy: A block is leased, held or being fenced and cannot be leased now.
	BlocksBusy Code = 6
	// ResourceExhausted: A quota of clients, regions, leases, bytes or queued requests is used up.
	ResourceExhausted Code = 7
	// MemoryRejected: A file descriptor handed over is not memory that can be shared safely: seals, size or allocation are wrong.
	MemoryRejected Code = 8
	// PermissionDenied: The caller's user, tenant or session has no right to this.
	PermissionDenied Code = 9
	// TicketInvalid: The ticket cannot be read, is forged, or names a lease that is not there.
	TicketInvalid Code = 20
	// TicketBound: The lease already belongs to another transfer.
	TicketBound Code = 21
	// LeaseExpired: The lease's time ran out on the owner's clock before the transfer was complete.
	LeaseExpired Code = 22
	// LeaseRevoked: The owner took the blocks back.
	LeaseRevoked Code = 23
	// LayoutMismatch: The caches on the two sides differ in a field that must agree; the message names it.
	LayoutMismatch Code = 24
	// PeerLost: The connection to the peer node ended or its heartbeat stopped.
	PeerLost Code = 25
	// PeerUnreachable: The peer node could not be reached.
	PeerUnreachable Code = 26
	// StaleEpoch: The peer was restarted since the ticket was made.
	StaleEpoch Code = 27
	// DeadlineExceeded: The operation did not end within its time.
	DeadlineExceeded Code = 28
	// Cancelled: The operation was cancelled by its caller.
	Cancelled Code = 29
	// MemoryFault: A page of a registered region could not be read or written (a hole was punched, or no memory was left).
	MemoryFault Code = 30
	// OutOfBounds: A range lies outside the window or region it names.
	OutOfBounds Code = 31
	// StaleKey: The window's key is unknown or fenced.
	StaleKey Code = 32
	// ClientGone: The client that owns the memory on the other side went away.
	ClientGone Code = 33
	// VersionMismatch: The two sides have no protocol version in common; the message names both ranges.
	VersionMismatch Code = 40
	// FeatureRequired: The other side requires a feature that is unknown here; the message names it.
	FeatureRequired Code = 41
	// ProtocolViolation: A frame is malformed, too large or not allowed in this state.
	ProtocolViolation Code = 42
	// DaemonUnavailable: The local daemon is not there or does not answer.
	DaemonUnavailable Code = 43
	// Closed: The client, cache or session was closed.
	Closed Code = 44
	// ForkedClient: The client was used in a forked child; connect again there.
	ForkedClient Code = 45
	// Draining: The node is shutting down and grants nothing new.
	Draining Code = 60
	// NameTaken: A live node already uses this name.
	NameTaken Code = 61
	// RegistryUnavailable: The registry does not answer.
	RegistryUnavailable Code = 62
	// StoreFailed: The block metadata could not be written.
	StoreFailed Code = 63
	// ConfigInvalid: A configuration field is wrong; the message names the field, where it was set and the allowed values.
	ConfigInvalid Code = 64
)

// The sentinels, one a code, for errors.Is.
var (
	ErrInternal            error = sentinel(Internal)
	ErrInvalidArgument     error = sentinel(InvalidArgument)
	ErrNotSupported        error = sentinel(NotSupported)
	ErrNotFound            error = sentinel(NotFound)
	ErrAlreadyExists       error = sentinel(AlreadyExists)
	ErrBlocksBusy          error = sentinel(BlocksBusy)
	ErrResourceExhausted   error = sentinel(ResourceExhausted)
	ErrMemoryRejected      error = sentinel(MemoryRejected)
	ErrPermissionDenied    error = sentinel(PermissionDenied)
	ErrTicketInvalid       error = sentinel(TicketInvalid)
	ErrTicketBound         error = sentinel(TicketBound)
	ErrLeaseExpired        error = sentinel(LeaseExpired)
	ErrLeaseRevoked        error = sentinel(LeaseRevoked)
	ErrLayoutMismatch      error = sentinel(LayoutMismatch)
	ErrPeerLost            error = sentinel(PeerLost)
	ErrPeerUnreachable     error = sentinel(PeerUnreachable)
	ErrStaleEpoch          error = sentinel(StaleEpoch)
	ErrDeadlineExceeded    error = sentinel(DeadlineExceeded)
	ErrCancelled           error = sentinel(Cancelled)
	ErrMemoryFault         error = sentinel(MemoryFault)
	ErrOutOfBounds         error = sentinel(OutOfBounds)
	ErrStaleKey            error = sentinel(StaleKey)
	ErrClientGone          error = sentinel(ClientGone)
	ErrVersionMismatch     error = sentinel(VersionMismatch)
	ErrFeatureRequired     error = sentinel(FeatureRequired)
	ErrProtocolViolation   error = sentinel(ProtocolViolation)
	ErrDaemonUnavailable   error = sentinel(DaemonUnavailable)
	ErrClosed              error = sentinel(Closed)
	ErrForkedClient        error = sentinel(ForkedClient)
	ErrDraining            error = sentinel(Draining)
	ErrNameTaken           error = sentinel(NameTaken)
	ErrRegistryUnavailable error = sentinel(RegistryUnavailable)
	ErrStoreFailed         error = sentinel(StoreFailed)
	ErrConfigInvalid       error = sentinel(ConfigInvalid)
)

// String returns the code's name in the table.
func (c Code) String() string {
	switch c {
	case Internal:
		return "Internal"
	case InvalidArgument:
		return "InvalidArgument"
	case NotSupported:
		return "NotSupported"
	case NotFound:
		return "NotFound"
	case AlreadyExists:
		return "AlreadyExists"
	case BlocksBusy:
		return "BlocksBusy"
	case ResourceExhausted:
		return "ResourceExhausted"
	case MemoryRejected:
		return "MemoryRejected"
	case PermissionDenied:
		return "PermissionDenied"
	case TicketInvalid:
		return "TicketInvalid"
	case TicketBound:
		return "TicketBound"
	case LeaseExpired:
		return "LeaseExpired"
	case LeaseRevoked:
		return "LeaseRevoked"
	case LayoutMismatch:
		return "LayoutMismatch"
	case PeerLost:
		return "PeerLost"
	case PeerUnreachable:
		return "PeerUnreachable"
	case StaleEpoch:
		return "StaleEpoch"
	case DeadlineExceeded:
		return "DeadlineExceeded"
	case Cancelled:
		return "Cancelled"
	case MemoryFault:
		return "MemoryFault"
	case OutOfBounds:
		return "OutOfBounds"
	case StaleKey:
		return "StaleKey"
	case ClientGone:
		return "ClientGone"
	case VersionMismatch:
		return "VersionMismatch"
	case FeatureRequired:
		return "FeatureRequired"
	case ProtocolViolation:
		return "ProtocolViolation"
	case DaemonUnavailable:
		return "DaemonUnavailable"
	case Closed:
		return "Closed"
	case ForkedClient:
		return "ForkedClient"
	case Draining:
		return "Draining"
	case NameTaken:
		return "NameTaken"
	case RegistryUnavailable:
		return "RegistryUnavailable"
	case StoreFailed:
		return "StoreFailed"
	case ConfigInvalid:
		return "ConfigInvalid"
	}
	return "Code(" + strconv.Itoa(int(c)) + ")"
}

// Known reports whether this version's table has the code.
func (c Code) Known() bool {
	switch c {
	case Internal,
		InvalidArgument,
		NotSupported,
		NotFound,
		AlreadyExists,
		BlocksBusy,
		ResourceExhausted,
		MemoryRejected,
		PermissionDenied,
		TicketInvalid,
		TicketBound,
		LeaseExpired,
		LeaseRevoked,
		LayoutMismatch,
		PeerLost,
		PeerUnreachable,
		StaleEpoch,
		DeadlineExceeded,
		Cancelled,
		MemoryFault,
		OutOfBounds,
		StaleKey,
		ClientGone,
		VersionMismatch,
		FeatureRequired,
		ProtocolViolation,
		DaemonUnavailable,
		Closed,
		ForkedClient,
		Draining,
		NameTaken,
		RegistryUnavailable,
		StoreFailed,
		ConfigInvalid:
		return true
	}
	return false
}

// Retryable is the table's answer to: may the same request be made again?
func (c Code) Retryable() bool {
	switch c {
	case BlocksBusy,
		ResourceExhausted,
		LeaseExpired,
		LeaseRevoked,
		PeerLost,
		PeerUnreachable,
		StaleEpoch,
		DeadlineExceeded,
		Cancelled,
		ClientGone,
		DaemonUnavailable,
		Draining,
		RegistryUnavailable:
		return true
	}
	return false
}
