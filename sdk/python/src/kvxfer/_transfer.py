"""What transfers have in common: pushes, pulls and scatters begin, end and release their memory."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Any

from . import _trace
from . import _wire as wire
from ._arguments import check_index, check_name
from ._errors import error_of
from ._faults import Closed, DaemonUnavailable, DeadlineExceeded, InvalidArgument, KvxferError
from ._held import Held
from ._pending import GRACE
from ._registered import Registered
from ._session import Session

_TRANSFER_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class TransferResult:
    """How a transfer ended well.

    After a push the target's blocks are COMMITTED, after a pull the own ones.

    Attributes:
        blocks: number of blocks; 0 of raw regions.
        bytes: payload bytes.
        peer: the node on the other side.
        provider: what moved the bytes.
        provider_reason: why it was chosen.
        transfer_id: 32 hex digits, the same on both nodes.
        trace_id: 32 hex digits.
        first_ns: nanoseconds from the request to the first posted byte, on the daemon's clock.
        last_ns: nanoseconds from the request to the last completion.
        busy_ns: nanoseconds with bytes in flight.
        generation: of a pull: what the own blocks are COMMITTED under; else 0.
        guarantee: "full", or "live-client-only" where own memory is of that kind.
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
    generation: int = 0
    guarantee: str = "full"


def check_ticket(op: str, field: str, ticket: object) -> str:
    if not isinstance(ticket, str):
        raise InvalidArgument(f"a {type(ticket).__name__}, allowed the ticket's str", op=op, field=field)
    return ticket


def identity(op: str, transfer_id: str, attempt: int, instance: str, provider: str) -> dict[str, Any]:
    """The fields that name a transfer, where it is repeated or made by several ranks, and its provider."""
    out: dict[str, Any] = {}
    if transfer_id != "":
        if not isinstance(transfer_id, str) or not _TRANSFER_ID.fullmatch(transfer_id):
            raise InvalidArgument(
                f"{transfer_id!r:.80}, allowed 32 lower-case hex digits", op=op, field="transfer_id"
            )
        out["transfer_id"] = transfer_id
    attempt = check_index(op, "attempt", attempt, 1, (1 << 32) - 1)
    if attempt != 1:
        out["attempt"] = attempt
    if instance != "":
        out["instance"] = check_name(op, "instance", instance)
    if provider != "":
        out["provider"] = check_name(op, "provider", provider)
    return out


