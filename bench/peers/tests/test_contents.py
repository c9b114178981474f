"""What is not exactly the bytes that were sent is found."""

from __future__ import annotations

import random

import numpy as np
import pytest

from cases import LOCAL, REMOTE, Case
from contents import Memory, WrongBytesError, blank, check, corrupt, fill

LISTS = [Case(1, 8), Case(3, 16), Case(64, 4096), Case(700, 4096), Case(2, 3 << 20)]


def made(case: Case, side: str, seed: int) -> Memory:
    memory = np.zeros(case.memory, np.uint8)
    blank(memory, case)
    fill(memory, case, side, seed)
    return memory


@pytest.mark.parametrize("case", LISTS, ids=lambda case: case.name)
def test_every_flipped_bit_is_found(case: Case, rng: random.Random) -> None:
    memory = made(case, REMOTE, 7)
    check(memory, case, REMOTE, 7)
    for _ in range(10):
        seed = rng.randrange(1 << 32)
        at = corrupt(memory, case, REMOTE, seed)
        with pytest.raises(WrongBytesError, match=f"block {at // case.block_bytes}\\)"):
            check(memory, case, REMOTE, 7)
        assert corrupt(memory, case, REMOTE, seed) == at
    check(memory, case, REMOTE, 7)


def test_blocks_at_each_others_places_are_found() -> None:
    case = Case(64, 4096)
    memory = made(case, LOCAL, 1)
    blocks = memory.reshape(case.slots, case.block_bytes)
    a, b = case.ids(LOCAL)[:2]
    blocks[[a, b]] = blocks[[b, a]]
    with pytest.raises(WrongBytesError, match="position 0 of the list"):
        check(memory, case, LOCAL, 1)


def test_a_former_round_and_the_other_side_are_found() -> None:
    case = Case(64, 4096)
    memory = made(case, LOCAL, 1)
    with pytest.raises(WrongBytesError):
        check(memory, case, LOCAL, 2)
    with pytest.raises(WrongBytesError):
        check(memory, case, REMOTE, 1)


def test_bytes_beside_the_list_are_found() -> None:
    case = Case(300, 8192)
    memory = made(case, LOCAL, 1)
    memory[case.memory - 1] ^= 1
    with pytest.raises(WrongBytesError, match="block 599 was not listed"):
        check(memory, case, LOCAL, 1)


def test_both_sides_make_the_same_bytes() -> None:
    case = Case(5, 4096)
    shape = case.slots, case.block_bytes
    local, remote = made(case, LOCAL, 9).reshape(shape), made(case, REMOTE, 9).reshape(shape)
    assert (local[case.ids(LOCAL)] == remote[case.ids(REMOTE)]).all()
