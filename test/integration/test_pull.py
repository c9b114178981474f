"""Pulls between two daemons: a peer's blocks read into own ones, and what holds them meanwhile."""

from __future__ import annotations

import asyncio
import random
import signal
import time

import kvxfer
import numpy as np
import pytest

from conftest import Attach, Start
from contents import LAYOUTS, MODEL, SMALL, allocate, choose, moved, pieces
from daemon import PATIENCE, Daemon, until

Pair = tuple[Daemon, Daemon]

COMMITTED, LEASED, HELD = 2, 1, 4


@pytest.fixture
def clients(pair: Pair, attach: Attach) -> tuple[kvxfer.Client, kvxfer.Client]:
    """A client of the prefill node, whose blocks are read, and one of the decode node, which reads."""
    return attach(pair[0]), attach(pair[1])


@pytest.fixture
def caches(
    clients: tuple[kvxfer.Client, kvxfer.Client], rng: random.Random
) -> tuple[kvxfer.Cache, kvxfer.Cache]:
    """A source and a reader of the small layout, with random contents."""
    return (
        allocate(clients[0], "source", seed=rng.getrandbits(32)),
        allocate(clients[1], "reader", seed=rng.getrandbits(32)),
    )


def states(cache: kvxfer.Cache) -> dict[int, int]:
    """The state of every block that is not FREE."""
    s = cache.block_states()
    return dict(zip(s.blocks, s.states, strict=True))


@pytest.mark.parametrize("order", LAYOUTS)
@pytest.mark.parametrize(("pair", "provider"), [("tcp", "tcp"), ("shm", "shm")], indirect=["pair"])
def test_bytes(
    clients: tuple[kvxfer.Client, kvxfer.Client], rng: random.Random, order: str, provider: str
) -> None:
    """Random permuted blocks in every layout: the reader holds exactly them, and all else is as before."""
    layout = LAYOUTS[order]
    source = allocate(clients[0], "source", layout, 37, rng.getrandbits(32))
    reader = allocate(clients[1], "reader", layout, 61, rng.getrandbits(32))
    sent = pieces(source).copy()
    for count in (1, rng.randrange(2, 37), 37):
        blocks, to = choose(rng, 37, count), choose(rng, 61, count)
        want = moved(sent, blocks, pieces(reader), to)
        note = rng.randbytes(20)
        with source.lease(blocks, mode="read", ttl=PATIENCE) as offer:
            assert states(source) == dict.fromkeys(blocks, HELD)
            pull = reader.read(to, source=offer.ticket, timeout=PATIENCE, notification=note)
            done = pull.wait()
            end = offer.next_holder().wait(PATIENCE)
            assert offer.wait(PATIENCE) == kvxfer.OfferResult(1, 0, count * layout.block_bytes)
        assert np.array_equal(pieces(reader), want)
        assert np.array_equal(pieces(source), sent)
        assert (done.blocks, done.bytes, done.peer, done.provider) == (
            count,
            count * layout.block_bytes,
            "prefill",
            provider,
        )
        assert (end.peer, end.notification, end.bytes, end.error) == ("decode", note, done.bytes, None)
        assert end.transfer_id == done.transfer_id == pull.transfer_id
        s = reader.block_states()
        assert dict(zip(s.blocks, s.generations, strict=True)) == dict.fromkeys(to, done.generation)
        assert states(source) == {}
        assert pull.released
        assert offer.released
        reader.evict(to)


def test_several_readers(caches: tuple[kvxfer.Cache, kvxfer.Cache], rng: random.Random) -> None:
    """A lease for n readers is read n times, by then no more; a single one is refused to the second."""
    source, reader = caches
    blocks = choose(rng, 32, 4)
    targets = [list(range(i, i + 4)) for i in (0, 8, 16)]
    offer = source.lease(blocks, mode="read", readers=3, ttl=PATIENCE)
    pulls = [reader.read(to, source=offer.ticket, timeout=PATIENCE) for to in targets]
    for pull, to in zip(pulls, targets, strict=True):
        pull.wait()
        assert np.array_equal(pieces(reader)[:, :, to], pieces(source)[:, :, blocks])
    assert offer.wait(PATIENCE).holders == 3
    assert len(offer.holders()) == 3
    with pytest.raises((kvxfer.TicketBound, kvxfer.TicketInvalid)):
        reader.read([31], source=source_ticket(source, blocks[:1], reader), timeout=PATIENCE).wait()


