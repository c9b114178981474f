# Generated from internal/fault/table.json by internal/fault/gen; do not edit.
"""The exceptions of kvxfer, one class per row of the error table.

The tree::

    KvxferError
    +-- RequestError
    |   +-- InvalidArgument
    |   +-- NotSupported
    |   +-- NotFound
    |   +-- AlreadyExists
    |   +-- BlocksBusy
    |   +-- ResourceExhausted
    |   +-- MemoryRejected
    |   +-- PermissionDenied
    +-- TransferError
    |   +-- TicketInvalid
    |   +-- TicketBound
    |   +-- LeaseExpired
    |   +-- LeaseRevoked
    |   +-- LayoutMismatch
    |   +-- PeerLost
    |   +-- PeerUnreachable
    |   +-- StaleEpoch
    |   +-- DeadlineExceeded
    |   +-- Cancelled
    |   +-- MemoryFault
    |   +-- OutOfBounds
    |   +-- StaleKey
    |   +-- ClientGone
    +-- DaemonError
    |   +-- VersionMismatch
    |   +-- FeatureRequired
    |   +-- ProtocolViolation
    |   +-- DaemonUnavailable
    |   +-- Closed
    |   +-- ForkedClient
    +-- NodeError
    |   +-- Internal
    |   +-- Draining
    |   +-- NameTaken
    |   +-- RegistryUnavailable
    |   +-- StoreFailed
    |   +-- ConfigInvalid
"""

from __future__ import annotations

from typing import Any


class KvxferError(Exception):
    """Base of every error that kvxfer raises.

    Attributes:
        code: the number of the error in the table and on the wire.
        op: what was being done.
        peer: the node on the other side, or "".
        region: the region or cache concerned, or "".
        field: the field that was wrong, or "".
        detail: one sentence; names the allowed range where a field was wrong.
        may_have_written: bytes of the target's blocks may have been changed before the failure.
        retryable: the same request may be made again (under a new lease where it wrote).
        released: True when the memory of the caller's side is reusable now; False while it is HELD and a later
            fence must be awaited; None where no memory was involved.
        guarantee: "live-client-only" where memory is concerned whose promise ends with its client's process; "full"
            otherwise.
    """

    code: int = 0
    _retryable: bool = False

    def __init__(
        self,
        detail: str = "",
        *,
        op: str = "",
        peer: str = "",
        region: str = "",
        field: str = "",
        may_have_written: bool = False,
        retryable: bool | None = None,
        released: bool | None = None,
        guarantee: str = "full",
    ) -> None:
        self.op = op
        self.peer = peer
        self.region = region
        self.field = field
        self.detail = detail
        self.may_have_written = may_have_written
        self.retryable = self._retryable if retryable is None else retryable
        self.released = released
        self.guarantee = guarantee
        super().__init__(self._text())

    def _text(self) -> str:
        head = f"{self.op}: " if self.op else ""
        named = (("peer", self.peer), ("region", self.region), ("field", self.field))
        marks = "".join(f" {k}={v!r}" for k, v in named if v)
        tail = f": {self.detail}" if self.detail else ""
        wrote = " (target bytes may have been written)" if self.may_have_written else ""
        weak = f" (guarantee: {self.guarantee})" if self.guarantee != "full" else ""
        return f"{head}{type(self).__name__}{marks}{tail}{wrote}{weak}"


class RequestError(KvxferError):
    """The request itself could not be accepted; nothing was changed."""


class TransferError(KvxferError):
    """A lease or transfer ended without the result that was asked for."""


class DaemonError(KvxferError):
    """The daemon or the protocol with it could not be used."""


class NodeError(KvxferError):
    """The node cannot serve the request in its present state."""


class Internal(NodeError):
    """The node met an operating system failure or a defect of its own."""

    code = 1
    _retryable = False


class InvalidArgument(RequestError):
    """A field is outside its allowed range; the message names the field and the range."""

    code = 2
    _retryable = False


class NotSupported(RequestError):
    """This host or this version cannot do what was asked."""

    code = 3
    _retryable = False


class NotFound(RequestError):
    """The named cache, region, lease, transfer or node is not known here."""

    code = 4
    _retryable = False


class AlreadyExists(RequestError):
    """A cache, region or node of that name is already there."""

    code = 5
    _retryable = False


class BlocksBusy(RequestError):
    """A block is leased, held or being fenced and cannot be leased now."""

    code = 6
    _retryable = True


class ResourceExhausted(RequestError):
    """A quota of clients, regions, leases, bytes or queued requests is used up."""

    code = 7
    _retryable = True


class MemoryRejected(RequestError):
    """A file descriptor handed over is not memory that can be shared safely: seals, size or allocation are wrong."""

    code = 8
    _retryable = False


class PermissionDenied(RequestError):
    """The caller's user, tenant or session has no right to this."""

    code = 9
    _retryable = False


class TicketInvalid(TransferError):
    """The ticket cannot be read, is forged, or names a lease that is not there."""

    code = 20
    _retryable = False


class TicketBound(TransferError):
    """The lease already belongs to another transfer."""

    code = 21
    _retryable = False


class LeaseExpired(TransferError):
    """The lease's time ran out on the owner's clock before the transfer was complete."""

    code = 22
    _retryable = True


class LeaseRevoked(TransferError):
    """The owner took the blocks back."""

    code = 23
    _retryable = True


