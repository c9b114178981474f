"""Raw regions between two daemons: ranges of bytes, advertised, written and read."""

from __future__ import annotations

import contextlib
import random
import signal

import kvxfer
import numpy as np
import pytest

from conftest import Attach, Start
from daemon import PATIENCE, Daemon

Pair = tuple[Daemon, Daemon]

SIZE = 1 << 20


@pytest.fixture
def regions(pair: Pair, attach: Attach, rng: random.Random) -> tuple[kvxfer.Region, kvxfer.Region]:
    """A region on each node, with random contents."""
    out = []
    for d, name in zip(pair, ("near", "far"), strict=True):
        region = attach(d).allocate_region(name, SIZE)
        region.memory[:] = rng.randbytes(SIZE)
        out.append(region)
    return out[0], out[1]


def scattered(rng: random.Random, count: int) -> list[tuple[int, int, int]]:
    """Ranges that overlap on neither side: (own offset, the peer's, length)."""
    step = SIZE // count
    theirs = rng.sample(range(count), count)
    out = []
    for i, j in enumerate(theirs):
        n = rng.randrange(1, step)
        out.append((i * step + rng.randrange(step - n), j * step + rng.randrange(step - n), n))
    rng.shuffle(out)
    return out


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("count", [1, 7, 1000])
@pytest.mark.parametrize(("pair", "provider"), [("tcp", "tcp"), ("shm", "shm")], indirect=["pair"])
def test_bytes(
    regions: tuple[kvxfer.Region, kvxfer.Region], rng: random.Random, count: int, packed: bool, provider: str
) -> None:
    """Exactly the named bytes move, in both directions."""
    near, far = regions
    ranges = scattered(rng, count)
    want_far, want_near = far.array.copy(), near.array.copy()
    for own, peer, n in ranges:
        want_far[peer : peer + n] = near.array[own : own + n]
    note = rng.randbytes(20)
    with far.advertise("write", ttl=PATIENCE, uses=1) as adv:
        push = near.writev(
            np.array(ranges) if packed else ranges, to=adv.ticket, timeout=PATIENCE, notification=note
        )
        done, end = push.wait(), adv.next_holder().wait(PATIENCE)
        assert np.array_equal(far.array, want_far)
        total = sum(n for _, _, n in ranges)
        assert adv.wait(PATIENCE) == kvxfer.OfferResult(1, 0, total)
    assert (end.notification, end.peer, end.bytes, end.error) == (note, "prefill", total, None)
    assert (done.bytes, done.peer, done.blocks, done.provider) == (total, "decode", 0, provider)
    assert np.array_equal(near.array, want_near)

    far.memory[:] = rng.randbytes(SIZE)
    for own, peer, n in ranges:
        want_near[own : own + n] = far.array[peer : peer + n]
    with far.advertise("read", ttl=PATIENCE) as adv:
        pull = near.readv(ranges, source=adv.ticket, timeout=PATIENCE, notification=note)
        assert pull.wait().bytes == total
        assert pull.released
        assert np.array_equal(near.array, want_near)
        end = adv.next_holder().wait(PATIENCE)
        assert (end.notification, end.bytes) == (note, total)
        assert not adv.poll()
    assert adv.released


def test_only_what_is_advertised(regions: tuple[kvxfer.Region, kvxfer.Region]) -> None:
    """A range outside the parts, even by one byte, moves nothing and is OutOfBounds."""
    near, far = regions
    before = far.array.copy()
    with far.advertise("write", [(100, 50), (200, 50)], ttl=PATIENCE) as adv:
        for peer, n in ((99, 1), (149, 2), (150, 1), (249, 2), (0, SIZE), (SIZE, 1), (1 << 40, 1)):
            with pytest.raises(kvxfer.OutOfBounds):
                near.writev([(0, peer, min(n, SIZE))], to=adv.ticket, timeout=PATIENCE).wait()
        assert np.array_equal(far.array, before)
        near.writev([(0, 100, 50), (50, 200, 50)], to=adv.ticket, timeout=PATIENCE).wait()
        assert np.array_equal(far.array[100:150], near.array[:50])
        assert np.array_equal(far.array[200:250], near.array[50:100])
        before[100:150], before[200:250] = near.array[:50], near.array[50:100]
        assert np.array_equal(far.array, before)


def test_a_notification_alone(regions: tuple[kvxfer.Region, kvxfer.Region], rng: random.Random) -> None:
    """Without ranges only the notification is delivered, the largest too."""
    near, far = regions
    before = far.array.copy()
    with far.advertise("write", ttl=PATIENCE) as adv:
        for size in (0, 1, 64 << 10):
            note = rng.randbytes(size)
            assert near.writev([], to=adv.ticket, timeout=PATIENCE, notification=note).wait().bytes == 0
            assert adv.next_holder().wait(PATIENCE).notification == note
    assert np.array_equal(far.array, before)


