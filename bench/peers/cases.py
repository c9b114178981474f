"""What is measured: lists of blocks, each side's own order of them, operations and transports."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

#: Distance of two listed blocks in blocks. Neighbours could be merged into one piece, which hides the cost.
STRIDE = 2

LOCAL, REMOTE = "local", "remote"
SIDES = (LOCAL, REMOTE)
"""The side that starts every transfer, and the other one."""

WRITE, READ = "write", "read"
OPS = (WRITE, READ)

TCP, HOST = "tcp", "host"
TRANSPORTS = (TCP, HOST)
"""TCP on loop-back, and whatever an engine has between two processes of one host."""

_UNITS = (("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1))


@dataclass(frozen=True)
class Case:
    """A list: how many blocks, and the bytes of each (a multiple of 8)."""

    blocks: int
    block_bytes: int

    @property
    def name(self) -> str:
        """As ``--case`` takes it: 1x8B, 1024x16KiB, 64x1MiB."""
        unit, size = next((u, s) for u, s in _UNITS if self.block_bytes >= s)
        return f"{self.blocks}x{self.block_bytes // size}{unit}"

    @property
    def bytes(self) -> int:
        """What one transfer moves."""
        return self.blocks * self.block_bytes

    @property
    def slots(self) -> int:
        """Blocks in the memory of each side, listed or not."""
        return self.blocks * STRIDE

    @property
    def memory(self) -> int:
        """Bytes of memory of each side."""
        return self.slots * self.block_bytes

    def ids(self, side: str) -> list[int]:
        """The list on one side, in its order: every STRIDE-th block, permuted. Each side has a permutation of
        its own, and every process makes the same ones."""
        places = list(range(self.blocks))
        random.Random(f"{side} {self.blocks} {self.block_bytes}").shuffle(places)
        return [place * STRIDE for place in places]

    def offsets(self, side: str) -> list[int]:
        """The list's bytes from the beginning of the memory."""
        return [i * self.block_bytes for i in self.ids(side)]


CASES = (
    Case(1, 8),
    Case(1, 4 << 10),
    Case(64, 4 << 10),
    Case(1024, 4 << 10),
    Case(1024, 16 << 10),
    Case(4096, 16 << 10),
    Case(1024, 64 << 10),
    Case(256, 256 << 10),
    Case(64, 1 << 20),
)
QUICK = (Case(1, 4 << 10), Case(1024, 4 << 10), Case(1024, 16 << 10))
"""What ``--quick`` measures."""


def parse(name: str) -> Case:
    """The case of a name; it need not be one of CASES.

    Raises:
        ValueError: the name is none.
    """
    blocks, _, size = name.strip().partition("x")
    unit, factor = next(((u, f) for u, f in _UNITS if size.endswith(u)), ("", 0))
    digits = size[: len(size) - len(unit)]
    if not (unit and blocks.isdecimal() and digits.isdecimal()):
        raise ValueError(f"{name!r:.80} is no case; one is called {CASES[3].name}")
    case = Case(int(blocks), int(digits) * factor)
    if not (1 <= case.blocks <= 1 << 20 and 8 <= case.block_bytes <= 1 << 30 and case.block_bytes % 8 == 0):
        raise ValueError(f"{name}: allowed 1..{1 << 20} blocks of 8 B..1 GiB, a multiple of 8 B")
    return case


def chosen(text: str, all_of_them: Sequence[str], what: str) -> list[str]:
    """The names of a comma-separated list, in the order of all of them; "" means all.

    Raises:
        ValueError: one of them is unknown.
    """
    wanted = {name.strip() for name in text.split(",") if name.strip()}
    for name in sorted(wanted - set(all_of_them)):
        raise ValueError(f"{name!r:.80} is no {what}, allowed {', '.join(all_of_them)}")
    return [name for name in all_of_them if not wanted or name in wanted]
