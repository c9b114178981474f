"""Whatever dies, stops or gives up in the middle of a transfer: the others hear a typed end, and go on."""

from __future__ import annotations

import dataclasses
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass

import kvxfer
import numpy as np
import pytest

from conftest import Attach, Start, StartWorker
from contents import SMALL, allocate, choose, pieces
from daemon import PATIENCE, Daemon, NatsServer, until
from worker import CallError, Worker

Nodes = tuple[Daemon, Daemon]

LONG = 600.0
"""Seconds for leases and pushes that must end before their time."""
PLACED = (3, 0)
"""The layers that are placed when the fault comes."""


@dataclass
class Midway:
    """A transfer of which some layers are placed."""

    source: kvxfer.Cache
    target: kvxfer.Cache
    blocks: list[int]
    to: list[int]
    lease: kvxfer.Lease
    push: kvxfer.Push


def begin(
    source: kvxfer.Cache, target: kvxfer.Cache, rng: random.Random, ttl: float = LONG, timeout: float = LONG
) -> Midway:
    """Start a transfer and bring it halfway."""
    blocks, to = choose(rng, source.num_blocks, 4), choose(rng, target.num_blocks, 4)
    lease = target.lease(to, ttl=ttl)
    push = source.write(blocks, to=lease.ticket, layerwise=True, timeout=timeout)
    for layer in PLACED:
        push.layer(layer)
    for layer in PLACED:
        lease.wait_layer(layer, PATIENCE)
    return Midway(source, target, blocks, to, lease, push)


def begin_short(
    source: kvxfer.Cache, target: kvxfer.Cache, rng: random.Random, which: str, soon: float = 0.4
) -> Midway:
    """A transfer that gets halfway, and whose lease or push ends soon; the machine tells what is soon."""
    while True:
        try:
            return begin(source, target, rng, **{which: soon})
        except kvxfer.TransferError:
            assert soon < PATIENCE
            soon *= 2


def ends(pending: kvxfer.Lease | kvxfer.Push, kind: type[kvxfer.KvxferError], released: bool = True) -> None:
    """It ends in bounded time with exactly that error, and says whether the memory is reusable."""
    with pytest.raises(kvxfer.KvxferError) as e:
        pending.wait(PATIENCE)
    assert type(e.value) is kind, repr(e.value)
    assert e.value.released is released, repr(e.value)
    assert e.value.may_have_written or kind in (kvxfer.Closed, kvxfer.DaemonUnavailable)


def works(source: kvxfer.Cache, target: kvxfer.Cache, blocks: list[int], to: list[int]) -> None:
    """The same blocks can be leased again, and a transfer brings every byte."""
    lease = target.lease(to)
    source.write(blocks, to=lease.ticket).wait()
    lease.wait()
    assert np.array_equal(pieces(source)[:, :, blocks], pieces(target)[:, :, to])
    target.evict(to)
    assert target.block_states().free == target.num_blocks
    assert source.block_states().held == 0


GIVEN_UP: dict[str, tuple[Callable[[Midway], object], type[kvxfer.KvxferError], type[kvxfer.KvxferError]]] = {
    "revoke": (lambda m: m.lease.revoke().wait(), kvxfer.LeaseRevoked, kvxfer.LeaseRevoked),
    "cancel": (lambda m: m.push.cancel(), kvxfer.Cancelled, kvxfer.Cancelled),
    "ttl": (lambda m: None, kvxfer.LeaseExpired, kvxfer.LeaseExpired),
    "timeout": (lambda m: None, kvxfer.DeadlineExceeded, kvxfer.DeadlineExceeded),
    "incomplete": (lambda m: m.push.finish(), kvxfer.InvalidArgument, kvxfer.InvalidArgument),
    "source drops": (lambda m: m.source.drop(), kvxfer.Cancelled, kvxfer.Cancelled),
    "target drops": (lambda m: m.target.drop(), kvxfer.LeaseRevoked, kvxfer.LeaseRevoked),
}


@pytest.mark.parametrize("nodes", ["tcp", "shm"], indirect=True)
@pytest.mark.parametrize("how", GIVEN_UP)
def test_given_up(nodes: Nodes, attach: Attach, rng: random.Random, how: str) -> None:
    """Every way to end a transfer early ends it on both sides with the same reason."""
    prefill, decode = (attach(d) for d in nodes)
    source, target = allocate(prefill, "source", seed=1), allocate(decode, "target")
    end, at_source, at_target = GIVEN_UP[how]
    m = begin_short(source, target, rng, how) if how in ("ttl", "timeout") else begin(source, target, rng)
    end(m)
    ends(m.push, at_source)
    ends(m.lease, at_target)
    assert m.push.released
    assert m.lease.released
    if how == "source drops":
        source = allocate(prefill, "source", seed=2)
    if how == "target drops":
        target = allocate(decode, "target")
    works(source, target, m.blocks, m.to)


