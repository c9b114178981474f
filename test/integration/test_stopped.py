"""SIGSTOP: whoever stands still is outwaited, and what it does when it goes on harms nobody."""

from __future__ import annotations

import dataclasses
import random
import signal

import kvxfer
import numpy as np
import pytest

from conftest import Attach, StartWorker
from contents import SMALL, allocate, choose, pieces
from daemon import PATIENCE, Daemon, NatsServer, until
from worker import CallError, Worker

Nodes = tuple[Daemon, Daemon]

# A block has 1 MiB in pieces of 256 KiB: a transfer of many takes a while.
LAYOUT = kvxfer.Layout(layers=4, kv_heads=8, head_dim=128, dtype="uint8", block_tokens=128)
BLOCKS = 32
ROUNDS = 6
COMMITTED = 2


@pytest.mark.parametrize("nodes", ["tcp", "shm"], indirect=True)
def test_reused_while_stopped(nodes: Nodes, attach: Attach, rng: random.Random) -> None:
    """The source's daemon stands in mid-copy, its blocks are taken back and another source fills them: they
    hold that source's bytes, also when the first daemon goes on."""
    prefill, decode = (attach(d) for d in nodes)
    source = allocate(prefill, "source", LAYOUT, BLOCKS)
    target = allocate(decode, "target", LAYOUT, BLOCKS)
    other = allocate(decode, "other", LAYOUT, BLOCKS)
    pieces(source)[:], pieces(other)[:] = 1, 2
    middle = 0
    for _ in range(ROUNDS):
        pieces(target)[:] = 0
        to = choose(rng, BLOCKS, 24)
        lease = target.lease(to, ttl=PATIENCE)
        push = source.write(choose(rng, BLOCKS, 24), to=lease.ticket, timeout=PATIENCE)
        first = pieces(target)[rng.randrange(LAYOUT.layers), 0, rng.choice(to)]
        until("a piece", lambda view=first, end=lease: int(view[0]) or end.poll(), pause=0)  # type: ignore[misc]
        nodes[0].freeze()
        lease.revoke().wait(PATIENCE)
        lease.wait_released(PATIENCE)
        middle += lease.exception() is not None

        again = target.lease(to, ttl=PATIENCE)
        filled = other.write(choose(rng, BLOCKS, 24), to=again.ticket, timeout=PATIENCE)
        # The first daemon goes on before, while or after they are filled.
        when = rng.randrange(3)
        if when == 0:
            nodes[0].signal(signal.SIGCONT)
        filled.wait()
        again.wait()
        if when == 1:
            nodes[0].signal(signal.SIGCONT)
        assert (pieces(target)[:, :, to] == 2).all()
        if when == 2:
            nodes[0].signal(signal.SIGCONT)
        push.wait_released(PATIENCE)
        assert isinstance(push.exception(), (kvxfer.LeaseRevoked, kvxfer.PeerLost, type(None)))
        until("the stopped one to have nothing left", lambda: prefill.status().transfers == 0)
        assert (pieces(target)[:, :, to] == 2).all()
        states = target.block_states()
        assert states.committed == len(to)
        assert set(states.generations) == {again.generation}
        target.evict(to)
    assert middle, "no daemon was ever stopped in the middle: the test has watched nothing"


def halfway(w: Worker, target: kvxfer.Cache) -> tuple[kvxfer.Lease, int]:
    """A transfer that is halfway when its lease's time is not over; the machine tells how long that takes."""
    ttl = 1.0
    while True:
        lease = target.lease([3, 1], ttl=ttl)
        arguments = {"cache": "source", "blocks": [0, 1], "ticket": lease.ticket}
        push = w.call("write", **arguments, layerwise=True, timeout=600)
        w.call("layers", push=push, layers=[0])
        try:
            lease.wait_layer(0, PATIENCE)
            return lease, push
        except kvxfer.LeaseExpired:
            assert ttl < PATIENCE
            ttl *= 2


@pytest.mark.parametrize("nodes", ["tcp", "shm"], indirect=True)
def test_source_client_stops(nodes: Nodes, attach: Attach, worker: StartWorker) -> None:
    """Its transfer goes no further, so the lease's time ends it; the client hears of it when it goes on."""
    target = allocate(attach(nodes[1]), "target")
    w = worker(nodes[0])
    w.call("allocate", name="source", layout=dataclasses.asdict(SMALL), num_blocks=2)
    lease, push = halfway(w, target)
    w.signal(signal.SIGSTOP)
    with pytest.raises(kvxfer.LeaseExpired) as e:
        lease.wait(PATIENCE)
    assert e.value.released is True
    assert target.block_states().free == target.num_blocks
    w.signal(signal.SIGCONT)
    with pytest.raises(CallError, match="LeaseExpired"):
        w.call("wait_push", push=push)
    lease = target.lease([3])  # and it is a client as before
    push = w.call("write", cache="source", blocks=[1], ticket=lease.ticket, layerwise=False)
    assert w.call("wait_push", push=push) == lease.wait().bytes


def test_target_client_stops(nodes: Nodes, attach: Attach, worker: StartWorker) -> None:
    """A transfer needs its daemon only: it ends while the owner stands, who finds everything afterwards."""
    source = allocate(attach(nodes[0]), "source", seed=1)
    w = worker(nodes[1])
    w.call("allocate", name="target", layout=dataclasses.asdict(SMALL), num_blocks=64)
    leases = [w.call("lease", cache="target", blocks=[i, 63 - i], ttl=PATIENCE) for i in range(30)]
    expires, ticket = w.call("lease", cache="target", blocks=[31], ttl=1)
    late = source.write([5], to=ticket, layerwise=True, timeout=600)
    late.layer(0)
    w.signal(signal.SIGSTOP)
    for i, (_, ticket) in enumerate(leases):
        assert source.write([i, 31 - i], to=ticket).wait().bytes == 2 * SMALL.block_bytes
    with pytest.raises(kvxfer.LeaseExpired):
        late.wait(PATIENCE)
    assert late.released
    w.signal(signal.SIGCONT)
    for number, _ in leases:
        assert w.call("wait_lease", lease=number) == 2 * SMALL.block_bytes
    with pytest.raises(CallError, match="LeaseExpired"):
        w.call("wait_lease", lease=expires)


def test_registry_stops(nodes: Nodes, attach: Attach, nats: NatsServer) -> None:
    """A registry that stands still, its connections open, holds no lease and no transfer up."""
    prefill, decode = (attach(d) for d in nodes)
    source, target = allocate(prefill, "source", seed=2), allocate(decode, "target")
    until("both to be seen", lambda: len(prefill.status().nodes) == len(decode.status().nodes) == 2)
    nats.signal(signal.SIGSTOP)
    for a, b in ((source, target), (target, source)):
        lease = b.lease([0, 4], ttl=PATIENCE)
        a.write([2, 9], to=lease.ticket, timeout=PATIENCE).wait()
        lease.wait()
        assert np.array_equal(pieces(a)[:, :, [2, 9]], pieces(b)[:, :, [0, 4]])
    allocate(decode, "fresh")  # announced when somebody listens
    target.drop()
    nats.signal(signal.SIGCONT)

    def announced() -> list[str]:
        return sorted(e.split(".")[3] for e in nats.entries() if e.startswith("cache."))

    until("the registry to know", lambda: announced() == ["fresh", "source"])
