"""Posts: runs of a prepared list, each with one end, and their way over the socket."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from typing import NamedTuple, Protocol

from . import _wire as wire
from ._arguments import check_timeout
from ._connection import Connection
from ._errors import again
from ._faults import BY_CODE, DeadlineExceeded, Internal, KvxferError
from ._pending import GRACE

#: Seconds that a failed post waits for the transfer's own error, which says more than the post's code.
_EXPLAIN = 0.25


class PostResult(NamedTuple):
    """How a post ended well: every byte is placed and visible, a read's in the own memory.

    Attributes:
        bytes: payload bytes that it moved.
        seconds: from the daemon's seeing the post to its end, on the daemon's clock.
    """

    bytes: int
    seconds: float


class PreparedList(Protocol):
    """A prepared transfer as its posts see it. The way's lock guards all of it."""

    _number: int | None
    _guarantee: str
    _open: bool  # posts are taken
    _posted: bool  # at least one was
    _looks: range  # how often a waiting thread looks before it does anything else; empty: it sleeps at once
    _longest: float  # seconds of its longest look
    _timeout: float  # the last that was given
    _timeout_ns: int  # the same in nanoseconds

    def _take_timeout(self, timeout: float) -> None:
        """Checks a time-out and keeps it."""

    def _refused(self) -> KvxferError:
        """Why no post is taken."""

    def _explain(self, code: int, seconds: float) -> KvxferError | None:
        """The transfer's own error where it has that code, waiting a while for it."""

    def _overdue(self) -> None:
        """The daemon has not told the end of a post in time: what it may still write nobody knows."""


class Post:
    """One run of a prepared list, from :meth:`Prepared.post`. Any number of threads may wait.

    It ends once: well, with the error that ended the prepared transfer, or with DeadlineExceeded
    (released=False) where the daemon has not told of it half a second after its deadline. With any other end
    nothing touches the own memory for this post any more, unless the error says released=False; then the
    prepared transfer's ``wait_released`` tells when.
    """

    __slots__ = ("_bytes", "_cookie", "_error", "_nanos", "_prepared", "_status", "_until", "_way")

    def __init__(self, way: Way, prepared: PreparedList, cookie: int, until: float) -> None:
        self._way = way
        self._prepared = prepared
        self._cookie = cookie
        self._until = until  # of time.monotonic(): when the SDK ends it
        self._status = -1  # pending; 0: well; else the error's code and, from bit 32 on, the flags
        self._error: KvxferError | None = None

    def poll(self) -> bool:
        """True when it has ended. Never blocks."""
        way = self._way
        way.conn.check_fork()
        if self._status < 0:
            way.look()
            if self._status < 0 and time.monotonic() >= self._until:
                self._expire()
        return self._status >= 0

    def wait(self, timeout: float | None = None) -> PostResult:
        """The result, as soon as it is there.

        Args:
            timeout: seconds; None waits for the post's own deadline.

        Raises:
            DeadlineExceeded: the time is over; with the caller's own time-out the post itself goes on.
            KvxferError: the typed error that it ended with.
        """
        way = self._way
        if way.conn.forked:
            way.conn.check_fork()
        if self._status < 0 and (timeout is not None or not way.wait(self, self._until)):
            self._await(timeout)
        if self._status == 0:
            return PostResult(self._bytes, self._nanos / 1e9)
        raise self._failure(_EXPLAIN).with_traceback(None)

    def exception(self) -> KvxferError | None:
        """The error that it ended with; None while it is pending or when it went well."""
        return self._failure(0) if self.poll() and self._status else None

    def __repr__(self) -> str:
        state = "pending" if self._status < 0 else "done" if self._status == 0 else "failed"
        return f"<kvxfer.Post {state}>"

    # What follows is called by the SDK.

    def _await(self, timeout: float | None) -> None:
        until = self._until
        if check_timeout("post", timeout) is not None:
            until = min(until, time.monotonic() + float(timeout))  # type: ignore[arg-type]
        if self._way.wait(self, until):
            return
        if time.monotonic() >= self._until:
            self._expire()
        else:
            raise DeadlineExceeded(
                "still pending when the wait ended", op="post", may_have_written=True, released=False
            )

    def _end(self, status: int, moved: int, nanos: int) -> None:
        """What the daemon says; the way's lock is held."""
        self._bytes = moved
        self._nanos = nanos
        self._status = status if status & 0xFFFFFFFF else 0  # last: who sees it sees the rest

    def _fail(self, error: KvxferError) -> None:
        """What the SDK says; the way's lock is held."""
        self._error = error
        self._status = error.code

    def _expire(self) -> None:
        with self._way.lock:
            if self._status >= 0:
                return
            self._way.out[self._cookie] = None  # its place is taken until the daemon tells of it
            self._fail(
                DeadlineExceeded(
                    "the deadline has passed and the daemon has not said how the post ended",
                    op="post",
                    may_have_written=True,
                    released=False,
                )
            )
            self._way.wake()
        self._prepared._overdue()

    def _failure(self, seconds: float) -> KvxferError:
        """Its error, with what the transfer's own says where that comes in time."""
        if self._error is not None:
            return self._error
        code, wrote = self._status & 0xFFFFFFFF, self._status >> 32 & 1 == 1
        why = self._prepared._explain(code, seconds)
        if why is not None:
            error = again(why, op="post", released=True, may_have_written=wrote)
        else:
            kind = BY_CODE.get(code, Internal)
            detail = "" if kind.code == code else f"the daemon says {code}"
            guarantee = self._prepared._guarantee
            error = kind(detail, op="post", may_have_written=wrote, released=True, guarantee=guarantee)
        self._error = error
        return error


