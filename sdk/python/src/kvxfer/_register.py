"""What a client does with memory that exists already: caches and regions in it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from . import _wire as wire
from ._adopted import SHARE, Adopted, check_adopt
from ._arguments import check_duration, check_name
from ._cache import Cache
from ._extent import Extent, extent, joined
from ._faults import Closed, InvalidArgument, KvxferError, NotFound
from ._layout import Layout
from ._memory import Memory
from ._session import Session

if TYPE_CHECKING:
    import threading

#: Seconds for each answer while adopted memory is given back.
_GIVE_BACK = 5.0


class AdoptedRegion:
    """Memory of the caller that the daemon may reach, from :meth:`Client.register_region`.

    Attributes:
        name: unique among the client's regions.
        size: bytes.
        guarantee: "full" or "live-client-only".
    """

    def __init__(self, client: Registering, name: str, memory: Adopted) -> None:
        self.name = name
        self.size = memory.size
        self.guarantee = memory.guarantee
        self._client = client
        self._mem = memory
        self._attached: tuple[Session, int] | None = None

    def __repr__(self) -> str:
        state = "closed" if self._attached is None else self.guarantee
        return f"<kvxfer.AdoptedRegion {self.name!r} {self.size} bytes {state}>"

    @property
    def region_id(self) -> int:
        """The region's number at the daemon; another one after a reconnect."""
        self._client._check_fork()
        if self._attached is None:
            raise Closed("the region or its client was closed", op="region_id", region=self.name)
        return self._attached[1]

    def close(self, timeout: float = 30.0) -> None:
        """Takes the memory back. When it returns, nothing can touch it any more. A second call does nothing.

        Raises:
            DeadlineExceeded: not fenced in time (released=False); call it again.
            DaemonUnavailable: the daemon is lost (released=False); the region stays, for reconnect.
        """
        self._client._check_fork()
        if self._attached is None:
            return
        session, region = self._attached
        timeout = check_duration("close", timeout)
        try:
            session.conn.request(
                "close", wire.DEREGISTER_REGION, {"region": region}, timeout=timeout, released=False
            )
        except NotFound:  # an earlier call got as far, without an answer in its time
            pass
        self._attached = None
        self._client._forget_region(self)
        self._mem.close()

    def _lose(self, exited: bool) -> None:
        """The client ends before the region does."""
        self._attached = None
        if exited:
            self._mem.close()
        else:
            self._mem.give_up()


