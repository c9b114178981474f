"""What a worker asks of an engine, whichever it is."""

from __future__ import annotations

import mmap
from typing import Any, Protocol, TypeAlias

import numpy as np

from cases import Case
from contents import Memory

Words: TypeAlias = "dict[str, Any]"
"""What the two sides of an engine tell each other: JSON."""


class EngineError(Exception):
    """The engine refused, failed or answered with a code."""


class Engine(Protocol):
    """One side of one engine in one process, for one case. The constructor takes the side and the way's
    name."""

    memory: Memory
    """Bytes of at least the case's memory; there after open."""

    def open(self, case: Case) -> Words:
        """Makes and registers memory, and returns what the peer has to know. ``register_ns`` is among it."""

    def meet(self, peer: Words) -> None:
        """Takes what the peer's open returned."""

    def prepare(self, op: str, words: Words) -> Words:
        """Everything that is done once for many transfers. The remote side goes first, with {}; what it
        returns is the local side's ``words``. ``prepare_ns`` of the local side is reported."""

    def clear(self) -> None:
        """The listed blocks may be filled after this."""

    def grant(self, op: str) -> str:
        """On the remote side, before each transfer, where the engine's transfers need that."""

    def settle(self, op: str) -> None:
        """On the remote side, after each transfer that was granted."""

    def move(self, op: str, ticket: str) -> tuple[int, int]:
        """Makes one transfer. Returns the nanoseconds until its completion was known, and those until the
        starting call returned."""

    def close(self) -> None:
        """Gives everything back."""


def allocate(case: Case) -> Memory:
    """Memory as numpy makes it for anyone, with huge pages where the host allows them; for engines that
    register what exists."""
    return np.zeros(max(case.memory, mmap.PAGESIZE), np.uint8)


def blocks_at(memory: Memory, offsets: list[int]) -> list[int]:
    """The addresses of blocks in own memory."""
    return [int(memory.ctypes.data) + offset for offset in offsets]