class Way(ABC):
    """How posts travel to the daemon and their ends come back: what the ring and the socket have in common.

    The lock is held for moments only, never while anybody sleeps.
    """

    def __init__(self, conn: Connection) -> None:
        self.conn = conn
        self.lock = threading.Lock()
        self.out: dict[int, Post | None] = {}  # by cookie; None: its end interests nobody any more
        # Who sleeps, each on a lock that is held, and what for; None: for a place.
        self._waiting: list[tuple[Post | None, threading.Lock]] = []
        self._dead: KvxferError | None = None  # why no post is taken any more

    @abstractmethod
    def post(self, prepared: PreparedList, timeout: float) -> Post:
        """Begins a run."""

    def run(self, prepared: PreparedList, timeout: float) -> None:
        """Begins a run and waits for its end."""
        self.post(prepared, timeout).wait()

    @abstractmethod
    def look(self) -> None:
        """Takes the ends that are there."""

    def wait(self, post: Post, until: float) -> bool:
        """Waits for a post's end; False: not before that time of time.monotonic()."""
        with self.lock:
            if self._there(post):
                return True
            waker = self._enlist(post)
        self._sleep_on(waker, until)
        return self._there(post)

    def settle(self, prepared: PreparedList, until: float) -> None:
        """Waits for the ends of a list's posts. None is begun meanwhile."""
        with self.lock:
            mine = [p for p in self.out.values() if p is not None and p._prepared is prepared]
        for p in mine:
            if not self.wait(p, min(until, p._until)) and time.monotonic() >= p._until:
                p._expire()

    def lost(self, error: KvxferError) -> None:
        """Ends everything: the connection is."""
        with self.lock:
            self._end_all(error)

    def wake(self) -> None:
        """Wakes whoever has what it waited for. The lock is held."""
        for entry in self._waiting[:]:
            if self._there(entry[0]):
                self._waiting.remove(entry)
                entry[1].release()

    def _there(self, post: Post | None) -> bool:
        return post is None or post._status >= 0

    def _end_all(self, error: KvxferError) -> None:
        self._dead = error
        out, self.out = self.out, {}
        for p in out.values():
            if p is not None:
                p._fail(again(error, op="post", released=False, may_have_written=True))
        self.wake()

    def _enlist(self, post: Post | None) -> threading.Lock:
        """What this thread will sleep on. The lock is held."""
        waker = threading.Lock()
        waker.acquire()
        self._waiting.append((post, waker))
        return waker

    def _sleep_on(self, waker: threading.Lock, until: float) -> None:
        """Sleeps until somebody wakes this thread, or the time has come."""
        try:
            waker.acquire(timeout=max(0.0, until - time.monotonic()))
        finally:
            with self.lock:
                self._waiting = [w for w in self._waiting if w[1] is not waker]


class SocketWay(Way):
    """Posts as frames of the connection."""

    def __init__(self, conn: Connection) -> None:
        super().__init__(conn)
        self._next = 0

    def post(self, prepared: PreparedList, timeout: float) -> Post:
        self.conn.check_fork()
        with self.lock:
            if not prepared._open or self._dead is not None:
                raise prepared._refused()
            if timeout is not prepared._timeout:
                prepared._take_timeout(timeout)
            cookie = self._next = self._next + 1
            post = Post(self, prepared, cookie, time.monotonic() + timeout + GRACE)
            self.out[cookie] = post
            prepared._posted = True
            entry = wire.POST_ENTRY.pack(prepared._number, cookie, prepared._timeout_ns)
            try:
                self.conn.notify(wire.POST, None, entry)
            except BaseException:
                del self.out[cookie]
                raise
        return post

    def look(self) -> None:
        pass  # the connection's thread takes them

    def ended(self, entries: bytes) -> None:
        """The array of EVENT_POSTED."""
        if not entries or len(entries) % wire.POSTED_ENTRY.size:
            raise wire.violation("posted", f"{len(entries)} bytes")
        with self.lock:
            for cookie, status, moved, nanos in wire.POSTED_ENTRY.iter_unpack(entries):
                post = self.out.pop(cookie, None)
                if post is not None:
                    post._end(status, moved, nanos)
            self.wake()
