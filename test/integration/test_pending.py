"""Everything pending over real daemons: one call for what has ended, one descriptor, threads and forks."""

from __future__ import annotations

import asyncio
import os
import random
import select
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import kvxfer
import numpy as np
import pytest

from conftest import Attach
from contents import SMALL, allocate, pieces
from daemon import PATIENCE, Daemon, until

Pair = tuple[Daemon, Daemon]


@pytest.fixture
def clients(pair: Pair, attach: Attach) -> tuple[kvxfer.Client, kvxfer.Client]:
    """A client of the prefill node and one of the decode node."""
    return attach(pair[0]), attach(pair[1])


def test_one_descriptor_tells_of_everything(clients: tuple[kvxfer.Client, kvxfer.Client]) -> None:
    """A loop that knows nothing but the two clients' descriptors sees each thing end once."""
    near, far = clients
    for c in clients:
        assert c.completed() == []
    source, target = allocate(near, "source"), allocate(far, "target")
    mine, theirs = near.allocate_region("mine", 4096), far.allocate_region("theirs", 4096)
    lease = target.lease([0, 1])
    offer = target.lease([5], mode="read")
    adv = theirs.advertise("write", uses=1)
    unused = target.lease([9])
    push = source.write([2, 3], to=lease.ticket)
    pull = source.read([7], source=offer.ticket)
    scatter = mine.writev([(0, 0, 4096)], to=adv.ticket)
    waiting: set[kvxfer.Pending[Any]] = {
        lease, offer, adv, unused, push, pull, scatter, lease.layer(3), offer.next_holder(),
        adv.next_holder(), unused.renew(30), unused.revoke(), push.when_released, lease.when_released,
    }  # fmt: skip
    seen: list[kvxfer.Pending[Any]] = []
    end = time.monotonic() + PATIENCE
    while waiting - set(seen):
        assert time.monotonic() < end, waiting - set(seen)
        for c in select.select(list(clients), [], [], 1)[0]:
            got = c.completed()
            assert got, "readable without anything to report"
            assert all(p.poll() for p in got)
            seen += got
    assert len(seen) == len(set(seen)), "a thing is reported twice"
    assert set(seen) == waiting
    assert [p for p in seen if p.exception() is not None] == [unused]
    assert isinstance(unused.exception(), kvxfer.LeaseRevoked)
    assert select.select(list(clients), [], [], 0)[0] == []