class Transfer(Held[TransferResult]):
    """Bytes on their way between own memory and a peer's. Base of Push, Pull and Scatter.

    :meth:`wait`, ``await`` and the like end with the transfer: PeerLost, PeerUnreachable, TicketInvalid,
    TicketBound, LeaseExpired, LeaseRevoked, LayoutMismatch, StaleEpoch, OutOfBounds, DeadlineExceeded,
    Cancelled, ... Errors say by ``may_have_written`` whether the target's bytes may have been changed and by
    ``released`` whether the own memory is reusable. When the daemon says nothing until half a second after
    the deadline, or is lost, ``released`` is False.

    Attributes:
        transfer_id: 32 hex digits, in traces and logs of both nodes.
        trace_id: 32 hex digits.
        traceparent: W3C context of the call's span.
    """

    _span_name = ""

    def __init__(
        self,
        place: Registered,
        session: Session,
        op: str,
        blocks: int,
        timeout: float,
        traceparent: str | None,
    ) -> None:
        self._parent = _trace.parent_of(op, traceparent)
        # Where the trace is the ticket's it becomes known with the daemon's answer.
        context = _trace.Context(_trace.new_trace_id(), _trace.new_span_id(), False)
        span = _trace.Span(self._span_name, context, "", {})
        super().__init__(session, op, time.monotonic() + timeout + GRACE, place.name, span, place)
        self.transfer_id = ""
        self.trace_id = ""
        self.traceparent = ""
        self._span_id = context.span_id
        self._number: int | None = None
        self._blocks = blocks

    def cancel(self) -> None:
        """Ends the transfer early, with Cancelled, or well if it was done already. Returns at once; the
        memory may stay HELD until ``when_released``."""
        self._session.check_fork()
        self._send_cancel()

    # What follows is called by the SDK.

    def _request(
        self, ticket: str, timeout: float, own: dict[str, Any], names: dict[str, Any]
    ) -> dict[str, Any]:
        """The fields that every kind of transfer has, with those of its own, in the order in which they
        travel."""
        body: dict[str, Any] = {"ticket": ticket, "timeout_ms": wire.milliseconds(timeout), **own}
        if self._parent is not None:
            body["traceparent"] = self._parent.traceparent
        return {**body, "span_id": self._span_id, **names}

    def _start(self, kind: int, body: dict[str, Any], data: bytes, timeout: float) -> None:
        """Asks the daemon and waits for its word that the transfer has begun."""
        try:
            self._session.conn.request(
                self._op,
                kind,
                body,
                data,
                timeout=timeout,
                on_ok=self._accepted,
                on_late=lambda _: self._discard(),
                released=False,
                may_have_written=True,
            )
        except KvxferError as e:
            self._end_refused(e)
            raise

    def _end_refused(self, error: KvxferError) -> None:
        """The span of what never began. Without a parent its trace is known to the ticket alone."""
        self._place_under_parent()
        span, self._span = self._span, None
        if span is not None and self._parent is not None:
            span.set("kvxfer.result", type(error).__name__)
            self._session.end_span(span, error)

    def _place_under_parent(self) -> None:
        parent, span = self._parent, self._span
        if span is not None and parent is not None:
            span._place(_trace.Context(parent.trace_id, span.span_id, parent.sampled), parent.span_id)

    def _accepted(self, frame: wire.Frame) -> None:
        b = frame.body()
        number = wire.get_id(b, "transfer")
        self.transfer_id, self.trace_id = wire.get(b, "transfer_id", ""), wire.get(b, "trace_id", "")
        span = self._span
        if span is not None:
            context = _trace.Context(self.trace_id, span.span_id, wire.get(b, "sampled", False))
            span._place(context, wire.get(b, "parent_id", ""))
            self.traceparent = span.traceparent
        self._number = number
        self._session.add_transfer(number, self)
        assert self._deadline is not None
        self._session.end_later(self._deadline, self, "_expire")

    def _send(self, kind: int, body: dict[str, Any] | None, data: bytes) -> None:
        if self._done:
            return
        try:
            self._session.conn.notify(kind, body, data)
        except (DaemonUnavailable, Closed):
            pass  # the transfer has ended with that, and wait says so
        except KvxferError:
            if self._session.conn.alive:
                raise

    def _send_cancel(self) -> None:
        self._send(wire.PUSH_CANCEL, {"transfer": self._number}, b"")

    def _on_prepared(self, body: dict[str, Any]) -> None:
        """Said of prepared ones alone."""
        raise wire.violation("transfer", "said to be prepared, and it is none of that kind")

    def _on_transfer(self, body: dict[str, Any]) -> bool:
        released = wire.get(body, "released", False)
        error = wire.get_error(body)
        if error is not None:
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
                generation=wire.get(body, "generation", 0),
                guarantee=wire.get(body, "guarantee", "") or "full",
            )
            self._ended_well(result)
            if released:
                self._set_released()
            self._finish(result)
        if released:
            self._tell_released()
        return released

    def _ended_well(self, result: TransferResult) -> None:
        """Before anybody sees the end."""

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
                op=self._op,
                may_have_written=True,
                released=False,
            )
        )

    def _discard(self) -> None:
        """Nobody waits for it any more: the daemon should end it, where it still listens."""
        try:
            self._send_cancel()
        except KvxferError:
            pass

    def _describe(self, span: _trace.Span, value: TransferResult | None) -> None:
        super()._describe(span, value)
        if self.transfer_id:
            span.set("kvxfer.transfer.id", self.transfer_id)
        if self._blocks:
            span.set("kvxfer.blocks", self._blocks)
        if value is not None:
            span.set("kvxfer.bytes", value.bytes)
            span.set("kvxfer.peer", value.peer)
            span.set("kvxfer.provider", value.provider)
            span.set("kvxfer.provider.reason", value.provider_reason)
