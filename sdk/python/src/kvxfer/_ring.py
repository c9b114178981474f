"""The ring: memory shared with the daemon, in which posts and their ends travel without a system call.

Two arrays, of submissions and of completions, and a few words, each in a cache line of its own; the Go
package internal/ring describes the layout. A word is read and written by one machine instruction, and what is
written first is seen first: that needs a processor with total store order. A post's cookie is its
submission's number.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
import time

from . import _wire as wire
from ._connection import Connection
from ._errors import again
from ._faults import (
    DaemonUnavailable,
    DeadlineExceeded,
    KvxferError,
    NodeError,
    ProtocolViolation,
    RequestError,
)
from ._memory import Memory
from ._pending import GRACE
from ._post import Post, PreparedList, SocketWay, Way

#: Posts that may be out at a time; a further one waits for a place.
ENTRIES = 256

_MAGIC = int.from_bytes(b"KVXRING1", "little")
# Indices of u64 and of u32 words.
_SUBMITTED, _COMPLETED, _SEEN = 64 // 8, 192 // 8, 256 // 8
_N_ENTRIES, _DAEMON_SLEEPS, _CLIENT_SLEEPS, _ENDED = 8 // 4, 320 // 4, 384 // 4, 448 // 4
_SUBMISSIONS, _SUBMISSION, _COMPLETION = 4096, 64, 32
# In this machine's order, which is the wire's: packed by plain stores.
_put_post = struct.Struct("=QQQ").pack_into

# Who waits looks first, as waking a thread takes tens of microseconds: at most as long as a list takes whose
# bytes come at that many a second, and then as long as looking has gained something. Lists from a size on the
# daemon copies on several processors: their callers sleep at once.
LOOKS = range(40)  # of some 30 ns each, between two offers of the processor to others
_MIN_LOOK, _RATE, _LONG = 100e-6, 8e9, 1 << 20
_LEAST = 1 / 32  # of the longest look
#: Seconds: what comes that soon behind a look, the longest look would have seen.
_SOON = 100e-6
#: Seconds: an offer of the processor that took so long was taken by somebody who computes. For a while
#: whoever waits sleeps then: a sleeper is woken before who computes, and who looks waits for his turn.
_TAKEN, _AVOID = 30e-6, 1e-3
#: Seconds that a ring's end waits for the connection's, which says more.
_WHY = 0.25
#: Seconds after which who sleeps looks once more: a bell may be missed, see the Go package.
_FIRST_SLEEP = 0.001


def looks_for(size: int) -> tuple[range, float]:
    """How to wait for a post of so many bytes: how often to look before anything else, and the seconds of the
    longest look. Without a processor of its own nobody looks."""
    if size >= _LONG or len(os.sched_getaffinity(0)) < 2:
        return range(0), 0.0
    return LOOKS, max(_MIN_LOOK, 1.25 * size / _RATE)


class Ring(Way):
    """A ring and what is out on it."""

    def __init__(self, conn: Connection, entries: int = ENTRIES) -> None:
        super().__init__(conn)
        self.doorbell = self.theirs = self._bell = self._wake = -1
        self._entries, self._mask = entries, entries - 1
        self.memory = Memory("ring", _SUBMISSIONS + entries * (_SUBMISSION + _COMPLETION), "prepare", "ring")
        self._bytes = memoryview(self.memory.map)
        self._words, self._halves = self._bytes.cast("Q"), self._bytes.cast("I")
        self._first_end = (_SUBMISSIONS + entries * _SUBMISSION) // 8
        self._submitted = self._seen = 0
        self._share = 1.0  # of the longest look
        self._avoid = 0.0  # of time.monotonic(): until then somebody else wants the processor
        self._somebody_sleeps = False  # on the bell; the others sleep on locks
        self.doorbell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        # Of the bell this process keeps one end alone: the end of the other is the daemon's.
        mine, theirs = socket.socketpair()
        mine.setblocking(False)
        self._bell, self.theirs = mine.detach(), theirs.detach()
        self._gone = False
        self._poller = select.poll()
        self._poller.register(self._bell, select.POLLIN)
        self._poller.register(self._wake, select.POLLIN)
        self._halves[_N_ENTRIES] = entries
        self._words[0] = _MAGIC

    def __del__(self) -> None:
        for name in ("doorbell", "theirs", "_bell", "_wake"):
            fd = getattr(self, name, -1)
            if fd >= 0:
                os.close(fd)

    def post(self, prepared: PreparedList, timeout: float) -> Post:
        until = 0.0
        while True:
            self.conn.check_fork()
            with self.lock:
                cookie = self._submit(prepared, timeout)
                until = until or time.monotonic() + timeout
                if cookie >= 0:
                    post = self.out[cookie] = Post(self, prepared, cookie, until + GRACE)
                    return post
            if not self._wait(None, until):
                raise DeadlineExceeded(f"no place: {self._entries} posts are out", op="post", released=True)

    def run(self, prepared: PreparedList, timeout: float) -> None:
        # The shortest way: no object is made where the end comes soon. Looking under the lock takes a few
        # microseconds at most.
        if self.conn.forked:
            self.conn.check_fork()
        words = self._words
        with self.lock:
            # As _submit does, without the call.
            n, seen = self._submitted, self._seen
            if (
                n - seen < self._entries
                and prepared._open
                and timeout is prepared._timeout
                and self._dead is None
            ):
                cookie = n
                _put_post(
                    self._bytes,
                    _SUBMISSIONS + (n & self._mask) * _SUBMISSION,
                    prepared._number,
                    n,
                    prepared._timeout_ns,
                )
                self._submitted = words[_SUBMITTED] = n + 1
                prepared._posted = True
                if self._halves[_DAEMON_SLEEPS]:
                    os.eventfd_write(self.doorbell, 1)
            else:
                cookie = self._submit(prepared, timeout)
                seen = self._seen
            for _ in prepared._looks:
                if words[_COMPLETED] != seen:
                    at = self._first_end + ((seen & self._mask) << 2)
                    if words[at] == cookie and not words[at + 1]:  # its own, and well
                        self._seen = words[_SEEN] = seen + 1
                        if self._waiting:
                            self.wake()  # somebody may wait for a place
                        return
                    break
            if cookie >= 0:
                post = self.out[cookie] = Post(self, prepared, cookie, time.monotonic() + timeout + GRACE)
        if cookie < 0:
            post = self.post(prepared, timeout)
        self._wait(post, post._until)
        if post._status:
            post.wait()  # raises

    def look(self) -> None:
        if self._words[_COMPLETED] != self._seen:
            with self.lock:
                self._drain()

    def wait(self, post: Post, until: float) -> bool:
        # Most often the first looks find it.
        words, seen = self._words, self._seen
        for _ in post._prepared._looks:
            if words[_COMPLETED] != seen:
                with self.lock:
                    self._drain()
                if post._status >= 0:
                    return True
                break
        return self._wait(post, until)

    def lost(self, error: KvxferError) -> None:
        with self.lock:
            self._drain()  # what has ended has ended
            self._end_all(error)
            os.eventfd_write(self._wake, 1)

    def handed_over(self) -> None:
        """The daemon has its own mapping and its end of the bell."""
        os.close(self.memory.fd)
        os.close(self.theirs)
        self.memory.fd = self.theirs = -1

    # The lock is held in what follows.

    def _submit(self, prepared: PreparedList, timeout: float) -> int:
        """The post's cookie; -1: as many as the ring has entries are out."""
        if not prepared._open:
            raise prepared._refused()
        if self._dead is not None:
            raise again(self._dead, op="post", released=True)
        if timeout is not prepared._timeout:
            prepared._take_timeout(timeout)
        n = self._submitted
        if n - self._seen >= self._entries:
            self._drain()
            if n - self._seen >= self._entries:
                return -1
        at = _SUBMISSIONS + (n & self._mask) * _SUBMISSION
        _put_post(self._bytes, at, prepared._number, n, prepared._timeout_ns)
        # The own count first: where Ctrl-C comes in between, an entry is written once all the same.
        self._submitted = n + 1
        self._words[_SUBMITTED] = n + 1
        prepared._posted = True
        if self._halves[_DAEMON_SLEEPS]:
            os.eventfd_write(self.doorbell, 1)
        return n

    def _drain(self) -> None:
        """Takes the ends that are there, everybody's."""
        words, seen = self._words, self._seen
        completed = words[_COMPLETED]
        if completed == seen:
            return
        if not seen < completed <= self._submitted:
            self._end_all(ProtocolViolation(f"{completed} ends of {self._submitted} posts", op="ring"))
            return
        out = self.out
        while seen != completed:
            at = self._first_end + ((seen & self._mask) << 2)
            cookie = words[at]
            post = out.get(cookie)
            if post is not None:
                post._end(words[at + 1], words[at + 2], words[at + 3])
            seen += 1
            self._seen = seen
            out.pop(cookie, None)
        words[_SEEN] = seen
        if self._waiting:
            self.wake()

    def _there(self, post: Post | None) -> bool:
        if post is None:
            return self._dead is not None or self._submitted - self._seen < self._entries
        return post._status >= 0

    # It is not held in what follows.

    def _wait(self, post: Post | None, until: float) -> bool:
        """Waits for a post's end, or for a place."""
        try:
            return self._wait_in_turn(post, until)
        finally:
            # Whoever leaves leaves somebody at the bell: also one who was called to it and found that it had
            # what it wanted.
            if self._waiting and not self._somebody_sleeps:
                with self.lock:
                    if self._waiting and not self._somebody_sleeps:
                        self._waiting.pop(0)[1].release()

    def _wait_in_turn(self, post: Post | None, until: float) -> bool:
        while not self._look(post):
            if time.monotonic() >= until:
                return False
            waker = None
            listens = False
            try:
                with self.lock:
                    if self._there(post):
                        return True
                    if self._somebody_sleeps:
                        waker = self._enlist(post)
                    else:
                        listens = self._somebody_sleeps = True
                if waker is not None:
                    self._sleep_on(waker, until)
                else:
                    self._sleep(post, until)
            finally:
                if listens:
                    with self.lock:
                        self._somebody_sleeps = False
                        self._drain()
        return True

    def _look(self, post: Post | None) -> bool:
        """Looks until it is there or the time of looking is over."""
        words = self._words
        longest = _MIN_LOOK if post is None else post._prepared._longest
        while True:
            seen = self._seen  # before the post: an end that comes in between is seen below
            if self._there(post):
                return True
            if words[_COMPLETED] == seen and not (longest and self._spin(seen, longest * self._share)):
                return False
            with self.lock:
                self._drain()

    def _spin(self, seen: int, seconds: float) -> bool:
        """Looks until an end behind those that were seen is there."""
        words = self._words
        now = time.monotonic()
        until = now + seconds
        while now >= self._avoid:
            os.sched_yield()  # the daemon may be waiting for this very processor
            before, now = now, time.monotonic()
            if now - before > _TAKEN:
                self._avoid, self._share = now + _AVOID, _LEAST
            for _ in LOOKS:
                if words[_COMPLETED] != seen:
                    return True
            now = time.monotonic()
            if now >= until:
                self._share = max(_LEAST, self._share / 2)
                break
        return words[_COMPLETED] != seen

    def _sleep(self, post: Post | None, until: float) -> None:
        """Sleeps until the bell rings; one thread at a time."""
        begin = time.monotonic()
        self._halves[_CLIENT_SLEEPS] = 1
        limit = _FIRST_SLEEP
        while self._words[_COMPLETED] == self._seen and not self._there(post):
            if self._halves[_ENDED] or self._gone:
                self.conn.ended.wait(_WHY)  # the connection's end says more
                self.lost(self.conn.lost or DaemonUnavailable("the daemon reads the ring no more"))
                return
            left = until - time.monotonic()
            if left <= 0:
                return
            ready = self._poller.poll(min(left, limit) * 1000)
            for fd, _ in ready:
                try:
                    if not os.read(fd, 64):
                        self._gone = True
                except BlockingIOError:
                    pass
                except ConnectionError:
                    self._gone = True
            if ready and not self._gone:
                if begin > self._avoid and time.monotonic() - begin < _SOON:
                    self._share = 1.0
                return
            limit = left


