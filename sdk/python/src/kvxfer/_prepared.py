"""Prepared lists: transfers whose blocks or ranges are bound once and moved many times."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

from . import _wire as wire
from ._arguments import check_duration, check_notification
from ._blocks import Vouched
from ._errors import again
from ._faults import (
    Cancelled,
    Closed,
    InvalidArgument,
    KvxferError,
    NotSupported,
    RequestError,
)
from ._grant import FENCE_TIMEOUT
from ._pending import GRACE
from ._post import Post, Way
from ._registered import Attachment, Registered, left
from ._ring import Ring, looks_for
from ._transfer import Transfer, TransferResult, check_ticket

if TYPE_CHECKING:
    from ._session import Session

#: Seconds that a post has where its caller says nothing.
POST_TIMEOUT = 1.0


class Prepared(Transfer):
    """A list of blocks or ranges that is bound to a ticket once and moved as often as wanted, from
    :meth:`Cache.prepare` or :meth:`Region.prepare`. Any number of threads may use it.

    Each :meth:`post` or :meth:`run` moves the whole list once more; runs may overlap. Until a post has ended,
    nobody may change the bytes that it writes or use those that it reads. :meth:`finish` ends the transfer
    well, as the end of :meth:`Cache.write` or :meth:`Cache.read` does: a lease is committed, a read
    confirmed. A post that fails ends the whole transfer; prepare again then, with a new ticket of a lease.

    As a context manager: leaving finishes it where something was posted, else cancels it; with an exception
    it is cancelled, and leaving waits until nothing touches the own memory any more. Where that takes more
    than 10 seconds, leaving raises DeadlineExceeded (released=False), unless the exception goes first.

    :meth:`wait` and the like end with the transfer, with the errors of a :class:`Push` or :class:`Pull`.

    Attributes:
        transfer_id: 32 hex digits, in traces and logs of both nodes.
        trace_id: 32 hex digits.
        traceparent: W3C context of the call's span.
        provider: what moves the bytes.
        reason: why it was chosen.
        operations: of one post, as the provider counts them.
        bytes: payload bytes of one post.
        way: how posts travel: "ring" (memory shared with the daemon) or "socket".
        why_socket: where way is "socket", why.
    """

    def __init__(
        self,
        place: Registered,
        session: Session,
        mode: str,
        blocks: int,
        timeout: float,
        traceparent: str | None,
        way: Way,
        why_socket: str,
        vouched: Vouched | None,
        packed: bytes,
    ) -> None:
        self._span_name = "kvxfer.scatter" if not blocks else f"kvxfer.{mode}"
        self._of_cache = blocks > 0
        super().__init__(place, session, "prepare", blocks, timeout, traceparent)
        self.provider = self.reason = ""
        self.operations = self.bytes = 0
        self.way = "ring" if isinstance(way, Ring) else "socket"
        self.why_socket = why_socket
        self._quiet = True  # nobody has it yet
        self._way = way
        self._bound = threading.Event()
        # What follows is under the way's lock.
        self._open = False
        self._posted = False
        self._ending = ""  # "finished" or "cancelled", by the caller
        self._looks, self._longest = range(0), 0.0
        self._timeout = POST_TIMEOUT
        self._timeout_ns = round(POST_TIMEOUT * 1e9)
        # Of a read into blocks: they are given up with the request.
        self._vouched = vouched
        self._packed = packed
        self._taken: list[tuple[int, int]] = []

    def post(self, timeout: float = POST_TIMEOUT) -> Post:
        """Begins to move the list once more. Never blocks, unless 256 posts are out on the ring: then it
        waits for a place.

        Args:
            timeout: seconds, 0.001..86400, after which the daemon ends the post, and with it the transfer.

        Raises:
            InvalidArgument: names the field.
            Closed, Cancelled: it was finished or cancelled.
            DeadlineExceeded: no place in that time; nothing was posted.
            TransferError, DaemonError: what the transfer has ended with.
        """
        return self._way.post(self, timeout)

    def run(self, timeout: float = POST_TIMEOUT) -> None:
        """Moves the list once more, and returns when every byte is placed and visible: :meth:`post` and
        :meth:`Post.wait` in one call, with the least time in between.

        Args, Raises: as there.
        """
        self._way.run(self, timeout)

    def finish(self, notification: bytes = b"") -> TransferResult:
        """Ends the transfer well and waits for it, behind the posts that are out.

        Where nothing was posted, or a post has failed, it ends with an error all the same.

        Args:
            notification: up to 64 KiB for the ticket's owner, who gets it after the data.

        Returns:
            As of :class:`Push` and :class:`Pull`; bytes are those of all posts.

        Raises:
            InvalidArgument: a notification that is too large, or a second call.
            TransferError: the error that the transfer has ended with.
        """
        self._session.check_fork()
        data = check_notification("prepared.finish", notification)
        assert self._deadline is not None
        with self._way.lock:
            if self._ending == "finished":
                raise InvalidArgument("finish was called already", op="prepared.finish", field="notification")
            cancelled = self._ending == "cancelled"
            self._ending = self._ending or "finished"
            self._open = False
        if not cancelled:
            # They may be on their way in the ring, where FINISH on the socket could overtake them.
            self._way.settle(self, self._deadline)
            self._send(wire.PUSH_FINISH, {"transfer": self._number}, data)
        return self.wait()

    def cancel(self) -> None:
        """Ends the transfer early, with Cancelled, or well if it was done already. Returns at once; the
        memory may stay HELD until ``when_released``. No post is taken any more."""
        self._session.check_fork()
        self._close("cancelled")
        self._send_cancel()

    def __enter__(self) -> Prepared:
        self._session.check_fork()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _e: BaseException | None, _tb: TracebackType | None
    ) -> None:
        if self._session.conn.forked:
            return
        if kind is None and self._posted and not self._ending:
            self.finish()
        elif not self._done:
            self.cancel()
        try:
            self.wait_released(FENCE_TIMEOUT)
        except KvxferError:
            if kind is None:
                raise

    # What follows is called by the SDK.

    def _begin(
        self, own: dict[str, Any], ticket: str, timeout: float, answer: float, names: dict[str, Any]
    ) -> None:
        """Asks, waits up to answer seconds for the daemon's word and then until posts may begin."""
        deadline = time.monotonic() + timeout
        if self._vouched is not None:  # before the daemon hears of it: from its answer on bytes may land
            self._taken = self._vouched.take(self._packed)
        body = {**own, **self._request(ticket, timeout, {}, names)}
        try:
            self._start(wire.PREPARE, body, self._packed, answer)
        except RequestError:  # nothing was changed
            if self._vouched is not None:
                self._vouched.restore(self._taken)
            raise
        try:
            bound = self._bound.wait(left(deadline) + GRACE)
        except BaseException:  # Ctrl-C: nobody will have it
            self._discard()
            raise
        self._session.check_fork()
        if not bound and not self._done:
            self._expire()
        if self._error is not None:
            raise self._error.with_traceback(None)
        self._hand_out()

    def _accepted(self, frame: wire.Frame) -> None:
        super()._accepted(frame)
        if self._vouched is not None:
            # Again: a lease of these blocks may have been committed between the call and its answer.
            self._vouched.take(self._packed)

    def _on_prepared(self, body: dict[str, Any]) -> None:
        self.provider, self.reason = wire.get(body, "provider", ""), wire.get(body, "provider_reason", "")
        self.operations, self.bytes = wire.get(body, "operations", 0), wire.get(body, "bytes", 0)
        with self._way.lock:
            self._looks, self._longest = looks_for(self.bytes)
            self._open = not self._done and not self._ending
        self._bound.set()

    def _ended_well(self, result: TransferResult) -> None:
        if self._vouched is not None:
            self._vouched.put(self._packed, result.generation)

    def _end(self, value: TransferResult | None, error: KvxferError | None) -> bool:
        self._close("")
        first = super()._end(value, error)
        self._bound.set()
        return first

    def _close(self, how: str) -> None:
        with self._way.lock:
            self._open = False
            self._ending = self._ending or how

    # A prepared list as its posts see it.

    def _take_timeout(self, timeout: float) -> None:
        self._timeout_ns = round(check_duration("post", timeout) * 1e9)
        self._timeout = timeout

    def _refused(self) -> KvxferError:
        if self._error is not None:
            return again(self._error, op="post", released=self._released)
        if self._ending == "cancelled":
            return Cancelled("the prepared list was cancelled", op="post", released=self._released)
        return Closed("the prepared list was finished", op="post", released=self._released)

    def _explain(self, code: int, seconds: float) -> KvxferError | None:
        self._wait_done(seconds)
        return self._error if self._error is not None and self._error.code == code else None

    def _overdue(self) -> None:
        self._close("cancelled")
        self._discard()


