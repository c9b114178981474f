"""NIXL over UCX. Two agents; a handle is made once and posted again.

Settings, from trying what makes it fast: the initiator has no progress thread, it polls; the target has one,
without which nothing that arrives over TCP or is copied is taken. UCX_MODULES=^ib avoids a crash at exit. UCX
over shared memory needs the back end without error handling."""

from __future__ import annotations

import base64
import time
from typing import Any

from cases import LOCAL, REMOTE, Case
from engines.base import Engine, EngineError, Words, allocate, blocks_at

COMMON = {"UCX_MODULES": "^ib", "NIXL_LOG_LEVEL": "ERROR", "UCX_LOG_LEVEL": "error"}
ENVIRONMENT = {
    "tcp": {"UCX_TLS": "tcp"},
    "tcp, SGL": {"UCX_TLS": "tcp", "NIXL_UCX_SGL_ENABLE": "y"},
    "shm by copy": {"UCX_TLS": "posix,self"},
    "shm, its choice": {"UCX_TLS": "shm,self"},
}
"""By way."""


class _Side:
    """An agent."""

    def __init__(self, side: str, way: str) -> None:
        from nixl._api import nixl_agent, nixl_agent_config

        self.side = side
        self.agent: Any = nixl_agent(side, nixl_agent_config(enable_prog_thread=side == REMOTE, backends=[]))
        self.agent.create_backend("UCX", {"ucx_error_handling_mode": "none"} if way.startswith("shm") else {})
        self.registered: Any = None
        self.handle: Any = None
        self.there = 0

    def open(self, case: Case) -> Words:
        self.case, self.memory = case, allocate(case)
        self.memory.fill(1)  # every page is there before it is registered
        begun = time.perf_counter_ns()
        self.registered = self.agent.register_memory(
            [(int(self.memory.ctypes.data), self.memory.nbytes, 0, "")], "DRAM"
        )
        took = time.perf_counter_ns() - begun
        return {
            "address": int(self.memory.ctypes.data),
            "metadata": base64.b64encode(self.agent.get_agent_metadata()).decode(),
            "register_ns": took,
        }

    def meet(self, peer: Words) -> None:
        self.agent.add_remote_agent(base64.b64decode(peer["metadata"]))
        self.there = peer["address"]

    def prepare(self, op: str, words: Words) -> Words:
        if self.side != LOCAL:
            return {}
        size = self.case.block_bytes
        own = [(a, size, 0) for a in blocks_at(self.memory, self.case.offsets(LOCAL))]
        peers = [(self.there + o, size, 0) for o in self.case.offsets(REMOTE)]
        if self.handle is not None:
            self.agent.release_xfer_handle(self.handle)
        begun = time.perf_counter_ns()
        local, remote = self.agent.get_xfer_descs(own, "DRAM"), self.agent.get_xfer_descs(peers, "DRAM")
        self.handle = self.agent.initialize_xfer(op.upper(), local, remote, REMOTE)
        return {"prepare_ns": time.perf_counter_ns() - begun}

    def clear(self) -> None:
        pass

    def grant(self, op: str) -> str:
        return ""

    def settle(self, op: str) -> None:
        pass

    def move(self, op: str, ticket: str) -> tuple[int, int]:
        agent, handle = self.agent, self.handle
        begun = time.perf_counter_ns()
        state = agent.transfer(handle)
        held = time.perf_counter_ns() - begun
        while state == "PROC":
            state = agent.check_xfer_state(handle)
        took = time.perf_counter_ns() - begun
        if state != "DONE":
            raise EngineError(f"the transfer ended in state {state}")
        return took, held

    def close(self) -> None:
        if self.handle is not None:
            self.agent.release_xfer_handle(self.handle)
        self.agent.deregister_memory(self.registered)


def make(side: str, way: str) -> Engine:
    """For the worker."""
    return _Side(side, way)
