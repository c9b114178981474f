"""The memory of a client: caches and raw regions, allocated or adopted, as they begin and end."""

from __future__ import annotations

import threading
import time
from typing import Any

from ._adopted import SHARE, Adopted, check_adopt
from ._arguments import check_duration, check_index, check_instance_key, check_name
from ._cache import Cache
from ._extent import extent, of_cache
from ._faults import Closed, KvxferError, RequestError
from ._layout import Layout, check_kind
from ._memory import Memory
from ._ranges import MAX_REGION
from ._region import Region
from ._registered import Registered, left
from ._session import Session

#: Seconds that closing a client waits for the fences of adopted memory.
_GIVE_BACK = 5.0


class Places:
    """Base of :class:`Client`: the part that makes caches and regions and ends them."""

    timeout: float
    _session: Session
    _ring: bool  # whether posts may travel in shared memory

    def __init__(self) -> None:
        self._lock = threading.Lock()  # of everything below
        self._places: list[Registered] = []  # caches and regions
        self._old: list[Session] = []  # lost ones whose daemon may still touch memory
        self._closed = False

    def allocate_cache(
        self,
        name: str,
        *,
        model: str,
        layout: Layout,
        num_blocks: int,
        revision: str = "",
        compat: str = "",
        instance: str = "",
        instance_key: bytes = b"",
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
            instance: the engine whose rank ``layout.tp_rank`` this is; "": of none.
            instance_key: with instance, a secret of the engine's processes, 16..64 bytes: whoever shows it
                may lease the blocks of every rank.
            timeout: seconds for the daemon's answers.

        Raises:
            InvalidArgument: names the field and what is allowed.
            ResourceExhausted: not enough memory.
            AlreadyExists: the node has a cache of that name.
            MemoryRejected: the daemon does not accept the memory.
        """
        op = "allocate_cache"
        session = self._use(op)
        num_blocks, instance_key = _check_cache(
            op, name, model, revision, compat, layout, num_blocks, instance, instance_key
        )
        deadline = time.monotonic() + check_duration(op, timeout)
        memory = Memory(name, num_blocks * layout.block_bytes)
        cache = Cache(self, name, model, revision, compat, layout, num_blocks, memory, instance, instance_key)
        self._attach(op, session, cache, deadline)
        return cache

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
        instance: str = "",
        instance_key: bytes = b"",
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

        The memory is kept alive until the daemon has fenced it (:meth:`Cache.drop`, :meth:`Client.close`). Do
        not resize it meanwhile.

        With ``adopt="process"`` nothing is replaced: the daemon reads and writes in this process's own
        memory, by a descriptor that is bound to its address space. That is slower, and what is promised of it
        ends with this process: ``cache.guarantee`` is "live-client-only", and so is that of results and
        errors that concern it.

        Args:
            tensors: exactly ``num_blocks * layout.block_bytes`` bytes ordered [layer][plane][block]: a
                writable C-contiguous array, CPU tensor or buffer; or a list with one of them for each layer,
                which lie one behind the other as slices of one array do.
            adopt: "share", "process" as above, or "auto": share where that is possible, else process, with a
                warning in the log.
            name, model, layout, num_blocks, revision, compat, instance, instance_key, timeout: as for
                :meth:`allocate_cache`.

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
        num_blocks, instance_key = _check_cache(
            op, name, model, revision, compat, layout, num_blocks, instance, instance_key
        )
        check_adopt(op, adopt)
        deadline = time.monotonic() + check_duration(op, timeout)
        memory = Adopted(op, "tensors", name, of_cache(op, layout, num_blocks, tensors), adopt)
        cache = Cache(self, name, model, revision, compat, layout, num_blocks, memory, instance, instance_key)
        self._attach(op, session, cache, deadline)
        return cache

    def allocate_region(self, name: str, size: int, *, timeout: float = 30.0) -> Region:
        """Allocates a raw region: memory without blocks, which is moved by byte ranges.

        Args:
            name: unique among this client's caches and regions, 1..64 of [A-Za-z0-9_.-].
            size: bytes, 1..2**62; all of them are allocated now.
            timeout: seconds for the daemon's answer.

        Raises:
            InvalidArgument, ResourceExhausted, AlreadyExists, MemoryRejected: as for :meth:`allocate_cache`.
        """
        op = "allocate_region"
        session = self._use(op)
        check_name(op, "name", name)
        size = check_index(op, "size", size, 1, MAX_REGION)
        deadline = time.monotonic() + check_duration(op, timeout)
        region = Region(self, name, Memory(name, size, op, "size"), size)
        self._attach(op, session, region, deadline)
        return region

    def register_region(self, name: str, buffer: Any, *, adopt: str = SHARE, timeout: float = 30.0) -> Region:
        """Makes a raw region of memory that exists, as :meth:`register_cache` does a cache; what is said
        there of writers, forks, the memory's life and adopt holds here too.

        Args:
            name: unique among this client's caches and regions, 1..64 of [A-Za-z0-9_.-].
            buffer: a writable C-contiguous array, CPU tensor or buffer; the region has its bytes.
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
        region = Region(self, name, memory, memory.size)
        self._attach(op, session, region, deadline)
        return region

    # What follows is called by the SDK.

    def _check_fork(self) -> None:
        self._session.conn.check_fork()

    def _is_closed(self) -> bool:
        return self._closed

    def _check_open(self, op: str) -> None:
        if self._closed:
            raise Closed("the client was closed", op=op)

    def _use(self, op: str) -> Session:
        self._check_fork()
        self._check_open(op)
        return self._session

    def _attach(self, op: str, session: Session, place: Registered, deadline: float) -> None:
        """Hands new memory over; where that fails its owner has it back."""
        try:
            attachment, _ = place._register(op, session, b"", deadline)
            with self._lock:
                self._check_open(op)
                place._attached = attachment
                self._places.append(place)
        except BaseException as e:
            # Nothing was granted on it, unless its registration is undone only after the instance's other
            # processes knew of it and leased it.
            if isinstance(e, RequestError) or not (isinstance(place, Cache) and place.instance):
                place._mem.close()
            else:
                place._mem.give_up()
            raise

    def _forget(self, place: Registered) -> None:
        """A cache or region was given back."""
        with self._lock:
            if place in self._places:
                self._places.remove(place)

    def _former(self, name: str) -> list[Session]:
        """Lost sessions whose daemon may still touch that cache's or region's memory."""
        with self._lock:
            return [s for s in self._old if s.holds(name)]

    def _give_adopted_back(self) -> None:
        """Before the end: memory that others may get next is fenced, as far as the daemon answers."""
        with self._lock:
            places = [p for p in self._places if isinstance(p._mem, Adopted)]
        if not self._session.conn.alive:
            return
        end = time.monotonic() + _GIVE_BACK
        try:
            for p in places:
                p._give_back("close", left(end))
        except KvxferError:  # close gives the rest up
            pass

    def _lose(self, places: list[Registered], exited: bool) -> None:
        """The client ends before these do; exited: no daemon is left that could touch their memory."""
        for p in places:
            p._attached = None
            if exited:
                p._mem.close()
            else:
                p._mem.give_up()


def _check_cache(
    op: str,
    name: str,
    model: str,
    revision: str,
    compat: str,
    layout: Layout,
    num_blocks: int,
    instance: str,
    instance_key: bytes,
) -> tuple[int, bytes]:
    """The number of blocks and the instance's key, when everything is in its range."""
    check_name(op, "name", name)
    check_kind(op, model, revision, compat, layout)
    num_blocks = layout._check_num_blocks(num_blocks)
    if instance != "" or instance_key != b"":
        instance_key = check_instance_key(op, instance, instance_key)
    return num_blocks, instance_key
