"""What caches hold: random contents, views of their bytes, and what must be in them after a transfer."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any, TypeAlias

import kvxfer
import numpy as np
import numpy.typing as npt

Bytes: TypeAlias = "npt.NDArray[np.uint8]"

MODEL = "test-model@1"
SMALL = kvxfer.Layout(layers=5, kv_heads=2, head_dim=32, dtype="float32", block_tokens=8)
LAYOUTS = {
    "HND": SMALL,
    "NHD": kvxfer.Layout(layers=3, kv_heads=3, head_dim=40, dtype="bfloat16", block_tokens=7, order="NHD"),
    "MLA": kvxfer.Layout(layers=4, kv_heads=1, head_dim=576, dtype="uint8", block_tokens=5, order="MLA"),
}


def allocate(
    client: kvxfer.Client,
    name: str,
    layout: kvxfer.Layout = SMALL,
    num_blocks: int = 32,
    seed: int | None = None,
    **about: Any,
) -> kvxfer.Cache:
    """A cache, filled with the random bytes of a seed where one is given; about: more for allocate_cache."""
    cache = client.allocate_cache(name, model=MODEL, layout=layout, num_blocks=num_blocks, **about)
    if seed is not None:
        pieces(cache)[:] = random_bytes(layout, num_blocks, seed)
    return cache


def random_bytes(layout: kvxfer.Layout, num_blocks: int, seed: int) -> Bytes:
    """Contents of a whole cache, as :func:`pieces` shows them. Every byte is below 128: others are marks."""
    shape = (layout.layers, layout.planes, num_blocks, layout.plane_block_bytes)
    return np.random.default_rng(seed).integers(0, 128, shape, np.uint8)


def pieces(cache: kvxfer.Cache) -> Bytes:
    """A cache's memory as [layer][plane][block][byte], by the documented order alone."""
    layout = cache.layout
    shape = (layout.layers, layout.planes, cache.num_blocks, layout.plane_block_bytes)
    out: Bytes = np.frombuffer(cache.memory, np.uint8).reshape(shape)
    return out


def moved(source: Bytes, blocks: Sequence[int], target: Bytes, to: Sequence[int]) -> Bytes:
    """What the target must hold after a transfer: the source's blocks at their places, the rest as before."""
    out: Bytes = target.copy()
    out[:, :, list(to)] = source[:, :, list(blocks)]
    return out


def choose(rng: random.Random, num_blocks: int, count: int) -> list[int]:
    """Different block ids in random order."""
    return rng.sample(range(num_blocks), count)


def parts(rng: random.Random, layers: int, blocks: int) -> list[tuple[int, int, int]]:
    """Every layer cut into (layer, first, count) at random places, all in random order."""
    out = []
    for layer in range(layers):
        cuts = sorted({0, blocks, *(rng.randrange(blocks) for _ in range(rng.randrange(4)))})
        out += [(layer, a, b - a) for a, b in itertools.pairwise(cuts)]
    rng.shuffle(out)
    return out
