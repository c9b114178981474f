"""Write leases: permission for one peer to write into own blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from . import _wire as wire
from ._arguments import check_index
from ._blocks import Vouched
from ._errors import again
from ._faults import KvxferError
from ._grant import Grant, Granted
from ._pending import Pending
from ._session import Session
from ._trace import Span

# LeaseResult has a field of that name.
_Bytes: TypeAlias = bytes


@dataclass(frozen=True)
class LeaseResult:
    """How a lease was fulfilled. Its blocks are COMMITTED.

    Attributes:
        blocks: number of blocks.
        bytes: payload bytes that were placed.
        notification: what the source gave to finish, up to 64 KiB.
        peer: node that wrote.
        provider: what moved the bytes.
        transfer_id: 32 hex digits, the same on both nodes.
        generation: what the blocks were committed under; 0 of an instance's lease, whose every rank has its
            own.
        guarantee: "full", or "live-client-only" where what is promised of the memory ends with its client's
            process.
    """

    blocks: int
    bytes: int
    notification: _Bytes
    peer: str
    provider: str
    transfer_id: str
    generation: int
    guarantee: str = "full"


class Lease(Grant[LeaseResult]):
    """A lease for writing, from :meth:`Cache.lease`. Waiting for it waits for the whole transfer.

    As a context manager: leaving means that the blocks are committed, or that the lease was revoked and
    fenced. Where the fence does not come within 10 seconds, leaving raises DeadlineExceeded (released=False)
    and the blocks stay HELD; an exception of the block itself goes first, then :attr:`released` tells.

    A lease ends with LeaseExpired, LeaseRevoked, PeerLost, ClientGone, Cancelled, ... when nothing was
    committed; its blocks are then fenced (``released`` is True on the error). When the daemon says nothing
    until half a second after the lease's time, or is lost, or could not fence (Internal), the error has
    ``released=False``.

    From :meth:`Client.lease` it covers the same blocks on every rank of an instance, is committed on all of
    them or on none, and a layer is visible when it is on every rank. Where the daemon is lost, ``released``
    of such a lease stays False: the memory is on other nodes, and the handles of :meth:`Cache.granted` know.
    A handle of that method has no ticket, traceparent or time of its own.

    Attributes:
        generation: what the blocks are committed under.
        blocks: the block ids, as a read-only memoryview of 32-bit integers.
        ranks: how many ranks an instance's lease covers; 0 of a lease on one cache.
        ticket: the capability that the writing side needs, a JSON-safe str. It is a secret: never log it.
        lease_id: 32 hex digits, in traces and logs; of an instance's lease the same on every rank.
        traceparent: W3C context of the lease's span; the transfer belongs to its trace.
    """

    def __init__(
        self,
        session: Session,
        granted: Granted,
        ttl: float | None,
        place: str,
        layers: int,
        packed: bytes,
        vouched: Vouched | None,
        span: Span | None,
        keep: object,
    ) -> None:
        super().__init__(session, "lease", granted, ttl, place, span, keep)
        self.generation = granted.generation
        self.ranks = granted.ranks
        self.blocks = memoryview(packed).cast("I")
        self._packed = packed
        self._vouched = vouched
        self._layers = layers
        self._visible = bytearray(layers)
        self._layer_pending: dict[int, Pending[None]] = {}

    @property
    def transfer_id(self) -> str:
        """The transfer's id, 32 hex digits; "" until the lease has ended."""
        return self._transfer_id

    def layer(self, layer: int) -> Pending[None]:
        """A pending thing that ends when all blocks of that layer are there, or with the lease's error."""
        self._session.check_fork()
        return self._layer(layer, quiet=False)

    def wait_layer(self, layer: int, timeout: float | None = None) -> None:
        """Waits until all blocks of that layer are there.

        Visible is not committed: the bytes may be used, the blocks must not be served to others before wait()
            returns.

        Args:
            layer: 0..layers-1.
            timeout: seconds; None: the lease's own time.

        Raises:
            DeadlineExceeded: not there in time; the lease goes on.
            TransferError: the lease has ended without being committed.
        """
        self._layer(layer, quiet=True).wait(timeout)
        if self._error is not None:
            raise self._error.with_traceback(None)

    def visible_layers(self) -> list[int]:
        """The layers whose blocks are all there, in order."""
        self._session.check_fork()
        return [i for i, v in enumerate(self._visible) if v]

    # What follows is called by the SDK.

    def _layer(self, layer: int, quiet: bool) -> Pending[None]:
        layer = check_index("lease.layer", "layer", layer, 0, self._layers - 1)
        with self._lock:
            p = self._layer_pending.get(layer)
            if p is None:
                p = Pending(self._session, f"lease.layer({layer})", self._deadline)
                p._writes = True
                p._quiet = quiet
                self._layer_pending[layer] = p
            elif not quiet:
                p._hand_out()
        if self._done:
            self._settle_layer(layer, p)
        elif self._visible[layer]:
            p._finish(None)
        return p

    def _settle_layer(self, layer: int, p: Pending[None]) -> None:
        if self._error is None:
            p._finish(None)
        else:
            p._fail(again(self._error, op=p._op, released=self._error.released))

    def _move_deadline(self) -> None:
        super()._move_deadline()
        for p in self._layer_pending.values():
            p._deadline = self._deadline

    def _on_layers(self, layers: memoryview) -> None:
        span = self._span
        for layer in layers:
            if layer >= self._layers:
                raise wire.violation("layers", f"layer {layer}, allowed 0..{self._layers - 1}")
            if self._visible[layer]:
                continue
            if span is not None:
                span.event(f"layer {layer}")
            with self._lock:
                self._visible[layer] = 1
                p = self._layer_pending.get(layer)
            if p is not None:
                p._finish(None)

    def _ended_well(self, body: dict[str, Any], notification: bytes) -> LeaseResult:
        self.generation = wire.get(body, "generation", 0)
        if self._vouched is not None:
            self._visible[:] = b"\1" * self._layers
            self._vouched.put(self._packed, self.generation)
        return LeaseResult(
            blocks=len(self.blocks),
            bytes=wire.get(body, "bytes", 0),
            notification=notification,
            peer=wire.get(body, "peer", ""),
            provider=wire.get(body, "provider", ""),
            transfer_id=self._transfer_id,
            generation=self.generation,
            guarantee=wire.get(body, "guarantee", "") or "full",
        )

    def _end(self, value: LeaseResult | None, error: KvxferError | None) -> bool:
        first = super()._end(value, error)
        if first:
            with self._lock:
                waiting = list(self._layer_pending.items())
            for layer, p in waiting:
                self._settle_layer(layer, p)
        return first

    def _describe(self, span: Span, value: LeaseResult | None) -> None:
        super()._describe(span, value)
        span.set("kvxfer.blocks", len(self.blocks))
        if value is not None:
            span.set("kvxfer.bytes", value.bytes)
            span.set("kvxfer.peer", value.peer)
            span.set("kvxfer.provider", value.provider)
