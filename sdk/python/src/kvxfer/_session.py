"""One greeted connection and the leases and pushes on it."""

from __future__ import annotations

import time
import weakref
from typing import Any, Protocol

from . import _wire as wire
from ._connection import Connection
from ._errors import again
from ._faults import KvxferError, VersionMismatch
from ._pending import Completed, Pending
from ._trace import Span, Spans

#: Seconds after which finished spans are sent.
_SPAN_DELAY = 1.0


class Handle(Protocol):
    """A lease or a push, as its session sees it."""

    _cache_name: str

    def _on_lost(self, error: KvxferError) -> None: ...
    def _on_fenced(self) -> None: ...


class LeaseHandle(Handle, Protocol):
    """A lease as events see it."""

    def _on_layers(self, layers: memoryview) -> None: ...
    def _on_ended(self, body: dict[str, Any], notification: bytes) -> None: ...


class PushHandle(Handle, Protocol):
    """A push as events see it; _on_transfer says whether its memory is released."""

    def _on_transfer(self, body: dict[str, Any]) -> bool: ...
    def _on_released(self) -> None: ...


class Session:
    """What the handles share: the connection, who is done, and the spans.

    A handle stays in its table until its memory is released: until then its daemon may still touch it.
    """

    def __init__(self, conn: Connection, completed: Completed, spans: Spans) -> None:
        self.conn = conn
        self.spans = spans
        self._completed = completed
        self._leases: dict[int, LeaseHandle] = {}
        self._pushes: dict[int, PushHandle] = {}
        self.node = self.epoch = self.boot_id = self.software = ""
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
        self.node, self.epoch = wire.get(b, "node", ""), wire.get(b, "epoch", "")
        self.boot_id, self.software = wire.get(b, "boot_id", ""), wire.get(b, "software", "")
        self.process_watched = wire.get(b, "process_watched", False)

    # Owner of pending things.

    def check_fork(self) -> None:
        self.conn.check_fork()

    def completed(self, pending: Pending[Any]) -> None:
        self._completed.add(pending)

    # Handles. They are added by the connection's thread, in the order of its frames.

    def add_lease(self, lease: int, handle: LeaseHandle) -> None:
        self._leases[lease] = handle

    def add_push(self, transfer: int, handle: PushHandle) -> None:
        self._pushes[transfer] = handle

    def end_later(self, when: float, handle: Any, method: str) -> None:
        """Calls a method of a handle at that time, without keeping the handle alive until then."""
        ref = weakref.ref(handle)

        def due() -> None:
            h = ref()
            if h is not None:
                getattr(h, method)()

        self.conn.call_at(when, due)

    def fenced(self, cache_name: str) -> None:
        """Every handle on that cache is fenced: the daemon dropped the cache, or this session's daemon is
        gone."""
        ended: list[Handle] = []
        for lease, handle in list(self._leases.items()):
            if handle._cache_name == cache_name and self._leases.pop(lease, None) is not None:
                ended.append(handle)
        for transfer, push in list(self._pushes.items()):
            if push._cache_name == cache_name and self._pushes.pop(transfer, None) is not None:
                ended.append(push)
        for h in ended:
            h._on_fenced()
        if not self.conn.alive:
            self.conn.look_again()

    # Listener.

    def on_event(self, frame: wire.Frame) -> None:
        if frame.kind == wire.EVENT_LAYERS:
            lease, layers = wire.layers_visible(frame.array)
            entry = self._leases.get(lease)
            if entry is not None:
                entry._on_layers(layers)
        elif frame.kind == wire.EVENT_LEASE:
            body = frame.body()
            ended = self._leases.pop(wire.get_id(body, "lease"), None)
            if ended is not None:
                ended._on_ended(body, frame.array)
        elif frame.kind == wire.EVENT_TRANSFER:
            body = frame.body()
            transfer = wire.get_id(body, "transfer")
            push = self._pushes.get(transfer)
            if push is not None and push._on_transfer(body):
                self._pushes.pop(transfer, None)
        elif frame.kind == wire.EVENT_RELEASED:
            released = self._pushes.pop(wire.get_id(frame.body(), "transfer"), None)
            if released is not None:
                released._on_released()
        # An event of another kind comes from a newer daemon and says nothing that this version needs.

    def on_lost(self, error: KvxferError) -> None:
        for handle in self._handles():
            handle._on_lost(again(error, op=error.op, released=False))

    def on_daemon_exit(self) -> None:
        handles = self._handles()
        self._leases.clear()
        self._pushes.clear()
        for handle in handles:
            handle._on_fenced()

    def awaits_exit(self) -> bool:
        return bool(self._leases or self._pushes)

    def _handles(self) -> list[Handle]:
        return [*self._leases.values(), *self._pushes.values()]

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
