"""What permissions have in common: leases of either mode and advertisements end, are renewed and revoked."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

from . import _wire as wire
from ._arguments import check_duration
from ._errors import again, error_of
from ._faults import Closed, DeadlineExceeded, Internal, KvxferError, LeaseRevoked, NotFound
from ._held import Fence, Held
from ._pending import GRACE, Pending
from ._session import Session
from ._trace import Span

log = logging.getLogger("kvxfer")

T = TypeVar("T")
G = TypeVar("G", bound="Grant[Any]")
Self = TypeVar("Self", bound="Grant[Any]")

#: Seconds within which what was revoked is expected to be fenced.
FENCE_TIMEOUT = 10.0


@dataclass(frozen=True)
class Granted:
    """The daemon's answer to a request for permission, or its word that another process got one."""

    number: int
    ticket: str
    lease_id: str
    generation: int
    ranks: int


class Grant(Held[T]):
    """Permission on own memory that peers hold. Base of Lease, ReadLease and Advertisement.

    Attributes:
        ticket: the capability that the other side needs, a JSON-safe str. It is a secret: never log it.
        lease_id: 32 hex digits, in traces and logs.
        traceparent: W3C context of the call's span; the transfers belong to its trace.
    """

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
        deadline = None if ttl is None else time.monotonic() + ttl + GRACE
        super().__init__(session, op, deadline, place, span, keep)
        self.ticket = granted.ticket
        self.lease_id = granted.lease_id
        self.traceparent = "" if span is None else span.traceparent
        self._number = granted.number
        self._transfer_id = ""
        self._lock = threading.Lock()  # of everything below
        self._revoke_sent = False
        self._fences: list[Fence] = []
        self._confirmed = deadline  # by the daemon's last word
        self._extended = 0.0  # how long the answer to a renewal is awaited
        self._renewals = 0  # not answered yet
        self._timer_at: float | None = None

    def revoke(self, timeout: float = FENCE_TIMEOUT) -> Pending[None]:
        """Takes the permission back. Returns at once; the returned thing ends when the memory is fenced.

        It ends without an error too when the lease had ended well before: :meth:`wait` says which it was. It
        fails with DeadlineExceeded (released=False) when there is no fence within timeout seconds.
        """
        self._session.check_fork()
        return self._revoke(timeout, quiet=False)

    def renew(self, ttl: float, timeout: float = 5.0) -> Pending[None]:
        """Lets it last ttl seconds from now, on the daemon's clock; that may also bring the end forward.

        Returns at once; the returned thing ends when the daemon has agreed. It fails with the reason where
        the end was reached or decided before (LeaseExpired, LeaseRevoked, NotFound after a good end), and
        with DeadlineExceeded when there is no answer within timeout seconds: the end that was agreed before
        counts then. A transfer's own time-out holds besides.

        Args:
            ttl: seconds, 0.001..86400.
            timeout: seconds for the daemon's answer.
        """
        self._session.check_fork()
        op = f"{self._op}.renew"
        ttl = check_duration(op, ttl, "ttl")
        until = time.monotonic() + check_duration(op, timeout)
        renewal: Pending[None] = Pending(self._session, op, until)

        def answered(error: KvxferError | None) -> None:
            with self._lock:
                self._renewals -= 1
                if self._renewals == 0:
                    self._extended = 0.0
                if error is None and self._confirmed is not None:
                    self._confirmed = time.monotonic() + ttl + GRACE
                self._move_deadline()
            self._look_at_deadline()
            if error is None:
                renewal._finish(None)
            else:
                renewal._fail(again(error, op=op, released=self._released))

        if self._done:
            renewal._fail(again(self._error or NotFound("it has ended"), op=op, released=self._released))
            return renewal
        with self._lock:
            self._renewals += 1
            # Only the first that is not answered extends: a caller who goes on renewing at a daemon that has
            # stopped must hear of it.
            if self._renewals == 1:
                self._extended = until + GRACE
            self._move_deadline()
        self._session.end_later(until, renewal, "_expire")
        try:
            body = {"lease": self._number, "ttl_ms": wire.milliseconds(ttl)}
            self._session.conn.request_later(op, wire.RENEW, body, answered)
        except KvxferError as e:
            answered(e)
        return renewal

    def __enter__(self: Self) -> Self:
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

    async def __aenter__(self: Self) -> Self:
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

    # What follows is called by the SDK.

    def _leave(self) -> Fence | None:
        if self._session.conn.forked or (self._done and self._released):
            return None
        return self._revoke(FENCE_TIMEOUT, quiet=True)

    def _stays_held(self, error: KvxferError, exc: BaseException | None) -> None:
        if exc is None:
            raise error
        log.warning("a lease was left by an exception and its memory stays HELD: %s", error)

    def _revoke(self, timeout: float, quiet: bool) -> Fence:
        op = f"{self._op}.revoke"
        fence = Fence(self._session, op, time.monotonic() + check_duration(op, timeout))
        fence._quiet = quiet
        # Before anything is sent: whoever ends this lease finds the fence in the list or has set the flag
        # already.
        with self._lock:
            self._fences.append(fence)
        if self._released:
            self._tell_released()
            return fence
        if not self._session.conn.alive:
            lost = self._session.conn.lost or Closed("the client was closed")
            fence._fail(again(lost, op=op, released=False))
            return fence
        assert fence._deadline is not None
        self._session.end_later(fence._deadline, fence, "_expire")
        self._send_revoke()
        return fence

    def _on_layers(self, layers: memoryview) -> None:
        """Layers became visible: nothing that a permission to read knows of."""

    def _on_holder(self, body: dict[str, Any], notification: bytes) -> None:
        """One holder's transfer is over: nothing that a lease for one writer knows of."""

    def _on_ended(self, body: dict[str, Any], notification: bytes) -> bool:
        """The daemon says that it is over; False when the memory is HELD all the same."""
        self._transfer_id = wire.get(body, "transfer_id", "")
        error = wire.get_error(body)
        if error is None:
            value = self._ended_well(body, notification)
            self._set_released()
            self._finish(value)
        else:
            failed = error_of(error)
            # This one says that the fence failed: only the exit of the daemon's process is one.
            failed.released = not isinstance(failed, Internal)
            if not failed.released:
                self._fail(failed)
                for f in self._take_fences():
                    f._fail(again(failed, op=f._op, released=False))
                return False
            self._set_released()
            self._fail(failed)
        self._tell_released()
        return True

    def _ended_well(self, body: dict[str, Any], notification: bytes) -> T:
        raise AssertionError("every kind of permission says what its result is")

    def _on_lost(self, error: KvxferError) -> None:
        super()._on_lost(error)
        for f in self._take_fences():
            f._fail(again(error, op=f._op, released=False))

    def _tell_released(self) -> None:
        super()._tell_released()
        for f in self._take_fences():
            f._finish(None)

    def _take_fences(self) -> list[Fence]:
        with self._lock:
            fences, self._fences = self._fences, []
        return fences

    def _dropped(self) -> KvxferError:
        return LeaseRevoked("its memory was given back", op=self._op, may_have_written=True, released=True)

    # Time.

    def _move_deadline(self) -> None:
        """The lock is held."""
        if self._confirmed is not None:
            self._deadline = max(self._confirmed, self._extended)

    def _look_at_deadline(self) -> None:
        """Sees to it that the connection's thread looks at the deadline when it comes; one timer is enough,
        except where the end came forward."""
        with self._lock:
            when = self._deadline
            if self._done or when is None or (self._timer_at is not None and self._timer_at <= when):
                return
            self._timer_at = when
        try:
            self._session.end_later(when, self, "_due")
        except KvxferError:  # lost: it has ended with that
            pass

    def _due(self) -> None:
        with self._lock:
            self._timer_at = None
            over = self._deadline is None or time.monotonic() >= self._deadline
        if over:
            self._expire()
        else:
            self._look_at_deadline()

    def _expire(self) -> None:
        self._fail(
            DeadlineExceeded(
                "its time is over and the daemon has not said that it is fenced",
                op=self._op,
                may_have_written=True,
                released=False,
            )
        )
        if not self._released:
            self._send_revoke()

    def _discard(self) -> None:
        """The caller has gone before this answer came: nobody has the ticket."""
        self._quiet = True
        self._send_revoke()

    def _send_revoke(self) -> None:
        with self._lock:
            if self._revoke_sent:
                return
            self._revoke_sent = True
        op = f"{self._op}.revoke"
        try:
            self._session.conn.request_later(op, wire.REVOKE, {"lease": self._number}, self._revoke_answered)
        except KvxferError as e:
            self._revoke_answered(e)

    def _revoke_answered(self, error: KvxferError | None) -> None:
        if error is None or self._released:
            return
        with self._lock:
            self._revoke_sent = False
        for f in self._take_fences():
            f._fail(again(error, op=f._op, released=False))

    def _describe(self, span: Span, value: T | None) -> None:
        super()._describe(span, value)
        if self.lease_id:
            span.set("kvxfer.lease.id", self.lease_id)
        if self._transfer_id:
            span.set("kvxfer.transfer.id", self._transfer_id)


def ask(
    session: Session,
    op: str,
    kind: int,
    body: dict[str, Any],
    data: bytes,
    span: Span,
    timeout: float,
    make: Callable[[Granted], G],
) -> G:
    """Asks the daemon for permission and registers what make makes of its answer."""

    def granted(frame: wire.Frame) -> G:
        b = frame.body()
        ticket = wire.get(b, "ticket", "")
        if not ticket:
            raise wire.violation("ticket", "absent")
        grant = make(
            Granted(
                wire.get_id(b, "lease"),
                ticket,
                wire.get(b, "lease_id", ""),
                wire.get(b, "generation", 0),
                wire.get(b, "ranks", 0),
            )
        )
        session.add_lease(grant._number, grant)
        grant._look_at_deadline()
        return grant

    try:
        grant: G = session.conn.request(
            op, kind, body, data, timeout=timeout, on_ok=granted, on_late=Grant._discard, released=False
        )
        return grant
    except KvxferError as e:
        span.set("kvxfer.result", type(e).__name__)
        session.end_span(span, e)
        raise
