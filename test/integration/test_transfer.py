"""Transfers between two daemons: every byte where it belongs, and every end with its type."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import functools
import json
import random
import select
import threading
import time

import kvxfer
import numpy as np
import pytest

from conftest import Attach, StartWorker
from contents import LAYOUTS, MODEL, SMALL, allocate, choose, moved, parts, pieces, random_bytes
from daemon import PATIENCE, Daemon, until

Pair = tuple[Daemon, Daemon]

COMMITTED, LEASED, HELD = 2, 1, 4


@pytest.fixture
def clients(pair: Pair, attach: Attach) -> tuple[kvxfer.Client, kvxfer.Client]:
    """A client of the prefill node and one of the decode node."""
    return attach(pair[0]), attach(pair[1])


@pytest.fixture
def caches(
    clients: tuple[kvxfer.Client, kvxfer.Client], rng: random.Random
) -> tuple[kvxfer.Cache, kvxfer.Cache]:
    """A source and a target of the small layout, with random contents."""
    return (
        allocate(clients[0], "source", seed=rng.getrandbits(32)),
        allocate(clients[1], "target", seed=rng.getrandbits(32)),
    )


def states(cache: kvxfer.Cache) -> dict[int, tuple[int, int]]:
    """State and generation of every block that is not FREE; the counts must agree with them."""
    s = cache.block_states()
    assert s.free + s.leased + s.committed + s.revoking + s.held == s.total == cache.num_blocks
    assert s.free == s.total - len(s.blocks)
    rows = zip(s.blocks, s.states, s.generations, strict=True)
    out = {block: (state, generation) for block, state, generation in rows}
    assert len(out) == len(s.blocks), "a block is listed twice"
    return out


@pytest.mark.parametrize("layerwise", [False, True])
@pytest.mark.parametrize("order", LAYOUTS)
@pytest.mark.parametrize(("pair", "provider"), [("tcp", "tcp"), ("shm", "shm")], indirect=["pair"])
def test_bytes(
    clients: tuple[kvxfer.Client, kvxfer.Client],
    rng: random.Random,
    order: str,
    layerwise: bool,
    provider: str,
) -> None:
    """Random permuted blocks in every layout: the target holds exactly them, and all else is as before."""
    layout = LAYOUTS[order]
    # Numbers of blocks that differ: offsets of the two sides have nothing in common.
    source = allocate(clients[0], "source", layout, 37, rng.getrandbits(32))
    target = allocate(clients[1], "target", layout, 61, rng.getrandbits(32))
    sent = pieces(source).copy()
    for count in (1, 2, rng.randrange(3, 37), 37):
        blocks, to = choose(rng, 37, count), choose(rng, 61, count)
        want = moved(sent, blocks, pieces(target), to)
        with target.lease(to) as lease:
            push = source.write(blocks, to=lease.ticket, layerwise=layerwise)
            if layerwise:
                for layer, first, n in parts(rng, layout.layers, count):
                    push.layer(layer, first, n)
                push.finish(b"done")
            done, got = push.wait(), lease.wait()
        assert np.array_equal(pieces(target), want)
        assert np.array_equal(pieces(source), sent)
        axis = 0 if order == "MLA" else 1
        for layer in range(layout.layers):
            k = np.take(source.layer(layer), blocks, axis)
            assert np.array_equal(k, np.take(target.layer(layer), to, axis))
        assert done.bytes == got.bytes == count * layout.block_bytes
        assert done.blocks == got.blocks == count
        assert (done.peer, got.peer) == ("decode", "prefill")
        assert done.provider == got.provider == provider
        assert done.transfer_id == got.transfer_id == push.transfer_id == lease.transfer_id
        assert got.notification == (b"done" if layerwise else b"")
        assert 0 <= done.first_ns <= done.last_ns
        assert 0 < done.busy_ns <= done.last_ns
        target.evict(to)


@pytest.mark.parametrize("layerwise", [False, True])
@pytest.mark.parametrize("size", [0, 64 << 10])
def test_notification(
    caches: tuple[kvxfer.Cache, kvxfer.Cache], rng: random.Random, size: int, layerwise: bool
) -> None:
    """The owner gets the source's bytes as they were given, the largest too; a larger one is refused."""
    source, target = caches
    note = rng.randbytes(size)
    lease = target.lease([3])
    push = source.write([1], to=lease.ticket, layerwise=layerwise, notification=b"" if layerwise else note)
    if layerwise:
        for layer in range(source.layout.layers):
            push.layer(layer)
        with pytest.raises(kvxfer.InvalidArgument) as e:
            push.finish(b"x" * (1 + (64 << 10)))
        assert e.value.field == "notification"
        push.finish(note)
    assert lease.wait().notification == note
    push.wait()