class Ways:
    """The ways of one connection: the socket, and the ring once the first list is prepared."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self._opening = threading.Lock()
        self.socket = SocketWay(conn)
        self._ring: Ring | None = None
        self._why: str | None = None  # there is no ring; None: nobody has tried

    def take(self, ring: bool, timeout: float) -> tuple[Way, str]:
        """The best way, and where it is the socket why."""
        if not ring:
            return self.socket, "the ring was declined by connect or KVXFER_RING"
        with self._opening:
            if self._ring is None and self._why is None:
                self._why = self._open(timeout)
            return self._ring or self.socket, self._why or ""

    def lost(self, error: KvxferError) -> None:
        """Ends everything: the connection is."""
        self.socket.lost(error)
        if self._ring is not None:
            self._ring.lost(error)

    def _open(self, timeout: float) -> str:
        """Makes a ring and hands it over; else why not."""
        machine = os.uname().machine
        if machine != "x86_64":
            return f"{machine} orders stores in another way than a ring needs"
        try:
            ring = Ring(self._conn)
            fds = [ring.memory.fd, ring.doorbell, ring.theirs]
            self._conn.request("prepare", wire.RING, {"entries": ENTRIES}, fds=fds, timeout=timeout)
        except (RequestError, NodeError, ProtocolViolation, DeadlineExceeded) as e:
            return str(e)
        ring.handed_over()
        self._ring = ring
        return ""
