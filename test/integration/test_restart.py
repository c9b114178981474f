"""A daemon that comes back serves exactly what was committed and is vouched for, and nothing torn."""

from __future__ import annotations

import functools
import os
import random
import signal
from collections.abc import Iterable

import kvxfer
import numpy as np
import pytest

from conftest import Attach, Start
from contents import Bytes, allocate, choose, pieces
from daemon import PATIENCE, Daemon, NatsServer, until, unused_port

Nodes = tuple[Daemon, Daemon]

ROUNDS = int(os.environ.get("KVXFER_RESTARTS", 25))
# A transfer of some blocks is a few operations of 64 KiB and more.
LAYOUT = kvxfer.Layout(layers=4, kv_heads=4, head_dim=64, dtype="float32", block_tokens=32)
BLOCKS = 48
COMMITTED = 2


class Books:
    """What the owner knows of its cache: the blocks that were committed, their generation and contents."""

    def __init__(self, client: kvxfer.Client, cache: kvxfer.Cache) -> None:
        self.client, self.cache = client, cache
        self.committed: dict[int, tuple[int, Bytes]] = {}
        self.late: set[int] = set()  # committed a moment before a kill, which may have lost that

    def lease(self, blocks: list[int]) -> kvxfer.Lease:
        """Lease blocks and give up what they held."""
        self.forget(blocks)
        return self.cache.lease(blocks, ttl=PATIENCE)

    def evict(self, blocks: list[int]) -> None:
        """Evict blocks."""
        self.forget(blocks)
        self.cache.evict(blocks)

    def forget(self, blocks: Iterable[int]) -> None:
        """They are not committed any more."""
        for b in blocks:
            self.committed.pop(b, None)

    def commit(self, lease: kvxfer.Lease, source: Bytes, blocks: list[int]) -> None:
        """A lease has ended well: its blocks hold the source's."""
        for at, b in zip(lease.blocks, blocks, strict=True):
            self.committed[at] = lease.generation, source[:, :, b].copy()

    def check(self, served: Iterable[int]) -> None:
        """Served are exactly the committed blocks, whole, under their generations."""
        assert sorted(served) == sorted(self.committed)
        s = self.cache.block_states()
        assert (s.committed, s.free) == (len(self.committed), s.total - len(self.committed))
        for block, state, generation in zip(s.blocks, s.states, s.generations, strict=True):
            assert state == COMMITTED
            assert generation == self.committed[block][0]
        memory = pieces(self.cache)
        for block, (_, contents) in self.committed.items():
            assert np.array_equal(memory[:, :, block], contents), f"block {block} is not what was sent"

    def reconnect(self) -> None:
        """Attach to the new daemon, and check what it serves."""
        served = self.client.reconnect(PATIENCE)[self.cache.name].tolist()
        self.forget(self.late - set(served))
        self.late.clear()
        self.check(served)


Running = tuple[kvxfer.Lease, kvxfer.Push, list[int]]


def ended(running: list[Running], enough: int) -> bool:
    """Whether so many of the leases have ended."""
    return sum(lease.poll() for lease, _, _ in running) >= enough


def transfer(source: kvxfer.Cache, blocks: list[int], books: Books, to: list[int]) -> None:
    """A transfer that ends well."""
    lease = books.lease(to)
    source.write(blocks, to=lease.ticket).wait()
    lease.wait()
    books.commit(lease, pieces(source), blocks)


