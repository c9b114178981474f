"""Pushes: own blocks written to a peer's lease."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import _wire as wire
from ._arguments import check_index, check_notification
from ._errors import error_of
from ._faults import Closed, DaemonUnavailable, DeadlineExceeded, InvalidArgument, KvxferError
from ._held import Held
from ._session import Session
from ._trace import Span

if TYPE_CHECKING:
    from ._cache import Cache


@dataclass(frozen=True)
class TransferResult:
    """How a push ended well: the target's blocks are COMMITTED.

    Attributes:
        blocks: number of blocks.
        bytes: payload bytes.
        peer: node that has the blocks now.
        provider: what moved the bytes.
        provider_reason: why it was chosen.
        transfer_id: 32 hex digits, the same on both nodes.
        trace_id: 32 hex digits.
        first_ns: nanoseconds from the request to the first posted byte, on the daemon's clock.
        last_ns: nanoseconds from the request to the last completion.
        busy_ns: nanoseconds with bytes in flight.
    """

    blocks: int
    bytes: int
    peer: str
    provider: str
    provider_reason: str
    transfer_id: str
    trace_id: str
    first_ns: int
    last_ns: int
    busy_ns: int


class Push(Held[TransferResult]):
    """A transfer of own blocks to a lease, from :meth:`Cache.write`.

    :meth:`wait`, ``await`` and the like end with the transfer: PeerLost, PeerUnreachable, TicketInvalid,
    TicketBound, LeaseExpired, LeaseRevoked, LayoutMismatch, StaleEpoch, DeadlineExceeded, Cancelled, ...
    Errors say by ``may_have_written`` whether the target's bytes may have been changed and by ``released``
    whether the own blocks are reusable. When the daemon says nothing until half a second after the deadline,
    or is lost, ``released`` is False.

    Attributes:
        transfer_id: 32 hex digits, in traces and logs of both nodes.
        trace_id: 32 hex digits.
        traceparent: W3C context of the push's span.
    """

    def __init__(
        self,
        cache: Cache,
        session: Session,
        transfer: int,
        transfer_id: str,
        trace_id: str,
        blocks: int,
        layerwise: bool,
        deadline: float,
        span: Span,
    ) -> None:
        super().__init__(session, "write", deadline, cache.name, span)
        self.transfer_id = transfer_id
        self.trace_id = trace_id
        self.traceparent = span.traceparent
        self._cache = cache  # keeps the memory and the client while the push lives
        self._transfer = transfer
        self._blocks = blocks
        self._layers = cache.layout.layers
        self._layerwise = layerwise
        self._finished = False
        self._finish_lock = threading.Lock()

    def layer(self, layer: int, first: int = 0, count: int | None = None) -> None:
        """Hands over blocks of one layer: their bytes are final and may be read from now on. Never blocks.

        Layers and parts may come in any order. After the transfer's end it does nothing, so that a prefill
        may go on; :meth:`wait` says how it ended.

        Args:
            layer: 0..layers-1.
            first: index into the block list given to write.
            count: number of blocks; None: up to the end of the list.

        Raises:
            InvalidArgument: a value out of range, a push that is not layerwise, or a call after finish.
        """
        self._session.check_fork()
        layer = check_index("push.layer", "layer", layer, 0, self._layers - 1)
        first = check_index("push.layer", "first", first, 0, self._blocks - 1)
        n = 0 if count is None else check_index("push.layer", "count", count, 1, self._blocks - first)
        if not self._layerwise:
            raise InvalidArgument("write was called with layerwise=False", op="push.layer", field="layerwise")
        with self._finish_lock:  # nothing may follow FIN
            if self._finished:
                raise InvalidArgument("called after finish", op="push.layer", field="layer")
            self._send(wire.PUSH_LAYER, None, wire.pack_layer_part(self._transfer, layer, first, n))
        span = self._span
        if span is not None:
            span.event(f"layer {layer}")

    def finish(self, notification: bytes = b"") -> None:
        """Says that everything was handed over. Never blocks.

        Args:
            notification: up to 64 KiB for the lease's owner, who gets it after the data.

        Raises:
            InvalidArgument: a notification that is too large, a second call, or a notification for a push
                that is not layerwise (there write itself takes it; without one the call does nothing).
        """
        self._session.check_fork()
        data = check_notification("push.finish", notification)
        with self._finish_lock:
            if self._finished and not self._layerwise and not data:
                return
            if self._finished:
                raise InvalidArgument("finish was called already", op="push.finish", field="notification")
            self._finished = True
            self._send(wire.PUSH_FINISH, {"transfer": self._transfer}, data)

    def cancel(self) -> None:
        """Ends the transfer early, with Cancelled, or well if it was done already. Returns at once."""
        self._session.check_fork()
        self._send(wire.PUSH_CANCEL, {"transfer": self._transfer}, b"")

    # What follows is called by the SDK.

    def _send(self, kind: int, body: dict[str, Any] | None, data: bytes) -> None:
        if self._done:
            return
        try:
            self._session.conn.notify(kind, body, data)
        except (DaemonUnavailable, Closed):
            pass  # the push has ended with that, and wait says so
        except KvxferError:
            if self._session.conn.alive:
                raise

    def _finish_now(self, notification: bytes) -> None:
        """The end of a push that is not layerwise, sent by the connection's thread behind the answer."""
        with self._finish_lock:
            self._finished = True
            self._send(wire.PUSH_FINISH, {"transfer": self._transfer}, notification)

    def _on_transfer(self, body: dict[str, Any]) -> bool:
        released = wire.get(body, "released", False)
        error = body.get("error")
        if error is not None:
            if not isinstance(error, dict):
                raise wire.violation("error", "no JSON object")
            failed = error_of(error, released=released)
            if released:
                self._set_released()
            self._fail(failed)
        else:
            result = TransferResult(
                blocks=wire.get(body, "blocks", 0),
                bytes=wire.get(body, "bytes", 0),
                peer=wire.get(body, "peer", ""),
                provider=wire.get(body, "provider", ""),
                provider_reason=wire.get(body, "provider_reason", ""),
                transfer_id=wire.get(body, "transfer_id", "") or self.transfer_id,
                trace_id=self.trace_id,
                first_ns=wire.get(body, "first_ns", 0),
                last_ns=wire.get(body, "last_ns", 0),
                busy_ns=wire.get(body, "busy_ns", 0),
            )
            if released:
                self._set_released()
            self._finish(result)
        if released:
            self._tell_released()
        return released

    def _on_released(self) -> None:
        self._set_released()
        self._tell_released()

    def _expire(self) -> None:
        if self._done:
            return
        self._discard()
        self._fail(
            DeadlineExceeded(
                "the deadline has passed and the daemon has not said how the transfer ended",
                op="write",
                may_have_written=True,
                released=False,
            )
        )

    def _discard(self) -> None:
        """Nobody waits for it any more: the daemon should end it, where it still listens."""
        try:
            self._send(wire.PUSH_CANCEL, {"transfer": self._transfer}, b"")
        except KvxferError:
            pass

    def _describe(self, span: Span, value: TransferResult | None) -> None:
        super()._describe(span, value)
        span.set("kvxfer.transfer.id", self.transfer_id)
        span.set("kvxfer.blocks", self._blocks)
        if value is not None:
            span.set("kvxfer.bytes", value.bytes)
            span.set("kvxfer.peer", value.peer)
            span.set("kvxfer.provider", value.provider)
            span.set("kvxfer.provider.reason", value.provider_reason)
