"""One greeted connection and the permissions and transfers on it."""

from __future__ import annotations

import time
import weakref
from typing import Any, Protocol

from . import _wire as wire
from ._connection import Connection
from ._errors import again
from ._faults import FeatureRequired, KvxferError, VersionMismatch
from ._pending import Completed, Pending
from ._ring import Ways
from ._trace import Span, Spans

#: Seconds after which finished spans are sent.
_SPAN_DELAY = 1.0


class Handle(Protocol):
    """A permission or a transfer, as its session sees it."""

    _place: str
    _exit_fences: bool

    def _on_lost(self, error: KvxferError) -> None: ...
    def _on_fenced(self) -> None: ...


class GrantHandle(Handle, Protocol):
    """A permission as events see it; _on_ended says whether its memory is released."""

    def _on_layers(self, layers: memoryview) -> None: ...
    def _on_holder(self, body: dict[str, Any], notification: bytes) -> None: ...
    def _on_ended(self, body: dict[str, Any], notification: bytes) -> bool: ...


class TransferHandle(Handle, Protocol):
    """A transfer as events see it; _on_transfer says whether its memory is released."""

    def _on_prepared(self, body: dict[str, Any]) -> None: ...
    def _on_transfer(self, body: dict[str, Any]) -> bool: ...
    def _on_released(self) -> None: ...


class CacheHandle(Protocol):
    """A cache that hears of leases which other processes of its engine took."""

    def _on_granted(self, session: Session, body: dict[str, Any], packed: bytes) -> None: ...
    def _on_lost(self, error: KvxferError) -> None: ...