def test_layers_become_visible_one_by_one(
    caches: tuple[kvxfer.Cache, kvxfer.Cache], rng: random.Random
) -> None:
    """wait_layer returns when that layer is whole, in the order in which the source hands them over."""
    source, target = caches
    blocks, to = choose(rng, 32, 8), choose(rng, 32, 8)
    order = choose(rng, SMALL.layers, SMALL.layers)
    want = pieces(target).copy()
    lease = target.lease(to)
    push = source.write(blocks, to=lease.ticket, layerwise=True)
    for i, layer in enumerate(order):
        push.layer(layer, 3)
        with pytest.raises(kvxfer.DeadlineExceeded):
            lease.wait_layer(layer, timeout=0.05)  # three blocks are missing
        push.layer(layer, 0, 3)
        lease.wait_layer(layer)
        assert lease.visible_layers() == sorted(order[: i + 1])
        assert lease.layer(layer).poll()
        want[layer][:, to] = pieces(source)[layer][:, blocks]
        assert np.array_equal(pieces(target), want)
    assert not lease.poll(), "committed before finish"
    assert {s for s, _ in states(target).values()} == {LEASED}
    push.finish()
    lease.wait()
    assert lease.visible_layers() == list(range(SMALL.layers))


def test_ways_to_wait(
    clients: tuple[kvxfer.Client, kvxfer.Client], caches: tuple[kvxfer.Cache, kvxfer.Cache]
) -> None:
    """await, a selectable descriptor and completed() tell the same end as wait."""
    source, target = caches
    for c in clients:
        c.completed()

    async def awaited() -> None:
        async with target.lease([0, 1]) as lease:
            first, middle = lease.layer(0), lease.layer(2)
            push = source.write([4, 5], to=lease.ticket)
            got, done, *_ = await asyncio.wait_for(asyncio.gather(lease, push, first, middle), PATIENCE)
            assert got.transfer_id == done.transfer_id
            assert set(clients[0].completed()) == {push}
            assert set(clients[1].completed()) == {lease, first, middle}

    asyncio.run(awaited())

    lease = target.lease([8])
    push = source.write([8], to=lease.ticket, layerwise=True)
    assert select.select([lease.fileno(), push.fileno()], [], [], 0)[0] == []
    for layer in range(SMALL.layers):
        push.layer(layer)
    push.finish()
    waiting: set[kvxfer.Lease | kvxfer.Push] = {lease, push}
    while waiting:
        ready = select.select([p.fileno() for p in waiting], [], [], PATIENCE)[0]
        assert ready, "no descriptor became readable"
        for p in [p for p in waiting if p.fileno() in ready]:
            assert p.poll()
            waiting.discard(p)
    assert lease.wait().bytes == push.wait().bytes
    assert clients[0].completed() == [push]
    assert clients[1].completed() == [lease]
    assert clients[0].completed() == []


