// Code generated from internal/fault/table.json by internal/fault/gen; DO NOT EDIT.

package kvxfer

import "github.com/kvxfer/kvxfer/internal/fault"

// The groups of errors, for errors.Is. An [*Error] matches its group's sentinel and its own. The tree:
//
//	*Error
//	+-- ErrRequest
//	|   +-- ErrInvalidArgument
//	|   +-- ErrNotSupported
//	|   +-- ErrNotFound
//	|   +-- ErrAlreadyExists
//	|   +-- ErrBlocksBusy
//	|   +-- ErrResourceExhausted
//	|   +-- ErrMemoryRejected
//	|   +-- ErrPermissionDenied
//	+-- ErrTransfer
//	|   +-- ErrTicketInvalid
//	|   +-- ErrTicketBound
//	|   +-- ErrLeaseExpired
//	|   +-- ErrLeaseRevoked
//	|   +-- ErrLayoutMismatch
//	|   +-- ErrPeerLost
//	|   +-- ErrPeerUnreachable
//	|   +-- ErrStaleEpoch
//	|   +-- ErrDeadlineExceeded
//	|   +-- ErrCancelled
//	|   +-- ErrMemoryFault
//	|   +-- ErrOutOfBounds
//	|   +-- ErrStaleKey
//	|   +-- ErrClientGone
//	+-- ErrDaemon
//	|   +-- ErrVersionMismatch
//	|   +-- ErrFeatureRequired
//	|   +-- ErrProtocolViolation
//	|   +-- ErrDaemonUnavailable
//	|   +-- ErrClosed
//	|   +-- ErrForkedClient
//	+-- ErrNode
//	|   +-- ErrInternal
//	|   +-- ErrDraining
//	|   +-- ErrNameTaken
//	|   +-- ErrRegistryUnavailable
//	|   +-- ErrStoreFailed
//	|   +-- ErrConfigInvalid
var (
	// ErrRequest: The request itself could not be accepted; nothing was changed.
	ErrRequest error = group("RequestError")
	// ErrTransfer: A lease or transfer ended without the result that was asked for.
	ErrTransfer error = group("TransferError")
	// ErrDaemon: The daemon or the protocol with it could not be used.
	ErrDaemon error = group("DaemonError")
	// ErrNode: The node cannot serve the request in its present state.
	ErrNode error = group("NodeError")
)

// The errors, one a row of the error table, for errors.Is.
var (
	// ErrInternal: The node met an operating system failure or a defect of its own.
	ErrInternal = fault.ErrInternal
	// ErrInvalidArgument: A field is outside its allowed range; the message names the field and the range.
	ErrInvalidArgument = fault.ErrInvalidArgument
	// ErrNotSupported: This host or this version cannot do what was asked.
	ErrNotSupported = fault.ErrNotSupported
	// ErrNotFound: The named cache, region, lease, transfer or node is not known here.
	ErrNotFound = fault.ErrNotFound
	// ErrAlreadyExists: A cache, region or node of that name is already there.
	ErrAlreadyExists = fault.ErrAlreadyExists
	// ErrBlocksBusy: A block is leased, held or being fenced and cannot be leased now.
	ErrBlocksBusy = fault.ErrBlocksBusy
	// ErrResourceExhausted: A quota of clients, regions, leases, bytes or queued requests is used up.
	ErrResourceExhausted = fault.ErrResourceExhausted
	// ErrMemoryRejected: A file descriptor handed over is not memory that can be shared safely: seals, size or allocation are wrong.
	ErrMemoryRejected = fault.ErrMemoryRejected
	// ErrPermissionDenied: The caller's user, tenant or session has no right to this.
	ErrPermissionDenied = fault.ErrPermissionDenied
	// ErrTicketInvalid: The ticket cannot be read, is forged, or names a lease that is not there.
	ErrTicketInvalid = fault.ErrTicketInvalid
	// ErrTicketBound: The lease already belongs to another transfer.
	ErrTicketBound = fault.ErrTicketBound
	// ErrLeaseExpired: The lease's time ran out on the owner's clock before the transfer was complete.
	ErrLeaseExpired = fault.ErrLeaseExpired
	// ErrLeaseRevoked: The owner took the blocks back.
	ErrLeaseRevoked = fault.ErrLeaseRevoked
	// ErrLayoutMismatch: The caches on the two sides differ in a field that must agree; the message names it.
	ErrLayoutMismatch = fault.ErrLayoutMismatch
	// ErrPeerLost: The connection to the peer node ended or its heartbeat stopped.
	ErrPeerLost = fault.ErrPeerLost
	// ErrPeerUnreachable: The peer node could not be reached.
	ErrPeerUnreachable = fault.ErrPeerUnreachable
	// ErrStaleEpoch: The peer was restarted since the ticket was made.
	ErrStaleEpoch = fault.ErrStaleEpoch
	// ErrDeadlineExceeded: The operation did not end within its time.
	ErrDeadlineExceeded = fault.ErrDeadlineExceeded
	// ErrCancelled: The operation was cancelled by its caller.
	ErrCancelled = fault.ErrCancelled
	// ErrMemoryFault: A page of a registered region could not be read or written (a hole was punched, or no memory was left).
	ErrMemoryFault = fault.ErrMemoryFault
	// ErrOutOfBounds: A range lies outside the window or region it names.
	ErrOutOfBounds = fault.ErrOutOfBounds
	// ErrStaleKey: The window's key is unknown or fenced.
	ErrStaleKey = fault.ErrStaleKey
	// ErrClientGone: The client that owns the memory on the other side went away.
	ErrClientGone = fault.ErrClientGone
	// ErrVersionMismatch: The two sides have no protocol version in common; the message names both ranges.
	ErrVersionMismatch = fault.ErrVersionMismatch
	// ErrFeatureRequired: The other side requires a feature that is unknown here; the message names it.
	ErrFeatureRequired = fault.ErrFeatureRequired
	// ErrProtocolViolation: A frame is malformed, too large or not allowed in this state.
	ErrProtocolViolation = fault.ErrProtocolViolation
	// ErrDaemonUnavailable: The local daemon is not there or does not answer.
	ErrDaemonUnavailable = fault.ErrDaemonUnavailable
	// ErrClosed: The client, cache or session was closed.
	ErrClosed = fault.ErrClosed
	// ErrForkedClient: The client was used in a forked child; connect again there.
	ErrForkedClient = fault.ErrForkedClient
	// ErrDraining: The node is shutting down and grants nothing new.
	ErrDraining = fault.ErrDraining
	// ErrNameTaken: A live node already uses this name.
	ErrNameTaken = fault.ErrNameTaken
	// ErrRegistryUnavailable: The registry does not answer.
	ErrRegistryUnavailable = fault.ErrRegistryUnavailable
	// ErrStoreFailed: The block metadata could not be written.
	ErrStoreFailed = fault.ErrStoreFailed
	// ErrConfigInvalid: A configuration field is wrong; the message names the field, where it was set and the allowed values.
	ErrConfigInvalid = fault.ErrConfigInvalid
)

