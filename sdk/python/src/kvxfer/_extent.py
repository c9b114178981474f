"""Where a caller's array or buffer lies in memory."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ._faults import InvalidArgument, NotSupported
from ._layout import Layout

_ALLOWED = (
    "allowed a writable object of the buffer protocol, an array with __array_interface__ or a tensor in CPU"
    " memory"
)


@dataclass(frozen=True)
class Extent:
    """A run of bytes.

    Attributes:
        addr: where it begins.
        size: bytes, at least 1.
        block: address of the allocation that it is part of, as far as the object tells.
        owners: what keeps it alive.
    """

    addr: int
    size: int
    block: int
    owners: tuple[Any, ...]


def extent(op: str, field: str, obj: Any) -> Extent:
    """The bytes of one object.

    Raises:
        InvalidArgument: no such object, empty or read-only.
        NotSupported: not contiguous, or not in CPU memory.
    """
    if callable(getattr(obj, "data_ptr", None)) and callable(getattr(obj, "untyped_storage", None)):
        found = _tensor(op, field, obj)
    else:
        interface = getattr(obj, "__array_interface__", None)
        if isinstance(interface, dict) and interface.get("data") is not None:
            found = _array(op, field, obj, interface)
        else:
            found = _buffer(op, field, obj)
    if found.size < 1:
        raise InvalidArgument("0 bytes, allowed 1 at least", op=op, field=field)
    return found


def joined(op: str, field: str, objects: Sequence[Any]) -> Extent:
    """The bytes of several objects that lie one behind the other.

    Raises:
        NotSupported: they do not.
    """
    parts = [extent(op, f"{field}[{i}]", o) for i, o in enumerate(objects)]
    for i, (a, b) in enumerate(itertools.pairwise(parts)):
        if a.addr + a.size != b.addr:
            raise NotSupported(
                f"{field}[{i + 1}] does not begin where {field}[{i}] ends; a cache is one run of memory"
                " ordered [layer][plane][block]: allowed are one array, or its slices in the layers' order",
                op=op,
                field=field,
            )
    size = sum(p.size for p in parts)
    return Extent(parts[0].addr, size, parts[0].block, tuple(o for p in parts for o in p.owners))


def _scattered(op: str, field: str) -> NotSupported:
    return NotSupported(
        "the elements do not lie one behind the other; allowed a C-contiguous array", op=op, field=field
    )


def _read_only(op: str, field: str) -> InvalidArgument:
    return InvalidArgument("it is read-only; allowed writable memory", op=op, field=field)


def _tensor(op: str, field: str, t: Any) -> Extent:
    """torch's tensors, by what they can do: torch itself is never imported."""
    device = getattr(getattr(t, "device", None), "type", None)
    if device != "cpu":
        raise NotSupported(f"a tensor on {device!r}, allowed CPU memory", op=op, field=field)
    if not t.is_contiguous():
        raise _scattered(op, field)
    storage = t.untyped_storage()
    return Extent(t.data_ptr(), t.numel() * t.element_size(), storage.data_ptr(), (t, storage))


def _array(op: str, field: str, a: Any, interface: dict[str, Any]) -> Extent:
    addr, read_only = interface["data"]
    kind, count = interface["typestr"][1], interface["typestr"][2:]
    if kind in "Ot" or not count.isdigit():
        raise InvalidArgument("elements that are objects or bits, allowed numbers", op=op, field=field)
    item = int(count) * (4 if kind == "U" else 1)
    size, strides = item, interface.get("strides")
    for i in reversed(range(len(interface["shape"]))):
        n = interface["shape"][i]
        if strides is not None and n > 1 and strides[i] != size:
            raise _scattered(op, field)
        size *= n
    if read_only:
        raise _read_only(op, field)
    owner = a
    while getattr(getattr(owner, "base", None), "__array_interface__", None) is not None:
        owner = owner.base
    return Extent(addr, size, owner.__array_interface__["data"][0], (a, owner))


def _buffer(op: str, field: str, obj: Any) -> Extent:
    try:
        view = memoryview(obj)
    except (TypeError, ValueError, BufferError):
        raise InvalidArgument(f"a {type(obj).__name__}, {_ALLOWED}", op=op, field=field) from None
    if not view.c_contiguous:
        raise _scattered(op, field)
    if view.readonly:
        raise _read_only(op, field)
    if view.nbytes == 0:
        return Extent(0, 0, 0, ())
    addr = ctypes.addressof(ctypes.c_char.from_buffer(view))
    return Extent(addr, view.nbytes, addr, (obj, view))  # while the view exists, a bytearray keeps its size


def of_cache(op: str, layout: Layout, num_blocks: int, tensors: Any) -> Extent:
    """The bytes of a cache's tensors: one object, or one for each layer.

    Raises:
        InvalidArgument, NotSupported: as above, and where their number or sizes are not the cache's.
    """
    if isinstance(tensors, Sequence) and not isinstance(tensors, (str, bytes, bytearray, memoryview)):
        if len(tensors) != layout.layers:
            raise InvalidArgument(
                f"{len(tensors)} tensors, allowed one of all layers, or {layout.layers}: one for each layer",
                op=op,
                field="tensors",
            )
        size = layout.piece_bytes * num_blocks
        for i, t in enumerate(tensors):
            got = extent(op, f"tensors[{i}]", t).size
            if got != size:
                raise InvalidArgument(
                    f"{got} bytes, allowed {size}: all blocks of one layer", op=op, field=f"tensors[{i}]"
                )
        return joined(op, "tensors", tensors)
    e = extent(op, "tensors", tensors)
    size = layout.block_bytes * num_blocks
    if e.size != size:
        raise InvalidArgument(
            f"{e.size} bytes, allowed {size}: all blocks of all layers", op=op, field="tensors"
        )
    return e
