"""Prepared lists: bound once, posted many times, over the ring and over the socket."""

from __future__ import annotations

import random
import signal
import threading
import time
from pathlib import Path

import kvxfer
import numpy as np
import pytest

from conftest import Attach, Start
from contents import allocate, choose, moved, pieces, random_bytes
from daemon import PATIENCE, Daemon

WAYS = ["ring", "socket"]
SIZE = 1 << 20
Regions = tuple[kvxfer.Region, kvxfer.Region]


@pytest.fixture
def one(daemon: Start) -> Daemon:
    """A node for both sides."""
    return daemon("one")


def regions(near: Daemon, far: Daemon, attach: Attach, way: str = "ring") -> Regions:
    """A region of each of two clients."""
    return (
        attach(near, ring=way == "ring").allocate_region("near", SIZE),
        attach(far).allocate_region("far", SIZE),
    )


def scattered(rng: random.Random, count: int) -> list[tuple[int, int, int]]:
    """Ranges that overlap on neither side: (own offset, the peer's, length)."""
    step = SIZE // count
    return [
        (
            i * step + rng.randrange(step // 4),
            j * step + rng.randrange(step // 4),
            rng.randrange(1, step // 2),
        )
        for i, j in enumerate(choose(rng, count, count))
    ]


def check_ranges(near: kvxfer.Region, far: kvxfer.Region, rng: random.Random) -> None:
    """Each post moves exactly the named bytes, as they are then, in both directions."""
    ranges = scattered(rng, 50)
    total = sum(n for _, _, n in ranges)
    far.memory[:] = rng.randbytes(SIZE)
    with far.advertise("write", ttl=PATIENCE) as adv:
        with near.prepare(ranges, to=adv.ticket, timeout=PATIENCE) as prepared:
            assert prepared.bytes == total
            want = far.array.copy()
            for call in (prepared.run, lambda timeout: prepared.post(timeout).wait()):
                near.memory[:] = rng.randbytes(SIZE)
                call(PATIENCE)
                for own, peer, n in ranges:
                    want[peer : peer + n] = near.array[own : own + n]
                assert np.array_equal(far.array, want)
            prepared.finish(notification=b"all")
        end = adv.next_holder().wait(PATIENCE)
        assert (end.notification, end.error) == (b"all", None)
    with far.advertise("read", ttl=PATIENCE) as adv:
        with near.prepare(ranges, source=adv.ticket, timeout=PATIENCE) as prepared:
            want = near.array.copy()
            for _ in range(2):
                far.memory[:] = rng.randbytes(SIZE)
                assert prepared.post(PATIENCE).wait().bytes == total
                for own, peer, n in ranges:
                    want[own : own + n] = far.array[peer : peer + n]
                assert np.array_equal(near.array, want)
        assert prepared.wait().bytes == 2 * total


def check_blocks(source: kvxfer.Cache, target: kvxfer.Cache, rng: random.Random) -> None:
    """Finishing commits a lease, and the blocks that were read into."""
    blocks, to = choose(rng, source.num_blocks, 9), choose(rng, target.num_blocks, 9)
    want = pieces(target).copy()
    with target.lease(to, ttl=PATIENCE) as lease:
        with source.prepare(blocks, to=lease.ticket, timeout=PATIENCE) as prepared:
            for _ in range(3):
                pieces(source)[:] = random_bytes(source.layout, source.num_blocks, rng.getrandbits(32))
                prepared.run(PATIENCE)
                want = moved(pieces(source), blocks, want, to)
                assert np.array_equal(pieces(target), want)
            assert not lease.poll()
            done = prepared.finish(b"token")
        assert lease.wait(PATIENCE).notification == b"token"
    assert done.bytes == 3 * prepared.bytes == 3 * 9 * source.layout.block_bytes
    assert target.block_states().committed == 9
    target.evict(to)

    with target.lease(to, mode="read", ttl=PATIENCE) as offer:
        with source.prepare(blocks, source=offer.ticket, timeout=PATIENCE) as prepared:
            prepared.run(PATIENCE)
            assert source.block_states().committed == 0
        assert np.array_equal(pieces(source)[:, :, blocks], pieces(target)[:, :, to])
        assert prepared.wait().generation != 0
    assert source.block_states().committed == 9
    source.evict(blocks)


def check_many(near: kvxfer.Region, far: kvxfer.Region) -> None:
    """A thousand posts in flight, and several threads with a list each."""
    failed: list[BaseException] = []

    def work(n: int, ticket: str) -> None:
        try:
            near.memory[n * 4096 : (n + 1) * 4096] = bytes([n + 1]) * 4096
            with near.prepare([(n * 4096, n * 4096, 4096)], to=ticket, timeout=PATIENCE) as p:
                for _ in range(100):
                    p.run(PATIENCE)
                assert sum(x.wait().bytes for x in [p.post(PATIENCE) for _ in range(100)]) == 100 * 4096
        except BaseException as e:
            failed.append(e)

    with far.advertise("write", ttl=PATIENCE) as adv:
        with near.prepare([(i * 8192, i * 8192, 64) for i in range(16)], to=adv.ticket) as prepared:
            posts = [prepared.post(PATIENCE) for _ in range(1000)]
            assert sum(p.wait().bytes for p in posts) == 1000 * prepared.bytes
        threads = [threading.Thread(target=work, args=(n, adv.ticket)) for n in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert failed == []
    assert bytes(far.memory[: 4 * 4096]) == b"".join(bytes([n + 1]) * 4096 for n in range(4))


@pytest.mark.parametrize("way", WAYS)
def test_one_daemon(one: Daemon, attach: Attach, rng: random.Random, way: str) -> None:
    """Two clients of one daemon."""
    near, far = regions(one, one, attach, way)
    check_ranges(near, far, rng)
    with far.advertise("write") as adv, near.prepare([(0, 0, 8)], to=adv.ticket) as prepared:
        assert (prepared.way, prepared.provider) == (way, "shm")
    check_many(near, far)
    a, b = attach(one, ring=way == "ring"), attach(one)
    check_blocks(allocate(a, "source"), allocate(b, "target", seed=1), rng)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("pair", ["tcp"], indirect=True)
def test_two_daemons(pair: tuple[Daemon, Daemon], attach: Attach, rng: random.Random, way: str) -> None:
    """Over TCP."""
    near, far = regions(*pair, attach, way)
    check_ranges(near, far, rng)
    check_many(near, far)
    a, b = (attach(d, ring=way == "ring") for d in pair)
    check_blocks(allocate(a, "source"), allocate(b, "target", seed=1), rng)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("pair", "alone"), [("tcp", False), ("shm", False), ("shm", True)], indirect=["pair"]
)
def test_taken_back(
    pair: tuple[Daemon, Daemon], attach: Attach, rng: random.Random, way: str, alone: bool
) -> None:
    """The owner takes its memory back in the middle of posts: when that has returned no byte changes any
    more, whatever the other side still posts, and that side learns why."""
    near, far = regions(pair[0], pair[0] if alone else pair[1], attach, way)
    ranges = [(i * 65536, i * 65536, 65536) for i in range(16)]
    for _ in range(5):
        adv = far.advertise("write", ttl=PATIENCE)
        prepared = near.prepare(ranges, to=adv.ticket, timeout=PATIENCE)
        failed: list[kvxfer.KvxferError] = []
        rounds = [0]

        def work(
            prepared: kvxfer.Prepared = prepared,
            failed: list[kvxfer.KvxferError] = failed,
            rounds: list[int] = rounds,
        ) -> None:
            try:
                while True:
                    near.array[:] = rounds[0] % 251
                    posts = [prepared.post(PATIENCE) for _ in range(3)]
                    for p in posts:
                        p.wait()
                    rounds[0] += 1
            except kvxfer.KvxferError as e:
                failed.append(e)

        thread = threading.Thread(target=work)
        thread.start()
        while rounds[0] < 2:
            time.sleep(0.001)
        time.sleep(rng.random() * 0.005)
        adv.unadvertise(PATIENCE)
        far.array[:] = 255  # in use for something else now
        watched = time.monotonic() + 0.1
        while time.monotonic() < watched or thread.is_alive():
            assert (far.array == 255).all(), "a byte came after its memory was taken back"
        thread.join()
        assert isinstance(failed[0], kvxfer.LeaseRevoked), failed
        for _ in range(20):
            with pytest.raises(kvxfer.LeaseRevoked):
                prepared.post(PATIENCE)
        prepared.wait_released(PATIENCE)
        assert (far.array == 255).all()
        assert adv.released


@pytest.mark.parametrize("way", WAYS)
def test_stopped_and_killed(one: Daemon, attach: Attach, way: str) -> None:
    """Deadlines hold while the daemon stands still; its death ends posts, and its exit frees the memory."""
    near, far = regions(one, one, attach, way)
    adv = far.advertise("write", ttl=PATIENCE)
    stopped = near.prepare([(0, 0, 4096)], to=adv.ticket, timeout=PATIENCE)
    other = near.prepare([(4096, 4096, 4096)], to=adv.ticket, timeout=PATIENCE)
    stopped.run(PATIENCE)
    one.freeze()
    begin = time.monotonic()
    with pytest.raises(kvxfer.DeadlineExceeded) as e:
        stopped.run(timeout=0.1)
    assert 0.1 <= time.monotonic() - begin < PATIENCE / 2
    assert e.value.released is False
    assert e.value.may_have_written
    assert not stopped.released
    with pytest.raises(kvxfer.Cancelled):
        stopped.post()
    one.signal(signal.SIGCONT)
    stopped.wait_released(PATIENCE)
    other.run(PATIENCE)

    one.freeze()
    posts = [other.post(PATIENCE) for _ in range(10)]
    one.kill()
    for p in posts:
        with pytest.raises(kvxfer.DaemonUnavailable) as lost:
            p.wait()
        assert lost.value.released is False
    with pytest.raises(kvxfer.DaemonUnavailable):
        other.run()
    other.wait_released(PATIENCE)
    adv.wait_released(PATIENCE)


@pytest.mark.parametrize("way", WAYS)
def test_closed_with_posts_out(one: Daemon, attach: Attach, way: str) -> None:
    """Closing a client ends its posts, and the daemon keeps nothing (which its fixture checks)."""
    far = attach(one).allocate_region("far", SIZE)
    adv = far.advertise("write", ttl=PATIENCE)
    with one.connect(ring=way == "ring") as client:
        near = client.allocate_region("near", SIZE)
        prepared = near.prepare([(0, 0, SIZE)], to=adv.ticket, timeout=PATIENCE)
        prepared.run(PATIENCE)
        posts = [prepared.post(PATIENCE) for _ in range(200)]
    ended = [p.exception() for p in posts if p.poll()]
    assert len(ended) == 200
    assert all(e is None or isinstance(e, kvxfer.Closed) for e in ended)
    with pytest.raises(kvxfer.Closed):
        prepared.post()
    end = adv.next_holder().wait(PATIENCE)
    assert isinstance(end.error, (kvxfer.ClientGone, kvxfer.Cancelled)), end.error
    adv.unadvertise(PATIENCE)


def cpu_seconds(d: Daemon) -> float:
    """Of all threads, in user and kernel."""
    fields = Path(f"/proc/{d.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def test_idle(one: Daemon, attach: Attach) -> None:
    """A node with a ring and a bound list, and nothing to do, sleeps."""
    near, far = regions(one, one, attach)
    adv = far.advertise("write", ttl=PATIENCE)
    with near.prepare([(0, 0, 4096)], to=adv.ticket, timeout=PATIENCE) as prepared:
        for _ in range(100):
            prepared.run(PATIENCE)
        time.sleep(0.2)
        begin, used = time.monotonic(), cpu_seconds(one)
        time.sleep(2)
        share = (cpu_seconds(one) - used) / (time.monotonic() - begin)
        assert share < 0.03, f"{share:.1%} of a processor while idle"
        prepared.run(PATIENCE)
