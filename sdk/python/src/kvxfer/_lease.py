"""Leases: permission for one peer to write into own blocks."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

from . import _wire as wire
from ._arguments import check_duration, check_index
from ._blocks import Vouched
from ._errors import again, error_of
from ._faults import Closed, DeadlineExceeded, KvxferError, LeaseRevoked
from ._held import Fence, Held
from ._pending import GRACE, Pending
from ._session import Session
from ._trace import Span

if TYPE_CHECKING:
    from ._cache import Cache

log = logging.getLogger("kvxfer")

#: Seconds within which a revoked lease is expected to be fenced.
FENCE_TIMEOUT = 10.0


# LeaseResult has a field of that name.
_Bytes: TypeAlias = bytes


@dataclass(frozen=True)
class LeaseResult:
    """How a lease was fulfilled. Its blocks are COMMITTED.

    Attributes:
        blocks: number of blocks.
        bytes: payload bytes that were placed.
        notification: what the source gave to finish, up to 64 KiB.
        peer: node that wrote.
        provider: what moved the bytes.
        transfer_id: 32 hex digits, the same on both nodes.
        generation: what the blocks were committed under.
    """

    blocks: int
    bytes: int
    notification: _Bytes
    peer: str
    provider: str
    transfer_id: str
    generation: int


class Lease(Held[LeaseResult]):
    """A lease on blocks of an own cache, from :meth:`Cache.lease`. Waiting for it waits for the whole
    transfer.

    As a context manager: leaving means that the blocks are committed, or that the lease was revoked and
    fenced. Where the fence does not come within 10 seconds, leaving raises DeadlineExceeded (released=False)
    and the blocks stay HELD; an exception of the block itself goes first, then :attr:`released` tells.

    A lease ends with LeaseExpired, LeaseRevoked, PeerLost, ClientGone, Cancelled, ... when nothing was
    committed; its blocks are then fenced (``released`` is True on the error). When the daemon says nothing
    until half a second after the lease's time, or is lost, the error has ``released=False``.

    Attributes:
        generation: what the blocks are committed under.
        blocks: the block ids, as a read-only memoryview of 32-bit integers.
        ticket: the capability that the writing side needs, a JSON-safe str. It is a secret: never log it.
        traceparent: W3C context of the lease's span; the transfer belongs to its trace.
    """

    def __init__(
        self,
        cache: Cache,
        session: Session,
        lease: int,
        ticket: str,
        generation: int,
        packed: bytes,
        ttl: float,
        vouched: Vouched,
        span: Span,
    ) -> None:
        super().__init__(session, "lease", time.monotonic() + ttl + GRACE, cache.name, span)
        self.ticket = ticket
        self.generation = generation
        self.blocks = memoryview(packed).cast("I")
        self.traceparent = span.traceparent
        self._cache = cache  # keeps the memory and the client while the lease lives
        self._id = lease
        self._packed = packed
        self._vouched = vouched
        self._transfer_id = ""
        self._layers = cache.layout.layers
        self._visible = bytearray(self._layers)
        self._layer_lock = threading.Lock()
        self._layer_pending: dict[int, Pending[None]] = {}
        self._revoke_sent = False
        self._fences: list[Fence] = []

    @property
    def transfer_id(self) -> str:
        """The transfer's id, 32 hex digits; "" until the lease has ended."""
        return self._transfer_id

    def layer(self, layer: int) -> Pending[None]:
        """A pending thing that ends when all blocks of that layer are there, or with the lease's error."""
        self._session.check_fork()
        return self._layer(layer, quiet=False)

    def wait_layer(self, layer: int, timeout: float | None = None) -> None:
        """Waits until all blocks of that layer are there.

        Visible is not committed: the bytes may be used, the blocks must not be served to others before wait()
            returns.

        Args:
            layer: 0..layers-1.
            timeout: seconds; None: the lease's own time.

        Raises:
            DeadlineExceeded: not there in time; the lease goes on.
            TransferError: the lease has ended without being committed.
        """
        self._layer(layer, quiet=True).wait(timeout)
        if self._error is not None:
            raise self._error.with_traceback(None)

    def visible_layers(self) -> list[int]:
        """The layers whose blocks are all there, in order."""
        self._session.check_fork()
        return [i for i, v in enumerate(self._visible) if v]

    def revoke(self, timeout: float = FENCE_TIMEOUT) -> Pending[None]:
        """Takes the blocks back. Returns at once; the returned thing ends when the blocks are fenced.

        It ends without an error too when the lease was committed first: :meth:`wait` says which it was. It
        fails with DeadlineExceeded (released=False) when there is no fence within timeout seconds.
        """
        self._session.check_fork()
        return self._revoke(timeout, quiet=False)

    def _revoke(self, timeout: float, quiet: bool) -> Fence:
        fence = Fence(self._session, "lease.revoke", time.monotonic() + check_duration("revoke", timeout))
        fence._quiet = quiet
        # Before anything is sent: whoever ends this lease finds the fence in the list or has set the flag
        # already.
        with self._layer_lock:
            self._fences.append(fence)
        if self._released:
            self._tell_released()
            return fence
        if not self._session.conn.alive:
            lost = self._session.conn.lost or Closed("the client was closed")
            fence._fail(again(lost, op="lease.revoke", released=False))
            return fence
        assert fence._deadline is not None
        self._session.end_later(fence._deadline, fence, "_expire")
        self._send_revoke()
        return fence

    def __enter__(self) -> Lease:
        self._session.check_fork()
        return self

    def __exit__(
        self, _type: type[BaseException] | None, exc: BaseException | None, _tb: TracebackType | None
    ) -> None:
        fence = self._leave()
        if fence is not None:
            try:
                fence.wait()
            except KvxferError as e:
                self._stays_held(e, exc)

    async def __aenter__(self) -> Lease:
        return self.__enter__()

    async def __aexit__(
        self, _type: type[BaseException] | None, exc: BaseException | None, _tb: TracebackType | None
    ) -> None:
        fence = self._leave()
        if fence is not None:
            try:
                await fence
            except KvxferError as e:
                self._stays_held(e, exc)

    def _leave(self) -> Fence | None:
        if self._session.conn.forked or (self._done and self._released):
            return None
        return self._revoke(FENCE_TIMEOUT, quiet=True)

    def _stays_held(self, error: KvxferError, exc: BaseException | None) -> None:
        if exc is None:
            raise error
        log.warning("a lease was left by an exception and its blocks stay HELD: %s", error)

    # What follows is called by the SDK.

    def _layer(self, layer: int, quiet: bool) -> Pending[None]:
        layer = check_index("lease.layer", "layer", layer, 0, self._layers - 1)
        with self._layer_lock:
            p = self._layer_pending.get(layer)
            if p is None:
                p = Pending(self._session, f"lease.layer({layer})", self._deadline)
                p._quiet = quiet
                self._layer_pending[layer] = p
            elif not quiet:
                p._quiet = False
        if self._done:
            self._settle_layer(layer, p)
        elif self._visible[layer]:
            p._finish(None)
        return p

    def _settle_layer(self, layer: int, p: Pending[None]) -> None:
        if self._error is None:
            p._finish(None)
        else:
            p._fail(again(self._error, op=p._op, released=self._error.released))

    def _on_layers(self, layers: memoryview) -> None:
        span = self._span
        for layer in layers:
            if layer >= self._layers:
                raise wire.violation("layers", f"layer {layer}, allowed 0..{self._layers - 1}")
            if self._visible[layer]:
                continue
            if span is not None:
                span.event(f"layer {layer}")
            with self._layer_lock:
                self._visible[layer] = 1
                p = self._layer_pending.get(layer)
            if p is not None:
                p._finish(None)

    def _on_ended(self, body: dict[str, Any], notification: bytes) -> None:
        self._transfer_id = wire.get(body, "transfer_id", "")
        error = body.get("error")
        if error is not None:
            if not isinstance(error, dict):
                raise wire.violation("error", "no JSON object")
            failed = error_of(error, released=True)
            self._set_released()
            self._fail(failed)
        else:
            generation = wire.get_id(body, "generation")
            result = LeaseResult(
                blocks=len(self.blocks),
                bytes=wire.get(body, "bytes", 0),
                notification=notification,
                peer=wire.get(body, "peer", ""),
                provider=wire.get(body, "provider", ""),
                transfer_id=self._transfer_id,
                generation=generation,
            )
            self.generation = generation
            self._visible[:] = b"\1" * self._layers
            self._vouched.put(self._packed, generation)
            self._set_released()
            self._finish(result)
        self._tell_released()

    def _on_lost(self, error: KvxferError) -> None:
        super()._on_lost(error)
        with self._layer_lock:
            fences, self._fences = self._fences, []
        for f in fences:
            f._fail(again(error, op=f._op, released=False))

    def _tell_released(self) -> None:
        super()._tell_released()
        with self._layer_lock:
            fences, self._fences = self._fences, []
        for f in fences:
            f._finish(None)

    def _end(self, value: LeaseResult | None, error: KvxferError | None) -> bool:
        first = super()._end(value, error)
        if first:
            with self._layer_lock:
                waiting = list(self._layer_pending.items())
            for layer, p in waiting:
                self._settle_layer(layer, p)
        return first

    def _expire(self) -> None:
        self._fail(
            DeadlineExceeded(
                "the lease's time is over and the daemon has not said that it is fenced",
                op="lease",
                may_have_written=True,
                released=False,
            )
        )
        if not self._released:
            self._send_revoke()

    def _discard(self) -> None:
        """The caller of Cache.lease has gone before this answer came: nobody has the ticket."""
        self._quiet = True
        self._send_revoke()

    def _send_revoke(self) -> None:
        with self._layer_lock:
            if self._revoke_sent:
                return
            self._revoke_sent = True
        try:
            self._session.conn.request_later(
                "lease.revoke", wire.REVOKE, {"lease": self._id}, self._revoke_answered
            )
        except KvxferError as e:
            self._revoke_answered(e)

    def _revoke_answered(self, error: KvxferError | None) -> None:
        if error is None or self._released:
            return
        with self._layer_lock:
            self._revoke_sent = False
            fences, self._fences = self._fences, []
        for f in fences:
            f._fail(again(error, op=f._op, released=False))

    def _dropped(self) -> KvxferError:
        return LeaseRevoked("the cache was dropped", op="lease", may_have_written=True, released=True)

    def _describe(self, span: Span, value: LeaseResult | None) -> None:
        super()._describe(span, value)
        span.set("kvxfer.blocks", len(self.blocks))
        if self._transfer_id:
            span.set("kvxfer.transfer.id", self._transfer_id)
        if value is not None:
            span.set("kvxfer.bytes", value.bytes)
            span.set("kvxfer.peer", value.peer)
            span.set("kvxfer.provider", value.provider)
