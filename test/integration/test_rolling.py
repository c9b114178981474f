"""A fleet is upgraded one daemon after the other while its clients work.

Every request is served in the end, what fails meanwhile says by its type that it may be made again, and no
block is ever served with another's bytes.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import itertools
import random
import threading
from collections.abc import Callable
from typing import Any

import kvxfer
import pytest

from conftest import Attach, Start
from contents import allocate, pieces
from daemon import BINARY, NEXT_BINARY, PATIENCE, NatsServer, until

LAYOUT = kvxfer.Layout(layers=4, kv_heads=2, head_dim=64, dtype="float32", block_tokens=16)
"""64 KiB a block."""

BLOCKS = 3
"""Of a request."""

PROGRESS = 4
"""Requests that every pair must have served between two restarts: pushes and pulls."""

KEY = b"what the engine's processes know"

COMMITTED = 2

CUTS, DIES = 1, 2
"""The nodes that do not drain."""


class Fleet:
    """What the pairs share: a client of each node with a source and a target, and what went wrong."""

    def __init__(self, clients: list[kvxfer.Client], pairs: int) -> None:
        self.clients = clients
        self.caches = [
            tuple(allocate(c, name, LAYOUT, pairs * BLOCKS) for name in ("source", "target")) for c in clients
        ]
        self.stopping = threading.Event()
        self.wrong: list[BaseException] = []
        self.failures: collections.Counter[str] = collections.Counter()
        """By the error's name: what failed and was made again."""

    def serve(self, request: Callable[[], None]) -> bool:
        """Make a request until it is served, as docs/upgrading.md has it. False: the fleet stops."""
        while not self.stopping.is_set():
            try:
                for client in self.clients:
                    client.reconnect(PATIENCE)
                request()
                return True
            except kvxfer.KvxferError as e:
                if not e.retryable:
                    raise
                self.failures[type(e).__name__] += 1
            self.stopping.wait(0.02)
        return False


class Load(threading.Thread):
    """One who makes requests of the fleet, one after the other; served counts them."""

    def __init__(self, fleet: Fleet, name: str, seed: int) -> None:
        super().__init__(name=name)
        self.fleet, self.served = fleet, 0
        self._rng = random.Random(seed)


class Pair(Load):
    """An engine's two ends: pushes and pulls in turn, from one node to another, on blocks of their own."""

    def __init__(self, fleet: Fleet, source: int, target: int, index: int, seed: int) -> None:
        super().__init__(fleet, f"{source}->{target}", seed)
        self._source, self._target = fleet.caches[source][0], fleet.caches[target][1]
        self._blocks = list(range(index * BLOCKS, (index + 1) * BLOCKS))
        self._committed: dict[tuple[int, int], str] = {}
        """For each target block and generation the digest of what was sent."""

    def run(self) -> None:
        """Until the fleet stops."""
        try:
            for request in itertools.cycle([self.push, self.pull]):
                pieces(self._source)[:, :, self._blocks] = self._rng.randrange(256)
                for block in self._blocks:
                    pieces(self._source)[:, 0, block, :16] = list(self._rng.randbytes(16))
                if not self.fleet.serve(request):
                    return
                self.served += 1
        except BaseException as e:
            self.fleet.wrong.append(e)

    def push(self) -> None:
        """A lease, and a push of each layer as it is computed."""
        self.look()
        with self._target.lease(self._blocks, ttl=PATIENCE) as lease:
            self._expect(lease.generation)
            self._travel()
            push = self._source.write(self._blocks, to=lease.ticket, layerwise=True, timeout=PATIENCE)
            try:
                for layer in range(LAYOUT.layers):
                    push.layer(layer)
                    self.fleet.stopping.wait(0.005)
                push.finish()
                push.wait()
                lease.wait()
            except kvxfer.KvxferError:
                push.cancel()
                raise
            finally:
                until_released(push)
        assert self.look() == set(self._blocks)

    def pull(self) -> None:
        """A read lease, and a pull under it."""
        self.look()
        with self._source.lease(self._blocks, mode="read", ttl=PATIENCE) as offer:
            self._travel()
            pull = self._target.read(self._blocks, source=offer.ticket, timeout=PATIENCE)
            try:
                self._expect(pull.wait().generation)
            finally:
                until_released(pull)
        assert self.look() == set(self._blocks)

    def look(self) -> set[int]:
        """The own blocks that the target's daemon serves: they hold what was sent under their generation."""
        states = self._target.block_states()
        served = set()
        for block, state, generation in zip(states.blocks, states.states, states.generations, strict=True):
            if block in self._blocks and state == COMMITTED:
                assert digest(self._target, block) == self._committed[block, generation], (self.name, block)
                served.add(block)
        return served

    def _travel(self) -> None:
        """A ticket takes a while from the one engine to the other."""
        self.fleet.stopping.wait(self._rng.random() * 0.03)

    def _expect(self, generation: int) -> None:
        for block in self._blocks:
            self._committed[block, generation] = digest(self._source, block)


