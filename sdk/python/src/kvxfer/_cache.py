"""A KV cache in memory that is shared with the daemon."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

from . import _wire as wire
from ._arguments import check_duration, check_index, check_notification
from ._blocks import BlockIds, Vouched, pack
from ._faults import InvalidArgument, KvxferError, NotSupported, RequestError
from ._grant import Granted
from ._granted import AnyLease, GrantedLeases
from ._keys import Holder, Keys, pack_keys
from ._layout import NUMPY_DTYPE, Layout, kind_of
from ._lease import Lease
from ._memory import Memory
from ._offer import ReadLease
from ._pending import Pending
from ._prepared import Prepared, prepare
from ._pull import Pull
from ._push import Push
from ._registered import Attachment, Registered, declare_cache
from ._session import Session
from ._states import BlockStates, read_states
from ._terms import LeaseTerms
from ._transfer import check_ticket, identity

if TYPE_CHECKING:
    import numpy.typing as npt

    from ._places import Places


class Cache(Registered):
    """A cache of ``num_blocks`` blocks, from :meth:`Client.allocate_cache` or :meth:`Client.register_cache`.

    Attributes:
        name: unique on the node.
        layout: where the bytes lie.
        num_blocks: number of blocks.
        model: what must agree on both sides, with revision and compat.
        revision: of the model.
        compat: the caller's own compatibility string.
        instance: the engine whose rank this is, or "".
    """

    def __init__(
        self,
        client: Places,
        name: str,
        model: str,
        revision: str,
        compat: str,
        layout: Layout,
        num_blocks: int,
        memory: Memory,
        instance: str = "",
        instance_key: bytes = b"",
    ) -> None:
        super().__init__(client, name, memory, num_blocks * layout.block_bytes)
        self.model = model
        self.revision = revision
        self.compat = compat
        self.layout = layout
        self.num_blocks = num_blocks
        self.instance = instance
        self._instance_key = instance_key
        self._vouched = Vouched(num_blocks)
        self._granted = GrantedLeases()

    def __repr__(self) -> str:
        return f"<kvxfer.Cache {self.name!r} {self.num_blocks} blocks of {self.layout.block_bytes} bytes>"

    # Memory.

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

    # Leases.

    @overload
    def lease(
        self,
        blocks: BlockIds,
        mode: Literal["write"] = "write",
        ttl: float = 30.0,
        *,
        traceparent: str | None = None,
        timeout: float = 5.0,
    ) -> Lease: ...

    @overload
    def lease(
        self,
        blocks: BlockIds,
        mode: Literal["read"],
        ttl: float = 30.0,
        *,
        readers: int = 1,
        traceparent: str | None = None,
        timeout: float = 5.0,
    ) -> ReadLease: ...

    def lease(
        self,
        blocks: BlockIds,
        mode: str = "write",
        ttl: float = 30.0,
        *,
        readers: int = 1,
        traceparent: str | None = None,
        timeout: float = 5.0,
    ) -> AnyLease:
        """Gives permission on blocks to whoever comes with the lease's ticket.

        With mode "write" one transfer, the first that comes, may write them; what they held is given up with
        the call. With mode "read" up to ``readers`` transfers may read them; they are HELD until the lease is
        over.

        Args:
            blocks: ids, each once: a sequence of ints, a range, an array or a numpy array of any integer
                type.
            mode: "write" for a :class:`Lease`, "read" for a :class:`ReadLease`.
            ttl: seconds that the lease lasts, 0.001..86400, on the daemon's clock.
            readers: with mode "read", 1..65535.
            traceparent: W3C context that the call belongs to; None: OpenTelemetry's active span, else a new
                trace.
            timeout: seconds for the daemon's answer.

        Raises:
            InvalidArgument: names the field, and the index of a wrong block id.
            BlocksBusy: a block is leased or being fenced, or, for writing, held.
            DeadlineExceeded: no answer (released=False); the lease is revoked as soon as the answer comes.
        """
        at = self._use("lease")
        packed = pack("lease", blocks, self.num_blocks)
        terms = LeaseTerms(mode, ttl, readers, traceparent, timeout)
        if terms.mode == "read":
            return terms.read(at.session, {"cache": at.cache}, packed, self.name, self)
        # Before the daemon hears of it: from the grant on a peer may write.
        taken = self._vouched.take(packed)
        try:
            return terms.write(
                at.session, {"cache": at.cache}, packed, self.name, self.layout.layers, self._vouched, self
            )
        except RequestError:  # nothing was changed
            self._vouched.restore(taken)
            raise

    @overload
    def granted(
        self, lease_id: str, mode: Literal["write"] = "write", *, timeout: float = 5.0
    ) -> Pending[Lease]: ...

    @overload
    def granted(
        self, lease_id: str, mode: Literal["read"], *, timeout: float = 5.0
    ) -> Pending[ReadLease]: ...

    def granted(
        self, lease_id: str, mode: str = "write", *, timeout: float = 5.0
    ) -> Pending[Lease] | Pending[ReadLease]:
        """This rank's handle of a lease that another process of the engine took by :meth:`Client.lease`.

        The returned thing ends when the daemon has told of the lease, which may be before or after the call.
        A handle has no ticket and no time of its own; it tells of this rank's blocks alone. That they are
        COMMITTED is not yet said of the other ranks: where one of them fails, these blocks are evicted again,
        and the lease itself ends with the error. The newest 1,024 leases are remembered for those who ask
        later.

        Args:
            lease_id: the lease's ``lease_id``, 32 hex digits.
            mode: the lease's.
            timeout: seconds until it fails with DeadlineExceeded.
        """
        at = self._use("granted")
        if mode not in ("write", "read"):
            raise InvalidArgument(f'{mode!r:.80}, allowed "write" or "read"', op="granted", field="mode")
        if mode == "read":
            return self._granted.ask(at.session, lease_id, ReadLease, timeout)
        return self._granted.ask(at.session, lease_id, Lease, timeout)

    # Transfers.

    def write(
        self,
        blocks: BlockIds,
        *,
        to: str,
        layerwise: bool = False,
        timeout: float = 30.0,
        notification: bytes = b"",
        traceparent: str | None = None,
        transfer_id: str = "",
        attempt: int = 1,
        instance: str = "",
        provider: str = "",
    ) -> Push:
        """Writes blocks to the lease that the ticket names, in the order of both block lists.

        It returns as soon as the own daemon knows of it; the transfer's end is the returned push's. Until the
        push is released nobody may change the bytes that were handed over.

        Args:
            blocks: ids of own blocks, as many as the lease has.
            to: the lease's ticket. Of an instance's ticket the part of this cache's ``tp_rank`` is taken.
            layerwise: True: bytes are read only after ``push.layer``, and ``push.finish`` ends the transfer.
                False: all bytes are final now.
            timeout: seconds for the whole transfer, 0.001..86400.
            notification: with layerwise=False, up to 64 KiB for the lease's owner.
            traceparent: W3C context that the call belongs to; None: OpenTelemetry's active span, else the
                ticket's.
            transfer_id: 32 hex digits, where several ranks make the transfer together (all give the same) or
                the caller repeats one; "": a random one.
            attempt: 1..4294967295. A further attempt of a transfer needs the fence of the former, a lease of
                its own and a higher number.
            instance: the caller's engine, for people.
            provider: the only fabric that may be used, "shm", "verbs" (RDMA) or "tcp"; nothing takes its
                place. "": the best that reaches the peer.

        Raises:
            InvalidArgument: names the field, and the index of a wrong block id.
            TicketInvalid: the ticket cannot be read.
            NotSupported: the own daemon has no such provider, or it did not take this memory; where that is
                so at the peer, or it does not reach there, the transfer ends with NotSupported or
                PeerUnreachable.
            DeadlineExceeded: the own daemon does not answer (released=False).
        """
        at = self._use("write")
        packed = pack("write", blocks, self.num_blocks)
        timeout = check_duration("write", timeout)
        check_ticket("write", "to", to)
        data = check_notification("write", notification)
        if data and layerwise:
            raise InvalidArgument("a layerwise push takes it in finish", op="write", field="notification")
        names = identity("write", transfer_id, attempt, instance, provider)
        push = Push(
            self,
            at.session,
            len(packed) // 4,
            self.layout.layers,
            timeout,
            traceparent,
            bool(layerwise),
            data,
        )
        own = {"layerwise": bool(layerwise)}
        body = {"cache": at.cache, **push._request(to, timeout, own, names)}
        push._start(wire.PUSH, body, packed, min(timeout, self._client.timeout))
        return push

    def read(
        self,
        blocks: BlockIds,
        *,
        source: str | Holder,
        keys: Keys | None = None,
        timeout: float = 30.0,
        notification: bytes = b"",
        traceparent: str | None = None,
        transfer_id: str = "",
        attempt: int = 1,
        instance: str = "",
        provider: str = "",
    ) -> Pull:
        """Reads a peer's blocks into own ones, in the order of both lists.

        What the own blocks held is given up with the call. They are COMMITTED when the transfer ends well;
        after any other end they are FREE. From a ticket it returns as soon as the own daemon knows of it.
        From a holder it returns at once, and also what the own daemon refuses is told by the returned pull.

        Args:
            blocks: ids of own blocks, as many as the lease has or as keys are given.
            source: the ticket of a lease of mode "read", or a :class:`Holder` from :meth:`Client.lookup`.
            keys: with a holder, the keys of the blocks, each once, 65,536 bytes in all: the beginning of what
                was looked up.
            timeout: seconds for the whole transfer, 0.001..86400.
            notification: up to 64 KiB for the source, when everything was read.
            traceparent, transfer_id, attempt, instance, provider: as for :meth:`write`.

        Raises:
            InvalidArgument: names the field, and the index of a wrong block id or key.
            BlocksBusy: an own block is leased, held or being fenced.
            TicketInvalid: the ticket cannot be read.
            DeadlineExceeded: the own daemon does not answer (released=False).
        """
        op = "read"
        at = self._use(op)
        packed = pack(op, blocks, self.num_blocks)
        timeout = check_duration(op, timeout)
        note = check_notification(op, notification)
        names = identity(op, transfer_id, attempt, instance, provider)
        if note:
            names = {"notification": wire.base64(note), **names}
        if not isinstance(source, Holder):
            check_ticket(op, "source", source)
        if isinstance(source, Holder) != (keys is not None):
            raise InvalidArgument("allowed with a Holder, and needed there", op=op, field="keys")
        pull = Pull(self, at.session, packed, self._vouched, timeout, traceparent)

        def body(ticket: str, seconds: float) -> dict[str, Any]:
            return {"cache": at.cache, **pull._request(ticket, seconds, {}, names)}

        if not isinstance(source, Holder):
            pull._start(wire.PULL, body(source, timeout), packed, min(timeout, self._client.timeout))
            return pull
        assert keys is not None
        data, key_bytes, count = pack_keys(op, keys)
        if count != len(packed) // 4:
            raise InvalidArgument(f"{count} keys for {len(packed) // 4} blocks", op=op, field="keys")
        request = {
            "node": source.node,
            "epoch": source.epoch,
            "addr": source.addr,
            "cache": source.cache,
            **self._kind(),
            "key_bytes": key_bytes,
            "ttl_ms": wire.milliseconds(timeout),
            "timeout_ms": wire.milliseconds(timeout),
        }
        pull._open(request, data, body)
        return pull

    def prepare(
        self,
        blocks: BlockIds,
        *,
        to: str | None = None,
        source: str | None = None,
        timeout: float = 30.0,
        traceparent: str | None = None,
        transfer_id: str = "",
        attempt: int = 1,
        instance: str = "",
        provider: str = "",
    ) -> Prepared:
        """Binds a list of blocks to a lease, to be written or read many times: what :meth:`write` or
        :meth:`read` does for each transfer anew is done once. It returns when posts may begin.

        What the own blocks held is given up with the call where they are read into; they are COMMITTED by
        :meth:`Prepared.finish`, and FREE after any other end.

        Args:
            blocks: ids of own blocks, as many as the lease has.
            to: the ticket of a lease of mode "write": own blocks are written.
            source: instead, the ticket of a lease of mode "read": own blocks are read into.
            timeout: seconds for the whole, from the call to the end of the last post, 0.001..86400. A lease's
                own time may be over sooner.
            traceparent, transfer_id, attempt, instance, provider: as for :meth:`write`.

        Raises:
            InvalidArgument: names the field, and the index of a wrong block id.
            TicketInvalid, TicketBound, PeerUnreachable, ...: it could not be bound.
            NotSupported: as for :meth:`write`; or the daemon is of a version without prepared lists.
            DeadlineExceeded: not bound in time (released=False); it is cancelled.
        """
        at = self._use("prepare")
        packed = pack("prepare", blocks, self.num_blocks)
        names = identity("prepare", transfer_id, attempt, instance, provider)
        own = {"cache": at.cache}
        return prepare(self, at, own, packed, to, source, timeout, traceparent, names, self._vouched)

    # Blocks.

    def publish(self, blocks: BlockIds, keys: Keys, *, timeout: float = 5.0) -> int:
        """Makes blocks that this process filled itself COMMITTED under keys, so that lookups find them.

        To publish is to permit every peer of the tenant to read them: do not change them before
        :meth:`evict`.

        Args:
            blocks: ids of FREE or COMMITTED blocks, each once.
            keys: one for each block, in the same order, of equal length, 1..255 bytes; see
                :func:`chain_keys`.
            timeout: seconds for the daemon's answer.

        Returns:
            The generation under which they are COMMITTED.

        Raises:
            InvalidArgument: names the field, and the index of a wrong block id or key.
            BlocksBusy: a block is leased or being fenced.
            DeadlineExceeded: no answer; they may be published or not.
        """
        op = "publish"
        at = self._use(op)
        packed = pack(op, blocks, self.num_blocks)
        data, key_bytes, count = pack_keys(op, keys, self.num_blocks)
        if count != len(packed) // 4:
            raise InvalidArgument(f"{count} keys for {len(packed) // 4} blocks", op=op, field="keys")
        if len(packed) + len(data) > wire.MAX_ARRAY:
            raise InvalidArgument(
                f"{len(packed) + len(data)} bytes with the block ids, allowed 0..{wire.MAX_ARRAY}",
                op=op,
                field="keys",
            )
        timeout = check_duration(op, timeout)

        def published(frame: wire.Frame) -> int:
            generation = wire.get_id(frame.body(), "generation")
            self._vouched.put(packed, generation)
            return generation

        taken = self._vouched.take(packed)
        try:
            body = {"cache": at.cache, "key_bytes": key_bytes}
            generation: int = at.session.conn.request(
                op, wire.PUBLISH, body, packed + data, timeout=timeout, on_ok=published
            )
            return generation
        except RequestError:  # nothing was changed
            self._vouched.restore(taken)
            raise

    def evict(self, blocks: BlockIds, *, timeout: float = 10.0) -> None:
        """Takes blocks back from every peer and makes them FREE.

        Leases that touch them, of writers and of readers, are revoked. When it returns, nobody can read or
        write the blocks any more.

        Raises:
            InvalidArgument: names the index of a wrong block id.
            BlocksBusy: an own transfer holds a block; cancel it first. Nothing was changed.
            DeadlineExceeded: not fenced in time (released=False).
        """
        at = self._use("evict")
        packed = pack("evict", blocks, self.num_blocks)
        timeout = check_duration("evict", timeout)
        taken = self._vouched.take(packed)
        try:
            at.session.conn.request(
                "evict", wire.EVICT, {"cache": at.cache}, packed, timeout=timeout, released=False
            )
        except RequestError:  # nothing was changed
            self._vouched.restore(taken)
            raise

    def block_states(self, *, timeout: float = 5.0) -> BlockStates:
        """The state of every block."""
        at = self._use("block_states")
        timeout = check_duration("block_states", timeout)
        states: BlockStates = at.session.conn.request(
            "block_states", wire.BLOCKS, {"cache": at.cache}, timeout=timeout, on_ok=read_states
        )
        return states

    def drop(self, *, timeout: float = 30.0) -> None:
        """Ends the cache: revokes and fences its leases and transfers, and gives the memory back.

        When it returns, nothing can touch the memory any more. Views of it stay valid. A second call does
        nothing.

        Raises:
            DeadlineExceeded: not fenced in time (released=False); call it again.
            DaemonUnavailable: the daemon is lost (released=False); the cache stays, for reconnect.
        """
        self._give_back("drop", timeout)

    # What follows is called by the SDK.

    def _kind(self) -> dict[str, Any]:
        """What must agree on both sides."""
        return kind_of(self.model, self.revision, self.compat, self.layout)

    def _end_requests(self, at: Attachment) -> list[tuple[int, dict[str, Any]]]:
        return [(wire.DROP_CACHE, {"cache": at.cache}), *super()._end_requests(at)]

    def _vouches(self) -> bytes:
        # An array of one frame holds this many; blocks above are safe and only lost.
        return self._vouched.packed()[: wire.MAX_ARRAY]

    def _keep_only(self, served: memoryview) -> None:
        self._vouched.keep_only(served)

    def _register(
        self, op: str, session: Session, vouches: bytes, deadline: float
    ) -> tuple[Attachment, memoryview]:
        region = self._hand_over(op, session, deadline)
        body = {"name": self.name, "region": region, **self._kind(), "num_blocks": self.num_blocks}
        if self.instance:
            body |= {"instance": self.instance, "instance_key": wire.base64(self._instance_key)}
        return declare_cache(session, op, body, vouches, deadline, self.layout.block_bytes, self)

    def _on_granted(self, session: Session, body: dict[str, Any], packed: bytes) -> None:
        ids = wire.u32s("blocks", packed)
        if not len(ids) or max(ids) >= self.num_blocks:
            raise wire.violation("blocks", f"allowed 0..{self.num_blocks - 1}, at least one")
        number, lease_id = wire.get_id(body, "lease"), wire.get(body, "lease_id", "")
        granted = Granted(number, "", lease_id, wire.get(body, "generation", 0), 0)
        lease: AnyLease
        if wire.get(body, "mode", "") == "read":
            lease = ReadLease(session, granted, None, self.name, packed, 0, None, self)
        else:
            self._vouched.take(packed)
            lease = Lease(
                session, granted, None, self.name, self.layout.layers, packed, self._vouched, None, self
            )
        session.add_lease(number, lease)
        self._granted.add(lease)

    def _on_lost(self, error: KvxferError) -> None:
        self._granted.lost(error)
