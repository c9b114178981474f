"""Memory that the daemon knows: what caches and raw regions have in common."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import _wire as wire
from ._arguments import check_duration
from ._faults import Closed, DeadlineExceeded, KvxferError, NotFound
from ._memory import Memory
from ._session import CacheHandle, Session

if TYPE_CHECKING:
    from ._places import Places


@dataclass(frozen=True)
class Attachment:
    """Where memory is known: a session and the daemon's numbers there; cache is 0 for a raw region."""

    session: Session
    region: int
    cache: int


class Registered:
    """Base of Cache and Region."""

    def __init__(self, client: Places, name: str, memory: Memory, nbytes: int) -> None:
        self.name = name
        self._client = client
        self._mem = memory
        self._bytes = nbytes
        self._guarantee = memory.guarantee
        self._attached: Attachment | None = None

    @property
    def memory(self) -> memoryview:
        """The bytes, writable and shared with the daemon; nothing is copied. A cache's are ordered
        [layer][plane][block], ``num_blocks * layout.block_bytes`` of them; a region has ``size``."""
        self._check_memory("memory")
        return memoryview(self._mem.map)[: self._bytes]

    @property
    def guarantee(self) -> str:
        """ "full", or "live-client-only": what is promised of this memory ends with this process."""
        self._client._check_fork()
        return self._guarantee

    # What follows is called by the SDK.

    def _check_memory(self, op: str) -> None:
        self._client._check_fork()
        if self._mem.fd < 0:
            raise self._gone(op)

    def _use(self, op: str) -> Attachment:
        self._client._check_fork()
        attached = self._attached
        if attached is None:
            raise self._gone(op)
        return attached

    def _gone(self, op: str) -> KvxferError:
        return Closed("it was given back already, or the client was closed", op=op, region=self.name)

    def _vouches(self) -> bytes:
        """The array of its registration."""
        return b""

    def _keep_only(self, served: memoryview) -> None:
        """What the daemon serves of it again."""

    def _register(
        self, op: str, session: Session, vouches: bytes, deadline: float
    ) -> tuple[Attachment, memoryview]:
        """Makes it known to a daemon; also what the daemon serves again of it."""
        return Attachment(session, self._hand_over(op, session, deadline), 0), memoryview(b"").cast("I")

    def _hand_over(self, op: str, session: Session, deadline: float) -> int:
        mem = self._mem

        def registered(frame: wire.Frame) -> int:
            b = frame.body()
            self._guarantee = wire.get(b, "guarantee", "") or mem.guarantee
            return wire.get_id(b, "region")

        region: int = session.conn.request(
            op,
            wire.REGISTER_REGION,
            {"name": self.name, **mem.to_wire()},
            fds=[mem.fd],
            timeout=left(deadline),
            on_ok=registered,
            on_late=lambda r: undo(session, op, wire.DEREGISTER_REGION, "region", r),
        )
        return region

    def _end_requests(self, at: Attachment) -> list[tuple[int, dict[str, Any]]]:
        """Kinds and bodies of the requests that end it, each answered behind its fence."""
        return [(wire.DEREGISTER_REGION, {"region": at.region})]

    def _give_back(self, op: str, timeout: float) -> None:
        """Ends it at the daemon and gives the memory up; nothing where that was done already."""
        self._client._check_fork()
        attached = self._attached
        if attached is None:
            return
        end = time.monotonic() + check_duration(op, timeout)
        for kind, body in self._end_requests(attached):
            try:
                attached.session.conn.request(op, kind, body, timeout=left(end), released=False)
            except NotFound:  # an earlier call got as far, without an answer in its time
                pass
        attached.session.fenced(self.name)
        for former in self._client._former(self.name):
            if not former.conn.daemon_exited(left(end)):
                raise DeadlineExceeded(
                    "a former daemon of this node, stopped perhaps, may still touch the memory",
                    op=op,
                    region=self.name,
                    released=False,
                )
        self._attached = None
        self._client._forget(self)
        self._mem.close()


def left(deadline: float) -> float:
    """Seconds until a deadline, as a time-out."""
    return max(0.001, deadline - time.monotonic())


def undo(session: Session, op: str, kind: int, key: str, number: int) -> None:
    """Takes back what nobody has: its caller went before the answer came."""
    try:
        session.conn.request_later(op, kind, {key: number})
    except KvxferError:  # lost: the daemon ends everything of this connection
        pass


def declare_cache(
    session: Session,
    op: str,
    body: dict[str, Any],
    vouches: bytes,
    deadline: float,
    block_bytes: int,
    cache: CacheHandle,
) -> tuple[Attachment, memoryview]:
    """Says that a region, which the daemon knows, holds a cache; where that fails the region is taken back.

    body is that of REGISTER_CACHE. Also returned are the ids of the blocks that are served again.
    """
    region: int = body["region"]

    def registered(frame: wire.Frame) -> tuple[int, memoryview]:
        b = frame.body()
        if wire.get_id(b, "block_bytes") != block_bytes:
            raise wire.violation("block_bytes", f"{b['block_bytes']}, want {block_bytes}")
        number = wire.get_id(b, "cache")
        session.add_cache(number, cache)
        return number, wire.u32s("served", frame.array)

    def too_late(value: tuple[int, memoryview]) -> None:
        undo(session, op, wire.DROP_CACHE, "cache", value[0])
        undo(session, op, wire.DEREGISTER_REGION, "region", region)

    try:
        number, served = session.conn.request(
            op,
            wire.REGISTER_CACHE,
            body,
            vouches,
            timeout=left(deadline),
            on_ok=registered,
            on_late=too_late,
        )
    except DeadlineExceeded:  # too_late undoes both
        raise
    except KvxferError:
        undo(session, op, wire.DEREGISTER_REGION, "region", region)
        raise
    return Attachment(session, region, number), served
