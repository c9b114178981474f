"""Pulls: a peer's blocks read into own ones."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from . import _wire as wire
from ._blocks import Vouched
from ._errors import again
from ._faults import Cancelled, DeadlineExceeded, KvxferError, RequestError
from ._registered import Registered
from ._session import Session
from ._transfer import Transfer, TransferResult


class Pull(Transfer):
    """A transfer of a peer's blocks into own ones, from :meth:`Cache.read`.

    It ends well only when the source has said that it held its blocks throughout; the own blocks are
    COMMITTED then. After any other end they are FREE, and what they held before is gone. Its errors are those
    of a :class:`Push`; ``may_have_written`` speaks of the own blocks. ``released`` is False while bytes may
    still land in them.

    Attributes:
        transfer_id: 32 hex digits, in traces and logs of both nodes; of a read from a holder "" until the
            holder has agreed, as the other two.
        trace_id: 32 hex digits.
        traceparent: W3C context of the pull's span.
    """

    _span_name = "kvxfer.read"

    def __init__(
        self,
        place: Registered,
        session: Session,
        packed: bytes,
        vouched: Vouched,
        timeout: float,
        traceparent: str | None,
    ) -> None:
        super().__init__(place, session, "read", len(packed) // 4, timeout, traceparent)
        self._packed = packed
        self._vouched = vouched
        self._until = time.monotonic() + timeout
        self._stage = threading.Lock()
        self._sent = False  # whether the daemon was told of the own blocks
        self._begun = False  # whether the daemon has agreed
        self._unwanted = False  # cancelled before the daemon gave it a number
        self._taken: list[tuple[int, int]] = []

    # What follows is called by the SDK.

    def _start(self, kind: int, body: dict[str, Any], data: bytes, timeout: float) -> None:
        # Before the daemon hears of it: from its answer on bytes may land.
        self._sent = True
        self._taken = self._vouched.take(data)
        try:
            super()._start(kind, body, data, timeout)
        except RequestError:  # nothing was changed
            self._vouched.restore(self._taken)
            raise

    def _open(self, body: dict[str, Any], keys: bytes, pull: Callable[[str, float], dict[str, Any]]) -> None:
        """Asks a holder for a ticket, and with it for the blocks. Returns at once: another node answers.

        pull makes PULL's body of a ticket and the seconds that are left.
        """

        def opened(frame: wire.Frame) -> None:
            ticket = wire.get(frame.body(), "ticket", "")
            if not ticket:
                raise wire.violation("ticket", "absent")
            left = self._until - time.monotonic()
            with self._stage:
                if self._done:
                    return
                if left > 0:
                    self._sent = True
            if left <= 0:
                self._never_sent(DeadlineExceeded("the holder's answer came too late", op=self._op))
                return
            self._taken = self._vouched.take(self._packed)
            self._session.asked(self)
            try:
                self._session.conn.request_later(
                    self._op, wire.PULL, pull(ticket, left), answered, data=self._packed, on_ok=accepted
                )
            except KvxferError as e:
                answered(e)

        def accepted(frame: wire.Frame) -> None:
            self._begun = True
            self._accepted(frame)

        def answered(error: KvxferError | None) -> None:
            if error is None:
                return
            if self._begun or (self._sent and self._session.conn.lost is not None):
                return  # the session ends it, as everything whose memory may still be touched
            self._session.answered(self)
            if self._sent and isinstance(error, RequestError):
                self._vouched.restore(self._taken)
            self._never_sent(again(error, op=self._op))

        assert self._deadline is not None
        self._session.end_later(self._deadline, self, "_expire")
        try:
            self._session.conn.request_later(self._op, wire.OPEN, body, answered, data=keys, on_ok=opened)
        except KvxferError as e:
            self._end_refused(e)
            raise

    def _accepted(self, frame: wire.Frame) -> None:
        super()._accepted(frame)
        self._session.answered(self)
        # Again: a lease of these blocks may have been committed between the call and its answer.
        self._vouched.take(self._packed)
        with self._stage:  # behind the number: whoever found none has said so by now
            unwanted = self._unwanted
        if unwanted:
            self._cancel_late()

    def _ended_well(self, result: TransferResult) -> None:
        self._vouched.put(self._packed, result.generation)

    def _never_sent(self, error: KvxferError) -> None:
        """It ends before any byte of the own blocks could change."""
        error.released, error.may_have_written = True, False
        self._place_under_parent()
        self._set_released()
        self._fail(error)
        self._tell_released()

    def _send_cancel(self) -> None:
        with self._stage:
            early = not self._sent and not self._done
            if not early and self._number is None:
                self._unwanted = True
                return
        if early:
            self._never_sent(Cancelled("cancelled before the holder had answered", op=self._op))
        else:
            super()._send_cancel()

    def _cancel_late(self) -> None:
        """The number came after everybody had gone; the transfer has its outcome already, perhaps."""
        try:
            self._session.conn.notify(wire.PUSH_CANCEL, {"transfer": self._number})
        except KvxferError:
            pass

    def _expire(self) -> None:
        with self._stage:
            early = not self._sent
        if early:
            self._never_sent(DeadlineExceeded("the holder did not answer in time", op=self._op))
        else:
            super()._expire()
