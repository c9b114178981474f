"""What waits in a connection: requests for their answers, bytes for the socket."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

from . import _wire as wire
from ._faults import KvxferError


class Call:
    """A request and its answer.

    ``on_ok`` runs in the connection's thread before any later frame is looked at, so what it registers is
    there when the first event for it comes; it returns the call's value. ``on_late`` gets that value when the
    caller had gone. ``on_done`` is for calls that nobody waits for.
    """

    def __init__(
        self,
        op: str,
        on_ok: Callable[[wire.Frame], Any] | None,
        on_late: Callable[[Any], None] | None,
        on_done: Callable[[KvxferError | None], None] | None = None,
    ) -> None:
        self.op = op
        self.on_ok = on_ok
        self.on_late = on_late
        self.on_done = on_done
        self.event = threading.Event()
        self.value: Any = None
        self.error: KvxferError | None = None
        self.answered = False  # under the connection's lock
        self.abandoned = False  # under the connection's lock

    def settle(self, value: Any, error: KvxferError | None) -> None:
        self.value, self.error = value, error
        self.event.set()
        if self.on_done is not None:
            self.on_done(error)
        if self.abandoned and error is None and self.on_late is not None:
            self.on_late(value)


class Chunk:
    """Bytes that wait for the socket, with duplicates of the descriptors that go with their first byte."""

    def __init__(self, data: memoryview, fds: Sequence[int]) -> None:
        self.data = data
        self.fds = [os.dup(fd) for fd in fds]

    def close_fds(self) -> None:
        for fd in self.fds:
            os.close(fd)
        self.fds = []