// rows finds a row by the name that Error.Code has.
var rows = map[string]row{
	"Internal":            {ErrInternal, ErrNode},
	"InvalidArgument":     {ErrInvalidArgument, ErrRequest},
	"NotSupported":        {ErrNotSupported, ErrRequest},
	"NotFound":            {ErrNotFound, ErrRequest},
	"AlreadyExists":       {ErrAlreadyExists, ErrRequest},
	"BlocksBusy":          {ErrBlocksBusy, ErrRequest},
	"ResourceExhausted":   {ErrResourceExhausted, ErrRequest},
	"MemoryRejected":      {ErrMemoryRejected, ErrRequest},
	"PermissionDenied":    {ErrPermissionDenied, ErrRequest},
	"TicketInvalid":       {ErrTicketInvalid, ErrTransfer},
	"TicketBound":         {ErrTicketBound, ErrTransfer},
	"LeaseExpired":        {ErrLeaseExpired, ErrTransfer},
	"LeaseRevoked":        {ErrLeaseRevoked, ErrTransfer},
	"LayoutMismatch":      {ErrLayoutMismatch, ErrTransfer},
	"PeerLost":            {ErrPeerLost, ErrTransfer},
	"PeerUnreachable":     {ErrPeerUnreachable, ErrTransfer},
	"StaleEpoch":          {ErrStaleEpoch, ErrTransfer},
	"DeadlineExceeded":    {ErrDeadlineExceeded, ErrTransfer},
	"Cancelled":           {ErrCancelled, ErrTransfer},
	"MemoryFault":         {ErrMemoryFault, ErrTransfer},
	"OutOfBounds":         {ErrOutOfBounds, ErrTransfer},
	"StaleKey":            {ErrStaleKey, ErrTransfer},
	"ClientGone":          {ErrClientGone, ErrTransfer},
	"VersionMismatch":     {ErrVersionMismatch, ErrDaemon},
	"FeatureRequired":     {ErrFeatureRequired, ErrDaemon},
	"ProtocolViolation":   {ErrProtocolViolation, ErrDaemon},
	"DaemonUnavailable":   {ErrDaemonUnavailable, ErrDaemon},
	"Closed":              {ErrClosed, ErrDaemon},
	"ForkedClient":        {ErrForkedClient, ErrDaemon},
	"Draining":            {ErrDraining, ErrNode},
	"NameTaken":           {ErrNameTaken, ErrNode},
	"RegistryUnavailable": {ErrRegistryUnavailable, ErrNode},
	"StoreFailed":         {ErrStoreFailed, ErrNode},
	"ConfigInvalid":       {ErrConfigInvalid, ErrNode},
}