def prepare(
    place: Registered,
    at: Attachment,
    own: dict[str, Any],
    packed: bytes,
    to: str | None,
    source: str | None,
    timeout: float,
    traceparent: str | None,
    names: dict[str, Any],
    vouched: Vouched | None,
) -> Prepared:
    """A prepared list of a cache's blocks (vouched is the cache's) or of a region's ranges (None)."""
    op = "prepare"
    if (to is None) == (source is None):
        raise InvalidArgument("allowed either to or source", op=op, field="to")
    mode, ticket = ("write", to) if source is None else ("read", source)
    ticket = check_ticket(op, "to" if source is None else "source", ticket)
    timeout = check_duration(op, timeout)
    deadline = time.monotonic() + timeout
    session = at.session
    if wire.PREPARED not in session.features:
        raise NotSupported("the daemon is of an older version and knows no prepared lists", op=op)
    way, why_socket = session.ways.take(place._client._ring, min(timeout, place._client.timeout))
    prepared = Prepared(
        place,
        session,
        mode,
        0 if vouched is None else len(packed) // 4,
        left(deadline),
        traceparent,
        way,
        why_socket,
        vouched if mode == "read" else None,
        packed,
    )
    seconds = left(deadline)
    prepared._begin({**own, "mode": mode}, ticket, seconds, min(seconds, place._client.timeout), names)
    return prepared
