"""The terms on which a lease is asked for, on one cache or on every rank of an instance."""

from __future__ import annotations

from typing import Any

from . import _trace
from . import _wire as wire
from ._arguments import check_duration, check_index
from ._blocks import Vouched
from ._faults import InvalidArgument
from ._grant import Granted, ask
from ._lease import Lease
from ._offer import ReadLease
from ._session import Session

_MAX_READERS = 65535


class LeaseTerms:
    """Checked arguments of a lease call, and the call itself."""

    def __init__(self, mode: str, ttl: float, readers: int, traceparent: str | None, timeout: float) -> None:
        if mode not in ("write", "read"):
            raise InvalidArgument(f'{mode!r:.80}, allowed "write" or "read"', op="lease", field="mode")
        self.mode = mode
        self.ttl = check_duration("lease", ttl, "ttl")
        self.timeout = check_duration("lease", timeout)
        self.readers = check_index("lease", "readers", readers, 1, _MAX_READERS if mode == "read" else 1)
        self.span = _trace.start("lease", "kvxfer.lease", traceparent, {})

    def write(
        self,
        session: Session,
        owner: dict[str, Any],
        packed: bytes,
        place: str,
        layers: int,
        vouched: Vouched | None,
        keep: object,
    ) -> Lease:
        """owner has the fields that say whose blocks; vouched is None where they are not this process's."""

        def make(granted: Granted) -> Lease:
            if vouched is not None:
                # Again: an earlier lease of these blocks may have been committed between the call and its
                # grant.
                vouched.take(packed)
            lease = Lease(session, granted, self.ttl, place, layers, packed, vouched, self.span, keep)
            lease._exit_fences = vouched is not None
            return lease

        body = self._body(owner)
        return ask(session, "lease", wire.LEASE, body, packed, self.span, self.timeout, make)

    def read(
        self, session: Session, owner: dict[str, Any], packed: bytes, place: str, keep: object
    ) -> ReadLease:
        def make(granted: Granted) -> ReadLease:
            lease = ReadLease(session, granted, self.ttl, place, packed, self.readers, self.span, keep)
            lease._exit_fences = bool(place)
            return lease

        body = self._body(owner)
        return ask(session, "lease", wire.LEASE, body, packed, self.span, self.timeout, make)

    def _body(self, owner: dict[str, Any]) -> dict[str, Any]:
        body = {**owner, "mode": self.mode}
        if self.readers != 1:
            body["readers"] = self.readers
        return {**body, "ttl_ms": wire.milliseconds(self.ttl), "traceparent": self.span.traceparent}
