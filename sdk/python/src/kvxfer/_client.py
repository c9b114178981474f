"""The client: one process attached to its node's daemon."""

from __future__ import annotations

import os
import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, TypeVar

from . import _trace
from . import _wire as wire
from ._arguments import check_duration, check_name, check_text, check_timeout
from ._cache import Cache
from ._connection import Connection
from ._faults import (
    AlreadyExists,
    Closed,
    DaemonUnavailable,
    DeadlineExceeded,
    Draining,
    InvalidArgument,
    KvxferError,
    NotSupported,
)
from ._layout import Layout
from ._memory import Memory
from ._pending import Completed, Pending
from ._session import Session
from ._status import Status, read_status
from ._version import __version__

_T = TypeVar("_T")

_MAX_TEXT = 1024


def default_socket() -> str:
    """KVXFER_SOCKET; else /run/kvxfer/kvxfer.sock for root, $XDG_RUNTIME_DIR/kvxfer/kvxfer.sock where that is
    set, /tmp/kvxfer-<uid>/kvxfer.sock."""
    named = os.environ.get("KVXFER_SOCKET")
    if named:
        return named
    if os.getuid() == 0:
        return "/run/kvxfer/kvxfer.sock"
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return f"{runtime}/kvxfer/kvxfer.sock" if runtime else f"/tmp/kvxfer-{os.getuid()}/kvxfer.sock"


def connect(
    socket: str | os.PathLike[str] | None = None,
    *,
    timeout: float = 5.0,
    tenant: str = "default",
    process: str | None = None,
) -> Client:
    """Attaches this process to its node's daemon.

    Args:
        socket: path of the daemon's Unix socket. None: the environment's KVXFER_SOCKET; else
            /run/kvxfer/kvxfer.sock for root, $XDG_RUNTIME_DIR/kvxfer/kvxfer.sock where that is set,
            /tmp/kvxfer-<uid>/kvxfer.sock.
        timeout: seconds to connect, and for the answer to each later request that has no time-out of its own.
        tenant: 1..64 of [A-Za-z0-9_.-].
        process: this process's name in traces; None: the program's name.

    Raises:
        DaemonUnavailable: nobody listens there, or no answer in time.
        VersionMismatch, FeatureRequired, PermissionDenied: the daemon and this client cannot work together.
    """
    if sys.byteorder != "little":
        raise NotSupported("this host is big-endian", op="connect")
    check_name("connect", "tenant", tenant)
    if process is None:
        process = os.path.basename(sys.argv[0] if sys.argv else "") or "python"
    path = os.fspath(default_socket() if socket is None else socket)
    return Client(path, check_duration("connect", timeout), tenant, _trace.clip(process, 128))


