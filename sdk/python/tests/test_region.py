"""Raw regions: advertisements and scatters."""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Callable
from typing import Any

import fakedaemon as fd
import numpy
import pytest
from conftest import DaemonProcess, eventually
from fakedaemon import FakeDaemon

import kvxfer
from kvxfer import _blocks, _ranges

SIZE = 10_000


@pytest.fixture
def region(client: kvxfer.Client) -> kvxfer.Region:
    return client.allocate_region("r0", SIZE)


def test_memory_is_shared(daemon: FakeDaemon, client: kvxfer.Client) -> None:
    region = client.allocate_region("r0", SIZE)
    got = daemon.wait_for(fd.REGISTER_REGION)[0].body
    assert (got["name"], got["kind"], got["size"]) == ("r0", "memfd", 12288)
    assert daemon.count(fd.REGISTER_CACHE) == 0
    assert region.size == len(region.memory) == SIZE and region.guarantee == "full"
    assert region.array.shape == (SIZE,) and region.array.dtype == numpy.uint8
    region.array[7] = 42
    (number,) = daemon.regions
    with daemon.region_map(number) as m:
        assert m[7] == 42
    for size in (0, -1, (1 << 62) + 1, "5"):
        with pytest.raises(kvxfer.InvalidArgument) as e:
            client.allocate_region("r1", size)  # type: ignore[arg-type]
        assert e.value.field == "size"
    with pytest.raises(kvxfer.ResourceExhausted) as r:
        client.allocate_region("r1", 1 << 60)
    assert (r.value.field, r.value.op) == ("size", "allocate_region")
    view = region.array
    region.deregister()
    assert daemon.regions == {} and view[7] == 42
    region.deregister()
    for call in (lambda: region.array, lambda: region.memory, region.advertise):
        with pytest.raises(kvxfer.Closed):
            call()
    client.allocate_region("r0", SIZE)


def test_what_the_daemon_promises_is_shown(daemon: FakeDaemon, client: kvxfer.Client) -> None:
    def register(peer: fd.Peer, got: fd.Got) -> None:
        daemon.regions[5] = (got.fds[0], got.body["size"], 0)
        peer.ok(got, {"region": 5, "memory_kind": "process", "guarantee": "live-client-only"})

    daemon.on[fd.REGISTER_REGION] = register
    region = client.allocate_region("r", 10)
    assert region.guarantee == "live-client-only"
    scatter = region.writev([(0, 0, 1)], to="t")
    daemon.peer.transfer_ended(daemon.next_id, guarantee="live-client-only")
    assert scatter.wait(20).guarantee == "live-client-only"


def test_advertise(daemon: FakeDaemon, client: kvxfer.Client, region: kvxfer.Region) -> None:
    (number,) = daemon.regions
    adv = region.advertise("write", [(0, 16), (64, 32)], uses=2, ttl=20)
    got = daemon.wait_for(fd.ADVERTISE)[0]
    assert {k: got.body[k] for k in ("region", "mode", "uses", "ttl_ms")} == {
        "region": number,
        "mode": "write",
        "uses": 2,
        "ttl_ms": 20_000,
    }
    assert got.array == struct.pack("<4Q", 0, 16, 64, 32)
    assert (adv.ticket, adv.mode, adv.lease_id) == (fd.TICKET, "write", fd.LEASE_ID)
    lease = daemon.next_id
    for note in (b"one", b"two"):
        daemon.peer.holder_ended(lease, note)
    assert adv.next_holder().wait(20).notification == b"one"
    eventually(lambda: adv._ends)
    assert [h.notification for h in adv.holders()] == [b"two"]
    daemon.peer.lease_ended(lease, generation=0)
    assert adv.wait(20) == kvxfer.OfferResult(2, 0, 128)
    whole = region.advertise("read")
    got = daemon.wait_for(fd.ADVERTISE, 2)[1]
    assert got.array == b"" and "uses" not in got.body and got.body["mode"] == "read"
    assert not whole.poll()


def test_unadvertise_returns_behind_the_fence(daemon: FakeDaemon, region: kvxfer.Region) -> None:
    adv = region.advertise()
    lease = daemon.next_id
    with pytest.raises(kvxfer.DeadlineExceeded) as e:
        adv.unadvertise(timeout=0.05)
    assert e.value.released is False and not adv.released
    daemon.peer.lease_ended(lease, error=fd.REVOKED)
    adv.unadvertise(timeout=20)
    assert adv.released and daemon.count(fd.REVOKE) == 1
    with pytest.raises(kvxfer.LeaseRevoked):
        adv.wait(0)