@pytest.mark.parametrize("nodes", ["tcp", "shm"], indirect=True)
@pytest.mark.parametrize("how", ["kill", "exit", "close"])
def test_source_client_goes(
    nodes: Nodes, attach: Attach, worker: StartWorker, rng: random.Random, how: str
) -> None:
    """The owner hears ClientGone, and the blocks are free for another source."""
    decode = attach(nodes[1])
    target = allocate(decode, "target")
    to = choose(rng, 32, 3)
    lease = target.lease(to, ttl=LONG)
    if how == "close":
        prefill = attach(nodes[0])
        push = allocate(prefill, "source").write([0, 1, 2], to=lease.ticket, layerwise=True)
        push.layer(1)
        lease.wait_layer(1, PATIENCE)
        prefill.close()
        ends(push, kvxfer.Closed, released=False)
    else:
        w = worker(nodes[0])
        w.call("allocate", name="source", layout=dataclasses.asdict(SMALL), num_blocks=3)
        number = w.call("write", cache="source", blocks=[0, 1, 2], ticket=lease.ticket, layerwise=True)
        w.call("layers", push=number, layers=[1])
        lease.wait_layer(1, PATIENCE)
        end(w, how)
    ends(lease, kvxfer.ClientGone)
    works(allocate(attach(nodes[0]), "source", seed=3), target, [4, 3, 1], to)


def end(w: Worker, how: str) -> None:
    """End a worker by SIGKILL, or let it exit with everything open."""
    if how == "kill":
        w.kill()
    else:
        w.send("exit")
        w.process.wait(PATIENCE)


@pytest.mark.parametrize("nodes", ["tcp", "shm"], indirect=True)
@pytest.mark.parametrize("how", ["kill", "exit"])
def test_target_client_goes(
    nodes: Nodes, attach: Attach, worker: StartWorker, rng: random.Random, how: str
) -> None:
    """The source hears ClientGone and has its blocks back; the cache's name is free for a successor."""
    source = allocate(attach(nodes[0]), "source", seed=4)
    w = worker(nodes[1])
    w.call("allocate", name="target", layout=dataclasses.asdict(SMALL), num_blocks=8)
    to = choose(rng, 8, 2)
    _, ticket = w.call("lease", cache="target", blocks=to)
    push = source.write([7, 9], to=ticket, layerwise=True, timeout=LONG)
    push.layer(2)
    until("bytes to arrive", lambda: w.call("visible", lease=0) == [2])
    end(w, how)
    ends(push, kvxfer.ClientGone)
    works(source, allocate(attach(nodes[1]), "target", num_blocks=8), [7, 9], to)


@pytest.mark.parametrize("nodes", ["tcp", "shm"], indirect=True)
@pytest.mark.parametrize("side", ["source", "target"])
def test_daemon_dies(nodes: Nodes, attach: Attach, rng: random.Random, side: str) -> None:
    """The survivor says PeerLost, the dead one's client DaemonUnavailable; after a restart all goes on."""
    prefill, decode = (attach(d) for d in nodes)
    m = begin(allocate(prefill, "source", seed=5), allocate(decode, "target"), rng)
    dead, client = (nodes[0], prefill) if side == "source" else (nodes[1], decode)
    here, there = (m.push, m.lease) if side == "source" else (m.lease, m.push)
    dead.kill()
    ends(there, kvxfer.PeerLost)
    with pytest.raises(kvxfer.DaemonUnavailable):
        here.wait(PATIENCE)
    here.wait_released(PATIENCE)  # the process has really exited
    assert here.released
    with pytest.raises(kvxfer.DaemonUnavailable):
        m.target.lease([0]) if side == "target" else m.source.write([0], to=m.lease.ticket)
    dead.start()
    served = client.reconnect(PATIENCE)
    assert [list(ids) for ids in served.values()] == [[]]
    works(m.source, m.target, m.blocks, m.to)


