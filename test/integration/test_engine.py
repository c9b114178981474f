"""An engine of two ranks on two daemons, by the SDK: leased by whoever has its key, written under one ticket,
committed on every rank or on none."""

from __future__ import annotations

import dataclasses
import random
import secrets
from typing import Any

import kvxfer
import numpy as np
import pytest

from conftest import Attach, Start, StartWorker
from contents import MODEL, SMALL, choose, pieces, random_bytes
from daemon import PATIENCE, Daemon, NatsServer, until
from worker import Worker

KEY = b"what this engine's processes know"
RANKS = 2
LONG = 600.0
"""Seconds for what must end before its time."""

TP = [dataclasses.replace(SMALL, tp_rank=r, tp_size=RANKS) for r in range(RANKS)]


def rank(client: kvxfer.Client, instance: str, r: int, seed: int | None = None, **about: Any) -> kvxfer.Cache:
    """A rank's cache of 16 blocks, with random contents where a seed is given."""
    about = {"model": MODEL, "instance": instance, "instance_key": KEY, **about}
    cache = client.allocate_cache(f"{instance}-{r}", layout=TP[r], num_blocks=16, **about)
    if seed is not None:
        pieces(cache)[:] = random_bytes(TP[r], 16, seed)
    return cache


class Engines:
    """A decode engine with a rank on each of two nodes, its router on a third node, which has no memory, and
    two prefill engines there."""

    def __init__(self, daemons: list[Daemon], attach: Attach, rng: random.Random, ranks: int = RANKS) -> None:
        """ranks: of the decode engine, how many are made here."""
        self._rng = rng
        self.clients = [attach(d) for d in daemons[:RANKS]]
        self.decode = [rank(c, "decode", r) for r, c in enumerate(self.clients[:ranks])]
        self.prefiller = attach(daemons[RANKS])
        self.prefill = [rank(self.prefiller, "prefill", r, rng.getrandbits(32)) for r in range(RANKS)]
        self.router = attach(daemons[RANKS])

    def lease(self, blocks: list[int], ttl: float = LONG) -> kvxfer.Lease:
        """A lease on every rank, as soon as the directory knows them."""
        leases: list[kvxfer.Lease] = []

        def granted() -> bool:
            try:
                leases.append(self.router.lease(instance="decode", instance_key=KEY, blocks=blocks, ttl=ttl))
            except kvxfer.NotFound:
                return False
            return True

        until("the ranks to be known", granted)
        assert leases[0].ranks == RANKS
        return leases[0]

    def check(self, blocks: list[int], to: list[int]) -> None:
        """Every rank's blocks hold its counterpart's."""
        for source, target in zip(self.prefill, self.decode, strict=True):
            assert np.array_equal(pieces(source)[:, :, blocks], pieces(target)[:, :, to])


@pytest.fixture
def daemons(nats: NatsServer, daemon: Start, request: pytest.FixtureRequest) -> list[Daemon]:
    """Of the two ranks and of the third process; a parameter names their provider."""
    args = ["--providers", request.param] if hasattr(request, "param") else []
    return [daemon(name, "--nats", nats.url, *args) for name in ("d0", "d1", "p")]


both = pytest.mark.parametrize("daemons", ["tcp", "shm"], indirect=True)


def pushed(caches: list[kvxfer.Cache], blocks: list[int], ticket: str, **more: Any) -> list[kvxfer.Push]:
    """Whole pushes of all ranks under one new transfer id."""
    transfer = secrets.token_hex(16)
    return [c.write(blocks, to=ticket, transfer_id=transfer, timeout=LONG, **more) for c in caches]


def refused(push: kvxfer.Push, kind: type[kvxfer.TransferError]) -> None:
    """It ends with exactly that error, and no byte has moved."""
    with pytest.raises(kvxfer.TransferError) as e:
        push.wait(PATIENCE)
    assert type(e.value) is kind, repr(e.value)
    assert not e.value.may_have_written


