"""Where the bytes of a KV cache lie."""

from __future__ import annotations

import operator
from dataclasses import dataclass, fields
from typing import Any

from ._arguments import check_text
from ._faults import InvalidArgument

MAX_BLOCKS = 1 << 24
MAX_CACHE_BYTES = 1 << 62
MAX_LAYERS = 1 << 10
#: Bytes of model, revision and compat.
MAX_TEXT = 1024
_LIMITS = {
    "layers": MAX_LAYERS,
    "kv_heads": 1 << 10,
    "head_dim": 1 << 14,
    "block_tokens": 1 << 12,
    "tp_size": 1 << 10,
}
_ELEMENT_BYTES = {
    "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1, "int8": 1, "uint8": 1,
}  # fmt: skip
#: How numpy, which has no bfloat16 and no float8, shows an element.
NUMPY_DTYPE = {
    "float32": "<f4", "float16": "<f2", "bfloat16": "<u2", "float8_e4m3fn": "u1", "float8_e5m2": "u1",
    "int8": "i1", "uint8": "u1",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One rank's part of a KV cache. Memory is ordered ``[layer][plane][block]``.

    A plane is K or V of one layer (MLA has one plane, the latent); a block is ``block_tokens`` tokens of one
    plane.

    Args:
        layers: layers on this rank, 1..1024.
        kv_heads: KV heads on this rank, 1..1024; 1 with order MLA.
        head_dim: elements of a head, 1..16384; with MLA the latent's width.
        dtype: float32, float16, bfloat16, float8_e4m3fn, float8_e5m2, int8 or uint8.
        block_tokens: tokens in a block, 1..4096.
        order: of the axes in a block: "HND" [head][token][dim], "NHD" [token][head][dim], "MLA" [token][dim].
        tp_rank: 0..tp_size-1.
        tp_size: ranks that the heads are split over, 1..1024.

    Raises:
        InvalidArgument: names the field and what is allowed.
    """

    layers: int
    kv_heads: int
    head_dim: int
    dtype: str
    block_tokens: int
    order: str = "HND"
    tp_rank: int = 0
    tp_size: int = 1

    def __post_init__(self) -> None:
        for name in (*_LIMITS, "tp_rank"):
            try:
                v = operator.index(getattr(self, name))
            except TypeError:
                raise _invalid(name, f"{getattr(self, name)!r} is no integer") from None
            object.__setattr__(self, name, v)
            if name in _LIMITS and not 1 <= v <= _LIMITS[name]:
                raise _invalid(name, f"{v}, allowed 1..{_LIMITS[name]}")
        if not 0 <= self.tp_rank < self.tp_size:
            raise _invalid("tp_rank", f"{self.tp_rank}, allowed 0..{self.tp_size - 1}")
        if self.dtype not in _ELEMENT_BYTES:
            raise _invalid("dtype", f"{self.dtype!r}, allowed {', '.join(_ELEMENT_BYTES)}")
        if self.order not in ("HND", "NHD", "MLA"):
            raise _invalid("order", f"{self.order!r}, allowed HND, NHD, MLA")
        if self.order == "MLA" and self.kv_heads != 1:
            raise _invalid("kv_heads", f"{self.kv_heads}, allowed 1 with order MLA")

    @property
    def planes(self) -> int:
        """Planes of a layer: 2 (K and V), or 1 with MLA."""
        return 1 if self.order == "MLA" else 2

    @property
    def plane_block_bytes(self) -> int:
        """Bytes of a block in one plane of one layer."""
        return self.kv_heads * self.head_dim * self.block_tokens * _ELEMENT_BYTES[self.dtype]

    @property
    def piece_bytes(self) -> int:
        """Bytes of a block in all planes of one layer."""
        return self.planes * self.plane_block_bytes

    @property
    def block_bytes(self) -> int:
        """Bytes of a block in all layers."""
        return self.layers * self.piece_bytes

    def _check_num_blocks(self, num_blocks: int) -> int:
        """num_blocks as an int, or InvalidArgument with the allowed range for this layout."""
        try:
            n = operator.index(num_blocks)
        except TypeError:
            raise _invalid("num_blocks", f"{num_blocks!r} is no integer", prefix="") from None
        most = min(MAX_BLOCKS, MAX_CACHE_BYTES // self.block_bytes)
        if not 1 <= n <= most:
            raise _invalid("num_blocks", f"{n}, allowed 1..{most}", prefix="")
        return n

    def layer_shape(self, num_blocks: int) -> tuple[int, ...]:
        """Shape of one layer of a cache of num_blocks blocks, as :meth:`Cache.layer` returns it."""
        if self.order == "MLA":
            return (num_blocks, self.block_tokens, self.head_dim)
        if self.order == "NHD":
            return (2, num_blocks, self.block_tokens, self.kv_heads, self.head_dim)
        return (2, num_blocks, self.kv_heads, self.block_tokens, self.head_dim)

    def _to_wire(self) -> dict[str, int | str]:
        """The layout's JSON object."""
        names = ("layers", "kv_heads", "head_dim", "dtype", "block_tokens", "order", "tp_rank", "tp_size")
        assert len(names) == len(fields(self))
        return {name: getattr(self, name) for name in names}


def check_kind(op: str, model: str, revision: str, compat: str, layout: object) -> None:
    """What must agree on both sides of a transfer; InvalidArgument names the field."""
    for field, text, least in (("model", model, 1), ("revision", revision, 0), ("compat", compat, 0)):
        check_text(op, field, text, least, MAX_TEXT)
    if not isinstance(layout, Layout):
        raise InvalidArgument(f"{layout!r:.80}, allowed a Layout", op=op, field="layout")


def kind_of(model: str, revision: str, compat: str, layout: Layout) -> dict[str, Any]:
    """What must agree on both sides of a transfer, as it travels."""
    out: dict[str, Any] = {"model": model}
    if revision:
        out["revision"] = revision
    if compat:
        out["compat"] = compat
    return {**out, "layout": layout._to_wire()}


def _invalid(field: str, detail: str, prefix: str = "layout.") -> InvalidArgument:
    return InvalidArgument(detail, op="layout", field=prefix + field)
