"""Lists of block ids: checked and packed, without a Python object per block where the input is packed
already."""

from __future__ import annotations

import operator
import sys
import threading
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from ._faults import InvalidArgument

if TYPE_CHECKING:
    import numpy as np

#: What names blocks: a sequence of ints, a range, an array.array or a one-dimensional numpy array of any
#: integer type.
BlockIds: TypeAlias = Union[Sequence[int], range, "array[int]", "np.ndarray[Any, Any]", memoryview]

assert array("I").itemsize == 4


def _numpy() -> Any:
    """numpy where the program has imported it, wholly (another thread may be in the middle), else None."""
    module = sys.modules.get("numpy")
    return None if getattr(getattr(module, "__spec__", None), "_initializing", False) else module


def _bad(op: str, detail: str) -> InvalidArgument:
    return InvalidArgument(detail, op=op, field="blocks")


def pack(op: str, blocks: BlockIds, num_blocks: int) -> bytes:
    """The packed little-endian u32 array of a block list; InvalidArgument names the index of a wrong id."""
    if isinstance(blocks, (str, bytes, bytearray)):
        raise _bad(op, f"{type(blocks).__name__} is no sequence of block ids")
    if isinstance(blocks, range):
        return _pack_range(op, blocks, num_blocks)
    numpy = _numpy()
    if numpy is not None and (
        isinstance(blocks, (numpy.ndarray, array, memoryview)) or hasattr(blocks, "__array__")
    ):
        return _pack_numpy(op, numpy.asarray(blocks), num_blocks, numpy)
    return _pack_plain(op, blocks, num_blocks)


def _check_count(op: str, count: int, num_blocks: int) -> None:
    if not 1 <= count <= num_blocks:
        raise _bad(op, f"{count} block ids, allowed 1..{num_blocks}")


def _out_of_range(op: str, i: int, block: int, num_blocks: int) -> InvalidArgument:
    return _bad(op, f"blocks[{i}] is {block}, allowed 0..{num_blocks - 1}")


def _second_time(op: str, i: int, block: int) -> InvalidArgument:
    return _bad(op, f"blocks[{i}] names block {block} a second time")


def _pack_range(op: str, r: range, num_blocks: int) -> bytes:
    if len(r) > 0:  # first what is out of range: the list may be long because of it
        limit = range(num_blocks)
        if r[0] not in limit:
            raise _out_of_range(op, 0, r[0], num_blocks)
        if r[-1] not in limit:
            i = (num_blocks - r[0] + r.step - 1) // r.step if r.step > 0 else r[0] // -r.step + 1
            raise _out_of_range(op, i, r[i], num_blocks)
    _check_count(op, len(r), num_blocks)
    return array("I", r).tobytes()


def _pack_numpy(op: str, a: Any, num_blocks: int, numpy: Any) -> bytes:
    if a.dtype.kind not in "iu" and a.size > 0:
        raise _bad(op, f"an array of {a.dtype}, allowed integer types")
    if a.ndim != 1:
        raise _bad(op, f"an array of {a.ndim} dimensions, allowed 1")
    if a.size == 0:
        raise _bad(op, f"0 block ids, allowed 1..{num_blocks}")
    wrong = (a < 0) | (a >= num_blocks)
    if wrong.any():
        i = int(numpy.argmax(wrong))
        raise _out_of_range(op, i, int(a[i]), num_blocks)
    ids = a.astype("<u4", copy=False)
    seen = numpy.zeros(num_blocks, dtype=numpy.bool_)
    seen[ids] = True
    if int(numpy.count_nonzero(seen)) != a.size:
        order = numpy.argsort(ids, kind="stable")  # stable: of equal ids the later index comes later
        again = order[1:][ids[order][1:] == ids[order][:-1]]
        i = int(again.min())
        raise _second_time(op, i, int(ids[i]))
    return ids.tobytes()  # type: ignore[no-any-return]


def _pack_plain(op: str, blocks: Any, num_blocks: int) -> bytes:
    try:
        a = array("I", blocks)
    except (TypeError, ValueError, OverflowError):
        raise _first_wrong(op, blocks, num_blocks) from None
    if a and max(a) >= num_blocks:
        i = next(i for i, b in enumerate(a) if b >= num_blocks)
        raise _out_of_range(op, i, a[i], num_blocks)
    if len(set(a)) != len(a):
        seen = set()
        for i, b in enumerate(a):
            if b in seen:
                raise _second_time(op, i, b)
            seen.add(b)
    _check_count(op, len(a), num_blocks)
    return a.tobytes()


def _first_wrong(op: str, blocks: Any, num_blocks: int) -> InvalidArgument:
    try:
        for i, b in enumerate(blocks):
            try:
                v = operator.index(b)
            except TypeError:
                return _bad(op, f"blocks[{i}] is {b!r}, allowed integers 0..{num_blocks - 1}")
            if not 0 <= v < num_blocks:
                return _out_of_range(op, i, v, num_blocks)
    except TypeError:
        pass
    return _bad(op, f"{type(blocks).__name__} is no sequence of block ids")


class Vouched:
    """The blocks of a cache that hold what a lease committed, with their generation.

    Dense columns rather than a dictionary: an entry costs nine bytes, whatever is committed.
    """

    def __init__(self, num_blocks: int) -> None:
        self._lock = threading.Lock()
        self._generation = array("Q", bytes(8 * num_blocks))
        self._there = bytearray(num_blocks)

    def put(self, packed: bytes, generation: int) -> None:
        """Vouches for the blocks of a packed list."""
        with self._lock:
            numpy = _numpy()
            if numpy is not None:
                ids = numpy.frombuffer(packed, dtype="<u4")
                numpy.frombuffer(self._generation, dtype="<u8")[ids] = generation
                numpy.frombuffer(self._there, dtype="u1")[ids] = 1
                return
            for b in memoryview(packed).cast("I"):
                self._generation[b] = generation
                self._there[b] = 1

    def take(self, packed: bytes) -> list[tuple[int, int]]:
        """Stops vouching for blocks; returns those that were vouched for, for :meth:`restore`."""
        with self._lock:
            if 1 not in self._there:
                return []
            taken = [(b, self._generation[b]) for b in memoryview(packed).cast("I") if self._there[b]]
            for b, _ in taken:
                self._there[b] = 0
            return taken

    def restore(self, taken: list[tuple[int, int]]) -> None:
        """Undoes a take whose request was refused."""
        with self._lock:
            for b, generation in taken:
                self._generation[b] = generation
                self._there[b] = 1

    def packed(self) -> bytes:
        """{block u32, reserved u32, generation u64} for each block, in block order."""
        out = array("Q")
        with self._lock:
            b = self._there.find(1)
            while b >= 0:
                out.append(b)
                out.append(self._generation[b])
                b = self._there.find(1, b + 1)
        return out.tobytes()

    def keep_only(self, served: memoryview) -> None:
        """Drops every block that is not in served."""
        with self._lock:
            keep = bytearray(len(self._there))
            for b in served:
                if b < len(keep):
                    keep[b] = self._there[b]
            self._there[:] = keep
