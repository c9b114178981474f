"""One request's K and V in a cache of blocks.

Terms: a *block* holds K and V of ``block_tokens`` positions, in every layer under the same id. A request's
*block table* lists its block ids in order, so position p lies in block ``blocks[p // block_tokens]``, row
``p % block_tokens``. Ids are arbitrary: neither sorted nor adjacent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .weights import Config

Array = NDArray[np.float32]
Order = Literal["HND", "NHD"]


@dataclass(frozen=True)
class PagedCache:
    """Every layer's blocks, wherever they lie.

    ``layer(l)`` is a writable float32 view, K at index 0 and V at 1 of the first axis: HND is
    (2, num_blocks, kv_heads, block_tokens, head_dim), NHD is (2, num_blocks, block_tokens, kv_heads,
    head_dim). It must show the same memory at each call. ``PagedCache(cache.layer, "HND")`` wraps a cache of
    the kvxfer client; ``local_cache`` makes one in this process.
    """

    layer: Callable[[int], Array]
    order: Order

    def heads_first(self, layer: int) -> Array:
        """The layer as (2, num_blocks, kv_heads, block_tokens, head_dim) in both orders; no copy."""
        view = self.layer(layer)
        return view if self.order == "HND" else view.swapaxes(2, 3)


def local_cache(config: Config, num_blocks: int, block_tokens: int, order: Order = "HND") -> PagedCache:
    """A cache in this process's own memory, zeroed."""
    rows = (config.kv_heads, block_tokens) if order == "HND" else (block_tokens, config.kv_heads)
    memory = np.zeros((config.layers, 2, num_blocks, *rows, config.head_dim), np.float32)
    return PagedCache(memory.__getitem__, order)


def blocks_for(tokens: int, block_tokens: int) -> int:
    """How many blocks ``tokens`` positions need."""
    return -(-tokens // block_tokens)


class Request:
    """Reads and writes positions of one request through its block table."""

    def __init__(self, config: Config, cache: PagedCache, blocks: Sequence[int], capacity: int) -> None:
        """Check the cache against the model, and that ``blocks`` has room for ``capacity`` positions.

        ValueError names what does not fit.
        """
        if cache.order not in ("HND", "NHD"):
            raise ValueError(f"order: {cache.order!r} is neither 'HND' nor 'NHD'")
        view = cache.heads_first(0)
        if view.ndim != 5 or view.dtype != np.float32 or view.shape[0] != 2:
            raise ValueError(f"cache.layer(0): {view.dtype} {view.shape} is not float32 (2, num_blocks, ...)")
        _, num_blocks, kv_heads, self.block_tokens, head_dim = view.shape
        if (kv_heads, head_dim) != (config.kv_heads, config.head_dim):
            raise ValueError(
                f"cache.layer(0): {kv_heads} KV heads of {head_dim} in order {cache.order},"
                f" the model has {config.kv_heads} of {config.head_dim}"
            )
        self.blocks = [int(b) for b in blocks]
        for b in self.blocks:
            if not 0 <= b < num_blocks:
                raise ValueError(f"blocks: id {b} is outside 0..{num_blocks - 1}")
        if len(set(self.blocks)) != len(self.blocks):
            raise ValueError("blocks: an id occurs twice")
        if len(self.blocks) * self.block_tokens < capacity:
            room = len(self.blocks) * self.block_tokens
            raise ValueError(f"blocks: room for {room} tokens, {capacity} needed")
        self._cache = cache

    def write(self, layer: int, start: int, k: Array, v: Array) -> None:
        """Store K and V, both (kv_heads, tokens, head_dim), at positions from ``start`` on."""
        pages, size = self._cache.heads_first(layer), self.block_tokens
        end = start + k.shape[1]
        for i in range(start // size, blocks_for(end, size)):
            first, last = max(start, i * size), min(end, (i + 1) * size)
            block = pages[:, self.blocks[i], :, first - i * size : last - i * size]
            block[0] = k[:, first - start : last - start]
            block[1] = v[:, first - start : last - start]

    def read(self, layer: int, end: int) -> tuple[Array, Array]:
        """K and V of positions 0 to ``end`` - 1: two (kv_heads, end, head_dim) arrays.

        Always fresh contiguous arrays, so that arithmetic on them does not depend on where blocks lie: the
        order and the block size of the cache cannot change a single bit of what is computed.
        """
        pages, size = self._cache.heads_first(layer), self.block_tokens
        out = np.empty((2, pages.shape[2], end, pages.shape[4]), np.float32)
        for i in range(blocks_for(end, size)):
            first, last = i * size, min(end, (i + 1) * size)
            out[:, :, first:last] = pages[:, self.blocks[i], :, : last - first]
        return out[0], out[1]