def test_deregister_fences_advertisements(daemon: FakeDaemon, region: kvxfer.Region) -> None:
    adv, scatter = region.advertise(), region.writev([], to="t")
    fence = adv.revoke()
    waiting: list[fd.Got] = []
    daemon.on[fd.DEREGISTER_REGION] = lambda peer, got: waiting.append(got)
    with pytest.raises(kvxfer.DeadlineExceeded) as e:
        region.deregister(timeout=0.05)
    assert e.value.released is False and not adv.released
    daemon.on[fd.DEREGISTER_REGION] = FakeDaemon.answer
    region.deregister(timeout=20)
    fence.wait(20)
    assert adv.released and scatter.released
    assert isinstance(adv.exception(), kvxfer.LeaseRevoked)
    assert isinstance(scatter.exception(), kvxfer.Cancelled)


def test_scatter(daemon: FakeDaemon, client: kvxfer.Client, region: kvxfer.Region) -> None:
    ranges = [(0, 100, 8), (50, 1 << 40, 16)]
    wrote = region.writev(
        ranges,
        to="kvx1.w",
        timeout=20,
        notification=b"done",
        transfer_id="ab" * 16,
        attempt=3,
        provider="shm",
    )
    first = daemon.next_id
    read = region.readv(numpy.array(ranges), source="kvx1.r", timeout=20)
    got = daemon.wait_for(fd.SCATTER, 2)
    assert got[0].array == got[1].array == struct.pack("<6Q", 0, 100, 8, 50, 1 << 40, 16)
    assert [(g.body["mode"], g.body["ticket"]) for g in got] == [("write", "kvx1.w"), ("read", "kvx1.r")]
    assert (got[0].body["notification"], got[0].body["attempt"]) == ("ZG9uZQ==", 3)
    assert got[0].body["provider"] == "shm"
    daemon.peer.transfer_ended(first, blocks=0, bytes=24)
    assert (wrote.wait(20).bytes, wrote.released) == (24, True)
    error = {"code": 31, "name": "OutOfBounds", "may_have_written": True}
    daemon.peer.transfer_ended(first + 1, released=False, error=error)
    with pytest.raises(kvxfer.OutOfBounds) as e:
        read.wait(20)
    assert e.value.may_have_written and not read.released
    daemon.peer.released(first + 1)
    read.wait_released(20)
    note = region.writev([], to="t", notification=b"only this")
    assert daemon.wait_for(fd.SCATTER, 3)[2].array == b""
    note.cancel()
    assert daemon.wait_for(fd.PUSH_CANCEL)[0].body == {"transfer": daemon.next_id}
    assert {wrote, read} <= set(client.completed())


def test_the_sdk_keeps_the_deadline(daemon: FakeDaemon, region: kvxfer.Region) -> None:
    scatter = region.readv([(0, 0, 1)], source="t", timeout=0.1)
    adv = region.advertise(ttl=0.1)
    daemon.running.clear()
    start = time.monotonic()
    for p in (scatter, adv):
        with pytest.raises(kvxfer.DeadlineExceeded) as e:
            p.wait()
        assert e.value.released is False and e.value.may_have_written
    assert time.monotonic() - start < 20
    daemon.running.set()
    daemon.wait_for(fd.REVOKE)
    daemon.wait_for(fd.PUSH_CANCEL)


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        ([(0, 0, 0)], r"ranges\[0\] has 0 bytes from 0, allowed at least 1 byte within 0\.\.10000"),
        ([(0, 0, 1), (9_999, 0, 2)], r"ranges\[1\] has 2 bytes from 9999"),
        ([(0, 0, SIZE + 1)], r"ranges\[0\]"),
        ([((1 << 64) - 1, 0, 2)], r"ranges\[0\]"),
        ([(0, 1 << 62, 1)], r"ranges\[0\] ends at 4611686018427387905 of the peer"),
        ([(0, 0)], r"ranges\[0\] is \(0, 0\), allowed 3 integers"),
        ([(0, 0, 1, 1)], r"allowed 3 integers"),
        ([(-1, 0, 1)], r"ranges\[0\] is \(-1, 0, 1\)"),
        ([(0, 0, 1 << 64)], r"ranges\[0\]"),
        ([(0, 0, 1.5)], r"ranges\[0\]"),
        ([5], r"ranges\[0\] is 5"),
        (7, r"a int, allowed a sequence"),
        (numpy.zeros((2, 2), "u8"), r"an array of uint64 \(2, 2\), allowed integers \(N, 3\)"),
        (numpy.zeros((2, 3)), r"an array of float64"),
        (numpy.array([(0, 0, 1), (0, -5, 1)]), r"ranges\[1\] is \(0, -5, 1\), allowed no negative"),
        (numpy.array([(0, 0, 1), (SIZE, 0, 1)]), r"ranges\[1\] has 1 bytes from 10000"),
    ],
)
def test_ranges_are_checked(region: kvxfer.Region, ranges: Any, message: str) -> None:
    with pytest.raises(kvxfer.InvalidArgument, match=message) as e:
        region.writev(ranges, to="t")
    assert (e.value.field, e.value.op) == ("ranges", "writev")
    with pytest.raises(kvxfer.InvalidArgument, match=message):
        region.readv(ranges, source="t")


