"""Pushes: own blocks written to a peer."""

from __future__ import annotations

import threading

from . import _wire as wire
from ._arguments import check_index, check_notification
from ._faults import InvalidArgument
from ._registered import Registered
from ._session import Session
from ._transfer import Transfer


class Push(Transfer):
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

    _span_name = "kvxfer.write"

    def __init__(
        self,
        place: Registered,
        session: Session,
        blocks: int,
        layers: int,
        timeout: float,
        traceparent: str | None,
        layerwise: bool,
        notification: bytes,
    ) -> None:
        super().__init__(place, session, "write", blocks, timeout, traceparent)
        self._layers = layers
        self._layerwise = layerwise
        self._notification = notification
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
        assert self._number is not None
        with self._finish_lock:  # nothing may follow FIN
            if self._finished:
                raise InvalidArgument("called after finish", op="push.layer", field="layer")
            self._send(wire.PUSH_LAYER, None, wire.pack_layer_part(self._number, layer, first, n))
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
            self._finish_locked(data)

    # What follows is called by the SDK.

    def _finish_locked(self, notification: bytes) -> None:
        self._finished = True
        self._send(wire.PUSH_FINISH, {"transfer": self._number}, notification)

    def _accepted(self, frame: wire.Frame) -> None:
        super()._accepted(frame)
        if not self._layerwise:  # everything is final: the end goes behind the answer
            with self._finish_lock:
                self._finish_locked(self._notification)