def free(cache: kvxfer.Cache) -> bool:
    """Whether all its blocks are FREE."""
    return cache.block_states().free == cache.num_blocks


@both
def test_written_under_one_ticket(daemons: list[Daemon], attach: Attach, rng: random.Random) -> None:
    """The router asks, the ranks hear of it, both prefill ranks push: one commit, layer by layer visible."""
    e = Engines(daemons, attach, rng)
    blocks, to = choose(rng, 16, 5), choose(rng, 16, 5)
    before = [pieces(c).copy() for c in e.decode]
    lease = e.lease(to)
    parts = [c.granted(lease.lease_id).wait(PATIENCE) for c in e.decode]
    assert [list(p.blocks) for p in parts] == [to, to]
    transfer = secrets.token_hex(16)
    slow = e.prefill[1].write(blocks, to=lease.ticket, layerwise=True, transfer_id=transfer, timeout=LONG)
    slow.layer(0)
    parts[1].wait_layer(0, PATIENCE)
    e.prefill[0].write(blocks, to=lease.ticket, transfer_id=transfer, notification=b"rank 0").wait()
    got = parts[0].wait(PATIENCE)
    assert (got.bytes, got.peer) == (5 * SMALL.block_bytes, "p")
    lease.wait_layer(0, PATIENCE)  # on every rank
    with pytest.raises(kvxfer.DeadlineExceeded):
        lease.wait_layer(1, 0.05)
    assert not lease.poll(), "rank 1 is not written yet"
    for layer in range(1, SMALL.layers):
        slow.layer(layer)
    slow.finish()
    assert slow.wait(PATIENCE).transfer_id == transfer
    done = lease.wait(PATIENCE)
    assert (done.bytes, done.notification, done.transfer_id) == (10 * SMALL.block_bytes, b"rank 0", transfer)
    e.check(blocks, to)
    for c, part, was in zip(e.decode, parts, before, strict=True):
        states = c.block_states()
        assert dict(zip(states.blocks, states.generations, strict=True)) == dict.fromkeys(
            to, part.wait(PATIENCE).generation
        )
        rest = sorted(set(range(16)) - set(to))
        assert np.array_equal(pieces(c)[:, :, rest], was[:, :, rest])


def test_read_under_one_ticket(daemons: list[Daemon], attach: Attach, rng: random.Random) -> None:
    """A read lease over the prefill engine: each decode rank reads its counterpart."""
    e = Engines(daemons, attach, rng)
    e.lease([0]).revoke().wait(PATIENCE)  # all ranks are known
    lease = e.router.lease(instance="prefill", instance_key=KEY, blocks=[3, 1], mode="read", ttl=LONG)
    parts = [c.granted(lease.lease_id, "read").wait(PATIENCE) for c in e.prefill]
    transfer = secrets.token_hex(16)
    for c in e.decode:
        c.read([7, 8], source=lease.ticket, transfer_id=transfer, timeout=LONG).wait()
    e.check([3, 1], [7, 8])
    assert lease.wait(PATIENCE).bytes == 2 * 2 * SMALL.block_bytes
    for part in parts:
        assert part.next_holder().wait(PATIENCE).error is None
        part.wait(PATIENCE)
    assert all(free(c) for c in e.prefill)


def test_a_hedge_is_refused_on_every_rank(daemons: list[Daemon], attach: Attach, rng: random.Random) -> None:
    """The first transfer that shows the ticket on one rank has it on all: a second engine gets none."""
    e = Engines(daemons, attach, rng)
    hedge = [rank(e.prefiller, "hedge", r, 7) for r in range(RANKS)]
    lease = e.lease([4, 2])
    transfer = secrets.token_hex(16)
    first = e.prefill[1].write([5, 6], to=lease.ticket, transfer_id=transfer, timeout=LONG)
    first.wait()
    for push in pushed(hedge, [0, 1], lease.ticket):  # rank 0 is not bound yet
        refused(push, kvxfer.TicketBound)
    e.prefill[0].write([5, 6], to=lease.ticket, transfer_id=transfer, timeout=LONG).wait()
    lease.wait(PATIENCE)
    e.check([5, 6], [4, 2])


