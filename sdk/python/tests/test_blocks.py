from __future__ import annotations

import array
import random
import struct
import sys
from typing import Any

import numpy
import pytest

import kvxfer
from kvxfer import _blocks

INTS = ["i1", "u1", "<i2", ">u2", "<u4", ">i4", "<i8", ">u8"]


def packed(*ids: int) -> bytes:
    return struct.pack(f"<{len(ids)}I", *ids)


@pytest.fixture(params=["numpy", "plain"])
def with_and_without_numpy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "plain":
        monkeypatch.setattr(_blocks, "_numpy", lambda: None)
    return str(request.param)


@pytest.mark.parametrize(
    "blocks",
    [
        [3, 1, 2],
        (3, 1, 2),
        [numpy.int64(3), numpy.uint8(1), 2],
        array.array("B", [3, 1, 2]),
        array.array("q", [3, 1, 2]),
        memoryview(array.array("I", [3, 1, 2])),
    ],
)
def test_every_kind_of_list(blocks: Any, with_and_without_numpy: str) -> None:
    assert _blocks.pack("lease", blocks, 16) == packed(3, 1, 2)


@pytest.mark.parametrize("dtype", INTS)
def test_every_integer_type(dtype: str) -> None:
    assert _blocks.pack("lease", numpy.array([3, 1, 2], dtype), 700) == packed(3, 1, 2)
    assert _blocks.pack("lease", numpy.arange(12, dtype=dtype)[9:1:-4], 16) == packed(9, 5)


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ([], r"0 block ids, allowed 1\.\.16"),
        (range(0), r"0 block ids, allowed 1\.\.16"),
        (numpy.array([], "i4"), r"0 block ids"),
        ([0, 16], r"blocks\[1\] is 16, allowed 0\.\.15"),
        ([0, 1, -1], r"blocks\[2\] is -1, allowed 0\.\.15"),
        ([0, 1 << 40], r"blocks\[1\] is 1099511627776"),
        ([0, 1.5], r"blocks\[1\] is 1.5, allowed integers"),
        ([0, "1"], r"blocks\[1\] is '1'"),
        ([4, 5, 4, 5], r"blocks\[2\] names block 4 a second time"),
        (range(10, 20), r"blocks\[6\] is 16"),
        (range(3, -3, -2), r"blocks\[2\] is -1"),
        (range(20, 0, -1), r"blocks\[0\] is 20"),
        (range(10, 40, 5), r"blocks\[2\] is 20"),
        (range(1 << 60), r"blocks\[16\] is 16"),
        (numpy.array([0, 16], "u1"), r"blocks\[1\] is 16"),
        (numpy.array([0, -1, 99], "i8"), r"blocks\[1\] is -1"),
        (numpy.array([1, 7, 3, 7, 1], "i2"), r"blocks\[3\] names block 7 a second time"),
        (numpy.array([1.0]), r"an array of float64, allowed integer types"),
        (numpy.array([True, False]), r"an array of bool"),
        (numpy.zeros((2, 2), "i4"), r"an array of 2 dimensions, allowed 1"),
        (array.array("q", [0, -5]), r"blocks\[1\] is -5"),
        ("012", r"str is no sequence"),
        (b"\1\2", r"bytes is no sequence"),
        (None, r"NoneType is no sequence"),
        (7, r"int is no sequence"),
    ],
)
def test_what_is_refused(blocks: Any, message: str) -> None:
    with pytest.raises(kvxfer.InvalidArgument, match=message) as e:
        _blocks.pack("lease", blocks, 16)
    assert (e.value.field, e.value.op) == ("blocks", "lease")


def test_numpy_and_plain_agree(rng: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
    def outcome(blocks: Any) -> object:
        try:
            return _blocks.pack("x", blocks, 20)
        except kvxfer.InvalidArgument as e:
            return e.detail

    cases = [[rng.randrange(-1, 21) for _ in range(rng.randrange(1, 6))] for _ in range(300)]
    cases += [rng.sample(range(20), rng.randrange(1, 20)) for _ in range(100)]
    for ids in cases:
        with_numpy = outcome(numpy.array(ids))
        assert outcome(ids) == with_numpy
        with monkeypatch.context() as m:
            m.setattr(_blocks, "_numpy", lambda: None)
            assert outcome(array.array("q", ids)) == with_numpy
        step = rng.choice([-3, -2, -1, 1, 2, 3])
        r = range(ids[0], ids[-1], step)
        if len(r):
            assert outcome(r) == outcome(list(r))


def test_numpy_that_is_being_imported_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Half:
        class __spec__:
            _initializing = True

    monkeypatch.setitem(sys.modules, "numpy", Half)
    assert _blocks.pack("x", [1, 2], 4) == packed(1, 2)


def test_vouched_against_a_dictionary(rng: random.Random, with_and_without_numpy: str) -> None:
    v, model = _blocks.Vouched(30), dict[int, int]()
    for generation in range(300):
        ids = rng.sample(range(30), rng.randrange(1, 8))
        action = rng.randrange(4)
        if action == 0:
            v.put(packed(*ids), generation)
            model |= dict.fromkeys(ids, generation)
        elif action == 1:
            assert v.take(packed(*ids)) == [(b, model.pop(b)) for b in ids if b in model]
        elif action == 2:
            v.restore(v.take(packed(*ids)))
        else:
            keep = rng.sample(range(40), 35)
            v.keep_only(memoryview(packed(*keep)).cast("I"))
            model = {b: g for b, g in model.items() if b in keep}
        assert v.packed() == b"".join(struct.pack("<IIQ", b, 0, model[b]) for b in sorted(model))
