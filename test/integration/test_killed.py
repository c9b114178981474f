"""kill -9 of clients: their daemon knows it by connection or process, whichever ends first."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import signal
import time
from collections.abc import Callable, Iterator

import kvxfer
import numpy as np
import pytest

from conftest import Attach, Start, StartWorker
from contents import SMALL, allocate, choose, pieces
from daemon import PATIENCE, Daemon, NatsServer, until
from footprint import Footprint, check_clean, counts, threads
from worker import Worker

Nodes = tuple[Daemon, Daemon]
LONG = 600.0
ROUNDS = int(os.environ.get("KVXFER_KILLS", 16))


@pytest.fixture
def heir() -> Iterator[Callable[[Worker], int]]:
    """Give a worker a child that holds its connection open. The children are killed at the end."""
    children: list[int] = []

    def fork(w: Worker) -> int:
        children.append(w.call("fork"))
        return children[-1]

    yield fork
    for pid in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def alive(pid: int) -> bool:
    """Whether a process that is no child of this one runs."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


@pytest.mark.parametrize("nodes", ["tcp", "shm"], indirect=True)
@pytest.mark.parametrize("side", ["source", "target"])
def test_a_child_holds_the_connection(
    nodes: Nodes, attach: Attach, worker: StartWorker, heir: Callable[[Worker], int], side: str
) -> None:
    """The client is dead when its process is: what a forked child holds open keeps no lease alive."""
    layout = dataclasses.asdict(SMALL)
    w = worker(nodes[0] if side == "source" else nodes[1])
    w.call("allocate", name="mine", layout=layout, num_blocks=4)
    mine = allocate(attach(nodes[1] if side == "source" else nodes[0]), "other", num_blocks=4)
    pending: kvxfer.Lease | kvxfer.Push
    if side == "source":
        lease = pending = mine.lease([2], ttl=LONG)
        number = w.call("write", cache="mine", blocks=[1], ticket=lease.ticket, layerwise=True)
        w.call("layers", push=number, layers=[0])
        lease.wait_layer(0, PATIENCE)
    else:
        _, ticket = w.call("lease", cache="mine", blocks=[2], ttl=LONG)
        push = pending = mine.write([1], to=ticket, layerwise=True, timeout=LONG)
        push.layer(0)
        until("bytes to arrive", lambda: w.call("visible", lease=0) == [0])
    child = heir(w)
    w.kill()
    with pytest.raises(kvxfer.ClientGone) as e:
        pending.wait(PATIENCE)
    assert e.value.released is True
    assert alive(child), "without it the test has shown nothing"
    states = mine.block_states()
    assert states.free == states.total
    until("the daemon to forget the client", lambda: counts(w_daemon(nodes, side))[0] == 0)


def w_daemon(nodes: Nodes, side: str) -> Daemon:
    """The daemon of the killed one."""
    return nodes[0] if side == "source" else nodes[1]


def test_nobody_had_shown_the_ticket(nodes: Nodes, attach: Attach, worker: StartWorker) -> None:
    """The owner dies between its LEASE and the first BIND: the ticket says so to who comes with it."""
    source = allocate(attach(nodes[0]), "source")
    w = worker(nodes[1])
    w.call("allocate", name="target", layout=dataclasses.asdict(SMALL), num_blocks=4)
    _, ticket = w.call("lease", cache="target", blocks=[2], ttl=LONG)
    w.kill()
    until("the daemon to forget the lease", lambda: counts(nodes[1]) == (0, 0, 0))
    with pytest.raises(kvxfer.ClientGone) as e:
        source.write([0], to=ticket, timeout=PATIENCE).wait()
    assert not e.value.may_have_written