def test_many_at_once(pair: Pair, attach: Attach, worker: StartWorker, rng: random.Random) -> None:
    """Threads and processes that push both ways at the same time do not disturb one another."""
    seeds = [rng.getrandbits(32) for _ in range(6)]
    prefill, decode = attach(pair[0]), attach(pair[1])
    a, b = (
        allocate(prefill, "a", seed=seeds[0], num_blocks=96),
        allocate(decode, "b", seed=seeds[1], num_blocks=96),
    )
    workers = [worker(pair[i % 2]) for i in range(2)]
    for i, w in enumerate(workers):
        w.call("allocate", name=f"w{i}", layout=dataclasses.asdict(SMALL), num_blocks=32, seed=seeds[2 + i])
    want_a, want_b = pieces(a).copy(), pieces(b).copy()
    # Blocks 0..47 of a and b are sources, 48..95 are targets; the workers write to b and a.
    free_a, free_b = choose(rng, 48, 48), choose(rng, 48, 48)
    errors: list[BaseException] = []
    lock = threading.Lock()

    def transfers(
        source: kvxfer.Cache, target: kvxfer.Cache, free: list[int], want: object, seed: int
    ) -> None:
        mine = random.Random(seed)
        try:
            for _ in range(4):
                n = mine.randrange(1, 4)
                with lock:
                    to = [48 + free.pop() for _ in range(n)]
                blocks = choose(mine, 48, n)
                layerwise = mine.random() < 0.5
                with target.lease(to) as lease:
                    push = source.write(blocks, to=lease.ticket, layerwise=layerwise)
                    if layerwise:
                        for part in parts(mine, SMALL.layers, n):
                            push.layer(*part)
                        push.finish()
                    push.wait()
                    lease.wait()
                with lock:
                    assert isinstance(want, np.ndarray)
                    want[:, :, to] = pieces(source)[:, :, blocks]
        except BaseException as e:
            errors.append(e)

    # The workers' transfers run all the while.
    theirs = []
    for i, (w, target, free, want) in enumerate(
        [(workers[0], b, free_b, want_b), (workers[1], a, free_a, want_a)]
    ):
        contents = random_bytes(SMALL, 32, seeds[2 + i])
        for _ in range(4):
            to, blocks = [48 + free.pop() for _ in range(3)], choose(rng, 32, 3)
            want[:, :, to] = contents[:, :, blocks]
            lease = target.lease(to)
            number = w.call("write", cache=f"w{i}", blocks=blocks, ticket=lease.ticket, layerwise=False)
            theirs.append((w, number, lease))
    threads = [
        threading.Thread(target=transfers, args=(*way, rng.getrandbits(32)))
        for way in [(a, b, free_b, want_b), (b, a, free_a, want_a)] * 3
    ]
    for t in threads:
        t.start()
    for w, number, lease in theirs:
        assert w.call("wait_push", push=number) == lease.wait().bytes == 3 * SMALL.block_bytes
    for t in threads:
        t.join(PATIENCE)
        assert not t.is_alive()
    assert not errors, errors
    assert np.array_equal(pieces(a), want_a)
    assert np.array_equal(pieces(b), want_b)
    for client in (prefill, decode):
        until("transfers to be forgotten", functools.partial(idle, client))


def idle(client: kvxfer.Client) -> bool:
    """Whether the daemon knows of no lease and no transfer."""
    status = client.status()
    return (status.leases, status.transfers) == (0, 0)


def test_states_and_generations(caches: tuple[kvxfer.Cache, kvxfer.Cache]) -> None:
    """Blocks go FREE, LEASED, COMMITTED, FREE; no block ever has a generation twice."""
    source, target = caches
    seen: dict[int, set[int]] = {2: set(), 9: set()}
    assert states(target) == states(source) == {}
    for _ in range(3):
        lease = target.lease([9, 2])
        for block in seen:
            assert lease.generation not in seen[block]
            seen[block].add(lease.generation)
        assert states(target) == {9: (LEASED, lease.generation), 2: (LEASED, lease.generation)}
        for busy in (target.lease, target.evict):
            with pytest.raises(kvxfer.BlocksBusy):
                busy([1, 2])
        push = source.write([0, 31], to=lease.ticket, layerwise=True)
        assert states(source) == {0: (HELD, 0), 31: (HELD, 0)}
        with pytest.raises(kvxfer.BlocksBusy):
            source.lease([31])
        for layer in range(SMALL.layers):
            push.layer(layer)
        push.finish()
        assert lease.wait().generation == lease.generation
        push.wait()
        assert push.released
        assert states(source) == {}
        assert states(target) == {9: (COMMITTED, lease.generation), 2: (COMMITTED, lease.generation)}
    target.evict([2, 5])  # 5 is FREE already
    assert states(target) == {9: (COMMITTED, lease.generation)}