def test_too_many_ranges(region: kvxfer.Region, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvxfer._wire.MAX_ARRAY", 100)
    for ranges in ([(0, 0, 1)] * 5, numpy.zeros((5, 3), "u8")):
        with pytest.raises(kvxfer.InvalidArgument, match=r"5 rows, allowed 0\.\.4"):
            region.writev(ranges, to="t")


@pytest.mark.parametrize(
    ("args", "field"),
    [
        ({"mode": "both"}, "mode"),
        ({"spans": []}, "spans"),
        ({"spans": [(0, 0)]}, "spans"),
        ({"spans": [(1, SIZE)]}, "spans"),
        ({"spans": numpy.array([(0, SIZE + 1)])}, "spans"),
        ({"uses": -1}, "uses"),
        ({"uses": 1 << 32}, "uses"),
        ({"ttl": 0}, "ttl"),
    ],
)
def test_advertise_checks(region: kvxfer.Region, args: dict[str, Any], field: str) -> None:
    with pytest.raises(kvxfer.InvalidArgument) as e:
        region.advertise(**args)
    assert e.value.field == field


def test_numpy_and_plain_ranges_agree(rng: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
    def outcome(ranges: Any) -> object:
        try:
            return _ranges.pack_ranges("x", ranges, 100)
        except kvxfer.InvalidArgument as e:
            return e.detail.split(" ")[0]

    for _ in range(300):
        rows = [
            (rng.randrange(-1, 101), rng.randrange(-1, 200), rng.randrange(0, 40))
            for _ in range(rng.randrange(1, 5))
        ]
        plain = outcome(rows)
        if isinstance(plain, bytes):
            assert plain == struct.pack(f"<{3 * len(rows)}Q", *(v for r in rows for v in r))
        # A negative number is found before anything else there.
        if all(v >= 0 for r in rows for v in r):
            assert outcome(numpy.array(rows)) == plain == outcome(numpy.array(rows, ">i4"))
        else:
            assert isinstance(plain, str) and isinstance(outcome(numpy.array(rows)), str)
    monkeypatch.setattr(_blocks, "_numpy", lambda: None)
    assert outcome([(0, 0, 1)]) == struct.pack("<3Q", 0, 0, 1)


def test_reconnect_hands_regions_over(
    daemon: FakeDaemon, client: kvxfer.Client, region: kvxfer.Region
) -> None:
    region.array[:4] = [1, 2, 3, 4]
    adv, scatter = region.advertise(), region.readv([(0, 0, 1)], source="t")
    daemon.peer.close()
    eventually(lambda: "lost" in repr(client))
    with pytest.raises(kvxfer.DaemonUnavailable) as e:
        adv.wait(20)
    assert e.value.released is False
    assert not adv.released and not scatter.released
    busy = [True]  # the end of the old connection was not seen yet

    def register(peer: fd.Peer, got: fd.Got) -> None:
        if busy.pop():
            busy.append(False)
            peer.error(got, 5, "AlreadyExists", field="id")
        else:
            FakeDaemon.answer(peer, got)

    daemon.on[fd.REGISTER_REGION] = register
    assert client.reconnect(20) == {}
    old, _, new = daemon.wait_for(fd.REGISTER_REGION, 3)
    assert old.body == new.body
    assert region.array[:4].tolist() == [1, 2, 3, 4]
    # The same daemon knows memory again only when everything of its old session there is fenced.
    adv.wait_released(20)
    scatter.wait_released(20)
    region.writev([(0, 0, 1)], to="t")


def test_the_daemons_exit_fences_a_region(spawn: Callable[..., DaemonProcess]) -> None:
    old = spawn("01" * 16)
    with kvxfer.connect(old.path) as client:
        region = client.allocate_region("r", 100)
        adv, scatter = region.advertise(), region.readv([(0, 0, 1)], source="t")
        old.kill()
        for p in (adv, scatter):
            p.wait_released(20)
            assert p.released
        spawn("02" * 16)
        client.reconnect(20)
        region.advertise()
