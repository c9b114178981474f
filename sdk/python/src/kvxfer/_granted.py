"""Leases on own blocks that another process of the engine took."""

from __future__ import annotations

import re
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from ._arguments import check_duration
from ._errors import again
from ._faults import InvalidArgument, KvxferError
from ._lease import Lease
from ._offer import ReadLease
from ._pending import Pending
from ._session import Session

AnyLease: TypeAlias = Lease | ReadLease
L = TypeVar("L", Lease, ReadLease)

_LEASE_ID = re.compile(r"[0-9a-f]{32}")

#: Leases and calls that are remembered for each other; the oldest go first. A lease itself lives on without.
_MAX_KEPT = 1024


@dataclass(frozen=True)
class _Call(Generic[L]):
    kind: type[L]
    pending: Pending[L]

    def settle(self, lease: AnyLease) -> None:
        if isinstance(lease, self.kind):
            self.pending._finish(lease)
        else:
            mode = "read" if isinstance(lease, ReadLease) else "write"
            self.pending._fail(InvalidArgument(f"the lease's is {mode!r}", op="granted", field="mode"))


class GrantedLeases:
    """The daemon's word about a lease and the call that asks for it, in whichever order they come."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._there: OrderedDict[str, AnyLease] = OrderedDict()
        self._waiting: OrderedDict[str, list[_Call[Any]]] = OrderedDict()

    def add(self, lease: AnyLease) -> None:
        """The connection's thread has a lease."""
        with self._lock:
            waiting = self._waiting.pop(lease.lease_id, [])
            self._there[lease.lease_id] = lease
            if len(self._there) > _MAX_KEPT:
                self._there.popitem(last=False)
        for call in waiting:
            call.settle(lease)

    def ask(self, session: Session, lease_id: str, kind: type[L], timeout: float) -> Pending[L]:
        """A pending thing that ends with the lease, which must be of that kind."""
        if not isinstance(lease_id, str) or not _LEASE_ID.fullmatch(lease_id):
            raise InvalidArgument(f"{lease_id!r:.80}, allowed 32 hex digits", op="granted", field="lease_id")
        deadline = time.monotonic() + check_duration("granted", timeout)
        call = _Call(kind, Pending[L](session, "granted", deadline))
        with self._lock:
            lease = self._there.get(lease_id)
            if lease is None:
                others: list[_Call[Any]] = self._waiting.pop(lease_id, [])
                self._waiting[lease_id] = [*(c for c in others if not c.pending._done), call]
                if len(self._waiting) > _MAX_KEPT:
                    self._waiting.popitem(last=False)
        if lease is not None:
            call.settle(lease)
            return call.pending
        session.end_later(deadline, call.pending, "_expire")
        lost = session.conn.lost
        if lost is not None:
            self.lost(lost)
        return call.pending

    def lost(self, error: KvxferError) -> None:
        """Nothing more will be heard on that connection."""
        with self._lock:
            waiting = [c for calls in self._waiting.values() for c in calls]
            self._waiting.clear()
        for call in waiting:
            call.pending._fail(again(error, op="granted"))
