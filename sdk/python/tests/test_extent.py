from __future__ import annotations

import ctypes
import random
from collections.abc import Callable
from typing import Any

import numpy
import pytest
from adopting import LARGE, Tensor, adopt, all_given_back, fill

import kvxfer
from kvxfer._extent import extent, joined

__all__ = ["all_given_back"]


def test_tensors_by_what_they_can_do(rng: random.Random) -> None:
    a = numpy.empty((3, LARGE // 4), numpy.float32)
    want = fill(a, rng)
    e = extent("op", "f", Tensor(a, a[1]))
    assert (e.addr, e.size, e.block) == (a[1].ctypes.data, a[1].nbytes, a.ctypes.data)
    memory = adopt(Tensor(a, a[1]))  # its edges are not at pages; the storage's header tells whose they are
    assert a.tobytes() == want
    memory.close()
    with pytest.raises(kvxfer.NotSupported, match="'cuda', allowed CPU memory"):
        extent("op", "f", Tensor(a, a, "cuda"))
    with pytest.raises(kvxfer.NotSupported, match="C-contiguous"):
        extent("op", "f", Tensor(a, a[:, ::2]))


def test_torch(rng: random.Random) -> None:
    """The real thing, where it is installed."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    t = torch.zeros((2, LARGE // 2), dtype=torch.uint8)
    t[1, 5] = 9
    memory = adopt(t[1])
    assert memory.guarantee == "full" and memory.map[5] == 9
    memory.map[6] = 8
    assert int(t[1, 6]) == 8
    memory.close()


def array_interface(**change: Any) -> Any:
    a = numpy.zeros((4, 5), numpy.uint16)
    interface = {**a.__array_interface__, **change}
    return type("Array", (), {"__array_interface__": interface, "owner": a})()


def test_extents_of_arrays_and_buffers() -> None:
    a = numpy.zeros((4, 5, 6), numpy.float32)
    assert extent("op", "f", a[1:3]).size == 2 * 30 * 4
    assert extent("op", "f", a[1:3]).block == a.ctypes.data
    assert extent("op", "f", a[:, :1, :][2]).size == 24
    assert extent("op", "f", numpy.array(["ab", "c"])).size == 16
    assert extent("op", "f", array_interface(strides=(10, 2))).size == 40
    assert extent("op", "f", array_interface(shape=(1, 5), strides=(999, 2))).size == 10
    b = bytearray(33)
    assert extent("op", "f", memoryview(b)[3:]).size == 30
    assert extent("op", "f", (ctypes.c_double * 3)()).size == 24


REFUSED: list[tuple[Callable[[], Any], type[kvxfer.KvxferError], str]] = [
    (lambda: "text", kvxfer.InvalidArgument, "a str, allowed a writable object"),
    (lambda: 7, kvxfer.InvalidArgument, "a int, allowed"),
    (lambda: None, kvxfer.InvalidArgument, "a NoneType, allowed"),
    (lambda: b"bytes", kvxfer.InvalidArgument, "read-only"),
    (lambda: numpy.broadcast_to(numpy.zeros(1), (1, 1)), kvxfer.InvalidArgument, "read-only"),
    (lambda: numpy.zeros(0), kvxfer.InvalidArgument, "0 bytes"),
    (bytearray, kvxfer.InvalidArgument, "0 bytes"),
    (lambda: numpy.array([None]), kvxfer.InvalidArgument, "objects or bits"),
    (lambda: numpy.zeros((4, 4))[:, 1], kvxfer.NotSupported, "C-contiguous"),
    (lambda: numpy.zeros((4, 4)).T[1:], kvxfer.NotSupported, "C-contiguous"),
    (lambda: numpy.zeros((4, 4), order="F"), kvxfer.NotSupported, "C-contiguous"),
    (lambda: numpy.zeros(8)[::-1], kvxfer.NotSupported, "C-contiguous"),
    (lambda: memoryview(bytearray(8))[::2], kvxfer.NotSupported, "C-contiguous"),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_is_no_such_memory(number: int) -> None:
    make, kind, why = REFUSED[number]
    with pytest.raises(kind, match=why) as e:
        extent("op", "tensors", make())
    assert e.value.field == "tensors" and e.value.op == "op"


def test_read_only_arrays() -> None:
    a = numpy.zeros(LARGE, numpy.uint8)
    a.flags.writeable = False
    with pytest.raises(kvxfer.InvalidArgument, match="read-only"):
        adopt(a)


def test_lists_lie_one_behind_the_other() -> None:
    a = numpy.zeros((4, 100), numpy.uint8)
    e = joined("op", "t", list(a))
    assert (e.addr, e.size) == (a.ctypes.data, 400)
    for order in ([0, 2], [1, 0], [0, 0], [0, 1, 3]):
        with pytest.raises(kvxfer.NotSupported, match=r"t\[\d\] does not begin where t\[\d\] ends"):
            joined("op", "t", [a[i] for i in order])
    with pytest.raises(kvxfer.NotSupported, match="does not begin"):
        joined("op", "t", [numpy.zeros(100, numpy.uint8) for _ in range(3)])
