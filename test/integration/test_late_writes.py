"""The promise, watched on real daemons: a block that its owner took back is never written again.

Random rounds take a transfer's blocks back in its middle. From the moment at which the owner is told that the
lease has ended it fills the blocks with marks that no source has, and until nothing of the round is left,
every byte of the target's memory is compared with what its owner knows it to be. KVXFER_ROUNDS: their number.
"""

from __future__ import annotations

import dataclasses
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable

import kvxfer
import numpy as np
import pytest

from conftest import Attach, StartWorker
from contents import Bytes, allocate, choose, pieces
from daemon import PATIENCE, Daemon, until

ROUNDS = int(os.environ.get("KVXFER_ROUNDS", 60))

# A block has 1 MiB in pieces of 256 KiB: each is an operation of its own, and a transfer takes a while.
LAYOUT = kvxfer.Layout(layers=4, kv_heads=8, head_dim=128, dtype="uint8", block_tokens=128)
BLOCKS = 40
TAKEN = 24
"""Blocks of the transfer that is taken back."""
WAYS = ("revoke", "revoke", "cancel", "ttl", "kill", "stop")
LOST_EVERY = 30
"""Rounds to one in which the target waits until it has lost a stopped peer, which takes seconds."""


class Watched:
    """A target cache and what it must hold."""

    def __init__(self, client: kvxfer.Client, name: str) -> None:
        self.cache = allocate(client, name, LAYOUT, BLOCKS)
        self.memory = pieces(self.cache)
        self.memory[:] = 255
        self.want: Bytes = self.memory.copy()
        self.leased: list[int] = []

    def lease(self, blocks: list[int], ttl: float) -> kvxfer.Lease:
        """Lease blocks: a peer may write them from now on."""
        self.leased = blocks
        return self.cache.lease(blocks, ttl=ttl)

    def check(self, when: str) -> None:
        """Every byte outside the leased blocks is as its owner left it."""
        for layer in range(LAYOUT.layers):
            if not np.array_equal(self.memory[layer], self.want[layer]):
                changed = (self.memory[layer] != self.want[layer]).any(axis=(0, 2))
                late = sorted(set(np.nonzero(changed)[0].tolist()) - set(self.leased))
                assert not late, f"{when}: {self.cache.name}, layer {layer}, blocks {late} were written"

    def touched(self, blocks: list[int]) -> tuple[bool, bool]:
        """Whether any and whether all pieces of the blocks have been written to their last byte."""
        there = self.memory[:, :, blocks, -1] != self.want[:, :, blocks, -1]
        return bool(there.any()), bool(there.all())

    def take(self, mark: int) -> None:
        """The leased blocks are the owner's again, which marks every byte of them."""
        self.memory[:, :, self.leased] = mark
        self.want[:, :, self.leased] = mark
        self.leased = []


