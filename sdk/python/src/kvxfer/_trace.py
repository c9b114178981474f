"""W3C trace context and the client's own spans, without dependencies.

Spans are measured here and handed to the daemon, which exports them under the ids that were chosen here. The
limits are the daemon's; what is above them is cut here, because a span is never worth a connection.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ._faults import InvalidArgument, KvxferError

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_MAX_NAME = 128
_MAX_TEXT = 1024
_MAX_ATTRIBUTES = 64
MAX_EVENTS = 256
_MAX_WAITING = 1024
_FRAME_SPANS = 64
_FRAME_BYTES = 512 << 10


@dataclass(frozen=True)
class Context:
    """The place in a trace: ids in lower-case hex and whether the trace is sampled."""

    trace_id: str
    span_id: str
    sampled: bool

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{1 if self.sampled else 0:02x}"


def parse(op: str, traceparent: str) -> Context:
    """Reads a W3C traceparent; InvalidArgument for what is none."""
    m = _TRACEPARENT.fullmatch(traceparent) if isinstance(traceparent, str) else None
    if (
        m is None
        or m[1] == "ff"
        or (m[1] == "00" and m[5] is not None)
        or m[2] == "0" * 32
        or m[3] == "0" * 16
    ):
        raise InvalidArgument(
            f"{traceparent!r}, allowed 00-<32 hex digits>-<16 hex digits>-<2 hex digits>",
            op=op,
            field="traceparent",
        )
    return Context(m[2], m[3], bool(int(m[4], 16) & 1))


def new_span_id() -> str:
    return _nonzero(8)


def new_trace_id() -> str:
    return _nonzero(16)


def _nonzero(n: int) -> str:
    while True:
        b = secrets.token_bytes(n)
        if any(b):
            return b.hex()


def active() -> Context | None:
    """The active span of OpenTelemetry, where the program has imported it already."""
    module = sys.modules.get("opentelemetry.trace")
    if module is None:
        return None
    try:
        c = module.get_current_span().get_span_context()
        if c.is_valid:
            return Context(f"{c.trace_id:032x}", f"{c.span_id:016x}", bool(c.trace_flags & 1))
    except Exception:  # somebody else's library must not break a transfer
        pass
    return None


def parent_of(op: str, traceparent: str | None) -> Context | None:
    """What a call belongs to: the argument, else OpenTelemetry's active span, else nothing."""
    return active() if traceparent is None else parse(op, traceparent)


def samples(trace_id: str) -> bool:
    """What OTEL_TRACES_SAMPLER and OTEL_TRACES_SAMPLER_ARG say of a trace that begins in this process.

    By default every trace is sampled. OpenTelemetry's own SDKs decide the same of the same id. A value that
    cannot be read counts as the default, as there: tracing breaks no transfer.
    """
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    sampler = os.environ.get("OTEL_TRACES_SAMPLER", "").strip().lower().removeprefix("parentbased_")
    if sampler == "traceidratio":
        try:
            ratio = float(os.environ.get("OTEL_TRACES_SAMPLER_ARG", "1"))
        except ValueError:
            return True
        if not 0 <= ratio <= 1:
            return True
        return int(trace_id[16:], 16) >> 1 < int(ratio * (1 << 63))
    return sampler != "always_off"