def test_uses_and_modes(regions: tuple[kvxfer.Region, kvxfer.Region]) -> None:
    """An advertisement takes as many transfers as it says, of its own mode alone."""
    near, far = regions
    adv = far.advertise("write", uses=2, ttl=PATIENCE)
    with pytest.raises(kvxfer.KvxferError) as e:
        near.readv([(0, 0, 1)], source=adv.ticket, timeout=PATIENCE).wait()
    assert isinstance(e.value, (kvxfer.InvalidArgument, kvxfer.TicketInvalid, kvxfer.PermissionDenied)), (
        e.value
    )
    for _ in range(2):
        near.writev([(0, 0, 1)], to=adv.ticket, timeout=PATIENCE).wait()
    assert adv.wait(PATIENCE).holders == 2
    with pytest.raises((kvxfer.TicketBound, kvxfer.TicketInvalid)):
        near.writev([(0, 0, 1)], to=adv.ticket, timeout=PATIENCE).wait()


def test_unadvertise_and_deregister_fence(regions: tuple[kvxfer.Region, kvxfer.Region]) -> None:
    """When they return no byte can land: the peer hears of it, and what is patterned then stays so."""
    near, far = regions
    adv = far.advertise("write", ttl=PATIENCE)
    running = [near.writev([(0, 0, SIZE)], to=adv.ticket, timeout=PATIENCE) for _ in range(8)]
    adv.unadvertise(PATIENCE)
    far.memory[:] = b"\xa5" * SIZE
    for push in running:
        with contextlib.suppress(kvxfer.LeaseRevoked, kvxfer.TicketInvalid):
            push.wait()
        push.wait_released(PATIENCE)
    assert far.array.min() == far.array.max() == 0xA5
    assert adv.released

    adv = far.advertise("write", ttl=PATIENCE)
    view = far.array
    running = [near.writev([(0, 0, SIZE)], to=adv.ticket, timeout=PATIENCE) for _ in range(8)]
    far.deregister(PATIENCE)
    view[:] = 0x5A
    for push in running:
        with contextlib.suppress(kvxfer.TransferError):
            push.wait()
        push.wait_released(PATIENCE)
    assert view.min() == view.max() == 0x5A
    with pytest.raises(kvxfer.LeaseRevoked):
        adv.wait(PATIENCE)
    assert adv.released


def test_renewal(regions: tuple[kvxfer.Region, kvxfer.Region]) -> None:
    """An advertisement that is renewed lasts, one that is not expires."""
    near, far = regions
    kept, left = far.advertise("write", ttl=2), far.advertise("write", ttl=2)
    kept.renew(PATIENCE).wait()
    with pytest.raises(kvxfer.LeaseExpired):
        left.wait(PATIENCE)
    near.writev([(0, 0, 8)], to=kept.ticket, timeout=PATIENCE).wait()
    with pytest.raises((kvxfer.LeaseExpired, kvxfer.TicketInvalid)):
        near.writev([(0, 0, 8)], to=left.ticket, timeout=PATIENCE).wait()
    kept.unadvertise(PATIENCE)


def test_the_peer_stops(pair: Pair, regions: tuple[kvxfer.Region, kvxfer.Region]) -> None:
    """A transfer to a node that stands ends by its deadline, and by cancel."""
    near, far = regions
    adv = far.advertise("write", ttl=PATIENCE)
    pair[1].freeze()
    timed = near.writev([(0, 0, SIZE)], to=adv.ticket, timeout=0.5)
    other = near.writev([(0, 0, SIZE)], to=adv.ticket, timeout=PATIENCE)
    other.cancel()
    for p in (timed, other):
        with pytest.raises(kvxfer.TransferError):
            p.wait()
        p.wait_released(PATIENCE)
    pair[1].signal(signal.SIGCONT)
    adv.unadvertise(PATIENCE)


def test_within_one_daemon(daemon: Start, attach: Attach) -> None:
    """Two regions of one client."""
    client = attach(daemon("alone"))
    a, b = client.allocate_region("a", 100), client.allocate_region("b", 100)
    a.memory[:5] = b"hello"
    with b.advertise("write", ttl=PATIENCE) as adv:
        a.writev([(0, 95, 5)], to=adv.ticket, timeout=PATIENCE).wait()
    assert bytes(b.memory[95:]) == b"hello"
    with pytest.raises(kvxfer.AlreadyExists):
        client.allocate_region("a", 100)


def test_a_restart(nodes: tuple[Daemon, Daemon], attach: Attach) -> None:
    """Regions are handed over again; what was advertised is over, and fenced by the daemon's exit."""
    near = attach(nodes[0]).allocate_region("near", 100)
    client = attach(nodes[1])
    far = client.allocate_region("far", 100)
    adv = far.advertise("write", ttl=PATIENCE)
    nodes[1].kill()
    nodes[1].start()
    client.reconnect(PATIENCE)
    adv.wait_released(PATIENCE)
    with pytest.raises((kvxfer.StaleEpoch, kvxfer.TicketInvalid, kvxfer.PeerUnreachable)):
        near.writev([(0, 0, 1)], to=adv.ticket, timeout=PATIENCE).wait()
    again = far.advertise("write", ttl=PATIENCE)
    near.writev([(0, 0, 1)], to=again.ticket, timeout=PATIENCE).wait()
    assert far.memory[0] == near.memory[0]
