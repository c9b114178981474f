"""What tests of adopted memory share."""

from __future__ import annotations

import gc
import mmap
import random
from collections.abc import Iterator
from typing import Any

import numpy
import pytest

from kvxfer import _adopted
from kvxfer._adopted import Adopted
from kvxfer._extent import extent

PAGE = mmap.PAGESIZE
LARGE = 48 << 20
"""Bytes that malloc always gives a mapping of their own: more than its highest threshold, 32 MiB."""


def adopt(array: Any, way: str = "share", name: str = "a") -> Adopted:
    return Adopted("op", "tensors", name, extent("op", "tensors", array), way)


def private_pages(n: int) -> mmap.mmap:
    """Whole pages of private memory."""
    return mmap.mmap(-1, n, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def fill(array: Any, rng: random.Random) -> bytes:
    """Random bytes, and the same as a copy."""
    data = numpy.random.default_rng(rng.getrandbits(32)).integers(0, 256, array.nbytes, numpy.uint8)
    array.reshape(-1).view(numpy.uint8)[:] = data
    return bytes(data.tobytes())


@pytest.fixture(autouse=True)
def all_given_back() -> Iterator[None]:
    yield
    gc.collect()
    assert not list(_adopted._claims.held)
    assert not _adopted._unfenced


class Tensor:
    """What torch's tensors have, over a numpy array."""

    def __init__(self, base: Any, view: Any, device: str = "cpu") -> None:
        self._base, self._view = base, view
        self.device = type("device", (), {"type": device})()

    def data_ptr(self) -> int:
        return int(self._view.ctypes.data)

    def numel(self) -> int:
        return int(self._view.size)

    def element_size(self) -> int:
        return int(self._view.itemsize)

    def is_contiguous(self) -> bool:
        return bool(self._view.flags.c_contiguous)

    def untyped_storage(self) -> Tensor:
        return Tensor(self._base, self._base)
