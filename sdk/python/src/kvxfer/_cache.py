"""A KV cache in memory that is shared with the daemon."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import _trace
from . import _wire as wire
from ._arguments import check_duration, check_index, check_notification
from ._blocks import BlockIds, Vouched, pack
from ._faults import Closed, InvalidArgument, KvxferError, NotFound, NotSupported, RequestError
from ._layout import NUMPY_DTYPE, Layout
from ._lease import Lease
from ._memory import Memory
from ._pending import GRACE
from ._push import Push
from ._session import Session

if TYPE_CHECKING:
    import numpy.typing as npt

    from ._client import Client

#: States of a block in :class:`BlockStates`.
FREE, LEASED, COMMITTED, REVOKING, HELD = range(5)


@dataclass(frozen=True)
class BlockStates:
    """The states of a cache's blocks at one moment.

    The three columns have one entry for each block that is not FREE. They are read-only memoryviews of
    integers: index them, call ``tolist()``, or hand them to ``numpy.asarray``.

    Attributes:
        total: blocks of the cache.
        free, leased, committed, revoking, held: how many are in each state.
        blocks: block ids.
        states: 1 LEASED, 2 COMMITTED, 3 REVOKING, 4 HELD.
        generations: of a COMMITTED block what it was committed under, of a LEASED one what it will be; else
            0.
    """

    total: int
    free: int
    leased: int
    committed: int
    revoking: int
    held: int
    blocks: memoryview
    states: memoryview
    generations: memoryview


class Cache:
    """A cache of ``num_blocks`` blocks, from :meth:`Client.allocate_cache` or :meth:`Client.register_cache`.

    Attributes:
        name: unique on the node.
        layout: where the bytes lie.
        num_blocks: number of blocks.
        model: what must agree on both sides, with revision and compat.
        revision: of the model.
        compat: the caller's own compatibility string.
    """

    def __init__(
        self,
        client: Client,
        name: str,
        model: str,
        revision: str,
        compat: str,
        layout: Layout,
        num_blocks: int,
        memory: Memory,
    ) -> None:
        self.name = name
        self.model = model
        self.revision = revision
        self.compat = compat
        self.layout = layout
        self.num_blocks = num_blocks
        self._client = client
        self._mem = memory
        self._bytes = num_blocks * layout.block_bytes
        self._vouched = Vouched(num_blocks)
        self._attached: tuple[Session, int, int] | None = None  # session, region id, cache id

    def __repr__(self) -> str:
        return f"<kvxfer.Cache {self.name!r} {self.num_blocks} blocks of {self.layout.block_bytes} bytes>"

    # Memory.

    @property
    def guarantee(self) -> str:
        """What is promised of the memory: "full", or "live-client-only" (see
        :meth:`Client.register_cache`)."""
        return self._mem.guarantee

    @property
    def memory(self) -> memoryview:
        """The cache's bytes, writable, of length ``num_blocks * layout.block_bytes``, ordered
        [layer][plane][block]."""
        self._check_memory("memory")
        return memoryview(self._mem.map)[: self._bytes]

    def layer(self, layer: int) -> npt.NDArray[Any]:
        """A writable numpy view of one layer; no bytes are copied.

        Its shape is, by the layout's order:

        - HND ``(2, num_blocks, kv_heads, block_tokens, head_dim)``
        - NHD ``(2, num_blocks, block_tokens, kv_heads, head_dim)``
        - MLA ``(num_blocks, block_tokens, head_dim)``

        The first axis of HND and NHD is K, V. numpy has no bfloat16 and no float8: bfloat16 comes as uint16
        and float8 as uint8, which hold the bits (with torch:
        ``torch.from_numpy(x.view(numpy.int16)).view(torch.bfloat16)``).

        Raises:
            InvalidArgument: layer is not 0..layers-1.
            NotSupported: numpy is not installed; :attr:`memory` works without it.
        """
        self._check_memory("layer")
        layer = check_index("layer", "layer", layer, 0, self.layout.layers - 1)
        try:
            import numpy
        except ImportError:
            raise NotSupported(
                "numpy is not installed (pip install 'kvxfer[numpy]'); Cache.memory works without it",
                op="layer",
            ) from None
        dtype = numpy.dtype(NUMPY_DTYPE[self.layout.dtype])
        size = self.layout.piece_bytes * self.num_blocks
        flat = numpy.frombuffer(self._mem.map, dtype, size // dtype.itemsize, layer * size)
        return flat.reshape(self.layout.layer_shape(self.num_blocks))

    # Transfers.

    def lease(
        self,
        blocks: BlockIds,
        mode: str = "write",
        ttl: float = 30.0,
        *,
        traceparent: str | None = None,
        timeout: float = 5.0,
    ) -> Lease:
        """Gives permission to write into blocks, to whoever comes first with the lease's ticket.

        What the blocks held is given up with the call.

        Args:
            blocks: ids, each once: a sequence of ints, a range, an array or a numpy array of any integer
                type.
            mode: "write".
            ttl: seconds that the lease lasts, 0.001..86400, on the daemon's clock.
            traceparent: W3C context that the call belongs to; None: OpenTelemetry's active span, else a new
                trace.
            timeout: seconds for the daemon's answer.

        Raises:
            InvalidArgument: names the field, and the index of a wrong block id.
            BlocksBusy: a block is leased, held or being fenced.
            NotSupported: the mode is not available.
            DeadlineExceeded: no answer (released=False); the lease is revoked as soon as the answer comes.
        """
        session, cache = self._use("lease")
        packed = pack("lease", blocks, self.num_blocks)
        ttl = check_duration("lease", ttl, "ttl")
        timeout = check_duration("lease", timeout)
        if not isinstance(mode, str):
            raise InvalidArgument(f'{mode!r}, allowed "write"', op="lease", field="mode")
        span = _trace.start("lease", "kvxfer.lease", traceparent, {})

        def granted(frame: wire.Frame) -> Lease:
            b = frame.body()
            lease_id, ticket = wire.get_id(b, "lease"), wire.get(b, "ticket", "")
            if not ticket:
                raise wire.violation("ticket", "absent")
            lease = Lease(
                self,
                session,
                lease_id,
                ticket,
                wire.get_id(b, "generation"),
                packed,
                ttl,
                self._vouched,
                span,
            )
            session.add_lease(lease_id, lease)
            # Again: an earlier lease of these blocks may have been committed between the call and its grant.
            self._vouched.take(packed)
            assert lease._deadline is not None
            session.end_later(lease._deadline, lease, "_expire")
            return lease

        # Before the daemon hears of it: from the grant on a peer may write.
        taken = self._vouched.take(packed)
        body = {
            "cache": cache,
            "mode": mode,
            "ttl_ms": max(1, round(ttl * 1000)),
            "traceparent": span.traceparent,
        }
        try:
            lease: Lease = session.conn.request(
                "lease",
                wire.LEASE,
                body,
                packed,
                timeout=timeout,
                on_ok=granted,
                on_late=Lease._discard,
                released=False,
            )
            return lease
        except KvxferError as e:
            if isinstance(e, RequestError):  # nothing was changed
                self._vouched.restore(taken)
            span.set("kvxfer.result", type(e).__name__)
            session.end_span(span, e)
            raise

    def write(
        self,
        blocks: BlockIds,
        *,
        to: str,
        layerwise: bool = False,
        timeout: float = 30.0,
        notification: bytes = b"",
        traceparent: str | None = None,
    ) -> Push:
        """Writes blocks to the lease that the ticket names, in the order of both block lists.

        It returns as soon as the own daemon knows of it; the transfer's end is the returned push's. Until the
        push is released nobody may change the bytes that were handed over.

        Args:
            blocks: ids of own blocks, as many as the lease has.
            to: the lease's ticket.
            layerwise: True: bytes are read only after ``push.layer``, and ``push.finish`` ends the transfer.
                False: all bytes are final now.
            timeout: seconds for the whole transfer, 0.001..86400.
            notification: with layerwise=False, up to 64 KiB for the lease's owner.
            traceparent: W3C context that the call belongs to; None: OpenTelemetry's active span, else the
                ticket's.

        Raises:
            InvalidArgument: names the field, and the index of a wrong block id.
            TicketInvalid: the ticket cannot be read.
            DeadlineExceeded: the own daemon does not answer (released=False).
        """
        session, cache = self._use("write")
        packed = pack("write", blocks, self.num_blocks)
        timeout = check_duration("write", timeout)
        if not isinstance(to, str):
            raise InvalidArgument(f"a {type(to).__name__}, allowed the ticket's str", op="write", field="to")
        data = check_notification("write", notification)
        if data and layerwise:
            raise InvalidArgument("a layerwise push takes it in finish", op="write", field="notification")
        parent = _trace.parent_of("write", traceparent)
        span = _trace.Span(
            "kvxfer.write", _trace.Context(_trace.new_trace_id(), _trace.new_span_id(), False), "", {}
        )
        deadline = time.monotonic() + timeout + GRACE

        def accepted(frame: wire.Frame) -> Push:
            b = frame.body()
            transfer, trace_id = wire.get_id(b, "transfer"), wire.get(b, "trace_id", "")
            span._place(
                _trace.Context(trace_id, span.span_id, wire.get(b, "sampled", False)),
                wire.get(b, "parent_id", ""),
            )
            push = Push(
                self,
                session,
                transfer,
                wire.get(b, "transfer_id", ""),
                trace_id,
                len(packed) // 4,
                bool(layerwise),
                deadline,
                span,
            )
            session.add_push(transfer, push)
            session.end_later(deadline, push, "_expire")
            if not layerwise:
                push._finish_now(data)
            return push

        body: dict[str, Any] = {
            "cache": cache,
            "ticket": to,
            "timeout_ms": max(1, round(timeout * 1000)),
            "layerwise": bool(layerwise),
        }
        if parent is not None:
            body["traceparent"] = parent.traceparent
        body["span_id"] = span.span_id
        try:
            push: Push = session.conn.request(
                "write",
                wire.PUSH,
                body,
                packed,
                timeout=min(timeout, self._client.timeout),
                on_ok=accepted,
                on_late=Push._discard,
                released=False,
                may_have_written=True,
            )
            return push
        except KvxferError as e:
            if parent is not None:  # otherwise the trace is known to the ticket alone
                span._place(_trace.Context(parent.trace_id, span.span_id, parent.sampled), parent.span_id)
                span.set("kvxfer.result", type(e).__name__)
                session.end_span(span, e)
            raise

    # Blocks.

    def evict(self, blocks: BlockIds, *, timeout: float = 5.0) -> None:
        """Makes COMMITTED blocks FREE. When it returns, nobody can read or write them any more.

        Raises:
            InvalidArgument: names the index of a wrong block id.
            BlocksBusy: a block is leased, held or being fenced.
            DeadlineExceeded: no answer (released=False).
        """
        session, cache = self._use("evict")
        packed = pack("evict", blocks, self.num_blocks)
        timeout = check_duration("evict", timeout)
        taken = self._vouched.take(packed)
        try:
            session.conn.request(
                "evict", wire.EVICT, {"cache": cache}, packed, timeout=timeout, released=False
            )
        except RequestError:  # nothing was changed
            self._vouched.restore(taken)
            raise

    def block_states(self, *, timeout: float = 5.0) -> BlockStates:
        """The state of every block."""
        session, cache = self._use("block_states")

        def read(frame: wire.Frame) -> BlockStates:
            b = frame.body()
            count = {k: wire.get(b, k, 0) for k in ("total", "leased", "committed", "revoking", "held")}
            free = count["total"] - count["leased"] - count["committed"] - count["revoking"] - count["held"]
            blocks, states, generations = wire.block_entries(frame.array)
            return BlockStates(free=free, blocks=blocks, states=states, generations=generations, **count)

        timeout = check_duration("block_states", timeout)
        states: BlockStates = session.conn.request(
            "block_states", wire.BLOCKS, {"cache": cache}, timeout=timeout, on_ok=read
        )
        return states

    def drop(self, *, timeout: float = 30.0) -> None:
        """Ends the cache: revokes and fences its leases and pushes, and gives the memory back.

        When it returns, nothing can touch the memory any more. Views of it stay valid. A second call does
        nothing.

        Raises:
            DeadlineExceeded: not fenced in time (released=False); call it again.
            DaemonUnavailable: the daemon is lost (released=False); the cache stays, for reconnect.
        """
        if self._attached is None:
            self._client._check_fork()
            return
        session, region, cache = self._attached
        timeout = check_duration("drop", timeout)
        end = time.monotonic() + timeout
        for kind, body in ((wire.DROP_CACHE, {"cache": cache}), (wire.DEREGISTER_REGION, {"region": region})):
            try:
                left = max(0.001, end - time.monotonic())
                session.conn.request("drop", kind, body, timeout=left, released=False)
            except NotFound:  # an earlier call got as far, without an answer in its time
                pass
        session.fenced(self.name)
        self._attached = None
        self._client._forget(self)
        self._mem.close()

    # What follows is called by the SDK.

    def _spec(self) -> dict[str, Any]:
        """The cache's part of REGISTER_CACHE, without the region."""
        out: dict[str, Any] = {"model": self.model}
        if self.revision:
            out["revision"] = self.revision
        if self.compat:
            out["compat"] = self.compat
        return {**out, "layout": self.layout._to_wire(), "num_blocks": self.num_blocks}

    def _check_memory(self, op: str) -> None:
        self._client._check_fork()
        if self._mem.fd < 0:
            raise Closed("the cache was dropped or its client closed", op=op, region=self.name)

    def _use(self, op: str) -> tuple[Session, int]:
        self._client._check_fork()
        if self._attached is None:
            raise Closed("the cache was dropped or its client closed", op=op, region=self.name)
        session, _, cache = self._attached
        return session, cache