class Registering:
    """The part of :class:`Client` that hands over memory of the caller."""

    _caches: list[Cache]
    _regions: list[AdoptedRegion]

    if TYPE_CHECKING:
        _lock: threading.Lock
        _closed: bool
        _session: Session

        def _use(self, op: str) -> Session: ...
        def _check_fork(self) -> None: ...
        def _check_cache(
            self, op: str, name: str, model: str, revision: str, compat: str, layout: Layout, num_blocks: int
        ) -> int: ...
        def _add_cache(self, op: str, session: Session, cache: Cache, deadline: float) -> Cache: ...

    def register_cache(
        self,
        name: str,
        *,
        model: str,
        layout: Layout,
        tensors: Any,
        num_blocks: int,
        adopt: str = SHARE,
        revision: str = "",
        compat: str = "",
        timeout: float = 30.0,
    ) -> Cache:
        """Makes a cache of memory that exists: it keeps its contents and its address, and becomes shared with
        the daemon.

        Its pages are replaced by those of a sealed memfd, a part at a time (the process needs 64 MiB more for
        a moment, and pages that were never touched become real ones). **Nobody may write to the memory while
        this call runs**; reading is safe. Call it before the memory is pinned, locked or bound to a NUMA
        node: such properties do not pass to the new pages.

        Afterwards the memory is shared with forked children too: what a child writes to it the parent sees.
        That stays so after the cache was dropped, and until the memory itself is freed.

        The memory is kept alive until the daemon has fenced it (:meth:`Cache.drop`, :meth:`close`). Do not
        resize it meanwhile.

        With ``adopt="process"`` nothing is replaced: the daemon reads and writes in this process's own
        memory, by a descriptor that is bound to its address space. That is slower, and what is promised of it
        ends with this process: ``cache.guarantee`` is "live-client-only".

        Args:
            name: unique on the node, 1..64 of [A-Za-z0-9_.-].
            model: 1..1024 bytes; model, revision and compat must agree on both sides of a transfer.
            layout: where the bytes lie.
            tensors: exactly ``num_blocks * layout.block_bytes`` bytes ordered [layer][plane][block]: a
                writable C-contiguous array, CPU tensor or buffer; or a list with one of them for each layer,
                which lie one behind the other as slices of one array do.
            num_blocks: 1..16777216.
            adopt: "share", "process" as above, or "auto": share where that is possible, else process, with a
                warning in the log.
            revision: of the model, up to 1024 bytes.
            compat: the caller's own compatibility string, up to 1024 bytes.
            timeout: seconds for the daemon's answers.

        Raises:
            InvalidArgument: names the field and what is allowed.
            NotSupported: this memory cannot be handed over that way; says why, and what is allowed. To be
                shared, memory needs pages of its own: an array that begins and ends at a page, or a large one
                that malloc gave a mapping of its own.
            AlreadyExists: the node has a cache of that name, or a page of the memory is handed over already.
            ResourceExhausted: not enough memory.
            MemoryRejected: the daemon does not accept the memory.
        """
        op = "register_cache"
        session = self._use(op)
        num_blocks = self._check_cache(op, name, model, revision, compat, layout, num_blocks)
        check_adopt(op, adopt)
        deadline = time.monotonic() + check_duration(op, timeout)
        e = _of_cache(op, layout, num_blocks, tensors)
        memory = Adopted(op, "tensors", name, e, adopt)
        cache = Cache(self, name, model, revision, compat, layout, num_blocks, memory)  # type: ignore[arg-type]
        return self._add_cache(op, session, cache, deadline)

    def register_region(
        self, name: str, buffer: Any, *, adopt: str = SHARE, timeout: float = 30.0
    ) -> AdoptedRegion:
        """Hands a writable array, CPU tensor or buffer over as raw memory, as :meth:`register_cache` does
        with a cache's; what is said there of writers, forks and adopt holds here too.

        Args:
            name: unique among the client's regions, 1..64 of [A-Za-z0-9_.-].
            buffer: C-contiguous, in CPU memory.
            adopt: "share", "process" or "auto".
            timeout: seconds for the daemon's answer.

        Raises:
            InvalidArgument, NotSupported, AlreadyExists, ResourceExhausted, MemoryRejected: as there.
        """
        op = "register_region"
        session = self._use(op)
        check_name(op, "name", name)
        check_adopt(op, adopt)
        deadline = time.monotonic() + check_duration(op, timeout)
        memory = Adopted(op, "buffer", name, extent(op, "buffer", buffer), adopt)
        region = AdoptedRegion(self, name, memory)
        try:
            number = self._register_memory(op, session, name, memory, deadline)
            with self._lock:
                if self._closed:
                    raise Closed("the client was closed", op=op)
                region._attached = (session, number)
                self._regions.append(region)
            return region
        except BaseException:
            memory.close()  # nothing was granted on it
            raise

    # What follows is called by the SDK.

    def _register_memory(self, op: str, session: Session, name: str, memory: Memory, deadline: float) -> int:
        """Makes a region known to a daemon: its id."""
        conn = session.conn

        def undo(region: int) -> None:
            try:
                conn.request_later(op, wire.DEREGISTER_REGION, {"region": region})
            except KvxferError:  # lost: the daemon ends everything of this connection
                pass

        region: int = conn.request(
            op,
            wire.REGISTER_REGION,
            {"name": name, **memory.to_wire()},
            fds=[memory.fd],
            timeout=max(0.001, deadline - time.monotonic()),
            on_ok=lambda f: wire.get_id(f.body(), "region"),
            on_late=undo,
        )
        return region

    def _register_regions_again(self, session: Session, deadline: float) -> None:
        with self._lock:
            regions = list(self._regions)
        for r in regions:
            number = self._register_memory("reconnect", session, r.name, r._mem, deadline)
            r._attached = (session, number)

    def _forget_region(self, region: AdoptedRegion) -> None:
        with self._lock:
            if region in self._regions:
                self._regions.remove(region)

    def _give_adopted_back(self) -> None:
        """Before the end: memory that others may get next is fenced as far as the daemon answers."""
        with self._lock:
            caches = [c for c in self._caches if isinstance(c._mem, Adopted)]
            regions = list(self._regions)
        if not self._session.conn.alive:
            return
        try:
            for c in caches:
                c.drop(timeout=_GIVE_BACK)
            for r in regions:
                r.close(timeout=_GIVE_BACK)
        except KvxferError:  # close gives the rest up
            pass


def _of_cache(op: str, layout: Layout, num_blocks: int, tensors: Any) -> Extent:
    """The bytes of a cache's tensors."""
    if isinstance(tensors, Sequence) and not isinstance(tensors, (str, bytes, bytearray, memoryview)):
        if len(tensors) != layout.layers:
            raise InvalidArgument(
                f"{len(tensors)} tensors, allowed one of all layers, or {layout.layers}: one for each layer",
                op=op,
                field="tensors",
            )
        size = layout.piece_bytes * num_blocks
        for i, t in enumerate(tensors):
            got = extent(op, f"tensors[{i}]", t).size
            if got != size:
                raise InvalidArgument(
                    f"{got} bytes, allowed {size}: all blocks of one layer", op=op, field=f"tensors[{i}]"
                )
        return joined(op, "tensors", tensors)
    e = extent(op, "tensors", tensors)
    size = layout.block_bytes * num_blocks
    if e.size != size:
        raise InvalidArgument(
            f"{e.size} bytes, allowed {size}: all blocks of all layers", op=op, field="tensors"
        )
    return e