def test_a_retry_waits_for_the_fence(daemons: list[Daemon], attach: Attach, rng: random.Random) -> None:
    """A further attempt has a lease of its own and a higher number, and comes behind the first's fence."""
    e = Engines(daemons, attach, rng)
    transfer = secrets.token_hex(16)
    lease = e.lease([1])
    first = e.prefill[0].write([9], to=lease.ticket, layerwise=True, transfer_id=transfer, timeout=LONG)
    first.layer(0)
    e.decode[0].granted(lease.lease_id).wait(PATIENCE).wait_layer(0, PATIENCE)
    again = e.lease([2])

    def attempt(r: int, number: int) -> kvxfer.Push:
        return e.prefill[r].write(
            [9], to=again.ticket, transfer_id=transfer, attempt=number, timeout=LONG, instance="prefill"
        )

    refused(attempt(0, 1), kvxfer.TicketBound)
    with pytest.raises(kvxfer.BlocksBusy):
        attempt(0, 2).wait(PATIENCE)
    lease.revoke().wait(PATIENCE)
    with pytest.raises(kvxfer.LeaseRevoked):
        first.wait(PATIENCE)
    for c in e.decode:
        pieces(c)[:, :, 1] = 200
    for push in [attempt(r, 2) for r in range(RANKS)]:
        push.wait(PATIENCE)
    assert again.wait(PATIENCE).transfer_id == transfer
    e.check([9], [2])
    assert all((pieces(c)[:, :, 1] == 200).all() for c in e.decode)


@both
def test_a_ranks_client_is_killed(
    daemons: list[Daemon], attach: Attach, worker: StartWorker, rng: random.Random
) -> None:
    """One rank had everything, the other's process dies: the lease ends for both, nothing is committed."""
    e = Engines(daemons, attach, rng, ranks=1)
    w = worker(daemons[1])
    allocate_rank(w, 1)
    lease = e.lease([3, 5])
    transfer = secrets.token_hex(16)
    pushes = [
        c.write([0, 1], to=lease.ticket, layerwise=True, transfer_id=transfer, timeout=LONG)
        for c in e.prefill
    ]
    finish(pushes[0])
    pushes[0].wait(PATIENCE)
    part = e.decode[0].granted(lease.lease_id).wait(PATIENCE)
    part.wait(PATIENCE)
    pushes[1].layer(0)
    until("bytes to arrive", lambda: w.call("granted_layers", cache="decode-1", lease_id=lease.lease_id))
    w.kill()
    with pytest.raises(kvxfer.ClientGone) as gone:
        lease.wait(PATIENCE)
    assert gone.value.released is True
    with pytest.raises(kvxfer.ClientGone):
        pushes[1].wait(PATIENCE)
    until("rank 0's blocks to be evicted", lambda: free(e.decode[0]))
    with pytest.raises((kvxfer.NotFound, kvxfer.PeerLost)):  # not a lease on one rank of two
        e.router.lease(instance="decode", instance_key=KEY, blocks=[3])
    e.decode.append(rank(e.clients[1], "decode", 1))
    works(e, [3, 5])


