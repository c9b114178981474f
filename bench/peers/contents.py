"""What blocks hold: made on one side and compared on the other.

A block's contents depend on the round and on its position in the list, not on its id: both sides can make
them, and a block at a wrong place, from a former round or torn is seen. What lies between listed blocks has a
pattern too, and must keep it."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from cases import STRIDE, Case

Memory: TypeAlias = npt.NDArray[np.uint8]
_Words: TypeAlias = "np.ndarray[Any, np.dtype[np.uint64]]"

_STEP = np.uint64(0x9E3779B97F4A7C15)  # odd: the words of a block differ
_GAP = np.uint64(0xA5A5A5A5A5A5A5A5)
_AT_A_TIME = 1 << 20
"""Bytes made or compared in one go: the rest of the memory is the engines', whose footprint is measured."""


class WrongBytesError(Exception):
    """The memory does not hold what it should."""


def _words(memory: Memory, case: Case) -> _Words:
    """The memory as one row of words a block."""
    return memory[: case.memory].view(np.uint64).reshape(case.slots, case.block_bytes // 8)


def _first(seed: int, blocks: int) -> _Words:
    """The first word of each block of a list."""
    x: _Words = (np.uint64(seed) << np.uint64(32) ^ np.arange(blocks, dtype=np.uint64)) + _STEP
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    mixed: _Words = x ^ x >> np.uint64(31)
    return mixed


def _pieces(case: Case) -> list[slice]:
    step = max(1, _AT_A_TIME // case.block_bytes)
    return [slice(i, min(i + step, case.blocks)) for i in range(0, case.blocks, step)]


def _row(case: Case) -> _Words:
    row: _Words = np.arange(case.block_bytes // 8, dtype=np.uint64) * _STEP
    return row


def blank(memory: Memory, case: Case) -> None:
    """Gives the whole memory the pattern of what is not listed."""
    _words(memory, case)[:] = _GAP


def fill(memory: Memory, case: Case, side: str, seed: int) -> None:
    """Writes round ``seed`` (0..2**32-1) into the listed blocks."""
    words, ids = _words(memory, case), np.array(case.ids(side))
    first, row = _first(seed, case.blocks), _row(case)
    for piece in _pieces(case):
        words[ids[piece]] = first[piece, None] + row


def check(memory: Memory, case: Case, side: str, seed: int) -> None:
    """Compares the listed blocks with what fill writes, and what lies between them with its pattern.

    Raises:
        WrongBytesError: says where the first difference is.
    """
    words, ids = _words(memory, case), np.array(case.ids(side))
    first, row = _first(seed, case.blocks), _row(case)
    for piece in _pieces(case):
        found = words[ids[piece]]
        expected = first[piece, None] + row
        wrong = found != expected
        if wrong.any():
            block, word = (int(v) for v in np.argwhere(wrong)[0])
            position = piece.start + block
            raise WrongBytesError(
                f"position {position} of the list (block {ids[position]}) holds {int(found[block, word]):#x}"
                f" at byte {8 * word}, expected {int(expected[block, word]):#x}"
            )
    for start in range(1, STRIDE):
        gaps = words[start::STRIDE]
        for piece in _pieces(case):
            wrong = gaps[piece] != _GAP
            if wrong.any():
                block = start + STRIDE * (piece.start + int(np.argwhere(wrong)[0][0]))
                raise WrongBytesError(f"block {block} was not listed, and was changed")


def corrupt(memory: Memory, case: Case, side: str, seed: int) -> int:
    """Changes one bit of one listed block; ``seed`` chooses which. Returns the byte's offset in the memory. A
    second call with the same seed undoes it."""
    chooser = np.random.default_rng(seed)
    block = case.ids(side)[int(chooser.integers(case.blocks))]
    at = block * case.block_bytes + int(chooser.integers(case.block_bytes))
    memory[at] ^= np.uint8(1 << int(chooser.integers(8)))
    return at
