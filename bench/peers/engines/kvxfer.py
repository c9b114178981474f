"""kvxfer through its Python SDK, in three ways.

``blocks`` is what an inference engine does: a lease on blocks for each transfer, whose ticket travels with
the request (and so is taken before the clock runs), and the commit at its end. ``prepared`` binds a list once
and posts it many times, as the peers do. ``raw`` sends the list with every transfer between raw regions,
without blocks and leases of their own."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from cases import LOCAL, REMOTE, WRITE, Case
from engines.base import Engine, EngineError, Words

BLOCKS, PREPARED, RAW = "blocks", "prepared", "raw"
LONG = 3600.0
"""Seconds that advertisements and leases last: longer than any run."""


def prepare(region: Any, op: str, ranges: Any, ticket: str) -> Any:
    """A prepared transfer of a list: ``run()`` moves it, ``post()`` starts that and ``wait()`` of what it
    returns ends it, ``cancel()`` gives the list up.

    Raises:
        EngineError: the SDK has no prepared transfers.
    """
    if not hasattr(region, "prepare"):
        raise EngineError("this SDK has no prepared transfers")
    way = {"to": ticket} if op == WRITE else {"source": ticket}
    return region.prepare(ranges, timeout=LONG, **way)


class _Side:
    """A client: its daemon's socket is in KVXFER_SOCKET."""

    def __init__(self, side: str, way: str) -> None:
        import kvxfer

        self.side, self.way, self.kvxfer = side, way, kvxfer
        self.client = kvxfer.connect(timeout=30)

    def meet(self, peer: Words) -> None:
        pass


class _Blocks(_Side):
    """A cache of one layer and one plane, whose blocks are one piece of memory each."""

    committed = False
    lease: Any = None

    def open(self, case: Case) -> Words:
        self.case, self.ids = case, np.array(case.ids(self.side), np.uint32)
        token = min(case.block_bytes, 4 << 10)
        begun = time.perf_counter_ns()
        layout = self.kvxfer.Layout(
            layers=1,
            kv_heads=1,
            head_dim=token,
            dtype="uint8",
            block_tokens=case.block_bytes // token,
            order="MLA",
        )
        self.cache = self.client.allocate_cache(
            f"bench-{self.side}", model="bench", layout=layout, num_blocks=case.slots
        )
        took = time.perf_counter_ns() - begun
        self.memory = np.frombuffer(self.cache.memory, np.uint8)
        return {"register_ns": took}

    def prepare(self, op: str, words: Words) -> Words:
        return {"prepare_ns": 0}

    def clear(self) -> None:
        """What the last transfer brought is given up: COMMITTED blocks are neither changed nor a target."""
        if self.committed:
            self.committed = False
            self.cache.evict(self.ids)

    def grant(self, op: str) -> str:
        self.clear()
        if op == WRITE:
            self.lease = self.cache.lease(self.ids, ttl=LONG)
        else:
            self.lease = self.cache.lease(self.ids, mode="read", ttl=LONG)
        return str(self.lease.ticket)

    def settle(self, op: str) -> None:
        self.lease.wait(30)
        self.committed = op == WRITE

    def move(self, op: str, ticket: str) -> tuple[int, int]:
        self.clear()
        cache, ids = self.cache, self.ids
        begun = time.perf_counter_ns()
        transfer = cache.write(ids, to=ticket) if op == WRITE else cache.read(ids, source=ticket)
        held = time.perf_counter_ns() - begun
        result = transfer.wait()
        took = time.perf_counter_ns() - begun
        self.committed = op != WRITE
        if result.bytes != self.case.bytes:
            raise EngineError(f"the transfer moved {result.bytes} bytes of {self.case.bytes}")
        return took, held

    def close(self) -> None:
        del self.memory
        self.cache.drop()
        self.client.close()


class _Raw(_Side):
    """A raw region, and one advertisement for each operation."""

    prepared: Any = None
    moves = 0
    held = 0

    def open(self, case: Case) -> Words:
        self.case = case
        self.advertised: list[Any] = []  # one of each operation; the peer may still be bound to the last
        begun = time.perf_counter_ns()
        self.region = self.client.allocate_region(f"bench-{self.side}", case.memory)
        took = time.perf_counter_ns() - begun
        self.memory = np.frombuffer(self.region.memory, np.uint8)
        return {"register_ns": took}

    def prepare(self, op: str, words: Words) -> Words:
        if self.side != LOCAL:
            self.advertised.append(self.region.advertise(op, ttl=LONG))
            return {"ticket": self.advertised[-1].ticket}
        self._end_prepared()
        case = self.case
        columns = case.offsets(LOCAL), case.offsets(REMOTE), [case.block_bytes] * case.blocks
        self.ranges, self.ticket = np.array(columns, np.uint64).T.copy(), words["ticket"]
        begun = time.perf_counter_ns()
        if self.way == PREPARED:
            self.prepared = prepare(self.region, op, self.ranges, self.ticket)
        return {"prepare_ns": time.perf_counter_ns() - begun}

    def clear(self) -> None:
        pass

    def grant(self, op: str) -> str:
        return ""

    def settle(self, op: str) -> None:
        pass

    def move(self, op: str, ticket: str) -> tuple[int, int]:
        region, ranges, to, prepared = self.region, self.ranges, self.ticket, self.prepared
        begun = time.perf_counter_ns()
        if prepared is not None:
            self.moves += 1
            if self.moves % 4:  # one call, as who waits makes it; every fourth tells how long post holds
                prepared.run(timeout=30.0)
                return time.perf_counter_ns() - begun, self.held
            transfer = prepared.post(timeout=30.0)
            self.held = time.perf_counter_ns() - begun
        elif op == WRITE:
            transfer = region.writev(ranges, to=to)
        else:
            transfer = region.readv(ranges, source=to)
        held = time.perf_counter_ns() - begun
        transfer.wait()
        return time.perf_counter_ns() - begun, held

    def _end_prepared(self) -> None:
        if self.prepared is not None:
            self.prepared.cancel()
            self.prepared = None

    def close(self) -> None:
        self._end_prepared()
        for advertised in self.advertised:
            advertised.unadvertise()
        del self.memory
        self.region.deregister()
        self.client.close()


def make(side: str, way: str) -> Engine:
    """For the worker."""
    return _Blocks(side, way) if way == BLOCKS else _Raw(side, way)
