"""What several peers may hold at a time: read leases, and advertisements of raw regions."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, TypeAlias

from . import _wire as wire
from ._errors import again, error_of
from ._faults import KvxferError, NotFound
from ._grant import FENCE_TIMEOUT, Grant, Granted
from ._pending import Pending
from ._session import Session
from ._trace import Span

#: Ends of holders that wait to be asked for; older ones are dropped.
_MAX_ENDS = 4096

# The results have a field of that name.
_Bytes: TypeAlias = bytes


@dataclass(frozen=True)
class HolderResult:
    """How one peer's transfer under a read lease or an advertisement ended. It is fenced.

    Attributes:
        peer: its node.
        provider: what moved the bytes.
        transfer_id: 32 hex digits, the same on both nodes.
        bytes: payload bytes that it wrote, or by its own word read.
        notification: what it gave, up to 64 KiB.
        error: None when it went well. Of a reader that means: its bytes were held throughout.
        guarantee: "full", or "live-client-only" where what is promised of the memory ends with its client's
            process.
    """

    peer: str
    provider: str
    transfer_id: str
    bytes: int
    notification: _Bytes
    error: KvxferError | None
    guarantee: str = "full"


@dataclass(frozen=True)
class OfferResult:
    """How a read lease or an advertisement was used up.

    Of an instance's lease, whose ranks' handles tell of the holders, it has the bytes alone.

    Attributes:
        holders: transfers that went well.
        failed: transfers that did not.
        bytes: payload bytes of those that went well.
        guarantee: "full", or "live-client-only" where what is promised of the memory ends with its client's
            process.
    """

    holders: int
    failed: int
    bytes: int
    guarantee: str = "full"


class Offer(Grant[OfferResult]):
    """Base of ReadLease and Advertisement."""

    _writes = False

    def __init__(
        self,
        session: Session,
        op: str,
        granted: Granted,
        ttl: float | None,
        place: str,
        span: Span | None,
        keep: object,
    ) -> None:
        super().__init__(session, op, granted, ttl, place, span, keep)
        self._ends: deque[HolderResult] = deque(maxlen=_MAX_ENDS)
        self._next: Pending[HolderResult] | None = None
        self._holders = self._failed = self._bytes = 0

    def holders(self) -> list[HolderResult]:
        """The transfers that have ended since the last call, in order; of those that nobody asked for the
        newest 4,096 are kept. What :meth:`next_holder` reports is not reported here."""
        self._session.check_fork()
        with self._lock:
            out = list(self._ends)
            self._ends.clear()
        return out

    def next_holder(self) -> Pending[HolderResult]:
        """A pending thing that ends with the next transfer's end: the oldest that was not reported yet, or
        the next to come. It ends well also when that transfer failed, see :attr:`HolderResult.error`.

        Until it has ended every call returns the same one. When the lease is over first it fails with the
        lease's error, or NotFound where that ended well.
        """
        self._session.check_fork()
        with self._lock:
            if self._next is not None:
                return self._next
            pending: Pending[HolderResult] = Pending(self._session, f"{self._op}.next_holder", None)
            end = self._ends.popleft() if self._ends else None
            if end is None:
                self._next = pending
        if end is not None:
            pending._finish(end)
        elif self._done:
            self._end_next()
        return pending

    # What follows is called by the SDK.

    def _on_holder(self, body: dict[str, Any], notification: bytes) -> None:
        error = wire.get_error(body)
        end = HolderResult(
            peer=wire.get(body, "peer", ""),
            provider=wire.get(body, "provider", ""),
            transfer_id=wire.get(body, "transfer_id", ""),
            bytes=wire.get(body, "bytes", 0),
            notification=notification,
            error=None if error is None else error_of(error),
            guarantee=wire.get(body, "guarantee", "") or "full",
        )
        with self._lock:
            if error is None:
                self._holders += 1
                self._bytes += end.bytes
            else:
                self._failed += 1
            pending, self._next = self._next, None
            if pending is None:
                self._ends.append(end)
        if pending is not None:
            pending._finish(end)

    def _ended_well(self, body: dict[str, Any], notification: bytes) -> OfferResult:
        return OfferResult(
            self._holders,
            self._failed,
            self._bytes or wire.get(body, "bytes", 0),
            wire.get(body, "guarantee", "") or "full",
        )

    def _end(self, value: OfferResult | None, error: KvxferError | None) -> bool:
        first = super()._end(value, error)
        if first:
            self._end_next()
        return first

    def _end_next(self) -> None:
        with self._lock:
            pending, self._next = self._next, None
        if pending is not None:
            why = self._error or NotFound("it is over, no holder will come")
            pending._fail(again(why, op=pending._op, released=self._released))

    def _describe(self, span: Span, value: OfferResult | None) -> None:
        super()._describe(span, value)
        if value is not None:
            span.set("kvxfer.bytes", value.bytes)


class ReadLease(Offer):
    """A lease for reading, from :meth:`Cache.lease` with ``mode="read"``: peers may read own blocks.

    The blocks are HELD until it is over: do not change them, and the daemon refuses to lease them for
    writing. It is over when ``readers`` transfers have ended, or by revocation or time; ``wait`` then returns
    an :class:`OfferResult` or raises LeaseExpired, LeaseRevoked, ... As a context manager it is revoked and
    fenced on leaving, like a :class:`Lease`.

    Attributes:
        blocks: the block ids, as a read-only memoryview of 32-bit integers.
        readers: how many transfers may bind it.
        ranks: how many ranks an instance's lease covers; 0 of a lease on one cache.
        ticket: the capability that a reader needs, a JSON-safe str. It is a secret: never log it.
        lease_id: 32 hex digits, in traces and logs; of an instance's lease the same on every rank.
        traceparent: W3C context of the lease's span; the transfers belong to its trace.
    """

    def __init__(
        self,
        session: Session,
        granted: Granted,
        ttl: float | None,
        place: str,
        packed: bytes,
        readers: int,
        span: Span | None,
        keep: object,
    ) -> None:
        super().__init__(session, "lease", granted, ttl, place, span, keep)
        self.blocks = memoryview(packed).cast("I")
        self.readers = readers
        self.ranks = granted.ranks

    def _describe(self, span: Span, value: OfferResult | None) -> None:
        super()._describe(span, value)
        span.set("kvxfer.blocks", len(self.blocks))


class Advertisement(Offer):
    """Parts of a raw region that peers may write or read, from :meth:`Region.advertise`.

    It is a lease: over when its uses are used up, or by revocation or time. As a context manager it is
    revoked and fenced on leaving.

    Attributes:
        mode: "write" or "read": what the peers may do.
        ticket: the capability that a peer needs, a JSON-safe str. It is a secret: never log it.
        lease_id: 32 hex digits, in traces and logs.
        traceparent: W3C context of the call's span; the transfers belong to its trace.
    """

    _of_cache = False

    def __init__(
        self,
        session: Session,
        granted: Granted,
        ttl: float,
        place: str,
        mode: str,
        span: Span,
        keep: object,
    ) -> None:
        super().__init__(session, "advertise", granted, ttl, place, span, keep)
        self.mode = mode
        self._writes = mode == "write"

    def unadvertise(self, timeout: float = FENCE_TIMEOUT) -> None:
        """Takes the parts back: when it returns, no peer can write or read them any more.

        Raises:
            DeadlineExceeded: not fenced within timeout seconds (released=False); it goes on, see
                ``wait_released``.
            DaemonUnavailable: the daemon is lost (released=False).
        """
        self._session.check_fork()
        self._revoke(timeout, quiet=True).wait()
