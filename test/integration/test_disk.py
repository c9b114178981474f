"""A state directory without room: blocks can be taken back, nothing torn is served, no lease is granted."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import kvxfer
import numpy as np
import pytest

from conftest import Attach, Start
from contents import allocate, pieces
from daemon import PATIENCE, Daemon, NatsServer, until

LONG = 600.0
DISK = 96 << 20
"""Bytes of the small disk: the ballast, and room for the log to begin with."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own."""
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs needs root")
    path = tmp_path / "disk"
    path.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK},mode=700", "tmpfs", str(path)],
        capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode != 0:
        if os.environ.get("CI") == "true":
            pytest.fail(f"mount: {done.stderr}")
        pytest.skip(f"a tmpfs cannot be mounted: {done.stderr}")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.fixture
def small(disk: Path, tmp_path: Path, nats: NatsServer, daemon: Start) -> Daemon:
    """A node on the small disk; its log and traces lie elsewhere."""
    logs = tmp_path / "logs"
    logs.mkdir()
    return daemon("decode", "--nats", nats.url, "--state-dir", str(disk), state=disk, logs=logs)


def fill(disk: Path) -> None:
    """Take every byte that is free."""
    with (disk / "of-others").open("ab", buffering=0) as f:
        for size in (1 << 20, 4096, 1):
            with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):  # noqa: PT012
                while True:
                    f.write(bytes(size))


WIDE = kvxfer.Layout(layers=1, kv_heads=1, head_dim=8, dtype="uint8", block_tokens=1, order="MLA")
"""Eight bytes a block: many of them are large in the log."""

STEP = 1 << 16
KEYS = [i.to_bytes(4, "little") for i in range(STEP)]


def use_up(wide: kvxfer.Cache) -> None:
    """Publish until the node has noticed that its disk is full."""
    for _ in range(400):
        try:
            wide.publish(range(STEP), KEYS, timeout=PATIENCE)
        except kvxfer.StoreFailed:
            return
    raise AssertionError("the disk never became full")


class Held:
    """A target with committed blocks, one of which a transfer of a whole block goes to, and leases."""

    def __init__(self, prefill: kvxfer.Client, decode: kvxfer.Client, rng: random.Random) -> None:
        self.source = allocate(prefill, "source", seed=rng.getrandbits(32))
        self.target = allocate(decode, "target")
        self.wide = decode.allocate_cache("wide", model="m", layout=WIDE, num_blocks=STEP)
        self.committed = self.target.lease([0, 1, 2, 3], ttl=LONG)
        self.source.write([0, 1, 2, 3], to=self.committed.ticket).wait()
        self.committed.wait()
        self.unbound = self.target.lease([10], ttl=LONG)
        self.half = self.target.lease([11, 12], ttl=LONG)
        self.push = self.source.write([4, 5], to=self.half.ticket, layerwise=True, timeout=LONG)
        self.push.layer(0)
        self.half.wait_layer(0, PATIENCE)

    def finish(self) -> None:
        """Let the half transfer end well."""
        for layer in range(1, self.target.layout.layers):
            self.push.layer(layer)
        self.push.finish()
        self.push.wait()
        self.half.wait()

    def check(self, served: dict[str, memoryview], blocks: list[int]) -> None:
        """Served are these blocks, whole."""
        assert served["target"].tolist() == blocks
        at = {0: 0, 1: 1, 2: 2, 3: 3, 11: 4, 12: 5}
        for block in blocks:
            assert np.array_equal(pieces(self.target)[:, :, block], pieces(self.source)[:, :, at[block]]), (
                block
            )


def test_full_disk(
    disk: Path, small: Daemon, nats: NatsServer, daemon: Start, attach: Attach, rng: random.Random
) -> None:
    """Transfers end and blocks are taken back; new leases are refused until there is room again."""
    decode = attach(small)
    held = Held(attach(daemon("prefill", "--nats", nats.url)), decode, rng)
    fill(disk)
    use_up(held.wide)
    with pytest.raises(kvxfer.StoreFailed, match="disk is full"):
        held.target.lease([20])
    assert small.get("/healthz")[0] == 200
    held.finish()
    held.unbound.revoke().wait(PATIENCE)
    held.target.evict([3])
    states = held.target.block_states()
    assert (states.committed, states.leased, states.revoking) == (5, 0, 0)

    (disk / "of-others").unlink()

    def granted() -> bool:
        try:
            held.target.lease([20]).revoke().wait(PATIENCE)
        except kvxfer.StoreFailed:
            return False
        return True

    until("leases to be granted again", granted, pause=0.2)
    small.settle()
    small.kill()
    small.start()
    held.check(decode.reconnect(PATIENCE), [0, 1, 2, 11, 12])


def test_no_byte_left(
    disk: Path, small: Daemon, nats: NatsServer, daemon: Start, attach: Attach, rng: random.Random
) -> None:
    """The log cannot be written at all: blocks are taken back all the same, and nothing torn is served."""
    decode = attach(small)
    held = Held(attach(daemon("prefill", "--nats", nats.url)), decode, rng)
    many = decode.allocate_cache("many", model="m", layout=WIDE, num_blocks=24 * STEP)
    parts = [range(at, at + STEP) for at in range(0, many.num_blocks, STEP)]
    for part in parts:
        many.publish(part, KEYS, timeout=PATIENCE)
    small.settle()
    fill(disk)
    with contextlib.suppress(kvxfer.StoreFailed):
        use_up(held.wide)
    fill(disk)  # what the node has given up for itself
    for part in parts:  # large records, until the log's last file takes no more
        many.evict(part, timeout=PATIENCE)
        fill(disk)
    assert many.block_states().free == many.num_blocks
    assert "will be void" in small.log(), "otherwise the test has shown nothing"
    held.unbound.revoke().wait(PATIENCE)
    held.target.evict([2])
    held.finish()
    for blocks in ([0], [3], [20]):
        with pytest.raises(kvxfer.StoreFailed):
            held.target.lease(blocks)
    assert small.get("/healthz")[0] == 200
    small.kill()

    # It cannot begin without room, says so, and begins with some.
    small.start(wait=False)
    assert small.process is not None
    if small.process.wait(PATIENCE) == 0:
        raise AssertionError("it ended well")
    assert "StoreFailed" in small.log() or "no space left" in small.log()
    (disk / "of-others").unlink()
    small.start()
    served = decode.reconnect(PATIENCE)
    held.check(served, [])
    held.source.write([7], to=held.target.lease([30]).ticket).wait()