class Session:
    """What the handles share: the connection, who is done, and the spans.

    A handle stays in its table until its memory is released: until then its daemon may still touch it.
    """

    def __init__(self, conn: Connection, completed: Completed, spans: Spans) -> None:
        self.conn = conn
        self.spans = spans
        self.ways = Ways(conn)
        self.features: tuple[str, ...] = ()
        self._completed = completed
        self._leases: dict[int, GrantHandle] = {}
        self._transfers: dict[int, TransferHandle] = {}
        self._asked: set[TransferHandle] = set()  # whose request is not answered and nobody waits for
        # Weak: the thread holds the session, and nothing but its users may keep a client alive.
        self._caches: weakref.WeakValueDictionary[int, CacheHandle] = weakref.WeakValueDictionary()
        self.node = self.epoch = self.boot_id = self.software = self.tenant = ""
        self.version = 0
        self.process_watched = False

    def hello(self, body: dict[str, Any], timeout: float) -> None:
        """Starts the connection and greets the daemon."""
        self.conn.start(self)
        self.conn.request("connect", wire.HELLO, body, timeout=timeout, on_ok=self._greeted)

    def _greeted(self, frame: wire.Frame) -> None:
        b = frame.body()
        self.version = wire.get(b, "version", 0)
        if frame.kind != wire.HELLO_OK:
            raise wire.violation("kind", "HELLO was not answered by HELLO_OK")
        if not wire.MIN_VERSION <= self.version <= wire.MAX_VERSION:
            raise VersionMismatch(
                f"the daemon chose {self.version}, this side speaks {wire.MIN_VERSION}..{wire.MAX_VERSION}",
                op="connect",
            )
        unknown = [f for f in wire.get_strings(b, "required") if f not in wire.FEATURES]
        if unknown:
            named = ", ".join(repr(f[:64]) for f in unknown[:8])
            raise FeatureRequired(f"the daemon requires {named}, unknown here", op="connect")
        self.node, self.epoch = wire.get(b, "node", ""), wire.get(b, "epoch", "")
        self.features = wire.get_strings(b, "optional")
        self.boot_id, self.software = wire.get(b, "boot_id", ""), wire.get(b, "software", "")
        self.tenant = wire.get(b, "tenant", "")
        self.process_watched = wire.get(b, "process_watched", False)

    # Owner of pending things.

    def check_fork(self) -> None:
        self.conn.check_fork()

    def completed(self, pending: Pending[Any]) -> None:
        self._completed.add(pending)

    # Handles. They are added by the connection's thread, in the order of its frames.

    def add_lease(self, lease: int, handle: GrantHandle) -> None:
        self._leases[lease] = handle

    def add_transfer(self, transfer: int, handle: TransferHandle) -> None:
        self._transfers[transfer] = handle

    def add_cache(self, cache: int, handle: CacheHandle) -> None:
        self._caches[cache] = handle

    def asked(self, handle: TransferHandle) -> None:
        """Before a transfer's request is sent: from here on its memory may be touched."""
        self._asked.add(handle)

    def answered(self, handle: TransferHandle) -> None:
        """The request has its answer."""
        self._asked.discard(handle)

    def end_later(self, when: float, handle: Any, method: str) -> None:
        """Calls a method of a handle at that time, without keeping the handle alive until then."""
        ref = weakref.ref(handle)

        def due() -> None:
            h = ref()
            if h is not None:
                getattr(h, method)()

        self.conn.call_at(when, due)

    def holds(self, place: str) -> bool:
        """Whether something on that cache or region is not released."""
        return any(h._place == place for h in self._handles())

    def fenced(self, place: str) -> None:
        """Every handle on that cache or region is fenced: the daemon gave it back, or this session's daemon
        is gone."""
        ended: list[Handle] = []
        for lease, grant in list(self._leases.items()):
            if grant._place == place and self._leases.pop(lease, None) is not None:
                ended.append(grant)
        for number, transfer in list(self._transfers.items()):
            if transfer._place == place and self._transfers.pop(number, None) is not None:
                ended.append(transfer)
        for transfer in list(self._asked):
            if transfer._place == place:
                self._asked.discard(transfer)
                ended.append(transfer)
        for h in ended:
            h._on_fenced()
        if not self.conn.alive:
            self.conn.look_again()

    # Listener.

    def on_event(self, frame: wire.Frame) -> None:
        if frame.kind == wire.EVENT_POSTED:
            self.ways.socket.ended(frame.array)
        elif frame.kind == wire.EVENT_LAYERS:
            lease, layers = wire.layers_visible(frame.array)
            grant = self._leases.get(lease)
            if grant is not None:
                grant._on_layers(layers)
        elif frame.kind == wire.EVENT_HOLDER:
            body = frame.body()
            grant = self._leases.get(wire.get_id(body, "lease"))
            if grant is not None:
                grant._on_holder(body, frame.array)
        elif frame.kind == wire.EVENT_LEASE:
            body = frame.body()
            lease = wire.get_id(body, "lease")
            grant = self._leases.get(lease)
            if grant is not None and grant._on_ended(body, frame.array):
                self._leases.pop(lease, None)
        elif frame.kind == wire.EVENT_TRANSFER:
            body = frame.body()
            number = wire.get_id(body, "transfer")
            transfer = self._transfers.get(number)
            if transfer is not None and transfer._on_transfer(body):
                self._transfers.pop(number, None)
        elif frame.kind == wire.EVENT_PREPARED:
            body = frame.body()
            transfer = self._transfers.get(wire.get_id(body, "transfer"))
            if transfer is not None:
                transfer._on_prepared(body)
        elif frame.kind == wire.EVENT_RELEASED:
            released = self._transfers.pop(wire.get_id(frame.body(), "transfer"), None)
            if released is not None:
                released._on_released()
        elif frame.kind == wire.EVENT_GRANTED:
            body = frame.body()
            cache = self._caches.get(wire.get_id(body, "cache"))
            if cache is not None:
                cache._on_granted(self, body, frame.array)
        # An event of another kind comes from a newer daemon and says nothing that this version needs.

    def on_lost(self, error: KvxferError) -> None:
        for handle in self._handles():
            handle._on_lost(again(error, op=error.op, released=False))
        for cache in list(self._caches.values()):
            cache._on_lost(error)
        self.ways.lost(error)
        # Of memory on other nodes no word will come on this connection.
        self._leases = {n: h for n, h in self._leases.items() if h._exit_fences}

    def on_daemon_exit(self) -> None:
        handles = self._handles()
        self._leases.clear()
        self._transfers.clear()
        self._asked.clear()
        for handle in handles:
            handle._on_fenced()

    def awaits_exit(self) -> bool:
        return bool(self._leases or self._transfers or self._asked)

    def _handles(self) -> list[Handle]:
        return [*self._leases.values(), *self._transfers.values(), *self._asked]

    # Spans.

    def end_span(self, span: Span, error: KvxferError | BaseException | None = None) -> None:
        """Takes a finished span; it is sent within a second."""
        if self.conn.forked:  # any lock may be held for good here
            return
        if self.spans.end(span, error) and self.conn.alive:
            self.conn.call_at(time.monotonic() + _SPAN_DELAY, self.flush_spans)

    def flush_spans(self) -> None:
        """Sends the spans that wait."""
        try:
            self.spans.flush(lambda body: self.conn.notify(wire.SPANS, body))
        except KvxferError:  # the connection is lost, and the spans with it
            pass
