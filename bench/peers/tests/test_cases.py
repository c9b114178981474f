"""Lists: their names and orders."""

from __future__ import annotations

import pytest

from cases import CASES, LOCAL, REMOTE, SIDES, STRIDE, Case, chosen, parse


def test_names_mean_their_cases() -> None:
    names = [case.name for case in CASES]
    assert names == [
        *("1x8B", "1x4KiB", "64x4KiB", "1024x4KiB", "1024x16KiB", "4096x16KiB", "1024x64KiB"),
        *("256x256KiB", "64x1MiB"),
    ]
    assert [parse(name) for name in names] == list(CASES)


@pytest.mark.parametrize("name", ["", "8", "x8B", "1x8", "0x8B", "1x7B", "1x0B", "-1x8B", "1.5x8B", "1x2GiB"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"case|allowed"):
        parse(name)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_list_is_every_second_block_in_an_order_of_its_own(case: Case) -> None:
    lists = [case.ids(side) for side in SIDES]
    for ids in lists:
        assert sorted(ids) == list(range(0, case.slots, STRIDE))
    assert lists == [case.ids(side) for side in SIDES]
    if case.blocks >= 64:
        assert lists[0] != lists[1]
        assert all(ids != sorted(ids) for ids in lists)
    assert max(case.offsets(REMOTE)) + case.block_bytes <= case.memory
    assert case.offsets(LOCAL)[0] == lists[0][0] * case.block_bytes


def test_chosen_keeps_the_order_and_knows_what_is_allowed() -> None:
    assert chosen("c, a", ["a", "b", "c"], "thing") == ["a", "c"]
    assert chosen("", ["a", "b"], "thing") == ["a", "b"]
    with pytest.raises(ValueError, match="'d' is no thing, allowed a, b"):
        chosen("a,d", ["a", "b"], "thing")