class Engine(Load):
    """An engine with a rank on two of the nodes, leased by its key on the third and written from there."""

    def __init__(self, fleet: Fleet, seed: int) -> None:
        super().__init__(fleet, "engine", seed)
        about: dict[str, Any] = {"instance": "engine", "instance_key": KEY}
        *owners, self._router = fleet.clients
        self._targets = [rank(c, "decode", r, **about) for r, c in enumerate(owners)]
        self._sources = [rank(self._router, "prefill", r) for r in range(len(owners))]

    def run(self) -> None:
        """Until the fleet stops."""
        try:
            while True:
                for source in self._sources:
                    pieces(source)[:] = self._rng.randrange(256)
                if not self.fleet.serve(self.push):
                    return
                for source, target in zip(self._sources, self._targets, strict=True):
                    assert digest(target, 1) == digest(source, 0)
                self.served += 1
        except BaseException as e:
            self.fleet.wrong.append(e)

    def push(self) -> None:
        """One lease and one ticket for both ranks."""
        with self._router.lease(instance="engine", instance_key=KEY, blocks=[1], ttl=PATIENCE) as lease:
            transfer = self._rng.randbytes(16).hex()
            pushes: list[kvxfer.Push] = []
            try:
                for source in self._sources:
                    push = source.write([0], to=lease.ticket, timeout=PATIENCE, transfer_id=transfer)
                    pushes.append(push)
                for push in pushes:
                    push.wait()
                lease.wait()
            finally:
                for push in pushes:
                    push.cancel()
                    until_released(push)


def rank(client: kvxfer.Client, name: str, r: int, **about: Any) -> kvxfer.Cache:
    """A cache of one of two ranks."""
    return allocate(client, f"{name}-{r}", dataclasses.replace(LAYOUT, tp_rank=r, tp_size=2), 2, **about)


def digest(cache: kvxfer.Cache, block: int) -> str:
    """Stands for a block's bytes."""
    return hashlib.sha256(pieces(cache)[:, :, block].tobytes()).hexdigest()


def until_released(transfer: kvxfer.Push | kvxfer.Pull) -> None:
    """Its memory is free when its daemon says so or has exited: before that the source must not change."""
    try:
        transfer.wait_released(PATIENCE)
    except kvxfer.DeadlineExceeded as e:
        raise AssertionError(f"{transfer} stays held") from e


@pytest.mark.parametrize("provider", ["tcp", "shm"])
def test_rolling_upgrade(
    nats: NatsServer, daemon: Start, attach: Attach, rng: random.Random, provider: str
) -> None:
    """Three nodes under load in both directions of every pair: each becomes the next version and goes back.
    One drains as long as it takes, one cuts off what runs, one dies."""
    drain = (["--drain-timeout", "0s"] if i == CUTS else [] for i in range(3))
    daemons = [
        daemon(f"n{i}", "--nats", nats.url, "--providers", provider, *more) for i, more in enumerate(drain)
    ]
    ways = list(itertools.permutations(range(3), 2))
    fleet = Fleet([attach(d) for d in daemons], len(ways))
    pairs = [Pair(fleet, a, b, i, rng.getrandbits(32)) for i, (a, b) in enumerate(ways)]
    load: list[Load] = [*pairs, Engine(fleet, rng.getrandbits(32))]

    def progress() -> None:
        """All have served some more."""
        enough = [p.served + PROGRESS for p in load]

        def done() -> bool:
            assert not fleet.wrong, fleet.wrong
            return all(p.served >= n for p, n in zip(load, enough, strict=True))

        until("all to be served", done)

    for p in load:
        p.start()
    try:
        progress()
        for binary, d in itertools.product([NEXT_BINARY, BINARY, NEXT_BINARY], daemons):
            epoch = d.info["epoch"]
            if d is daemons[DIES]:
                d.kill()
            else:
                d.stop()
            d.replace(binary)
            assert d.info["epoch"] != epoch
            progress()
    finally:
        fleet.stopping.set()
        for p in load:
            p.join(PATIENCE)
    assert not fleet.wrong, fleet.wrong
    print(f"{sum(p.served for p in load)} requests served; made again: {dict(fleet.failures)}")
    assert fleet.failures, "nothing was ever under way when a daemon ended: the test has watched nothing"
