"""Mooncake's transfer engine over TCP, peer to peer.

Its limits on queued transfers are raised: with its defaults lists over about 2,050 blocks fail. A list is one
batch of a synchronous call, or eight batches that are started and then waited for. It has nothing but TCP
between two processes of a host without RDMA or CUDA."""

from __future__ import annotations

import time
from typing import Any

from cases import LOCAL, REMOTE, WRITE, Case
from engines.base import Engine, EngineError, Words, allocate, blocks_at

ENVIRONMENT = {
    "MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER": "65535",
    "MC_TCP_MAX_PENDING_ADMISSIONS_PER_PEER": "65535",
    "MC_TCP_ADMISSION_TIMEOUT_MS": "60000",
    "MC_LOG_LEVEL": "ERROR",
    "GLOG_minloglevel": "2",
}
SYNC, ASYNC = "one call", "8 batches"
BATCHES = 8


class _Side:
    """An engine."""

    def __init__(self, side: str, way: str) -> None:
        from mooncake.engine import TransferEngine

        self.side, self.way = side, way
        self.engine: Any = TransferEngine()
        self._checked("initialize", self.engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""))
        self.there: Words = {}

    def _checked(self, call: str, code: int) -> None:
        if code != 0:
            raise EngineError(f"{call} returned {code}")

    def open(self, case: Case) -> Words:
        self.case, self.memory = case, allocate(case)
        self.memory.fill(1)
        address = int(self.memory.ctypes.data)
        begun = time.perf_counter_ns()
        self._checked("register_memory", self.engine.register_memory(address, self.memory.nbytes))
        took = time.perf_counter_ns() - begun
        return {"address": address, "port": self.engine.get_rpc_port(), "register_ns": took}

    def meet(self, peer: Words) -> None:
        self.there = peer

    def prepare(self, op: str, words: Words) -> Words:
        if self.side != LOCAL:
            return {}
        begun = time.perf_counter_ns()
        case = self.case
        own = blocks_at(self.memory, case.offsets(LOCAL))
        peers = [self.there["address"] + o for o in case.offsets(REMOTE)]
        sizes = [case.block_bytes] * case.blocks
        count = BATCHES if self.way == ASYNC else 1
        self.target = f"127.0.0.1:{self.there['port']}"
        step = -(-case.blocks // count)
        self.batches = [
            (own[i : i + step], peers[i : i + step], sizes[i : i + step]) for i in range(0, case.blocks, step)
        ]
        return {"prepare_ns": time.perf_counter_ns() - begun}

    def clear(self) -> None:
        pass

    def grant(self, op: str) -> str:
        return ""

    def settle(self, op: str) -> None:
        pass

    def move(self, op: str, ticket: str) -> tuple[int, int]:
        e, target = self.engine, self.target
        if self.way == SYNC:
            call = e.batch_transfer_sync_write if op == WRITE else e.batch_transfer_sync_read
            own, peers, sizes = self.batches[0]
            begun = time.perf_counter_ns()
            code = call(target, own, peers, sizes)
            took = time.perf_counter_ns() - begun
            self._checked("a synchronous batch", code)
            return took, took
        call = e.batch_transfer_async_write if op == WRITE else e.batch_transfer_async_read
        begun = time.perf_counter_ns()
        started = [call(target, own, peers, sizes) for own, peers, sizes in self.batches]
        held = time.perf_counter_ns() - begun
        if not all(started):
            raise EngineError(f"an asynchronous batch returned {min(started)}")
        code = e.get_batch_transfer_status(started)
        took = time.perf_counter_ns() - begun
        self._checked("get_batch_transfer_status", code)
        return took, held

    def close(self) -> None:
        self._checked("unregister_memory", self.engine.unregister_memory(int(self.memory.ctypes.data)))


def make(side: str, way: str) -> Engine:
    """For the worker."""
    return _Side(side, way)