class Span:
    """A step of the caller's own, from :meth:`Client.span`.

    Give its :attr:`traceparent` to lease, write and span, so that they become its children.
    """

    def __init__(self, name: str, context: Context, parent_id: str, attributes: dict[str, Any]) -> None:
        self._context = context
        self._name = name
        self._parent_id = parent_id
        self._attributes = dict(attributes)
        self._events: list[tuple[str, int]] = []
        self._start = time.time_ns()
        self._clock = time.monotonic_ns()
        self._end = 0  # Unix nanoseconds once it has ended: it does not change any more

    @property
    def traceparent(self) -> str:
        """W3C context of this span."""
        return self._context.traceparent

    @property
    def trace_id(self) -> str:
        """32 hex digits."""
        return self._context.trace_id

    @property
    def span_id(self) -> str:
        """16 hex digits."""
        return self._context.span_id

    @property
    def sampled(self) -> bool:
        """False when nothing of the trace is recorded."""
        return self._context.sampled

    def set(self, key: str, value: str | bool | int | float) -> None:
        """Sets an attribute."""
        if not self._end:
            self._attributes[key] = value

    def event(self, name: str) -> None:
        """Notes a moment; above 256 they are left out."""
        if len(self._events) < MAX_EVENTS and not self._end:
            self._events.append((name, self._now()))

    def _place(self, context: Context, parent_id: str) -> None:
        """Puts a span into its trace, where that is known only after it began."""
        self._context, self._parent_id = context, parent_id

    def __repr__(self) -> str:
        return f"<kvxfer.Span {self._name} {self.traceparent}>"

    def _now(self) -> int:
        """Unix nanoseconds that a stepped wall clock does not disturb within the span."""
        return self._start + time.monotonic_ns() - self._clock

    def _to_wire(self, error: str) -> dict[str, Any]:
        """The finished span's JSON object."""
        out: dict[str, Any] = {"trace_id": self.trace_id, "span_id": self.span_id}
        if self._parent_id:
            out["parent_id"] = self._parent_id
        end = self._end or self._now()
        out |= {
            "name": clip(self._name, _MAX_NAME) or "span",
            "start_unix_ns": self._start,
            "end_unix_ns": end,
        }
        attributes = list(self._attributes.items())[:_MAX_ATTRIBUTES]
        if attributes:
            out["attributes"] = {clip(str(k), _MAX_NAME) or "attribute": _value(v) for k, v in attributes}
        if self._events:
            # Another thread may note a last moment while the span ends: no event lies outside its span.
            out["events"] = [
                {"name": clip(n, _MAX_NAME), "unix_ns": min(t, end)} for n, t in list(self._events)
            ]
        if error:
            out["error"] = clip(error, _MAX_TEXT)
        return out


def start(op: str, name: str, traceparent: str | None, attributes: dict[str, Any]) -> Span:
    """A span under what the call belongs to, or the root of a new trace."""
    parent = parent_of(op, traceparent)
    if parent is None:
        trace_id = new_trace_id()
        return Span(name, Context(trace_id, new_span_id(), samples(trace_id)), "", attributes)
    return Span(name, Context(parent.trace_id, new_span_id(), parent.sampled), parent.span_id, attributes)


def clip(text: str, n: int) -> str:
    """text in at most n bytes of valid UTF-8, for names and values."""
    raw = text.encode("utf-8", "replace")
    return raw.decode() if len(raw) <= n else raw[:n].decode("utf-8", "ignore")


def _value(v: Any) -> str | bool | int | float:
    if isinstance(v, bool):
        return v
    if isinstance(v, int) and -(1 << 63) <= v < 1 << 63:
        return int(v)
    if isinstance(v, float) and math.isfinite(v):
        return float(v)
    return clip(str(v), _MAX_TEXT)


class Spans:
    """Finished spans on their way to the daemon: at most 1,024 wait, later ones are dropped."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[tuple[Span, str]] = []

    def end(self, span: Span, error: KvxferError | BaseException | None = None) -> bool:
        """Takes a finished span; True when it is the first that waits."""
        if not span.sampled:
            return False
        text = "" if error is None else str(error) or type(error).__name__
        with self._lock:
            if len(self._waiting) >= _MAX_WAITING:
                return False
            # What travels is made when it is sent: the call's result does not wait for its span.
            span._end = span._now()
            self._waiting.append((span, text))
            return len(self._waiting) == 1

    def flush(self, send: Callable[[dict[str, Any]], None]) -> None:
        """Hands everything to send, in a few frames. What cannot be sent is lost."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        batch: list[dict[str, Any]] = []
        size = 0
        for span, error in waiting:
            s = span._to_wire(error)
            n = len(json.dumps(s, separators=(",", ":")))
            if n > _FRAME_BYTES:
                continue
            if batch and (size + n > _FRAME_BYTES or len(batch) >= _FRAME_SPANS):
                send({"spans": batch})
                batch, size = [], 0
            batch.append(s)
            size += n
        if batch:
            send({"spans": batch})


@contextlib.contextmanager
def record(span: Span, end: Callable[[Span, BaseException | None], None]) -> Iterator[Span]:
    """Ends the span with the block, with its exception if it raised one."""
    error: BaseException | None = None
    try:
        yield span
    except BaseException as e:
        error = e
        raise
    finally:
        end(span, error)