@pytest.mark.parametrize("side", ["source", "target"])
def test_daemon_stops(nats: NatsServer, daemon: Start, attach: Attach, rng: random.Random, side: str) -> None:
    """A stopped daemon is lost by its peer and outwaited by its client; when it goes on it harms nothing."""
    # With each provider at the same time, since a peer waits six seconds for signs of life.
    all_stopped, clients, midways = [], [], []
    for provider in ("tcp", "shm"):
        args = ["--nats", nats.url, "--providers", provider]
        nodes = [daemon(f"{name}-{provider}", *args) for name in ("prefill", "decode")]
        prefill, decode = (attach(d) for d in nodes)
        source, target = allocate(prefill, "source", seed=6), allocate(decode, "target")
        all_stopped.append(nodes[0] if side == "source" else nodes[1])
        clients.append(prefill if side == "source" else decode)
        midways.append(begin_short(source, target, rng, "timeout" if side == "source" else "ttl", 8))
    for m, stopped in zip(midways, all_stopped, strict=True):
        if side == "source":
            m.push.layer(1)  # in flight, perhaps, when it stops
        stopped.freeze()
    for m in midways:
        for call in calls(m, side):  # none hangs, and none says that memory is safe
            with pytest.raises(kvxfer.DeadlineExceeded) as e:
                call()
            assert e.value.released is False
    for m, client in zip(midways, clients, strict=True):
        here, there = (m.push, m.lease) if side == "source" else (m.lease, m.push)
        ends(there, kvxfer.PeerLost)
        ends(here, kvxfer.DeadlineExceeded, released=False)  # the SDK's own word: the daemon says nothing
        assert not here.released
        with pytest.raises(kvxfer.DeadlineExceeded):
            client.ping(0.1)
    for m, client, stopped in zip(midways, clients, all_stopped, strict=True):
        if side == "source":
            pieces(m.target)[:] = 200  # the owner was told that it is fenced
        stopped.signal(signal.SIGCONT)
        here = m.push if side == "source" else m.lease
        here.wait_released(PATIENCE)
        if side == "target":
            pieces(m.target)[:] = 200
        assert (pieces(m.target) == 200).all()
        until("the daemon to forget the transfer", lambda c=client: sum(counts(c)) == 0)  # type: ignore[misc]
        assert (pieces(m.target) == 200).all()
        works(m.source, m.target, m.blocks, m.to)


def calls(m: Midway, side: str) -> list[Callable[[], object]]:
    """What a client asks of its daemon, with short times."""
    other = min(set(range(m.target.num_blocks)) - set(m.to))
    if side == "source":
        return [
            lambda: m.source.write(m.blocks, to=m.lease.ticket, timeout=0.2),
            lambda: m.source.evict([0], timeout=0.2),
        ]
    return [
        lambda: m.lease.revoke(0.2).wait(),
        lambda: m.target.lease([other], timeout=0.2),
        lambda: m.target.evict([other], timeout=0.2),
    ]


def counts(client: kvxfer.Client) -> tuple[int, int]:
    """Leases and transfers that the daemon knows of."""
    status = client.status()
    return status.leases, status.transfers


@pytest.mark.parametrize("nodes", ["tcp", "shm"], indirect=True)
def test_nobody_listens(nodes: Nodes, attach: Attach) -> None:
    """Without the peer's daemon a push ends before its time; without the own one everything does."""
    prefill, decode = (attach(d) for d in nodes)
    source, target = allocate(prefill, "source"), allocate(decode, "target")
    lease = target.lease([0], ttl=LONG)
    nodes[1].kill()
    with pytest.raises((kvxfer.PeerUnreachable, kvxfer.PeerLost)) as e:
        source.write([0], to=lease.ticket, timeout=LONG).wait(PATIENCE)
    assert e.value.released is True
    assert not e.value.may_have_written
    with pytest.raises(kvxfer.DaemonUnavailable):
        decode.ping()
    with pytest.raises(kvxfer.DaemonUnavailable):
        nodes[1].connect(timeout=1)
    assert decode.daemon_exited(PATIENCE)
    assert not prefill.daemon_exited()


def test_a_worker_reports_types(nodes: Nodes, worker: StartWorker) -> None:
    """The harness itself: an error in the other process arrives with its type."""
    w = worker(nodes[0])
    w.call("allocate", name="source", layout=dataclasses.asdict(SMALL), num_blocks=3)
    with pytest.raises(CallError) as e:
        w.call("write", cache="source", blocks=[0], ticket="kvx1.", layerwise=False)
    assert e.value.name == "TicketInvalid"