def test_an_event_loop_reads_the_descriptor(clients: tuple[kvxfer.Client, kvxfer.Client]) -> None:
    """asyncio's add_reader on a client's descriptor, with awaits of single things besides."""
    near, far = clients
    source, target = allocate(near, "source"), allocate(far, "target")
    seen: list[kvxfer.Pending[Any]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(near.fileno(), lambda: seen.extend(near.completed()))
        pushes = []
        for i in range(8):
            lease = target.lease([i])
            pushes.append(source.write([i], to=lease.ticket))
            await lease
        for push in pushes:
            await push
        while len(seen) < 8:
            await asyncio.sleep(0.01)
        loop.remove_reader(near.fileno())
        assert set(seen) == set(pushes)

    asyncio.run(asyncio.wait_for(main(), PATIENCE))


def test_many_threads_on_two_clients(
    clients: tuple[kvxfer.Client, kvxfer.Client], rng: random.Random
) -> None:
    """Pushes, pulls, scatters, revocations and questions from many threads; each byte where it belongs."""
    near, far = clients
    threads_each, rounds = 3, 12
    source = allocate(near, "source", num_blocks=64, seed=rng.getrandbits(32))
    target = allocate(far, "target", num_blocks=64, seed=rng.getrandbits(32))
    mine, theirs = near.allocate_region("mine", 1 << 16), far.allocate_region("theirs", 1 << 16)
    mine.memory[:] = rng.randbytes(1 << 16)
    wrong: list[object] = []

    def pushing(own: random.Random, blocks: list[int]) -> None:
        for _ in range(rounds):
            n = own.randrange(1, 4)
            to, of = own.sample(blocks, n), own.sample(range(32), n)
            with target.lease(to, ttl=PATIENCE) as lease:
                if own.random() < 0.2:
                    continue  # leaving revokes
                source.write(of, to=lease.ticket, timeout=PATIENCE).wait()
                lease.wait()
                if not np.array_equal(pieces(target)[:, :, to], pieces(source)[:, :, of]):
                    wrong.append(("push", of, to))

    def pulling(own: random.Random, blocks: list[int]) -> None:
        for _ in range(rounds):
            n = own.randrange(1, 4)
            to, of = own.sample(blocks, n), own.sample(range(32), n)
            with target.lease([b + 32 for b in of], mode="read", ttl=PATIENCE) as offer:
                source.read(to, source=offer.ticket, timeout=PATIENCE).wait()
                if not np.array_equal(pieces(source)[:, :, to], pieces(target)[:, :, [b + 32 for b in of]]):
                    wrong.append(("pull", of, to))

    def scattering(own: random.Random, blocks: list[int]) -> None:
        base = min(blocks) * 1024
        for _ in range(rounds):
            with theirs.advertise("write", [(base, 2048)], ttl=PATIENCE) as adv:
                at = base + own.randrange(1024)
                mine.writev([(0, at, 1024)], to=adv.ticket, timeout=PATIENCE).wait()
                if not np.array_equal(theirs.array[at : at + 1024], mine.array[:1024]):
                    wrong.append(("scatter", at))
            near.status()
            target.block_states()

    def run(work: Callable[[random.Random, list[int]], None], seed: int, blocks: list[int]) -> None:
        try:
            work(random.Random(seed), blocks)
        except BaseException as e:
            wrong.append(e)

    threads = []
    for i in range(threads_each):
        areas = {
            pushing: list(range(i * 8, i * 8 + 8)),
            pulling: list(range(32 + i * 8, 32 + i * 8 + 8)),
            scattering: list(range(i * 16, i * 16 + 16)),
        }
        for work, blocks in areas.items():
            threads.append(threading.Thread(target=run, args=(work, rng.getrandbits(32), blocks)))
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


def test_a_fork_in_the_middle_of_a_transfer(clients: tuple[kvxfer.Client, kvxfer.Client], pair: Pair) -> None:
    """The child's handles raise, its exit changes nothing; the parent's transfer ends well."""
    near, far = clients
    source, target = allocate(near, "source", seed=1), allocate(far, "target", seed=2)
    lease = target.lease([0], ttl=PATIENCE)
    push = source.write([1], to=lease.ticket, layerwise=True, timeout=PATIENCE)
    push.layer(0)
    lease.wait_layer(0, PATIENCE)
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork with threads, from 3.12 on
        pid = os.fork()
    if pid == 0:
        try:
            calls: list[Callable[[], object]] = [
                lambda: push.layer(1), push.cancel, push.wait, lease.revoke, lambda: target.lease([3]),
                near.completed, near.ping, lambda: source.memory, near.fileno,
            ]  # fmt: skip
            for call in calls:
                with pytest.raises(kvxfer.ForkedClient):
                    call()
            near.close()
            with kvxfer.connect(str(pair[0].socket)) as own:
                own.ping()
            os.write(write, b"ok")
        except BaseException as e:
            os.write(write, repr(e).encode())
        finally:
            os._exit(0)
    os.close(write)
    assert select.select([read], [], [], PATIENCE)[0]
    assert os.read(read, 4096) == b"ok"
    os.close(read)
    os.waitpid(pid, 0)
    for layer in range(1, SMALL.layers):
        push.layer(layer)
    push.finish(b"done")
    push.wait()
    assert lease.wait(PATIENCE).notification == b"done"
    assert np.array_equal(pieces(target)[:, :, 0], pieces(source)[:, :, 1])


def test_a_forked_child_does_not_keep_its_dead_parent_alive(pair: Pair, attach: Attach) -> None:
    """The parent is killed, its child lives on: the daemon sees the client's end and gives its cache up."""
    code = (
        "import os, sys, time, kvxfer\n"
        "client = kvxfer.connect(sys.argv[1])\n"
        "layout = kvxfer.Layout(layers=1, kv_heads=1, head_dim=8, dtype='float32', block_tokens=1)\n"
        "cache = client.allocate_cache('doomed', model='m', layout=layout, num_blocks=1)\n"
        "lease = cache.lease([0], ttl=3600)\n"
        "if os.fork() == 0:\n"
        "    print(os.getpid(), flush=True)\n"
        "    time.sleep(3600)\n"
        "time.sleep(3600)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code, str(pair[0].socket)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    try:
        client = attach(pair[0])
        assert client.status().leases == 1
        parent.kill()
        parent.wait()
        until("the lease to end", lambda: client.status().leases == 0)
        layout = kvxfer.Layout(layers=1, kv_heads=1, head_dim=8, dtype="float32", block_tokens=1)
        client.allocate_cache("doomed", model="m", layout=layout, num_blocks=1)
        os.kill(child, 0)
    finally:
        os.kill(child, signal.SIGKILL)
        parent.stdout.close()


def test_every_wait_ends_when_the_own_daemon_stands(pair: Pair, attach: Attach) -> None:
    """With its daemon stopped nothing waits beyond its deadline, and each error says whether it is HELD."""
    client = attach(pair[1])
    cache, region = allocate(client, "c"), client.allocate_region("r", 4096)
    lease, offer = cache.lease([0], ttl=1), cache.lease([1], mode="read", ttl=1)
    adv = region.advertise("write", ttl=1)
    fence = cache.lease([2]).revoke(1)
    fence.wait()
    held = cache.lease([3])
    pair[1].freeze()
    waits: list[Callable[[], object]] = [
        lease.wait, offer.wait, adv.wait, held.revoke(0.2).wait, held.renew(5, timeout=0.2).wait,
        lambda: cache.lease([4], timeout=0.2), lambda: cache.evict([5], timeout=0.2),
        lambda: cache.publish([6], [b"k"], timeout=0.2), lambda: client.ping(0.2),
        lambda: region.deregister(0.2), lambda: lease.wait_released(0.2), lambda: lease.wait_layer(0),
        lambda: client.lookup([b"k"], like=cache, timeout=0.2),
        lambda: cache.read([7], source="kvx1.x", timeout=0.2),
    ]  # fmt: skip
    start = time.monotonic()
    for wait in waits:
        with pytest.raises(kvxfer.DeadlineExceeded) as e:
            wait()
        assert e.value.released is not True
    assert time.monotonic() - start < PATIENCE
    assert lease.exception() is not None
    assert (lease.released, offer.released, adv.released) == (False, False, False)
    pair[1].signal(signal.SIGCONT)
    for p in (lease, offer, adv):
        p.wait_released(PATIENCE)
