"""The states of a cache's blocks, as the daemon tells them."""

from __future__ import annotations

from dataclasses import dataclass

from . import _wire as wire


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


def read_states(frame: wire.Frame) -> BlockStates:
    """The answer to BLOCKS."""
    b = frame.body()
    count = {k: wire.get(b, k, 0) for k in ("total", "leased", "committed", "revoking", "held")}
    free = count["total"] - count["leased"] - count["committed"] - count["revoking"] - count["held"]
    blocks, states, generations = wire.block_entries(frame.array)
    return BlockStates(free=free, blocks=blocks, states=states, generations=generations, **count)