def test_committed_blocks_are_sources_too(
    caches: tuple[kvxfer.Cache, kvxfer.Cache], clients: tuple[kvxfer.Client, kvxfer.Client]
) -> None:
    """What was received can be pushed on; meanwhile each block has one state, and it cannot be evicted."""
    source, target = caches
    back = allocate(clients[0], "back")
    lease = target.lease([4, 5])
    source.write([0, 1], to=lease.ticket).wait()
    lease.wait()
    second = back.lease([7])
    push = target.write([4], to=second.ticket, layerwise=True)
    assert states(target) == {4: (HELD, 0), 5: (COMMITTED, lease.generation)}
    with pytest.raises(kvxfer.BlocksBusy):
        target.evict([4, 5])
    for layer in range(SMALL.layers):
        push.layer(layer)
    push.finish()
    push.wait()
    second.wait()
    assert np.array_equal(pieces(back)[:, :, 7], pieces(source)[:, :, 0])
    assert states(target) == {4: (COMMITTED, lease.generation), 5: (COMMITTED, lease.generation)}


def test_hundreds_of_mebibytes(clients: tuple[kvxfer.Client, kvxfer.Client], rng: random.Random) -> None:
    """A quarter of a GiB in one transfer."""
    layout = kvxfer.Layout(layers=8, kv_heads=8, head_dim=128, dtype="float16", block_tokens=256)
    source, target = allocate(clients[0], "source", layout, 34), allocate(clients[1], "target", layout, 33)
    unit = np.frombuffer(rng.randbytes(1 << 16), np.uint8)
    flat = pieces(source).reshape(-1, unit.size)
    flat[:] = unit
    flat[:, :8] = np.arange(len(flat), dtype="<u8").view(np.uint8).reshape(-1, 8)  # every 64 KiB is different
    blocks, to = choose(rng, 34, 32), choose(rng, 33, 32)
    lease = target.lease(to)
    assert source.write(blocks, to=lease.ticket).wait().bytes == 256 << 20
    lease.wait()
    for block, at in zip(blocks, to, strict=True):
        assert np.array_equal(pieces(source)[:, :, block], pieces(target)[:, :, at])
    (rest,) = set(range(33)) - set(to)
    assert not pieces(target)[:, :, rest].any()


OTHER = {
    "layout.layers": 4,
    "layout.kv_heads": 4,
    "layout.head_dim": 16,
    "layout.dtype": "int8",
    "layout.block_tokens": 4,
    "layout.order": "NHD",
    "model": "another",
    "revision": "r2",
    "compat": "int4",
}


def test_mismatch_names_the_field(
    clients: tuple[kvxfer.Client, kvxfer.Client], caches: tuple[kvxfer.Cache, kvxfer.Cache]
) -> None:
    """A source that differs moves nothing and does not use the ticket up."""
    source, target = caches
    before = pieces(target).copy()
    lease = target.lease([0, 1])
    for i, (field, value) in enumerate(OTHER.items()):
        about = {"model": MODEL, "layout": SMALL, **({} if "." in field else {field: value})}
        if "." in field:
            about["layout"] = dataclasses.replace(SMALL, **{field.split(".")[1]: value})  # type: ignore[arg-type]
        wrong = clients[0].allocate_cache(f"wrong-{i}", num_blocks=2, **about)  # type: ignore[arg-type]
        push = wrong.write([0, 1], to=lease.ticket)
        with pytest.raises(kvxfer.LayoutMismatch) as e:
            push.wait()
        assert e.value.field == field
        assert e.value.peer == "decode"
        assert e.value.released is True
        assert not e.value.may_have_written
        assert not e.value.retryable
    rank = clients[0].allocate_cache(
        "rank", model=MODEL, layout=dataclasses.replace(SMALL, tp_rank=1, tp_size=2), num_blocks=2
    )
    with pytest.raises(kvxfer.LayoutMismatch) as e:
        rank.write([0, 1], to=lease.ticket).wait()
    assert e.value.field in ("layout.tp_rank", "layout.tp_size")
    with pytest.raises(kvxfer.InvalidArgument) as few:
        source.write([0], to=lease.ticket).wait()
    assert few.value.field == "blocks"
    assert np.array_equal(pieces(target), before)
    source.write([2, 3], to=lease.ticket).wait()
    lease.wait()