class LayoutMismatch(TransferError):
    """The caches on the two sides differ in a field that must agree; the message names it."""

    code = 24
    _retryable = False


class PeerLost(TransferError):
    """The connection to the peer node ended or its heartbeat stopped."""

    code = 25
    _retryable = True


class PeerUnreachable(TransferError):
    """The peer node could not be reached."""

    code = 26
    _retryable = True


class StaleEpoch(TransferError):
    """The peer was restarted since the ticket was made."""

    code = 27
    _retryable = True


class DeadlineExceeded(TransferError):
    """The operation did not end within its time."""

    code = 28
    _retryable = True


class Cancelled(TransferError):
    """The operation was cancelled by its caller."""

    code = 29
    _retryable = True


class MemoryFault(TransferError):
    """A page of a registered region could not be read or written (a hole was punched, or no memory was left)."""

    code = 30
    _retryable = False


class OutOfBounds(TransferError):
    """A range lies outside the window or region it names."""

    code = 31
    _retryable = False


class StaleKey(TransferError):
    """The window's key is unknown or fenced."""

    code = 32
    _retryable = False


class ClientGone(TransferError):
    """The client that owns the memory on the other side went away."""

    code = 33
    _retryable = True


class VersionMismatch(DaemonError):
    """The two sides have no protocol version in common; the message names both ranges."""

    code = 40
    _retryable = False


class FeatureRequired(DaemonError):
    """The other side requires a feature that is unknown here; the message names it."""

    code = 41
    _retryable = False


class ProtocolViolation(DaemonError):
    """A frame is malformed, too large or not allowed in this state."""

    code = 42
    _retryable = False


class DaemonUnavailable(DaemonError):
    """The local daemon is not there or does not answer."""

    code = 43
    _retryable = True


class Closed(DaemonError):
    """The client, cache or session was closed."""

    code = 44
    _retryable = False


class ForkedClient(DaemonError):
    """The client was used in a forked child; connect again there."""

    code = 45
    _retryable = False


class Draining(NodeError):
    """The node is shutting down and grants nothing new."""

    code = 60
    _retryable = True


class NameTaken(NodeError):
    """A live node already uses this name."""

    code = 61
    _retryable = False


class RegistryUnavailable(NodeError):
    """The registry does not answer."""

    code = 62
    _retryable = True


class StoreFailed(NodeError):
    """The block metadata could not be written."""

    code = 63
    _retryable = False


class ConfigInvalid(NodeError):
    """A configuration field is wrong; the message names the field, where it was set and the allowed values."""

    code = 64
    _retryable = False


BY_CODE: dict[int, type[KvxferError]] = {
    1: Internal,
    2: InvalidArgument,
    3: NotSupported,
    4: NotFound,
    5: AlreadyExists,
    6: BlocksBusy,
    7: ResourceExhausted,
    8: MemoryRejected,
    9: PermissionDenied,
    20: TicketInvalid,
    21: TicketBound,
    22: LeaseExpired,
    23: LeaseRevoked,
    24: LayoutMismatch,
    25: PeerLost,
    26: PeerUnreachable,
    27: StaleEpoch,
    28: DeadlineExceeded,
    29: Cancelled,
    30: MemoryFault,
    31: OutOfBounds,
    32: StaleKey,
    33: ClientGone,
    40: VersionMismatch,
    41: FeatureRequired,
    42: ProtocolViolation,
    43: DaemonUnavailable,
    44: Closed,
    45: ForkedClient,
    60: Draining,
    61: NameTaken,
    62: RegistryUnavailable,
    63: StoreFailed,
    64: ConfigInvalid,
}


def from_wire(w: dict[str, Any], *, released: bool | None = None) -> KvxferError:
    """The exception for an error object of the wire; an unknown code becomes Internal and keeps its name."""
    cls = BY_CODE.get(int(w.get("code", 0)))
    detail = str(w.get("detail", ""))
    if cls is None:
        cls, detail = Internal, f"{w.get('name', '')}: {detail}".rstrip(": ")
    return cls(
        detail,
        op=str(w.get("op", "")),
        peer=str(w.get("peer", "")),
        region=str(w.get("region", "")),
        field=str(w.get("field", "")),
        may_have_written=bool(w.get("may_have_written", False)),
        retryable=bool(w.get("retryable", False)),
        released=released,
        guarantee=str(w.get("guarantee", "full")),
    )


__all__ = [
    "BY_CODE",
    "KvxferError",
    "RequestError",
    "TransferError",
    "DaemonError",
    "NodeError",
    "Internal",
    "InvalidArgument",
    "NotSupported",
    "NotFound",
    "AlreadyExists",
    "BlocksBusy",
    "ResourceExhausted",
    "MemoryRejected",
    "PermissionDenied",
    "TicketInvalid",
    "TicketBound",
    "LeaseExpired",
    "LeaseRevoked",
    "LayoutMismatch",
    "PeerLost",
    "PeerUnreachable",
    "StaleEpoch",
    "DeadlineExceeded",
    "Cancelled",
    "MemoryFault",
    "OutOfBounds",
    "StaleKey",
    "ClientGone",
    "VersionMismatch",
    "FeatureRequired",
    "ProtocolViolation",
    "DaemonUnavailable",
    "Closed",
    "ForkedClient",
    "Draining",
    "NameTaken",
    "RegistryUnavailable",
    "StoreFailed",
    "ConfigInvalid",
    "from_wire",
]
