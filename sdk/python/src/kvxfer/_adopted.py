"""Memory that existed before kvxfer heard of it, while it is handed over."""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import secrets
import threading
import weakref
from typing import Any

from ._adopt import share, span
from ._extent import Extent
from ._faults import AlreadyExists, InvalidArgument, NotSupported
from ._memory import Memory

log = logging.getLogger("kvxfer")

#: How memory is handed over: shared, or reached in this process, or the first that works.
SHARE, PROCESS, AUTO = "share", "process", "auto"


def check_adopt(op: str, adopt: str) -> str:
    """The argument adopt."""
    if adopt not in (SHARE, PROCESS, AUTO):
        raise InvalidArgument(f"{adopt!r:.80}, allowed {SHARE}, {PROCESS}, {AUTO}", op=op, field="adopt")
    return adopt


class Adopted(Memory):
    """Memory of the caller, kept alive until the daemon has fenced it.

    Attributes:
        fd: the memfd of its pages, or this process's own memory.
        map: the caller's bytes.
    """

    def __init__(self, op: str, field: str, name: str, e: Extent, adopt: str) -> None:
        self.fd = -1
        self.id = secrets.token_hex(16)
        self.size = e.size
        self._name = name
        self._extent = e
        self._wire: dict[str, Any] = {}
        self._range = (0, 0)
        try:
            if adopt == PROCESS or not self._share(op, field, adopt == SHARE):
                self._open_process(op, field)
        except BaseException:
            _claims.remove(self)
            raise
        view = (ctypes.c_ubyte * e.size).from_address(e.addr)
        view._kvxfer_owners = e.owners  # type: ignore[attr-defined]  # views of views keep it, and it them
        self.map = memoryview(view).cast("B")

    def _share(self, op: str, field: str, required: bool) -> bool:
        try:
            _claims.add(self, span(self._extent), op, field)
            self.fd = share(op, field, self._name, self._extent)
        except (NotSupported, AlreadyExists) as e:
            if required:
                raise
            log.warning(
                "memory %s cannot be shared, what is promised of it ends with this process: %s",
                self._name,
                e.detail,
            )
            return False
        offset = self._extent.addr % mmap.PAGESIZE
        self._wire = {"kind": "memfd", **({"offset": offset} if offset else {})}
        return True

    def _open_process(self, op: str, field: str) -> None:
        _claims.add(self, (self._extent.addr, self._extent.addr + self._extent.size), op, field)
        try:
            # Of the opener's own address space no privilege is needed, and the daemon needs none with it.
            self.fd = os.open("/proc/self/mem", os.O_RDWR | os.O_CLOEXEC)
        except OSError as e:
            raise NotSupported(
                f"/proc/self/mem cannot be opened for reading and writing: {e.strerror}",
                op=op,
                region=self._name,
            ) from e
        self.guarantee = "live-client-only"
        self._wire = {"kind": "process", "addr": self._extent.addr}

    def to_wire(self) -> dict[str, Any]:
        return {"id": self.id, "size": self.size, **self._wire}

    def close(self) -> None:
        """Lets the owner have it back: it is fenced. Its pages stay where they are."""
        self._close_fd()
        _claims.remove(self)
        self._extent = Extent(0, 0, 0, ())
        self.map = memoryview(bytearray())

    def give_up(self) -> None:
        """The daemon may still write to it: it stays allocated for good, so that nobody else gets its
        pages."""
        if self.fd >= 0:
            _unfenced.append(self._extent.owners)
            log.warning("memory %s stays allocated: its daemon did not say that it is fenced", self._name)
        self.close()

    def _close_fd(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        if getattr(self, "fd", -1) >= 0:  # its client was never closed
            _unfenced.append(self._extent.owners)
            self._close_fd()


class _Claims:
    """The memories of this process that are handed over."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.held: weakref.WeakSet[Adopted] = weakref.WeakSet()

    def add(self, memory: Adopted, claimed: tuple[int, int], op: str, field: str) -> None:
        """One owner for what is claimed, from..to: a second adoption of a page would take it away from the
        first, and two caches would write to the same bytes."""
        with self.lock:
            for other in self.held - {memory}:
                if claimed[0] < other._range[1] and other._range[0] < claimed[1]:
                    raise AlreadyExists(
                        f"a part of it is handed over already, as {other._name!r}", op=op, field=field
                    )
            memory._range = claimed
            self.held.add(memory)

    def remove(self, memory: Adopted) -> None:
        with self.lock:
            self.held.discard(memory)

    def after_fork_in_child(self) -> None:
        """A child has nothing to do with its parent's registrations, and must not reach the parent's
        memory."""
        held = list(self.held)
        self.__init__()  # type: ignore[misc]  # the lock may be held for good
        for memory in held:
            memory._close_fd()


_claims = _Claims()
_unfenced: list[tuple[Any, ...]] = []  # owners of memory that stays allocated

os.register_at_fork(after_in_child=_claims.after_fork_in_child)