def forged(ticket: str, **changes: object) -> str:
    """A ticket whose grant says something else."""
    head, body = ticket.split(".", 1)
    t = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    t["grants"][0].update(changes)
    return head + "." + base64.urlsafe_b64encode(json.dumps(t).encode()).decode().rstrip("=")


def test_tickets(caches: tuple[kvxfer.Cache, kvxfer.Cache], rng: random.Random) -> None:
    """A ticket works once, for its lease, while that lives; whatever else is shown is refused by its type."""
    source, target = caches
    before = pieces(target).copy()

    def refused(ticket: str, kind: type[kvxfer.KvxferError], blocks: int = 1) -> None:
        with pytest.raises(kind) as e:
            source.write(list(range(blocks)), to=ticket).wait()
        assert type(e.value) is kind
        assert e.value.released is not False
        assert not e.value.may_have_written
        assert not ticket or ticket not in str(e.value)

    lease = target.lease([0])
    for garbage in ("", "kvx1.", "kvx2." + lease.ticket[5:], lease.ticket[:-5], lease.ticket[5:], "kvx1.e30"):
        refused(garbage, kvxfer.TicketInvalid)
    secret = base64.b64encode(rng.randbytes(16)).decode()
    refused(forged(lease.ticket, secret=secret), kvxfer.TicketInvalid)
    refused(forged(lease.ticket, lease=rng.randbytes(16).hex()), kvxfer.TicketInvalid)
    refused(forged(lease.ticket, epoch=rng.randbytes(16).hex()), kvxfer.StaleEpoch)
    refused(forged(lease.ticket, blocks=2), kvxfer.InvalidArgument, blocks=2)

    # The first that shows it has it, also while nothing has moved yet.
    push = source.write([3], to=lease.ticket, layerwise=True)
    push.layer(0)
    lease.wait_layer(0)
    refused(lease.ticket, kvxfer.TicketBound)
    for layer in range(1, SMALL.layers):
        push.layer(layer)
    push.finish()
    push.wait()
    lease.wait()
    before[:, :, 0] = pieces(source)[:, :, 3]
    refused(lease.ticket, kvxfer.TicketBound)

    revoked = target.lease([1])
    revoked.revoke().wait()
    refused(revoked.ticket, kvxfer.LeaseRevoked)
    refused(forged(revoked.ticket, secret=secret), kvxfer.TicketInvalid)
    with pytest.raises(kvxfer.LeaseRevoked):
        revoked.wait()

    expired = target.lease([2], ttl=0.05)
    expired.wait_released(PATIENCE)
    refused(expired.ticket, kvxfer.LeaseExpired)

    assert np.array_equal(pieces(target), before)


def test_a_wait_that_ends_ends_nothing(caches: tuple[kvxfer.Cache, kvxfer.Cache]) -> None:
    """A time-out of a wait is the waiter's own: the lease and the push go on."""
    source, target = caches
    lease = target.lease([0], ttl=PATIENCE)
    push = source.write([0], to=lease.ticket, layerwise=True, timeout=PATIENCE)
    for wait in (lease.wait, push.wait):
        begun = time.monotonic()
        with pytest.raises(kvxfer.DeadlineExceeded):
            wait(timeout=0.05)
        assert time.monotonic() - begun < PATIENCE / 2
    for layer in range(SMALL.layers):
        push.layer(layer)
    push.finish()
    assert lease.wait().bytes == push.wait().bytes
