"""Memory whose owner knows every byte of it: what it leased may change, all else may not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from contents import Bytes

MARKS = 128
"""The owner's marks are 128 and above; no source ever holds such bytes."""


class LateBytesError(AssertionError):
    """Bytes changed in memory that its owner had taken back, or never given."""


class Watched:
    """Memory as [.., .., unit, byte], and what it must hold.

    Attributes:
        memory: what is there.
        want: what must be there, outside the units that are leased.
        late: where late bytes are to be counted instead of raised, by what took them back.
    """

    def __init__(self, name: str, memory: Bytes, count_late: bool = False) -> None:
        self.name, self.memory = name, memory
        self.memory[:] = 255
        self.want: Bytes = self.memory.copy()
        self.late: Counter[str] | None = Counter() if count_late else None
        self._leased = np.zeros(memory.shape[2], bool)
        self._taken = [""] * memory.shape[2]
        # Eight bytes at a time: every look is at all of it.
        self._words = self.memory.view(np.uint64), self.want.view(np.uint64)

    @property
    def free(self) -> list[int]:
        """The units that nobody may write."""
        return [int(i) for i in np.nonzero(~self._leased)[0]]

    def give(self, units: Sequence[int]) -> None:
        """A peer may write these units from now on."""
        self._leased[list(units)] = True

    def take(self, units: Sequence[int], mark: int, way: str) -> None:
        """These units are the owner's again, which marks every byte of them."""
        self.memory[:, :, list(units)] = mark
        self.want[:, :, list(units)] = mark
        self._leased[list(units)] = False
        for unit in units:
            self._taken[unit] = way

    def check(self, when: str) -> None:
        """Every byte of the units that are not leased is as their owner left it."""
        memory, want = self._words
        if not (changed := (memory != want).any(axis=(0, 1, 3)) & ~self._leased).any():
            return
        units = np.nonzero(changed)[0].tolist()
        if self.late is None:
            bytes_ = int((self.memory[:, :, units] != self.want[:, :, units]).sum())
            ways = sorted({self._taken[unit] for unit in units})
            raise LateBytesError(
                f"{when}: {bytes_} bytes of {self.name}, units {units}, taken back by {ways}"
            )
        for unit in units:
            there = self.memory[:, :, unit]
            self.late[self._taken[unit]] += int((there != self.want[:, :, unit]).sum())
            there[:] = self.want[:, :, unit]

    def touched(self, units: Sequence[int]) -> tuple[bool, bool]:
        """Whether any and whether all parts of the units have been written to their last byte."""
        there = self.memory[:, :, list(units), -1] < MARKS
        return bool(there.any()), bool(there.all())

    def begun(self, units: Sequence[int]) -> bool:
        """Whether a first byte has arrived in one of the units."""
        return bool((self.memory[:, :, list(units), 0] < MARKS).any())