class Rounds:
    """The rounds' stage: a source, two targets of one client, and daemons between them."""

    def __init__(
        self, nodes: tuple[Daemon, Daemon], attach: Attach, worker: StartWorker, rng: random.Random
    ) -> None:
        self.prefill, self.worker, self.rng = nodes[0], worker, rng
        prefill, decode = (attach(d) for d in nodes)
        self.clients = prefill, decode
        self.source = allocate(prefill, "source", LAYOUT, BLOCKS, rng.getrandbits(32))
        self.targets = [Watched(decode, "target-0"), Watched(decode, "target-1")]
        self.seen: Counter[str] = Counter()

    def check(self, when: str) -> None:
        """Look at every byte."""
        for target in self.targets:
            target.check(when)

    def watch_until(self, when: str, done: Callable[[], object]) -> None:
        """Look at every byte until something is so, and once more."""

        def looked() -> bool:
            self.check(when)
            return bool(done())

        until(when, looked)
        self.check(when)

    def push(self, to: kvxfer.Lease, blocks: list[int]) -> kvxfer.Push:
        """Push the source's blocks, all at once or layer by layer; a layerwise push is never finished."""
        layerwise = self.rng.random() < 0.75
        push = self.source.write(blocks, to=to.ticket, layerwise=layerwise, timeout=PATIENCE)
        for layer in choose(self.rng, LAYOUT.layers, LAYOUT.layers) if layerwise else []:
            push.layer(layer)
        return push

    def run(self, name: str, way: str, value: int) -> None:
        """One round."""
        rng = self.rng
        victim, other = rng.sample(self.targets, 2)
        # A transfer to a neighbour, over the same link, that the other's fate must not touch.
        blocks, at = choose(rng, BLOCKS, 3), choose(rng, BLOCKS, 3)
        beside = other.lease(at, PATIENCE)
        beside_push = self.source.write(blocks, to=beside.ticket, timeout=PATIENCE)

        to = choose(rng, BLOCKS, TAKEN)
        lease = victim.lease(to, rng.uniform(0.005, 0.08) if way == "ttl" else PATIENCE)
        push = killed = None
        if way == "kill":
            killed = self.worker(self.prefill)
            layout = dataclasses.asdict(LAYOUT)
            killed.call("allocate", name="killed", layout=layout, num_blocks=TAKEN, seed=1)
            arguments = {"cache": "killed", "blocks": list(range(TAKEN)), "ticket": lease.ticket}
            killed.call("write", **arguments, layerwise=True)
            killed.send("layers", push=0, layers=choose(rng, LAYOUT.layers, LAYOUT.layers))
        else:
            push = self.push(lease, choose(rng, BLOCKS, TAKEN))
        if way != "ttl":  # some piece or other has begun to arrive
            layer, block = rng.randrange(LAYOUT.layers), rng.choice(to)
            before = int(victim.want[layer, 0, block, 0])
            begun = victim.memory[layer, 0, block]
            until("a piece", lambda: int(begun[0]) != before or lease.poll(), pause=0)

        if killed is not None:
            killed.kill()
        if way == "cancel" and push is not None:
            push.cancel()
        if way in ("stop", "lost"):
            self.prefill.signal(signal.SIGSTOP)
        if way in ("revoke", "stop"):
            lease.revoke().wait()
        lease.wait_released(PATIENCE)
        error = lease.exception()
        # The owner has been told.
        some, whole = victim.touched(to)
        victim.take(value)
        outcome = "committed" if error is None else type(error).__name__
        middle = error is not None and some and not whole
        self.seen[f"{way}, {outcome}{', in the middle' if middle else ''}"] += 1

        if way in ("stop", "lost"):
            end = time.monotonic() + rng.uniform(0, 0.1)
            self.watch_until(f"{name} while stopped", lambda: time.monotonic() > end)
            self.prefill.signal(signal.SIGCONT)
        if push is not None:
            ended = push  # for the closure
            self.watch_until(f"{name} after the end", lambda: ended.poll() and ended.released)
        self.watch_until(f"{name} beside it", lambda: beside.poll() and beside_push.released)
        if way == "lost" and beside.exception() is not None:
            assert isinstance(beside.exception(), kvxfer.PeerLost)
        else:
            beside.wait()
            assert np.array_equal(other.memory[:, :, at], pieces(self.source)[:, :, blocks])
        other.take(value)
        self.watch_until(f"{name} at its end", self.idle)
        other.cache.evict(at)
        victim.cache.evict(to)

    def idle(self) -> bool:
        """Whether neither daemon knows of a lease or a transfer."""
        return all(s.leases + s.transfers == 0 for s in (c.status() for c in self.clients))


@pytest.mark.parametrize("nodes", ["tcp", "shm"], indirect=True)
def test_no_late_write(
    nodes: tuple[Daemon, Daemon], attach: Attach, worker: StartWorker, rng: random.Random
) -> None:
    """Revoked, expired, cancelled, source killed, source's daemon stopped: no byte lands afterwards."""
    rounds = Rounds(nodes, attach, worker, rng)
    plan = [WAYS[i % len(WAYS)] for i in range(ROUNDS)]
    plan[::LOST_EVERY] = ["lost"] * len(plan[::LOST_EVERY])
    rng.shuffle(plan)
    for number, way in enumerate(plan):
        rounds.run(f"round {number} ({way})", way, 128 + number % 127)
    print(dict(rounds.seen))
    # Otherwise the test has watched nothing.
    assert any("in the middle" in k for k in rounds.seen) or len(plan) < len(WAYS)
