"""Transfers whose bytes are looked at on both sides."""

from __future__ import annotations

import random

import kvxfer
import numpy as np

from daemon import PATIENCE

LAYOUT = kvxfer.Layout(layers=4, kv_heads=2, head_dim=64, dtype="float32", block_tokens=16)
"""16 KiB a piece, 64 KiB a block."""


def allocate(client: kvxfer.Client, name: str, num_blocks: int = 32) -> kvxfer.Cache:
    """A cache that agrees with every other one of these tests."""
    return client.allocate_cache(name, model="model@1", layout=LAYOUT, num_blocks=num_blocks)


def begin(source: kvxfer.Cache, target: kvxfer.Cache, layers: int = 1) -> tuple[kvxfer.Push, kvxfer.Lease]:
    """A transfer of one block that has begun, with that many layers visible at the target, and goes on."""
    lease = target.lease([0], ttl=2 * PATIENCE)
    push = source.write([1], to=lease.ticket, layerwise=True, timeout=2 * PATIENCE)
    for layer in range(layers):
        push.layer(layer)
        lease.wait_layer(layer, PATIENCE)
    return push, lease


def move(
    source: kvxfer.Cache, target: kvxfer.Cache, rng: random.Random, count: int = 8
) -> kvxfer.TransferResult:
    """Move random bytes between random blocks; each byte of the target's memory is compared."""
    source.memory[:] = rng.randbytes(len(source.memory))
    target.memory[:] = rng.randbytes(len(target.memory))
    mine, theirs = (rng.sample(range(c.num_blocks), count) for c in (source, target))
    want = [target.layer(layer).copy() for layer in range(LAYOUT.layers)]
    for layer in range(LAYOUT.layers):
        want[layer][:, theirs] = source.layer(layer)[:, mine]
    notification = rng.randbytes(20)

    with target.lease(theirs, ttl=PATIENCE) as lease:  # where the push fails the blocks are taken back
        sent = source.write(mine, to=lease.ticket, timeout=PATIENCE, notification=notification).wait()
        got = lease.wait()

    assert got.notification == notification
    assert sent.bytes == got.bytes == count * LAYOUT.block_bytes
    for layer in range(LAYOUT.layers):  # as bytes: random floats hold NaNs
        assert np.array_equal(target.layer(layer).view(np.uint8), want[layer].view(np.uint8)), (
            f"layer {layer}"
        )
    return sent
