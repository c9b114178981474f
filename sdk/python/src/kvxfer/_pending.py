"""The one thing that a caller waits for."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Generic, Protocol, TypeVar

from ._arguments import check_timeout
from ._faults import DeadlineExceeded, KvxferError

T = TypeVar("T")

#: Seconds that the SDK gives the daemon to say itself that a deadline has passed, before the SDK says so.
GRACE = 0.5
#: Seconds that wait() without a time-out waits for something that has no deadline of its own.
DEFAULT_WAIT = 60.0


class Owner(Protocol):
    """What a pending thing needs of the session it belongs to."""

    def check_fork(self) -> None: ...
    def completed(self, pending: Pending[Any]) -> None: ...


class Pending(Generic[T]):
    """Something that ends later: poll it, wait for it, await it, or select on its file descriptor.

    Any number of threads and tasks may wait; a wait that times out or is cancelled ends only the waiting. In
    a forked child every method raises ForkedClient.
    """

    def __init__(self, owner: Owner, op: str, deadline: float | None) -> None:
        self._owner = owner
        self._op = op
        self._deadline = deadline  # of time.monotonic(); the session's thread ends the thing then
        self._mutex = threading.Lock()
        self._done = False
        self._value: T | None = None
        self._error: KvxferError | None = None
        self._watchers: list[Callable[[], None]] = []
        self._fd = -1
        self._quiet = False  # not reported by Client.completed: nobody was given it

    def poll(self) -> bool:
        """True when it has ended. Never blocks."""
        self._owner.check_fork()
        return self._done

    def wait(self, timeout: float | None = None) -> T:
        """The result, as soon as it is there.

        Args:
            timeout: seconds; None waits for the thing's own deadline (60 seconds where it has none).

        Raises:
            DeadlineExceeded: the time is over; with the caller's own time-out the thing itself goes on.
            KvxferError: the typed error that it ended with.
        """
        self._owner.check_fork()
        if not self._done and not self._wait_done(check_timeout(self._op, timeout)):
            raise self._timed_out()
        return self._outcome()

    def exception(self) -> KvxferError | None:
        """The error that it ended with; None while it is pending or when it went well."""
        self._owner.check_fork()
        return self._error

    def fileno(self) -> int:
        """A file descriptor that is readable once it has ended. It belongs to this object: never read or
        close it."""
        self._owner.check_fork()
        with self._mutex:
            if self._fd < 0:
                self._fd = os.eventfd(1 if self._done else 0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            return self._fd

    def __await__(self) -> Generator[Any, None, T]:
        self._owner.check_fork()
        if not self._done:
            loop = asyncio.get_running_loop()
            future: asyncio.Future[None] = loop.create_future()

            def settle() -> None:
                if not future.done():
                    future.set_result(None)

            def wake() -> None:
                try:
                    loop.call_soon_threadsafe(settle)
                except RuntimeError:
                    pass  # the loop was closed: nobody waits any more

            self._watch(wake)
            try:
                yield from future.__await__()
            finally:
                self._unwatch(wake)
        return self._outcome()

    def __repr__(self) -> str:
        return f"<kvxfer.{type(self).__name__} {self._op} {self._state()}>"

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            os.close(self._fd)

    # What follows is called by the SDK.

    #: Whether somebody's memory is written while this is pending: a wait that ends early leaves that open.
    _writes = False

    def _hand_out(self) -> None:
        """A caller gets it now: its end is reported, also when that was before."""
        with self._mutex:
            quiet, self._quiet = self._quiet, False
            if quiet and self._done:
                self._owner.completed(self)

    def _state(self) -> str:
        if not self._done:
            return "pending"
        return "done" if self._error is None else type(self._error).__name__

    def _timed_out(self) -> KvxferError:
        return DeadlineExceeded(
            "still pending when the wait ended", op=self._op, may_have_written=self._writes
        )

    def _expire(self) -> None:
        """Its deadline has passed."""
        self._fail(self._timed_out())

    def _outcome(self) -> T:
        if self._error is not None:
            raise self._error.with_traceback(None)
        return self._value  # type: ignore[return-value]

    def _finish(self, value: T) -> bool:
        return self._end(value, None)

    def _fail(self, error: KvxferError) -> bool:
        return self._end(None, error)

    def _end(self, value: T | None, error: KvxferError | None) -> bool:
        """Ends it once; False when it had ended already."""
        with self._mutex:
            if self._done:
                return False
            self._value, self._error = value, error
            # Reported before anybody can see the end: who saw it finds it in Client.completed.
            if not self._quiet:
                self._owner.completed(self)
            self._done = True
            watchers, self._watchers = self._watchers, []
            if self._fd >= 0:
                os.eventfd_write(self._fd, 1)
        for w in watchers:
            w()
        return True

    def _watch(self, w: Callable[[], None]) -> None:
        """Calls w once when it ends, at once when it has ended. w never blocks and never raises."""
        with self._mutex:
            if not self._done:
                self._watchers.append(w)
                return
        w()

    def _unwatch(self, w: Callable[[], None]) -> None:
        with self._mutex:
            if w in self._watchers:
                self._watchers.remove(w)

    def _wait_done(self, timeout: float | None) -> bool:
        event = threading.Event()
        self._watch(event.set)
        try:
            if timeout is not None:
                event.wait(timeout)
            else:
                # The session's thread ends it at its deadline; GRACE more is for a machine that is busy. The
                # bound itself makes that not even a defect of that thread could let a caller hang. A renewal
                # may move the deadline meanwhile.
                until = None
                while until != self._deadline or until is None:
                    until = self._deadline
                    left = DEFAULT_WAIT if until is None else until - time.monotonic() + GRACE
                    if event.wait(max(left, 0.0)) or until is None:
                        break
        finally:
            self._unwatch(event.set)
        self._owner.check_fork()
        return self._done


class Completed:
    """What has ended since it was last asked.

    Until the first call only the newest 4,096 are kept, so that a program that never asks does not grow.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._list: deque[Pending[Any]] = deque(maxlen=4096)
        self._fd = -1

    def add(self, pending: Pending[Any]) -> None:
        with self._lock:
            self._list.append(pending)
            if self._fd >= 0 and len(self._list) == 1:
                os.eventfd_write(self._fd, 1)

    def take(self) -> list[Pending[Any]]:
        with self._lock:
            out, self._list = list(self._list), deque()
            if out and self._fd >= 0:
                os.eventfd_read(self._fd)
        for pending in out:
            with pending._mutex:  # it was added in the middle of its end: wait for the rest
                pass
        return out

    def fileno(self) -> int:
        with self._lock:
            if self._fd < 0:
                self._fd = os.eventfd(1 if self._list else 0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            return self._fd

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            os.close(self._fd)
