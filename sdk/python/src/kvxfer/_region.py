"""Raw regions: memory without blocks, moved by byte ranges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _trace
from . import _wire as wire
from ._arguments import check_duration, check_index, check_notification
from ._faults import InvalidArgument, NotSupported
from ._grant import Granted, ask
from ._memory import Memory
from ._offer import Advertisement
from ._prepared import Prepared, prepare
from ._ranges import Ranges, Spans, pack_ranges, pack_spans
from ._registered import Registered
from ._scatter import Scatter
from ._transfer import check_ticket, identity

if TYPE_CHECKING:
    import numpy.typing as npt

    from ._places import Places

_MAX_USES = (1 << 32) - 1


class Region(Registered):
    """Memory of ``size`` bytes, from :meth:`Client.allocate_region` or :meth:`Client.register_region`.

    Nothing of it is journalled or committed: that bytes which a peer read were not changed meanwhile is as
    true as the owner makes it.

    Attributes:
        name: unique among the client's caches and regions.
        size: bytes.
    """

    def __init__(self, client: Places, name: str, memory: Memory, size: int) -> None:
        super().__init__(client, name, memory, size)
        self.size = size

    def __repr__(self) -> str:
        return f"<kvxfer.Region {self.name!r} {self.size} bytes>"

    @property
    def array(self) -> npt.NDArray[Any]:
        """The bytes as a writable numpy array of uint8, shape ``(size,)``; no bytes are copied.

        Raises:
            NotSupported: numpy is not installed; :attr:`memory` works without it.
        """
        self._check_memory("array")
        try:
            import numpy
        except ImportError:
            raise NotSupported(
                "numpy is not installed (pip install 'kvxfer[numpy]'); Region.memory works without it",
                op="array",
            ) from None
        return numpy.frombuffer(self._mem.map, numpy.uint8, self.size)

    def advertise(
        self,
        mode: str = "write",
        spans: Spans | None = None,
        *,
        uses: int = 0,
        ttl: float = 30.0,
        traceparent: str | None = None,
        timeout: float = 5.0,
    ) -> Advertisement:
        """Opens parts of the region to whoever gets the ticket, until it is used up, over or taken back.

        Args:
            mode: "write" or "read": what the peers may do.
            spans: (offset, length) of each part in bytes, or a numpy array of shape (N, 2); None: the whole
                region.
            uses: how many transfers may bind it, 0..4294967295; 0: any number.
            ttl: seconds that it lasts, 0.001..86400, on the daemon's clock.
            traceparent: W3C context that the call belongs to; None: OpenTelemetry's active span, else a new
                trace.
            timeout: seconds for the daemon's answer.

        Raises:
            InvalidArgument: names the field, and the index of a wrong part.
            DeadlineExceeded: no answer (released=False); it is revoked as soon as the answer comes.
        """
        op = "advertise"
        at = self._use(op)
        if mode not in ("write", "read"):
            raise InvalidArgument(f'{mode!r:.80}, allowed "write" or "read"', op=op, field="mode")
        packed = b"" if spans is None else pack_spans(op, spans, self.size)
        uses = check_index(op, "uses", uses, 0, _MAX_USES)
        ttl = check_duration(op, ttl, "ttl")
        timeout = check_duration(op, timeout)
        span = _trace.start(op, "kvxfer.advertise", traceparent, {})
        body: dict[str, Any] = {"region": at.region, "mode": mode}
        if uses:
            body["uses"] = uses
        body |= {"ttl_ms": wire.milliseconds(ttl), "traceparent": span.traceparent}

        def make(granted: Granted) -> Advertisement:
            return Advertisement(at.session, granted, ttl, self.name, mode, span, self)

        return ask(at.session, op, wire.ADVERTISE, body, packed, span, timeout, make)

    def writev(
        self,
        ranges: Ranges,
        *,
        to: str,
        timeout: float = 30.0,
        notification: bytes = b"",
        traceparent: str | None = None,
        transfer_id: str = "",
        attempt: int = 1,
        instance: str = "",
        provider: str = "",
    ) -> Scatter:
        """Writes ranges of the region to ranges of an advertised one.

        It returns as soon as the own daemon knows of it. Until the transfer is released nobody may change the
        bytes that were handed over.

        Args:
            ranges: (own offset, the peer's offset, length) of each in bytes, or a numpy array of shape (N, 3)
                of any integer type; at most 2,796,202. None at all delivers the notification alone.
            to: the advertisement's ticket, of mode "write".
            timeout: seconds for the whole transfer, 0.001..86400.
            notification: up to 64 KiB for the advertisement's owner, once the data is visible.
            traceparent: W3C context that the call belongs to; None: OpenTelemetry's active span, else the
                ticket's.
            transfer_id: 32 hex digits where the caller repeats a transfer; "": a random one.
            attempt: 1..4294967295; a further attempt needs a higher number.
            instance: the caller's engine, for people.
            provider: the only fabric that may be used, "shm", "verbs" (RDMA) or "tcp"; nothing takes its
                place. "": the best that reaches the peer.

        Raises:
            InvalidArgument: names the field, and the index of a wrong range.
            TicketInvalid: the ticket cannot be read.
            NotSupported: the own daemon has no such provider, or it did not take this memory; where that is
                so at the peer, or it does not reach there, the transfer ends with NotSupported or
                PeerUnreachable.
            DeadlineExceeded: the own daemon does not answer (released=False).
        """
        names = identity("writev", transfer_id, attempt, instance, provider)
        return self._scatter("writev", "write", "to", ranges, to, timeout, notification, traceparent, names)

    def readv(
        self,
        ranges: Ranges,
        *,
        source: str,
        timeout: float = 30.0,
        notification: bytes = b"",
        traceparent: str | None = None,
        transfer_id: str = "",
        attempt: int = 1,
        instance: str = "",
        provider: str = "",
    ) -> Scatter:
        """Reads ranges of an advertised region into ranges of this one.

        The arguments and errors are those of :meth:`writev`; source is the ticket of an advertisement of mode
        "read". When it ends well the advertisement lasted throughout. Until the transfer is released bytes
        may still land in the own ranges.
        """
        names = identity("readv", transfer_id, attempt, instance, provider)
        return self._scatter(
            "readv", "read", "source", ranges, source, timeout, notification, traceparent, names
        )

    def prepare(
        self,
        ranges: Ranges,
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
        """Binds a list of ranges to an advertisement, to be written or read many times: what :meth:`writev`
        or :meth:`readv` does for each transfer anew is done once. It returns when posts may begin.

        Args:
            ranges: (own offset, the peer's offset, length) of each in bytes, as for :meth:`writev`.
            to: the ticket of an advertisement of mode "write": own ranges are written.
            source: instead, one of mode "read": own ranges are read into.
            timeout: seconds for the whole, from the call to the end of the last post, 0.001..86400. A lease's
                own time may be over sooner.
            traceparent, transfer_id, attempt, instance, provider: as for :meth:`writev`.

        Raises:
            InvalidArgument: names the field, and the index of a wrong range.
            TicketInvalid, TicketBound, PeerUnreachable, ...: it could not be bound.
            NotSupported: as for :meth:`writev`; or the daemon is of a version without prepared lists.
            DeadlineExceeded: not bound in time (released=False); it is cancelled.
        """
        at = self._use("prepare")
        packed = pack_ranges("prepare", ranges, self.size)
        names = identity("prepare", transfer_id, attempt, instance, provider)
        own = {"region": at.region}
        return prepare(self, at, own, packed, to, source, timeout, traceparent, names, None)

    def deregister(self, timeout: float = 30.0) -> None:
        """Gives the region back: revokes and fences its advertisements, ends its transfers.

        When it returns, nothing can touch the memory any more. Views of it stay valid. A second call does
        nothing.

        Raises:
            DeadlineExceeded: not fenced in time (released=False); call it again.
            DaemonUnavailable: the daemon is lost (released=False); the region stays, for reconnect.
        """
        self._give_back("deregister", timeout)

    # What follows is called by the SDK.

    def _scatter(
        self,
        op: str,
        mode: str,
        field: str,
        ranges: Ranges,
        ticket: str,
        timeout: float,
        notification: bytes,
        traceparent: str | None,
        names: dict[str, Any],
    ) -> Scatter:
        at = self._use(op)
        packed = pack_ranges(op, ranges, self.size)
        timeout = check_duration(op, timeout)
        check_ticket(op, field, ticket)
        note = check_notification(op, notification)
        if note:
            names = {"notification": wire.base64(note), **names}
        scatter = Scatter(self, at.session, op, 0, timeout, traceparent)
        body = {"region": at.region, "mode": mode, **scatter._request(ticket, timeout, {}, names)}
        scatter._start(wire.SCATTER, body, packed, min(timeout, self._client.timeout))
        return scatter