@pytest.mark.parametrize("nodes", ["tcp", "shm"], indirect=True)
def test_killed_anywhere(nodes: Nodes, attach: Attach, worker: StartWorker, rng: random.Random) -> None:
    """Clients of both sides are killed at random points of their lives, from the first byte on; the others'
    transfers go on, and when all is over each daemon holds what it held before."""
    prefill, decode = (attach(d) for d in nodes)
    source, target = allocate(prefill, "source", seed=1), allocate(decode, "target")
    layout = dataclasses.asdict(SMALL)

    def transfer() -> None:
        to, blocks = choose(rng, 32, 3), choose(rng, 32, 3)
        lease = target.lease(to, ttl=PATIENCE)
        source.write(blocks, to=lease.ticket, timeout=PATIENCE).wait()
        lease.wait()
        assert np.array_equal(pieces(source)[:, :, blocks], pieces(target)[:, :, to])

    def live(w: Worker, name: str, number: int) -> None:
        """All that a client does, without waiting for an answer."""
        w.send("allocate", name=name, layout=layout, num_blocks=16)
        for i in range(4):
            w.send("lease", cache=name, blocks=[i, 15 - i], ttl=LONG)
        for lease in tickets[number]:
            w.send("write", cache=name, blocks=[4, 5], ticket=lease.ticket, layerwise=True)
        for i in range(len(tickets[number])):
            w.send("layers", push=i, layers=choose(rng, SMALL.layers, 3))

    transfer()  # by shm a node keeps the memory mapped that it has read, as long as that is registered
    target.evict(range(32))
    before = [Footprint.of(d) for d in nodes]
    tickets: list[list[kvxfer.Lease]] = []
    for number in range(ROUNDS):
        side = rng.randrange(2)
        other = target if side == 0 else source
        tickets.append([other.lease([2 * i, 2 * i + 1], ttl=LONG) for i in range(rng.randrange(3))])
        w = worker(nodes[side])
        live(w, f"victim-{number}", number)
        end = time.monotonic() + rng.uniform(0, 0.3)
        while time.monotonic() < end and rng.random() < 0.9:
            time.sleep(0.005)
        w.kill()
        for lease in tickets[-1]:  # bound by the killed one or never: its owner takes it back
            lease.revoke()
            lease.wait_released(PATIENCE)
            assert isinstance(lease.exception(), (kvxfer.ClientGone, kvxfer.LeaseRevoked))
        transfer()
        target.evict(range(32))
        source.evict(range(32))
    for d, was in zip(nodes, before, strict=True):
        until(f"{d.name} to hold what it held", lambda d=d, was=was: Footprint.of(d)[1:] == was[1:])  # type: ignore[misc]
        until(f"{d.name} to have one client", lambda d=d: counts(d) == (1, 0, 0))  # type: ignore[misc]
    assert all(c.block_states().free == c.num_blocks for c in (source, target))


@pytest.mark.parametrize("provider", ["tcp", "shm"])
def test_nothing_gathers(nats: NatsServer, daemon: Start, provider: str) -> None:
    """A peer that is killed in the middle and comes back, again and again, leaves nothing in the other."""
    witness = daemon("decode", "--nats", nats.url, "--providers", provider)
    peer = daemon("prefill", "--nats", nats.url, "--providers", provider)

    def cycle() -> None:
        with witness.connect() as decode, peer.connect() as prefill:
            source, target = allocate(prefill, "source"), allocate(decode, "target")
            other = source.lease([0], ttl=LONG)
            back = target.write([0], to=other.ticket, layerwise=True, timeout=LONG)
            lease = target.lease([1], ttl=LONG)
            push = source.write([1], to=lease.ticket, layerwise=True, timeout=LONG)
            push.layer(0)
            back.layer(0)
            lease.wait_layer(0, PATIENCE)
            other.wait_layer(0, PATIENCE)
            peer.kill()
            for pending in (back, lease):
                with pytest.raises(kvxfer.PeerLost):
                    pending.wait(PATIENCE)
            back.wait_released(PATIENCE)
        check_clean(witness)
        peer.start()

    cycle()
    check_clean(witness)
    cycle()
    before, many = Footprint.of(witness), threads(witness)
    for _ in range(4):
        cycle()
    until("descriptors to be closed", lambda: Footprint.of(witness).fds <= before.fds)
    assert threads(witness) <= many + 16