def source_ticket(source: kvxfer.Cache, blocks: list[int], reader: kvxfer.Cache) -> str:
    """The ticket of a read lease for one reader that was read already."""
    offer = source.lease(blocks, mode="read", ttl=PATIENCE)
    reader.read([30], source=offer.ticket, timeout=PATIENCE).wait()
    offer.wait(PATIENCE)
    return offer.ticket


def test_held_blocks(caches: tuple[kvxfer.Cache, kvxfer.Cache]) -> None:
    """What may be read is not leased for writing; it may be read by more, and evict takes it back."""
    source, reader = caches
    offer = source.lease([1, 2], mode="read", ttl=PATIENCE)
    with pytest.raises(kvxfer.BlocksBusy):
        source.lease([2])
    other = source.lease([2, 3], mode="read", ttl=PATIENCE)
    source.evict([2])
    for lease in (offer, other):
        with pytest.raises(kvxfer.LeaseRevoked):
            lease.wait(PATIENCE)
        assert lease.released
        with pytest.raises((kvxfer.LeaseRevoked, kvxfer.TicketInvalid)):
            reader.read(range(2), source=lease.ticket, timeout=PATIENCE).wait()
    source.lease([2]).revoke().wait(PATIENCE)


def test_own_blocks_are_leased_and_free_after_a_failure(
    caches: tuple[kvxfer.Cache, kvxfer.Cache],
) -> None:
    """While a pull runs nobody leases its blocks; what fails leaves them FREE."""
    source, reader = caches
    with source.lease([0], mode="read", ttl=PATIENCE) as offer:
        reader.read([5], source=offer.ticket, timeout=PATIENCE).wait()
    assert states(reader) == {5: COMMITTED}
    writable = reader.lease([6])
    with pytest.raises(kvxfer.BlocksBusy):
        reader.read([6], source=source.lease([1], mode="read").ticket)
    writable.revoke().wait(PATIENCE)
    offer = source.lease([1], mode="read", ttl=PATIENCE)
    offer.revoke().wait(PATIENCE)
    pull = reader.read([5], source=offer.ticket, timeout=PATIENCE)
    with pytest.raises((kvxfer.LeaseRevoked, kvxfer.TicketInvalid)) as e:
        pull.wait()
    assert not e.value.may_have_written
    pull.wait_released(PATIENCE)
    assert states(reader) == {}


def test_what_does_not_fit(
    clients: tuple[kvxfer.Client, kvxfer.Client], caches: tuple[kvxfer.Cache, kvxfer.Cache]
) -> None:
    """A write lease is not read, a read lease not written; another model is refused by the field's name."""
    source, reader = caches
    before = pieces(reader).copy()
    writable, readable = source.lease([0]), source.lease([1], mode="read")
    with pytest.raises(kvxfer.KvxferError) as e:
        reader.read([0], source=writable.ticket, timeout=PATIENCE).wait()
    assert isinstance(e.value, (kvxfer.InvalidArgument, kvxfer.TicketInvalid, kvxfer.PermissionDenied)), (
        e.value
    )
    with pytest.raises(kvxfer.KvxferError) as e:
        reader.write([0], to=readable.ticket, timeout=PATIENCE).wait()
    assert isinstance(e.value, (kvxfer.InvalidArgument, kvxfer.TicketInvalid, kvxfer.PermissionDenied)), (
        e.value
    )
    other = clients[1].allocate_cache("other", model=MODEL, compat="int4", layout=SMALL, num_blocks=4)
    with pytest.raises(kvxfer.LayoutMismatch) as m:
        other.read([0], source=source.lease([2], mode="read").ticket, timeout=PATIENCE).wait()
    assert m.value.field == "compat"
    with pytest.raises(kvxfer.InvalidArgument) as n:
        reader.read([0, 1], source=source.lease([3], mode="read").ticket, timeout=PATIENCE).wait()
    assert n.value.field == "blocks"
    assert np.array_equal(pieces(reader), before)


def test_renewal_outlives_the_first_end(caches: tuple[kvxfer.Cache, kvxfer.Cache]) -> None:
    """A lease that is renewed can be used after its first time; one that is not ends by itself."""
    source, reader = caches
    kept, left = source.lease([0], mode="read", ttl=2), source.lease([1], mode="read", ttl=2)
    kept.renew(PATIENCE).wait()
    with pytest.raises(kvxfer.LeaseExpired) as e:
        left.wait(PATIENCE)
    assert e.value.released
    with pytest.raises(kvxfer.LeaseExpired):
        left.renew(5).wait()
    reader.read([0], source=kept.ticket, timeout=PATIENCE).wait()
    assert kept.wait(PATIENCE).holders == 1