@both
def test_a_ranks_daemon_is_killed(daemons: list[Daemon], attach: Attach, rng: random.Random) -> None:
    """The same when its daemon dies; when that is back and the client too, the engine is whole again."""
    e = Engines(daemons, attach, rng)
    lease = e.lease([3, 5])
    transfer = secrets.token_hex(16)
    pushes = [
        c.write([0, 1], to=lease.ticket, layerwise=True, transfer_id=transfer, timeout=LONG)
        for c in e.prefill
    ]
    finish(pushes[0])
    pushes[0].wait(PATIENCE)
    pushes[1].layer(0)
    part = e.decode[1].granted(lease.lease_id).wait(PATIENCE)
    part.wait_layer(0, PATIENCE)
    daemons[1].kill()
    with pytest.raises(kvxfer.PeerLost) as lost:
        lease.wait(PATIENCE)
    assert lost.value.peer == "d1"
    with pytest.raises(kvxfer.PeerLost):
        pushes[1].wait(PATIENCE)
    with pytest.raises(kvxfer.DaemonUnavailable):
        part.wait(PATIENCE)
    part.wait_released(PATIENCE)
    until("rank 0's blocks to be evicted", lambda: free(e.decode[0]))
    daemons[1].start()
    assert [list(ids) for ids in e.clients[1].reconnect(PATIENCE).values()] == [[]]
    works(e, [3, 5])


def test_who_may_ask(daemons: list[Daemon], attach: Attach, rng: random.Random) -> None:
    """A wrong key, an unknown engine, a busy or wrong block on one rank: no rank is leased."""
    e = Engines(daemons, attach, rng)
    e.lease([0]).revoke().wait(PATIENCE)
    mine = e.decode[1].lease([6], ttl=LONG)

    def ask(kind: type[kvxfer.KvxferError], **changes: Any) -> kvxfer.KvxferError:
        request: dict[str, Any] = {"instance": "decode", "instance_key": KEY, "blocks": [1], **changes}
        with pytest.raises(kvxfer.KvxferError) as refusal:
            e.router.lease(**request)
        assert type(refusal.value) is kind, repr(refusal.value)
        return refusal.value

    ask(kvxfer.PermissionDenied, instance_key=b"x" * 16)
    ask(kvxfer.NotFound, instance="nobody")
    assert ask(kvxfer.BlocksBusy, blocks=[5, 6]).peer == "d1"
    assert ask(kvxfer.InvalidArgument, blocks=[16]).field == "blocks"
    assert [c.block_states().leased for c in e.decode] == [0, 1]
    mine.revoke().wait(PATIENCE)


@pytest.mark.parametrize("field", ["model", "revision", "compat"])
def test_another_kind_moves_nothing(
    daemons: list[Daemon], attach: Attach, rng: random.Random, field: str
) -> None:
    """A source engine that differs is refused by the field's name on every rank; the ticket stays good."""
    e = Engines(daemons, attach, rng)
    before = [pieces(c).copy() for c in e.decode]
    lease = e.lease([3, 5])
    wrong = [rank(e.prefiller, "wrong", r, 3, **{field: "another"}) for r in range(RANKS)]
    for push in pushed(wrong, [0, 1], lease.ticket):
        with pytest.raises(kvxfer.LayoutMismatch) as mismatch:
            push.wait(PATIENCE)
        assert mismatch.value.field == field
        assert not mismatch.value.may_have_written
    assert all(np.array_equal(pieces(c), was) for c, was in zip(e.decode, before, strict=True))
    for push in pushed(e.prefill, [0, 1], lease.ticket):
        push.wait(PATIENCE)
    lease.wait(PATIENCE)
    e.check([0, 1], [3, 5])


def allocate_rank(w: Worker, r: int) -> None:
    """A decode rank in a process of its own."""
    about = {"instance": "decode", "instance_key": KEY.decode()}
    w.call("allocate", name=f"decode-{r}", layout=dataclasses.asdict(TP[r]), num_blocks=16, **about)


def finish(push: kvxfer.Push) -> None:
    """Hand all layers over."""
    for layer in range(SMALL.layers):
        push.layer(layer)
    push.finish()


def works(e: Engines, to: list[int]) -> None:
    """The engine can be leased again, and every byte arrives."""
    lease = e.lease(to)
    for push in pushed(e.prefill, [8, 2], lease.ticket):
        push.wait(PATIENCE)
    lease.wait(PATIENCE)
    e.check([8, 2], to)
