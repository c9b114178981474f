"""The client: one process attached to its node's daemon."""

from __future__ import annotations

import os
import threading
import time
import warnings
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Literal, overload

from . import _trace
from . import _wire as wire
from ._arguments import check_duration, check_instance_key, check_timeout
from ._blocks import BlockIds, pack
from ._cache import Cache
from ._connection import Connection
from ._faults import DaemonUnavailable, DeadlineExceeded, InvalidArgument, NotSupported
from ._granted import AnyLease
from ._keys import Keys, Lookup, pack_keys, read_lookup
from ._layout import MAX_BLOCKS, MAX_LAYERS, Layout, check_kind, kind_of
from ._lease import Lease
from ._offer import ReadLease
from ._pending import GRACE, Completed, Pending
from ._places import Places
from ._reconnect import register_again, retry, served, tell_fenced
from ._registered import left
from ._session import Session
from ._status import Status, read_status
from ._terms import LeaseTerms
from ._version import __version__


class Client(Places):
    """A connection to the node's daemon, from :func:`connect`. Any number of threads may use it.

    Calls that ask the daemon block for its answer, which takes well below a millisecond where the daemon is
    well; what takes long is a pending thing, which asyncio awaits.

    It is a context manager that closes itself. In a forked child it and everything made from it raise
    ForkedClient: connect again there. Losing the daemon ends everything pending with DaemonUnavailable,
    or with Draining where it said that it shuts down (released=False); see :meth:`reconnect`.

    Attributes:
        socket: path of the daemon's socket.
        timeout: seconds for the answer to a request.
        tenant: as given to connect; where none was given, the daemon's own.
        process: this process's name in traces.
    """

    def __init__(self, path: str, timeout: float, tenant: str, process: str, ring: bool) -> None:
        self.socket = path
        self.timeout = timeout
        self.tenant = tenant
        self.process = process
        self._ring = ring
        super().__init__()
        self._completed = Completed()
        self._spans = _trace.Spans()
        self._one_at_a_time = threading.Lock()  # reconnect
        self._session = self._greet(time.monotonic() + timeout)
        self.tenant = self._session.tenant or tenant  # what reconnect will ask for

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

    # Instances and keys.

    @overload
    def lease(
        self,
        *,
        instance: str,
        instance_key: bytes,
        blocks: BlockIds,
        mode: Literal["write"] = "write",
        ttl: float = 30.0,
        traceparent: str | None = None,
        timeout: float = 15.0,
    ) -> Lease: ...

    @overload
    def lease(
        self,
        *,
        instance: str,
        instance_key: bytes,
        blocks: BlockIds,
        mode: Literal["read"],
        ttl: float = 30.0,
        readers: int = 1,
        traceparent: str | None = None,
        timeout: float = 15.0,
    ) -> ReadLease: ...

    def lease(
        self,
        *,
        instance: str,
        instance_key: bytes,
        blocks: BlockIds,
        mode: str = "write",
        ttl: float = 30.0,
        readers: int = 1,
        traceparent: str | None = None,
        timeout: float = 15.0,
    ) -> AnyLease:
        """Leases the same blocks on every rank of an instance, under one ticket.

        Any process that has the instance's key may ask, with memory of its own or without. Each rank's own
        process hears of it, see :meth:`Cache.granted`. The lease is committed on every rank or on none.

        Args:
            instance: the engine's name, as its ranks gave it to :meth:`allocate_cache`.
            instance_key: the engine's secret, 16..64 bytes.
            blocks: ids, each once, the same on every rank; at most 16,384.
            mode, ttl, readers, traceparent: as for :meth:`Cache.lease`.
            timeout: seconds for the answer, for which the ranks' nodes are asked.

        Raises:
            InvalidArgument: names the field, and the index of a wrong block id.
            NotFound: a rank is not there.
            PermissionDenied: a wrong key.
            BlocksBusy: a block is leased or being fenced on a rank, or, for writing, held.
            DeadlineExceeded: no answer (released=False); the lease is revoked as soon as the answer comes.
        """
        session = self._use("lease")
        key = check_instance_key("lease", instance, instance_key)
        packed = pack("lease", blocks, MAX_BLOCKS)
        terms = LeaseTerms(mode, ttl, readers, traceparent, timeout)
        owner = {"instance": instance, "instance_key": wire.base64(key)}
        if terms.mode == "read":
            return terms.read(session, owner, packed, "", self)
        return terms.write(session, owner, packed, "", MAX_LAYERS, None, self)

    def lookup(
        self,
        keys: Keys,
        *,
        like: Cache | None = None,
        model: str = "",
        layout: Layout | None = None,
        revision: str = "",
        compat: str = "",
        local_only: bool = False,
        timeout: float = 1.0,
    ) -> Lookup:
        """Who holds the longest beginning of these keys?

        Every node that is known to have a cache of that model is asked. The answer is a hint: blocks may be
        evicted before they are read. Read them by ``cache.read(blocks, source=holder, keys=keys[:n])``.

        Args:
            keys: in order, 1..65536 of equal length, 1..255 bytes; see :func:`chain_keys`.
            like: the cache that the blocks would be read into; only caches that agree with it are holders.
            model, layout, revision, compat: instead of like.
            local_only: ask no other node.
            timeout: seconds after which nodes that have not answered are listed as unasked.

        Raises:
            InvalidArgument: names the field, and the index of a wrong key.
            DeadlineExceeded: the own daemon does not answer.
        """
        op = "lookup"
        session = self._use(op)
        data, key_bytes, _ = pack_keys(op, keys)
        if isinstance(like, Cache):
            if (model, layout, revision, compat) != ("", None, "", ""):
                raise InvalidArgument("allowed alone, or model and layout", op=op, field="like")
            kind = like._kind()
        elif like is None:
            check_kind(op, model, revision, compat, layout)
            assert layout is not None
            kind = kind_of(model, revision, compat, layout)
        else:
            raise InvalidArgument(f"{like!r:.80}, allowed a Cache", op=op, field="like")
        timeout = check_duration(op, timeout)
        body = {**kind, "key_bytes": key_bytes}
        if local_only:
            body["local_only"] = True
        body["timeout_ms"] = wire.milliseconds(timeout)
        found: Lookup = session.conn.request(
            op, wire.LOOKUP, body, data, timeout=timeout + GRACE, on_ok=read_lookup
        )
        return found

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
        """Everything that has ended since the last call, each thing once: leases, advertisements, transfers,
        and the pending things that were handed out (revocations, renewals, releases, layers, holders' ends).

        Until the first call only the newest 4,096 are kept, so that a program that never asks does not grow.
        """
        self._check_fork()
        return self._completed.take()

    def fileno(self) -> int:
        """A file descriptor that is readable while :meth:`completed` has something to report. It belongs to
        this object: never read or close it."""
        self._check_fork()
        return self._completed.fileno()

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
        """Connects again after the daemon was lost, and hands caches and regions over again with what they
        still hold.

        Memory, contents and names stay; old leases and transfers have ended. Where it is the same daemon,
        they are released too: it takes memory again only when everything of the lost connection there is
        fenced. Blocks that a lease committed, and that were neither evicted nor leased again since, are
        vouched for: the daemon serves those that it knows as well. It tries until timeout seconds are over,
        so it may be called while the daemon restarts. While the connection is alive it changes nothing.

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
                places = list(self._places)
            # A daemon that has just died leaves a connection whose end was not read yet.
            if old.conn.alive and not old.conn.daemon_exited(0):
                return served(places)
            old.conn.ended.wait(max(0.0, deadline - time.monotonic()))  # its handles have their outcome
            session = retry(lambda: self._greet(deadline), deadline, self._is_closed)
            try:
                made = register_again(session, places, deadline, self._is_closed)
                with self._lock:
                    self._check_open("reconnect")
                    self._session = session
                    self._old = olds = [s for s in (*self._old, old) if s.awaits_exit()]
                    for p, attachment in made.items():
                        if p in self._places:
                            p._attached = attachment
            except BaseException:
                _end(session.conn)
                raise
            tell_fenced(session, places, olds)
            session.flush_spans()
            return served(places)

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
        is fenced. Views of caches' memory stay valid. Adopted memory is given back and fenced first; what the
        daemon has not fenced within 5 seconds stays allocated for as long as this process lives.
        """
        if self._session.conn.forked:
            return
        self._give_adopted_back()
        with self._lock:
            if self._closed:
                return
            self._closed = True
            places, self._places = self._places, []
            sessions = [self._session, *self._old]
            self._old = []
        exited = all(s.conn.daemon_exited(0) for s in sessions)  # before the connections are let go
        self._session.flush_spans()
        self._session.conn.flush(0.5)
        for s in sessions:
            s.conn.close()
        for s in sessions:
            s.conn.dispose(5.0)
        self._lose(places, exited)

    # What follows is called by the SDK.

    def _end_span(self, span: _trace.Span, error: BaseException | None) -> None:
        self._session.end_span(span, error)

    def _greet(self, deadline: float) -> Session:
        body = {
            "min_version": wire.MIN_VERSION,
            "max_version": wire.MAX_VERSION,
            "optional": list(wire.FEATURES),
            "tenant": self.tenant,
            "software": f"kvxfer-python {__version__}",
            "process": self.process,
            "pid": os.getpid(),
        }
        conn = Connection(self.socket, deadline)
        session = Session(conn, self._completed, self._spans)
        try:
            session.hello(body, left(deadline))
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

    def _timeout(self, op: str, timeout: float | None) -> float:
        return self.timeout if timeout is None else check_duration(op, timeout)


def _end(conn: Connection) -> None:
    conn.close()
    conn.dispose(1.0)
