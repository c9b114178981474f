"""Lists of byte ranges: checked and packed."""

from __future__ import annotations

import operator
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from . import _wire as wire
from ._blocks import _numpy
from ._faults import InvalidArgument

if TYPE_CHECKING:
    import numpy as np

#: (own offset, the peer's offset, length) of each range in bytes, or a numpy array of shape (N, 3) of any
#: integer type.
Ranges: TypeAlias = Union[Sequence[Sequence[int]], "np.ndarray[Any, Any]"]
#: (offset, length) of each part in bytes, or a numpy array of shape (N, 2) of any integer type.
Spans: TypeAlias = Union[Sequence[Sequence[int]], "np.ndarray[Any, Any]"]

#: The largest region: what is beyond it lies in no peer's memory either.
MAX_REGION = 1 << 62


def pack_ranges(op: str, ranges: Ranges, size: int) -> bytes:
    """The packed array of a scatter list over size bytes of own memory; no range at all is allowed."""
    a = _columns(op, "ranges", ranges, 3)
    for i in range(0, len(a), 3):
        own, peer, n = a[i], a[i + 1], a[i + 2]
        _check_part(op, "ranges", i // 3, own, n, size)
        if peer > MAX_REGION - n:
            raise _bad(
                op, "ranges", f"ranges[{i // 3}] ends at {peer + n} of the peer, allowed 0..{MAX_REGION}"
            )
    return a.tobytes()


def pack_spans(op: str, spans: Spans, size: int) -> bytes:
    """The packed array of an advertisement's parts; at least one."""
    a = _columns(op, "spans", spans, 2)
    if not a:
        raise _bad(op, "spans", "0 parts, allowed at least 1, or None for the whole region")
    for i in range(0, len(a), 2):
        _check_part(op, "spans", i // 2, a[i], a[i + 1], size)
    return a.tobytes()


def _bad(op: str, field: str, detail: str) -> InvalidArgument:
    return InvalidArgument(detail, op=op, field=field)


def _check_part(op: str, field: str, i: int, offset: int, n: int, size: int) -> None:
    if n < 1 or offset + n > size:
        raise _bad(
            op, field, f"{field}[{i}] has {n} bytes from {offset}, allowed at least 1 byte within 0..{size}"
        )


def _columns(op: str, field: str, rows: Any, width: int) -> array[int]:
    """All numbers row by row as u64."""
    most = wire.MAX_ARRAY // (8 * width)
    numpy = _numpy()
    if numpy is not None and isinstance(rows, numpy.ndarray):
        if rows.dtype.kind not in "iu" or rows.ndim != 2 or rows.shape[1] != width:
            raise _bad(op, field, f"an array of {rows.dtype} {rows.shape}, allowed integers (N, {width})")
        if len(rows) > most:
            raise _bad(op, field, f"{len(rows)} rows, allowed 0..{most}")
        if rows.dtype.kind == "i" and rows.size and int(rows.min()) < 0:
            i = int(numpy.argmax((rows < 0).any(axis=1)))
            raise _bad(op, field, f"{field}[{i}] is {tuple(rows[i].tolist())}, allowed no negative number")
        return array("Q", rows.astype("<u8").tobytes())
    out = array("Q")
    try:
        if len(rows) > most:
            raise _bad(op, field, f"{len(rows)} rows, allowed 0..{most}")
        for i, row in enumerate(rows):
            try:
                numbers = [operator.index(v) for v in row]
                if len(numbers) != width:
                    raise ValueError
                out.extend(numbers)
            except (TypeError, ValueError, OverflowError):
                raise _bad(
                    op, field, f"{field}[{i}] is {row!r:.80}, allowed {width} integers from 0 on"
                ) from None
    except TypeError:
        raise _bad(
            op, field, f"a {type(rows).__name__}, allowed a sequence of {width} integers each"
        ) from None
    return out