class Client:
    """A connection to the node's daemon, from :func:`connect`. Any number of threads may use it.

    Calls that ask the daemon block for its answer, which takes well below a millisecond where the daemon is
    well; what takes long is a pending thing, which asyncio awaits.

    It is a context manager that closes itself. In a forked child it and everything made from it raise
    ForkedClient: connect again there. Losing the daemon ends everything pending with DaemonUnavailable,
    or with Draining where it said that it shuts down (released=False); see :meth:`reconnect`.

    Attributes:
        socket: path of the daemon's socket.
        timeout: seconds for the answer to a request.
        tenant: as given to connect.
        process: this process's name in traces.
    """

    def __init__(self, path: str, timeout: float, tenant: str, process: str) -> None:
        self.socket = path
        self.timeout = timeout
        self.tenant = tenant
        self.process = process
        self._completed = Completed()
        self._spans = _trace.Spans()
        self._lock = threading.Lock()  # of _caches, _old and _closed
        self._one_at_a_time = threading.Lock()  # reconnect
        self._caches: list[Cache] = []
        self._old: list[Session] = []  # lost ones whose daemon may still touch memory
        self._closed = False
        self._session = self._greet(time.monotonic() + timeout)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _e: BaseException | None, _tb: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "connected" if self._session.conn.alive else "lost"
        return f"<kvxfer.Client {self.socket!r} node={self.node!r} {state}>"

    def __del__(self, _warn: Any = warnings.warn) -> None:
        session = getattr(self, "_session", None)
        if session is None or self._closed or session.conn.forked:
            return
        _warn(f"unclosed {self!r}", ResourceWarning, source=self, stacklevel=2)
        for s in (session, *self._old):
            s.conn.close()

    @property
    def node(self) -> str:
        """Name of the daemon's node."""
        return self._session.node

    @property
    def epoch(self) -> str:
        """The daemon's incarnation, 32 hex digits: another one after a restart."""
        return self._session.epoch

    @property
    def version(self) -> int:
        """The protocol version in use."""
        return self._session.version

    @property
    def boot_id(self) -> str:
        """The kernel's boot id as the daemon sees it."""
        return self._session.boot_id

    @property
    def process_watched(self) -> bool:
        """Whether the daemon notices the exit of the process that connected.

        False where the kernel does not let it (before Linux 6.5, from another pid namespace): the end of the
        connection alone tells it of this process's death, so a child that holds the socket open keeps the
        leases.
        """
        return self._session.process_watched

    # Caches.

    def allocate_cache(
        self,
        name: str,
        *,
        model: str,
        layout: Layout,
        num_blocks: int,
        revision: str = "",
        compat: str = "",
        timeout: float = 30.0,
    ) -> Cache:
        """Allocates memory for a cache and hands it to the daemon.

        Args:
            name: unique on the node, 1..64 of [A-Za-z0-9_.-].
            model: 1..1024 bytes; model, revision and compat must agree on both sides of a transfer.
            layout: where the bytes lie.
            num_blocks: 1..16777216; all memory (``num_blocks * layout.block_bytes`` bytes) is allocated now.
            revision: of the model, up to 1024 bytes.
            compat: the caller's own compatibility string (quantisation, adapter, draft model), up to 1024
                bytes.
            timeout: seconds for the daemon's answers.

        Raises:
            InvalidArgument: names the field and what is allowed.
            ResourceExhausted: not enough memory.
            AlreadyExists: the node has a cache of that name.
            MemoryRejected: the daemon does not accept the memory.
        """
        op = "allocate_cache"
        session = self._use(op)
        check_name(op, "name", name)
        for field, text, least in (("model", model, 1), ("revision", revision, 0), ("compat", compat, 0)):
            check_text(op, field, text, least, _MAX_TEXT)
        if not isinstance(layout, Layout):
            raise InvalidArgument(f"{layout!r:.80}, allowed a Layout", op=op, field="layout")
        num_blocks = layout._check_num_blocks(num_blocks)
        deadline = time.monotonic() + check_duration(op, timeout)
        memory = Memory(name, num_blocks * layout.block_bytes)
        try:
            cache = Cache(self, name, model, revision, compat, layout, num_blocks, memory)
            region, number, _ = self._register(op, session, cache, b"", deadline)
            with self._lock:
                if self._closed:
                    raise Closed("the client was closed", op=op)
                cache._attached = (session, region, number)
                self._caches.append(cache)
            return cache
        except BaseException:
            memory.close()
            raise

    def _register(
        self, op: str, session: Session, cache: Cache, vouched: bytes, deadline: float
    ) -> tuple[int, int, memoryview]:
        """Makes region and cache known to a daemon: their ids, and the blocks that it serves again."""
        conn = session.conn

        def undo(kind: int, key: str, number: int) -> None:
            try:
                conn.request_later(op, kind, {key: number})
            except KvxferError:  # lost: the daemon ends everything of this connection
                pass

        region: int = conn.request(
            op,
            wire.REGISTER_REGION,
            {"name": cache.name, "id": cache._mem.id, "kind": "memfd", "size": cache._mem.size},
            fds=[cache._mem.fd],
            timeout=_left(deadline),
            on_ok=lambda f: wire.get_id(f.body(), "region"),
            on_late=lambda r: undo(wire.DEREGISTER_REGION, "region", r),
        )

        def registered(frame: wire.Frame) -> tuple[int, memoryview]:
            b = frame.body()
            if wire.get_id(b, "block_bytes") != cache.layout.block_bytes:
                raise wire.violation("block_bytes", f"{b['block_bytes']}, want {cache.layout.block_bytes}")
            return wire.get_id(b, "cache"), wire.u32s("served", frame.array)

        def too_late(value: tuple[int, memoryview]) -> None:
            undo(wire.DROP_CACHE, "cache", value[0])
            undo(wire.DEREGISTER_REGION, "region", region)

        try:
            number, served = conn.request(
                op,
                wire.REGISTER_CACHE,
                {"name": cache.name, "region": region, **cache._spec()},
                vouched,
                timeout=_left(deadline),
                on_ok=registered,
                on_late=too_late,
            )
        except DeadlineExceeded:  # too_late undoes both
            raise
        except KvxferError:
            undo(wire.DEREGISTER_REGION, "region", region)
            raise
        return region, number, served

    # The daemon.

    def ping(self, timeout: float | None = None) -> float:
        """Seconds that a request to the daemon and its answer take."""
        session, timeout = self._use("ping"), self._timeout("ping", timeout)
        start = time.monotonic()
        session.conn.request("ping", wire.PING, timeout=timeout)
        return time.monotonic() - start

    def status(self, timeout: float | None = None) -> Status:
        """The daemon's description of itself."""

        session, timeout = self._use("status"), self._timeout("status", timeout)
        status: Status = session.conn.request("status", wire.STATUS, timeout=timeout, on_ok=read_status)
        return status

    def completed(self) -> list[Pending[Any]]:
        """Everything that has ended since the last call: leases, pushes and the pending things that were
        handed out.

        Until the first call only the newest 4,096 are kept.
        """
        self._check_fork()
        return self._completed.take()

    def daemon_exited(self, timeout: float = 0.0) -> bool:
        """Whether the daemon's process has really ended, waiting up to timeout seconds for it.

        A lost connection does not tell: a stopped daemon may go on and write. After its exit nothing of it
            can.

        Raises:
            NotSupported: the daemon's process cannot be seen from here (it lives in another pid namespace),
                or the client is closed.
        """
        self._check_fork()
        exited = self._session.conn.daemon_exited(check_timeout("daemon_exited", timeout) or 0.0)
        if exited is None:
            raise NotSupported("the daemon's process cannot be watched from here", op="daemon_exited")
        return exited

    def reconnect(self, timeout: float = 30.0) -> dict[str, memoryview]:
        """Connects again after the daemon was lost, and hands all caches over again with what they still
        hold.

        Memory, contents and names stay; old leases and pushes have ended. Blocks that a lease committed, and
        that were neither evicted nor leased again since, are vouched for: the daemon serves those that it
        knows as well. It tries until timeout seconds are over, so it may be called while the daemon restarts.
        While the connection is alive it changes nothing.

        Returns:
            For each cache's name the ids of the blocks that are served again, as a memoryview of 32-bit
            integers.

        Raises:
            DaemonUnavailable: no daemon in time.
            KvxferError: a cache was refused; the connection is closed again and the call may be repeated.
        """
        self._check_fork()
        deadline = time.monotonic() + check_duration("reconnect", timeout)
        with self._one_at_a_time:
            old = self._session
            self._check_open("reconnect")
            with self._lock:
                caches = list(self._caches)
            # A daemon that has just died leaves a connection whose end was not read yet.
            if old.conn.alive and not old.conn.daemon_exited(0):
                return {c.name: _ids(c._vouched.packed()) for c in caches}
            old.conn.ended.wait(max(0.0, deadline - time.monotonic()))  # its handles have their outcome
            session = self._retry(lambda: self._greet(deadline), deadline)
            try:
                made = {c: self._register_again(session, c, deadline) for c in caches}
                with self._lock:
                    self._check_open("reconnect")
                    self._session = session
                    self._old = olds = [s for s in (*self._old, old) if s.awaits_exit()]
                    for c, (region, number) in made.items():
                        if c in self._caches:
                            c._attached = (session, region, number)
            except BaseException:
                _end(session.conn)
                raise
            for c in caches:
                for s in olds:
                    # The same daemon gives a cache's name out again only when everything of its old session
                    # is fenced. Of another one only its exit says so, which the old session's thread watches;
                    # where the exit cannot be seen, the node's rule counts: it starts only when its
                    # predecessor is gone.
                    unseen = s.conn.daemon_exited(0) is None and s.node == session.node
                    if s.epoch == session.epoch or unseen:
                        s.fenced(c.name)
            session.flush_spans()
            return {c.name: _ids(c._vouched.packed()) for c in caches}

    def _register_again(self, session: Session, cache: Cache, deadline: float) -> tuple[int, int]:
        # An array of one frame holds this many vouches; blocks above are safe and only lost.
        vouched = cache._vouched.packed()[: wire.MAX_ARRAY]
        region, number, served = self._retry(
            lambda: self._register("reconnect", session, cache, vouched, deadline), deadline
        )
        cache._vouched.keep_only(served)
        return region, number

    def _retry(self, fn: Callable[[], _T], deadline: float) -> _T:
        """Repeats fn while the daemon restarts or still ends the old session."""
        pause = 0.02
        while True:
            try:
                return fn()
            except (DaemonUnavailable, Draining, AlreadyExists, DeadlineExceeded):
                if time.monotonic() + pause >= deadline or self._closed:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, 0.5)

    # Tracing.

    def span(
        self, name: str, traceparent: str | None = None, **attributes: str | bool | int | float
    ) -> AbstractContextManager[_trace.Span]:
        """A step of the caller's own in the same trace, as a context manager that yields a :class:`Span`.

        Args:
            name: up to 128 bytes.
            traceparent: W3C context that the step belongs to; None: OpenTelemetry's active span, else a new
                trace.
            attributes: str, bool, int or float; dots cannot be written as keywords, so use ``span.set`` for
                those.
        """
        self._check_fork()
        span = _trace.start("span", name, traceparent, attributes)
        return _trace.record(span, self._end_span)

    # The end.

    def close(self) -> None:
        """Detaches from the daemon, which revokes and fences everything of this client. A second call does
        nothing.

        Pending things end with Closed (released=False): use :meth:`Cache.drop` first to know that everything
        is fenced. Views of caches' memory stay valid.
        """
        if self._session.conn.forked:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            caches, self._caches = self._caches, []
            sessions = [self._session, *self._old]
            self._old = []
        self._session.flush_spans()
        self._session.conn.flush(0.5)
        for s in sessions:
            s.conn.close()
        for s in sessions:
            s.conn.dispose(5.0)
        for c in caches:
            c._attached = None
            c._mem.close()

    # What follows is called by the SDK.

    def _end_span(self, span: _trace.Span, error: BaseException | None) -> None:
        self._session.end_span(span, error)

    def _check_fork(self) -> None:
        self._session.conn.check_fork()

    def _forget(self, cache: Cache) -> None:
        """A cache was dropped."""
        with self._lock:
            if cache in self._caches:
                self._caches.remove(cache)

    def _greet(self, deadline: float) -> Session:
        body = {
            "min_version": wire.MIN_VERSION,
            "max_version": wire.MAX_VERSION,
            "tenant": self.tenant,
            "software": f"kvxfer-python {__version__}",
            "process": self.process,
            "pid": os.getpid(),
        }
        conn = Connection(self.socket, deadline)
        session = Session(conn, self._completed, self._spans)
        try:
            session.hello(body, _left(deadline))
            return session
        except DeadlineExceeded:
            _end(conn)
            raise DaemonUnavailable(
                f"the daemon at {self.socket} accepted the connection and does not answer (is it stopped?)",
                op="connect",
            ) from None
        except BaseException:
            _end(conn)
            raise

    def _check_open(self, op: str) -> None:
        if self._closed:
            raise Closed("the client was closed", op=op)

    def _use(self, op: str) -> Session:
        self._check_fork()
        self._check_open(op)
        return self._session

    def _timeout(self, op: str, timeout: float | None) -> float:
        return self.timeout if timeout is None else check_duration(op, timeout)


def _end(conn: Connection) -> None:
    conn.close()
    conn.dispose(1.0)


def _left(deadline: float) -> float:
    return max(0.001, deadline - time.monotonic())


def _ids(vouches: bytes) -> memoryview:
    """The block ids of packed vouches."""
    return memoryview(vouches).cast("I")[0::4]