def test_a_cancelled_pull_of_a_stopped_peer(pair: Pair, caches: tuple[kvxfer.Cache, kvxfer.Cache]) -> None:
    """cancel ends the pull although the peer does not answer; the own blocks are reusable afterwards."""
    source, reader = caches
    offer = source.lease([0], mode="read", ttl=PATIENCE)
    pair[0].freeze()
    pull = reader.read([3], source=offer.ticket, timeout=PATIENCE)
    pull.cancel()
    with pytest.raises((kvxfer.Cancelled, kvxfer.PeerLost, kvxfer.PeerUnreachable)):
        pull.wait()
    pull.wait_released(PATIENCE)
    until("the block to be free", lambda: states(reader) == {})
    pair[0].signal(signal.SIGCONT)
    reader.lease([3]).revoke().wait(PATIENCE)


def test_the_own_daemon_stops(pair: Pair, caches: tuple[kvxfer.Cache, kvxfer.Cache]) -> None:
    """Every wait ends by its deadline and says that the memory is HELD; a later word releases it."""
    source, reader = caches
    offer = source.lease([0], mode="read", ttl=PATIENCE)
    pair[0].freeze()  # so that the pull is not over before
    pulls = [reader.read([i], source=offer.ticket, timeout=1.0) for i in (1,)]
    lease = reader.lease([9], ttl=1.0)
    pair[1].freeze()
    pair[0].signal(signal.SIGCONT)
    start = time.monotonic()
    errors = []
    waiting: list[kvxfer.Pull | kvxfer.Lease] = [*pulls, lease]
    for p in waiting:
        try:
            p.wait()
        except kvxfer.KvxferError as e:
            errors.append(e)
    with pytest.raises(kvxfer.DeadlineExceeded):
        reader.lease([10], timeout=0.2)
    assert time.monotonic() - start < PATIENCE / 2
    assert len(errors) == 2
    assert all(isinstance(e, kvxfer.DeadlineExceeded) for e in errors)
    assert all(e.released is False for e in errors)
    pair[1].signal(signal.SIGCONT)
    lease.wait_released(PATIENCE)
    assert lease.released
    assert errors[-1].released is True
    for p in waiting:
        p.wait_released(PATIENCE)


def test_what_was_read_is_served_after_a_restart(
    nodes: tuple[Daemon, Daemon], attach: Attach, rng: random.Random
) -> None:
    """A pull's blocks are vouched for under their generation, as those of a lease."""
    source = allocate(attach(nodes[0]), "source", seed=rng.getrandbits(32))
    client = attach(nodes[1])
    reader = allocate(client, "reader", seed=rng.getrandbits(32))
    with source.lease([0, 1], mode="read", ttl=PATIENCE) as offer:
        reader.read([7, 3], source=offer.ticket, timeout=PATIENCE).wait()
    reader.evict([3])
    nodes[1].settle()
    nodes[1].kill()
    nodes[1].start()
    assert client.reconnect(PATIENCE)["reader"].tolist() == [7]
    assert states(reader) == {7: COMMITTED}
    assert np.array_equal(pieces(reader)[:, :, 7], pieces(source)[:, :, 0])


def test_within_one_daemon(daemon: Start, attach: Attach, rng: random.Random) -> None:
    """Two clients of one daemon read from one another as those of two do."""
    node = daemon("alone")
    source = allocate(attach(node), "source", seed=rng.getrandbits(32))
    reader = allocate(attach(node), "reader", seed=rng.getrandbits(32))
    with source.lease([4], mode="read", ttl=PATIENCE) as offer:
        reader.read([9], source=offer.ticket, timeout=PATIENCE).wait()
    assert np.array_equal(pieces(reader)[:, :, 9], pieces(source)[:, :, 4])


def test_asyncio(caches: tuple[kvxfer.Cache, kvxfer.Cache]) -> None:
    """Leases, holders and pulls are awaited like everything else."""
    source, reader = caches

    async def main() -> None:
        async with source.lease([0], mode="read", ttl=PATIENCE) as offer:
            pull = reader.read([0], source=offer.ticket, timeout=PATIENCE, notification=b"n")
            holder, done, result = await asyncio.wait_for(
                asyncio.gather(offer.next_holder(), pull, offer), PATIENCE
            )
            assert (holder.notification, holder.bytes, result.bytes) == (b"n", done.bytes, done.bytes)

    asyncio.run(main())
