"""One connection to the daemon: its socket, its thread, its requests and timers.

The caller's side never blocks on the socket. What the kernel does not take at once is queued and sent by the
connection's thread, so that a stopped daemon costs a caller no more than the deadline of the call.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import select
import socket
import threading
import time
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from . import _wire as wire
from ._call import Call, Chunk
from ._dial import HINT, dial, open_daemon
from ._errors import again, error_of
from ._faults import (
    Closed,
    DaemonUnavailable,
    DeadlineExceeded,
    ForkedClient,
    Internal,
    InvalidArgument,
    KvxferError,
    ResourceExhausted,
)

log = logging.getLogger("kvxfer")

#: Bytes that may wait for a daemon that does not read.
_MAX_QUEUED = 128 << 20
_RECV_BYTES = 256 << 10


class Listener(Protocol):
    """Who hears of what the daemon says unasked. All methods run in the connection's thread."""

    def on_event(self, frame: wire.Frame) -> None: ...
    def on_lost(self, error: KvxferError) -> None: ...
    def on_daemon_exit(self) -> None: ...
    def awaits_exit(self) -> bool: ...


class Connection:
    """A connected socket, not yet greeted."""

    def __init__(self, path: str, deadline: float) -> None:
        self.path = path
        self.forked = False
        self.lost: KvxferError | None = None  # why nothing can be sent any more
        self.ended = threading.Event()  # everything that waited for this connection has its error
        self._lock = threading.Lock()
        self._listener: Listener | None = None
        self._calls: dict[int, Call] = {}
        self._next_request = 1
        self._queue: deque[Chunk] = deque()
        self._queued = 0
        self._send_failed = False
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._timer_ids = itertools.count()
        self._closing = False
        self._parser = wire.Parser()
        self._sock = dial(path, deadline)
        self.daemon_pid, self._pidfd = open_daemon(self._sock)
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name="kvxfer", daemon=True)
        _connections.add(self)

    def start(self, listener: Listener) -> None:
        """Starts the thread."""
        self._listener = listener
        self._thread.start()

    # Calls of any thread.

    def check_fork(self) -> None:
        """Raises ForkedClient in a forked child."""
        if self.forked:
            raise ForkedClient("this process was forked; connect again here")

    @property
    def alive(self) -> bool:
        """True while requests can be made."""
        return self.lost is None and not self._closing

    def request(
        self,
        op: str,
        kind: int,
        body: dict[str, Any] | None = None,
        data: bytes = b"",
        fds: Sequence[int] = (),
        *,
        timeout: float,
        on_ok: Callable[[wire.Frame], Any] | None = None,
        on_late: Callable[[Any], None] | None = None,
        released: bool | None = None,
        may_have_written: bool = False,
    ) -> Any:
        """Asks and waits for the answer: on_ok's value, or the frame. Raises the daemon's typed error.

        released and may_have_written go into the DeadlineExceeded that ends a call without an answer.
        """
        call = Call(op, on_ok, on_late)
        self._submit(call, kind, body, data, fds)
        try:
            ended = call.event.wait(timeout)
        except BaseException:  # Ctrl-C: the caller goes, and what the daemon grants nobody has
            if not self._abandon(call):
                call.event.wait()
                if call.error is None and call.on_late is not None:
                    call.on_late(call.value)
            raise
        if not ended:
            if self._abandon(call):
                self.check_fork()
                raise DeadlineExceeded(
                    f"the daemon did not answer within {timeout:g} s",
                    op=op,
                    released=released,
                    may_have_written=may_have_written,
                )
            call.event.wait()  # the answer is here and on_ok, which never blocks, is about to end
        self.check_fork()
        if call.error is not None:
            if (
                released is not None
                and call.error.released is None
                and isinstance(call.error, (DaemonUnavailable, Closed))
            ):
                call.error.released = released
            raise call.error
        return call.value

    def _abandon(self, call: Call) -> bool:
        """Gives a call up, unless its answer is here already."""
        with self._lock:
            call.abandoned = not call.answered
        return call.abandoned

    def request_later(
        self,
        op: str,
        kind: int,
        body: dict[str, Any],
        on_done: Callable[[KvxferError | None], None] | None = None,
        *,
        data: bytes = b"",
        on_ok: Callable[[wire.Frame], Any] | None = None,
    ) -> None:
        """Asks without waiting. In the connection's thread on_ok gets the answer, then on_done the error, or
        None; on_done alone where the connection is lost."""
        self._submit(Call(op, on_ok, None, on_done), kind, body, data, ())

    def notify(self, kind: int, body: dict[str, Any] | None, data: bytes = b"") -> None:
        """Sends a frame that has no answer. Never blocks."""
        self.check_fork()
        head = wire.head(kind, 0, body, len(data), wire.FLAG_NO_REPLY)
        with self._lock:
            self._check_alive("send")
            self._send(head, data, ())

    def call_at(self, when: float, fn: Callable[[], None]) -> None:
        """Runs fn in the connection's thread at that time of time.monotonic(), unless the connection is lost
        before."""
        with self._lock:
            first = not self._timers or when < self._timers[0][0]
            heapq.heappush(self._timers, (when, next(self._timer_ids), fn))
            if first:
                self._wake_up()

    def daemon_exited(self, timeout: float) -> bool | None:
        """Whether the daemon's process has ended, waiting up to timeout seconds; None where that cannot be
        known."""
        self.check_fork()
        with self._lock:
            if self._pidfd < 0:
                return None
            fd = os.dup(self._pidfd)
        try:
            poller = select.poll()
            poller.register(fd, select.POLLIN)
            return bool(poller.poll(timeout * 1000))
        finally:
            os.close(fd)

    def close(self) -> None:
        """Ends the connection. Takes no lock, so that a finalizer may call it from anywhere."""
        self._closing = True
        if not self.forked:
            self._wake_up()

    def dispose(self, timeout: float) -> None:
        """Waits for the thread's end after close and closes what is left. Called once, by whoever owns the
        connection; without it the last reference does it."""
        if self._thread.ident is not None:
            if threading.current_thread() is self._thread:
                return
            self._thread.join(timeout)
            if self._thread.is_alive():
                return
        with self._lock:
            self._close_fds()

    def __del__(self) -> None:
        if getattr(self, "_wake", -1) >= 0:
            self._close_fds()

    def flush(self, timeout: float) -> None:
        """Waits until everything was sent, or the time is over, or the connection is lost."""
        end = time.monotonic() + timeout
        while self._queue and self.alive and time.monotonic() < end:
            time.sleep(0.005)

    def after_fork_in_child(self) -> None:
        """Closes the child's copies. Other threads do not exist here and may have held any lock."""
        self.forked = True
        self._close_fds()

    # Sending.

    def _submit(
        self, call: Call, kind: int, body: dict[str, Any] | None, data: bytes, fds: Sequence[int]
    ) -> None:
        self.check_fork()
        with self._lock:
            self._check_alive(call.op)
            request = self._next_request
            head = wire.head(kind, request, body, len(data), 0, len(fds))
            if len(head) - wire.HEADER_SIZE > wire.MAX_JSON:
                raise InvalidArgument(
                    f"{len(head)} bytes of text, allowed 0..{wire.MAX_JSON}", op=call.op, field="body"
                )
            self._next_request += 1
            self._calls[request] = call
            try:
                self._send(head, data, fds)
            except BaseException:
                del self._calls[request]
                raise

    def _check_alive(self, op: str) -> None:
        if self._closing:
            raise Closed("the client was closed", op=op)
        if self.lost is not None:
            raise again(self.lost, op=op)

    def _send(self, head: bytes, data: bytes, fds: Sequence[int]) -> None:
        """Sends or queues a frame; the lock is held, so frames never mix."""
        if self._queued + len(head) + len(data) > _MAX_QUEUED:
            raise ResourceExhausted(
                f"{self._queued} bytes wait for a daemon that does not read", op="send", field="queue"
            )
        chunks = [memoryview(head), memoryview(data)] if data else [memoryview(head)]
        sent = 0
        if not self._queue and not self._send_failed:
            sent = self._sendmsg(chunks, fds)
            if sent > 0:
                fds = ()
        for c in chunks:
            if sent >= len(c):
                sent -= len(c)
                continue
            self._queue.append(Chunk(c[sent:], fds))
            self._queued += len(c) - sent
            sent, fds = 0, ()
        if self._queue:
            self._wake_up()

    def _sendmsg(self, chunks: list[memoryview], fds: Sequence[int]) -> int:
        """Bytes that the kernel took. A broken socket takes none and leaves the verdict to the thread, which
        first reads what the daemon may have said about the reason."""
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))] if fds else []
        try:
            return self._sock.sendmsg(chunks, ancillary, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            self._send_failed = True
            self._wake_up()
            return 0

    def _flush_queue(self) -> None:
        with self._lock:
            while self._queue and not self._send_failed:
                chunk = self._queue[0]
                n = self._sendmsg([chunk.data], chunk.fds)
                if n == 0:
                    return
                chunk.close_fds()
                self._queued -= n
                chunk.data = chunk.data[n:]
                if not chunk.data:
                    self._queue.popleft()

    def _wake_up(self) -> None:
        # The number is valid or -1: it is closed under the lock, after the thread's end and after close.
        if self._wake >= 0:
            os.eventfd_write(self._wake, 1)

    # The thread.

    def _run(self) -> None:
        assert self._listener is not None
        try:
            error = self._serve()
        except KvxferError as e:
            error = e
        except Exception as e:
            log.exception("the connection's thread failed")
            error = Internal(f"the connection's thread failed: {e!r}")
        try:
            self._end(error)
            if not self._closing and self._pidfd >= 0 and self._listener.awaits_exit():
                self._await_exit()
        finally:
            self._sock.close()
            self._listener = None  # it refers to this connection

    def _serve(self) -> KvxferError:
        poller = select.poll()
        poller.register(self._wake, select.POLLIN)
        while not self._closing:
            poller.register(
                self._sock, select.POLLIN | (select.POLLOUT if self._queue and not self._send_failed else 0)
            )
            ready = dict(poller.poll(self._run_timers()))
            if self._wake in ready:
                os.eventfd_read(self._wake)
            if ready.get(self._sock.fileno(), 0) & ~select.POLLOUT:
                error = self._receive()
                if error is not None:
                    return error
            elif self._send_failed:
                return self._gone("the connection broke")
            if self._queue:
                self._flush_queue()
        return Closed("the client was closed")

    def _receive(self) -> KvxferError | None:
        assert self._listener is not None
        try:
            data = self._sock.recv(_RECV_BYTES, socket.MSG_DONTWAIT)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as e:
            return self._gone(f"the connection broke: {e.strerror}")
        if not data:
            return self._gone("the daemon closed the connection")
        for frame in self._parser.feed(data):
            if frame.fds:
                raise wire.violation("fd_count", "no descriptor comes from a daemon")
            if frame.kind == wire.ERROR:
                error = error_of(frame.body())
                if frame.request == 0:
                    return error
                self._answer(frame, error)
            elif frame.kind in (wire.OK, wire.HELLO_OK):
                self._answer(frame, None)
            elif frame.request == 0:
                self._listener.on_event(frame)
            else:
                raise wire.violation("kind", f"{frame.kind:#04x} answers no request")
        return None

    def _answer(self, frame: wire.Frame, error: KvxferError | None) -> None:
        with self._lock:
            call = self._calls.pop(frame.request, None)
            if call is not None:
                call.answered = True
        if call is None:
            raise wire.violation("request", f"an answer to request {frame.request}, which is not open")
        value: Any = None
        if error is None:
            value = frame
            if call.on_ok is not None:
                try:
                    value = call.on_ok(frame)
                except KvxferError as e:
                    call.settle(None, e)
                    raise
        elif not error.op:
            error.op = call.op
        call.settle(value, error)

    def _run_timers(self) -> float | None:
        """Runs what is due; milliseconds until the next timer, or None."""
        while True:
            with self._lock:
                if not self._timers:
                    return None
                left = self._timers[0][0] - time.monotonic()
                if left > 0:
                    return left * 1000 + 1
                fn = heapq.heappop(self._timers)[2]
            fn()

    def _end(self, error: KvxferError) -> None:
        """Everything that waits for this connection ends now."""
        assert self._listener is not None
        if not self._closing:
            log.warning("the connection to the daemon ended: %s", error)
        with self._lock:
            self.lost = error
            calls, self._calls = self._calls, {}
            for call in calls.values():
                call.answered = True
            queue, self._queue = self._queue, deque()
            self._queued = 0
            self._timers = []
        for chunk in queue:
            chunk.close_fds()
        # The daemon's side of the socket ends now, whoever else still holds this file open.
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        for call in calls.values():
            call.settle(None, again(error, op=call.op))
        self._listener.on_lost(error)
        self.ended.set()

    def _await_exit(self) -> None:
        assert self._listener is not None
        poller = select.poll()
        poller.register(self._wake, select.POLLIN)
        poller.register(self._pidfd, select.POLLIN)
        while not self._closing and self._listener.awaits_exit():
            ready = dict(poller.poll())
            if self._wake in ready:
                os.eventfd_read(self._wake)
            if self._pidfd in ready:
                self._listener.on_daemon_exit()
                return

    def look_again(self) -> None:
        """Lets the thread look again whether anything still waits for the daemon's exit."""
        with self._lock:
            self._wake_up()

    def _gone(self, detail: str) -> KvxferError:
        return DaemonUnavailable(f"{detail} ({self.path}); {HINT}")

    def _close_fds(self) -> None:
        self._sock.close()
        fds, self._wake, self._pidfd = (self._wake, self._pidfd), -1, -1
        for fd in fds:
            if fd >= 0:
                os.close(fd)


_connections: weakref.WeakSet[Connection] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for c in list(_connections):
        c.after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