def test_killed_in_the_middle(nodes: Nodes, attach: Attach, rng: random.Random) -> None:
    """kill -9 of the target's daemon at random points of many transfers, again and again on one directory."""
    prefill, decode = (attach(d) for d in nodes)
    source = allocate(prefill, "source", LAYOUT, BLOCKS)
    books = Books(decode, allocate(decode, "target", LAYOUT, BLOCKS))
    random_bytes = np.random.default_rng(rng.getrandbits(32))
    generations: set[int] = set()
    whole = torn = 0
    for _ in range(ROUNDS):
        # New contents each time: an old block's would be noticed.
        pieces(source)[:] = random_bytes.integers(0, 256, pieces(source).shape, np.uint8)
        if books.committed:
            books.evict(rng.sample(sorted(books.committed), rng.randrange(1, 4) % len(books.committed) + 1))
        free = choose(rng, BLOCKS, 24)
        running: list[Running] = []
        endless = 0
        while free:
            to = [free.pop() for _ in range(rng.randrange(1, 7)) if free]
            blocks = choose(rng, BLOCKS, len(to))
            lease = books.lease(to)
            assert lease.generation not in generations
            generations.add(lease.generation)
            half = rng.random() < 0.2  # half done when the end comes
            push = source.write(blocks, to=lease.ticket, layerwise=half)
            for layer in choose(rng, LAYOUT.layers, LAYOUT.layers // 2) if half else []:
                push.layer(layer)
            running.append((lease, push, blocks))
            endless += half
        enough = rng.randrange(len(running) - endless + 1)
        until("some to be committed", functools.partial(ended, running, enough), pause=0)
        nodes[1].kill()
        until("every lease to end", functools.partial(ended, running, len(running)))
        for _, push, _ in running:
            push.when_released.wait(PATIENCE)
        for lease, push, blocks in running:
            if lease.exception() is None:
                books.commit(lease, pieces(source), blocks)
                books.late.update(lease.blocks)
                whole += 1
            else:
                assert isinstance(lease.exception(), kvxfer.DaemonUnavailable)
                assert push.exception() is None or isinstance(push.exception(), kvxfer.PeerLost)
                torn += 1
        nodes[1].start()
        books.reconnect()
    print(f"{whole} transfers committed, {torn} cut off, {len(books.committed)} blocks served at the end")
    assert torn >= ROUNDS / 5 or ROUNDS < 10


def test_graceful_restart(nodes: Nodes, attach: Attach) -> None:
    """SIGTERM keeps committed blocks too; what was evicted stays gone, and the daemon's end is orderly."""
    prefill, decode = (attach(d) for d in nodes)
    source = allocate(prefill, "source", seed=1)
    books = Books(decode, allocate(decode, "target"))
    transfer(source, [1, 2, 3, 4], books, [10, 20, 30, 31])
    books.evict([20])
    epoch = decode.epoch
    for _ in range(2):
        nodes[1].stop()
        with pytest.raises((kvxfer.Draining, kvxfer.DaemonUnavailable)):  # it may have said why it goes
            decode.ping()
        nodes[1].start()
        books.reconnect()
    assert decode.epoch != epoch
    assert decode.reconnect()["target"].tolist() == [10, 30, 31]  # it is connected: nothing changes
    transfer(source, [5, 6], books, [20, 30])
    nodes[1].settle()
    nodes[1].kill()
    nodes[1].start()
    books.reconnect()


def test_a_source_restarts(nodes: Nodes, attach: Attach) -> None:
    """The pushing node's restart leaves its client's memory and its peer's commits alone."""
    prefill, decode = (attach(d) for d in nodes)
    source = allocate(prefill, "source", seed=2)
    books = Books(decode, allocate(decode, "target"))
    transfer(source, [1, 2], books, [3, 4])
    nodes[0].kill()
    nodes[0].start()
    assert prefill.reconnect(PATIENCE)["source"].tolist() == []
    transfer(source, [5], books, [6])
    books.check([3, 4, 6])


@pytest.mark.parametrize("how", ["kill", "stop", "stay"])
def test_a_name_inherits_nothing(nodes: Nodes, attach: Attach, how: str) -> None:
    """New memory under an old name begins empty, whether the daemon restarted meanwhile or not."""
    prefill, decode = (attach(d) for d in nodes)
    source = allocate(prefill, "source", seed=3)
    books = Books(decode, allocate(decode, "target"))
    transfer(source, [0, 1, 2], books, [7, 8, 9])
    decode.close()
    if how != "stay":
        nodes[1].kill() if how == "kill" else nodes[1].stop()
        nodes[1].start()
    again = attach(nodes[1])
    books = Books(again, allocate(again, "target"))
    books.check([])
    transfer(source, [4], books, [8])
    books.check([8])


def test_one_daemon_a_directory(daemon: Start, attach: Attach, nats: NatsServer, rng: random.Random) -> None:
    """A stopped daemon may go on: no other starts on its directory, until it is really gone."""
    old = daemon("decode", "--nats", nats.url)
    prefill, decode = attach(daemon("prefill", "--nats", nats.url)), attach(old)
    books = Books(decode, allocate(decode, "target"))
    transfer(allocate(prefill, "source", seed=4), [1, 2], books, choose(rng, 32, 2))
    old.settle()
    old.freeze()

    directory = ("--node", "decode", "--state-dir", str(old.state), "--socket", str(old.socket))
    second = daemon("second", "--nats", nats.url, *directory, wait=False)
    until("the second to say why it waits, and how long", lambda: "gives_up_after=30s" in second.log())
    second.signal(signal.SIGTERM)  # which ends the wait as its time would
    assert second.wait_end() == 1
    assert "AlreadyExists" in second.log()
    assert str(old.pid) in second.log()

    second.start(wait=False)
    with pytest.raises(kvxfer.DaemonUnavailable):
        old.connect(timeout=1)  # nobody has taken the socket over
    assert second.process is not None
    assert second.process.poll() is None, second.log()
    old.kill()
    books.reconnect()
    assert decode.epoch != old.info["epoch"]


@pytest.mark.parametrize("address", ["same", "other"])
def test_tickets_of_an_old_epoch(
    daemon: Start, attach: Attach, nats: NatsServer, rng: random.Random, address: str
) -> None:
    """A ticket from before the restart is refused by type and writes nothing; the source can go on."""
    listen = ["--listen", f"127.0.0.1:{unused_port(rng)}"] if address == "same" else []
    nodes = daemon("prefill", "--nats", nats.url), daemon("decode", "--nats", nats.url, *listen)
    prefill, decode = (attach(d) for d in nodes)
    source, target = allocate(prefill, "source", seed=5), allocate(decode, "target")
    unbound, half = target.lease([0], ttl=PATIENCE), target.lease([1], ttl=PATIENCE)
    push = source.write([1], to=half.ticket, layerwise=True)
    push.layer(0)
    half.wait_layer(0)
    nodes[1].kill()
    with pytest.raises(kvxfer.PeerLost):
        push.wait()
    nodes[1].start()
    assert decode.reconnect(PATIENCE)["target"].tolist() == []
    before = pieces(target).copy()
    kinds = kvxfer.StaleEpoch if address == "same" else (kvxfer.StaleEpoch, kvxfer.PeerUnreachable)
    for ticket in (unbound.ticket, half.ticket):
        with pytest.raises(kinds) as e:
            source.write([0], to=ticket).wait()
        assert e.value.peer == "decode"
        assert e.value.retryable
        assert e.value.released is True
        assert not e.value.may_have_written
    for lease in (unbound, half):
        assert isinstance(lease.exception(), kvxfer.DaemonUnavailable)
        assert lease.released
    assert np.array_equal(pieces(target), before)
    books = Books(decode, target)
    transfer(source, [0, 1], books, [0, 1])
    books.check([0, 1])
