"""Leases of an instance, and those that another process of the engine took."""

from __future__ import annotations

import base64
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import fakedaemon as fd
import pytest
from conftest import BLOCKS, LAYOUT, DaemonProcess, eventually
from fakedaemon import FakeDaemon

import kvxfer

KEY = b"0123456789abcdef"


@pytest.fixture
def rank(client: kvxfer.Client) -> Iterator[kvxfer.Cache]:
    yield client.allocate_cache(
        "r0", model="m", layout=LAYOUT, num_blocks=BLOCKS, instance="decode", instance_key=KEY
    )


def number(daemon: FakeDaemon, cache: kvxfer.Cache) -> int:
    return cache._use("test").cache


def vouched(cache: kvxfer.Cache) -> dict[int, int]:
    return {b: g for b, _, g in struct.iter_unpack("<IIQ", cache._vouches())}


def test_a_cache_says_its_instance(daemon: FakeDaemon, rank: kvxfer.Cache, client: kvxfer.Client) -> None:
    body = daemon.wait_for(fd.REGISTER_CACHE)[0].body
    assert (body["instance"], body["instance_key"]) == ("decode", base64.b64encode(KEY).decode())
    assert rank.instance == "decode" and "0123456789" not in repr(rank)
    bad: list[tuple[str, Any, str]] = [
        ("a b", KEY, "instance"),
        ("", KEY, "instance"),
        ("decode", b"short", "instance_key"),
        ("decode", b"", "instance_key"),
        ("decode", "x" * 16, "instance_key"),
        ("decode", b"x" * 65, "instance_key"),
    ]
    for instance, key, field in bad:
        with pytest.raises(kvxfer.InvalidArgument) as e:
            client.allocate_cache(
                "r1", model="m", layout=LAYOUT, num_blocks=1, instance=instance, instance_key=key
            )
        assert e.value.field == field and "x" * 16 not in str(e.value)


def test_any_process_may_ask(daemon: FakeDaemon, client: kvxfer.Client) -> None:
    lease = client.lease(instance="decode", instance_key=KEY, blocks=[7, 5000], ttl=20)
    got = daemon.wait_for(fd.LEASE)[0]
    assert got.array == fd.u32s(7, 5000)
    assert "cache" not in got.body and got.body["instance_key"] == base64.b64encode(KEY).decode()
    assert (got.body["instance"], got.body["mode"], got.body["ttl_ms"]) == ("decode", "write", 20_000)
    assert (lease.lease_id, lease.ranks, lease.ticket, lease.generation) == (fd.LEASE_ID, 2, fd.TICKET, 0)
    daemon.peer.layers(daemon.next_id, 3)
    lease.wait_layer(3, timeout=20)
    assert lease.visible_layers() == [3]
    lease.renew(30).wait(20)
    daemon.peer.lease_ended(daemon.next_id, b"note", generation=0)
    assert lease.wait(20).notification == b"note" and lease.released
    lease.wait_layer(29, timeout=0)
    offer = client.lease(instance="decode", instance_key=KEY, blocks=range(3), mode="read", readers=2)
    got = daemon.wait_for(fd.LEASE, 2)[1]
    assert (got.body["mode"], got.body["readers"]) == ("read", 2)
    assert (offer.ranks, offer.readers) == (2, 2)
    fence = offer.revoke()
    daemon.peer.lease_ended(daemon.next_id, error=fd.REVOKED)
    fence.wait(20)


def test_what_is_refused(daemon: FakeDaemon, client: kvxfer.Client) -> None:
    daemon.on[fd.LEASE] = lambda peer, got: peer.error(got, 9, "PermissionDenied")
    with pytest.raises(kvxfer.PermissionDenied):
        client.lease(instance="decode", instance_key=KEY, blocks=[0])
    for args, field in (
        ({"instance_key": b"x"}, "instance_key"),
        ({"instance": ""}, "instance"),
        ({"blocks": []}, "blocks"),
        ({"blocks": [1, 1]}, "blocks"),
        ({"blocks": [1 << 24]}, "blocks"),
        ({"ttl": 0}, "ttl"),
        ({"mode": "x"}, "mode"),
        ({"mode": "read", "readers": 0}, "readers"),
    ):
        with pytest.raises(kvxfer.InvalidArgument) as e:
            client.lease(**{"instance": "decode", "instance_key": KEY, "blocks": [0], **args})  # type: ignore[call-overload]
        assert e.value.field == field


def test_a_lost_daemon_says_nothing_of_memory_elsewhere(spawn: Callable[..., DaemonProcess]) -> None:
    old = spawn()
    with kvxfer.connect(old.path) as client:
        lease = client.lease(instance="decode", instance_key=KEY, blocks=[0])
        cache = client.allocate_cache("c", model="m", layout=LAYOUT, num_blocks=BLOCKS)
        own = cache.lease([0])
        old.kill()
        own.wait_released(20)
        with pytest.raises(kvxfer.DaemonUnavailable) as e:
            lease.wait(20)
        assert e.value.released is False and not lease.released
        with pytest.raises(kvxfer.DeadlineExceeded):
            lease.wait_released(0.01)


@pytest.mark.parametrize("asked_first", [True, False])
def test_a_rank_has_its_own_handle(
    daemon: FakeDaemon, client: kvxfer.Client, rank: kvxfer.Cache, asked_first: bool
) -> None:
    rank.publish([3, 9], [b"a", b"b"])
    pending = rank.granted(fd.LEASE_ID, timeout=20) if asked_first else None
    granted = daemon.peer.granted(number(daemon, rank), 3, 4)
    client.ping(timeout=20)
    if pending is None:
        pending = rank.granted(fd.LEASE_ID, timeout=20)
        assert pending.poll()
    lease = pending.wait(20)
    assert isinstance(lease, kvxfer.Lease) and rank.granted(fd.LEASE_ID).wait(20) is lease
    assert (lease.lease_id, lease.generation, lease.blocks.tolist()) == (fd.LEASE_ID, 13, [3, 4])
    assert (lease.ticket, lease.traceparent, lease.ranks) == ("", "", 0)
    assert vouched(rank) == {9: 11}, "what the blocks held is given up with the grant"
    daemon.peer.layers(granted, 1)
    lease.wait_layer(1, timeout=20)
    daemon.peer.lease_ended(granted, b"first token", generation=13)
    assert lease.wait(20).notification == b"first token" and lease.released
    assert vouched(rank) == {3: 13, 4: 13, 9: 11}


def test_a_rank_may_revoke(daemon: FakeDaemon, rank: kvxfer.Cache) -> None:
    granted = daemon.peer.granted(number(daemon, rank), 3)
    lease = rank.granted(fd.LEASE_ID, timeout=20).wait()
    fence = lease.revoke()
    assert daemon.wait_for(fd.REVOKE)[0].body == {"lease": granted}
    lease.renew(5).wait(20)
    daemon.peer.lease_ended(granted, error=fd.REVOKED)
    fence.wait(20)
    with pytest.raises(kvxfer.LeaseRevoked):
        lease.wait(20)
    assert vouched(rank) == {}


def test_read_grants_and_wrong_modes(daemon: FakeDaemon, rank: kvxfer.Cache) -> None:
    rank.publish([3], [b"a"])
    wrong = rank.granted(fd.LEASE_ID, timeout=20)
    granted = daemon.peer.granted(number(daemon, rank), 3, mode="read", generation=0)
    with pytest.raises(kvxfer.InvalidArgument, match="'read'"):
        wrong.wait()
    offer = rank.granted(fd.LEASE_ID, "read", timeout=20).wait()
    daemon.peer.holder_ended(granted, b"x")
    assert offer.next_holder().wait(20).notification == b"x" and vouched(rank) == {3: 11}
    daemon.peer.lease_ended(granted)
    assert offer.wait(20).holders == 1
    for bad in ("", "AB" * 16, "xyz", None):
        with pytest.raises(kvxfer.InvalidArgument) as e:
            rank.granted(bad)  # type: ignore[arg-type]
        assert e.value.field == "lease_id"
    with pytest.raises(kvxfer.InvalidArgument, match="mode"):
        rank.granted(fd.LEASE_ID, "both")  # type: ignore[call-overload]


def test_nobody_is_told(daemon: FakeDaemon, client: kvxfer.Client, rank: kvxfer.Cache) -> None:
    with pytest.raises(kvxfer.DeadlineExceeded):
        rank.granted("ab" * 16, timeout=0.05).wait()
    lost = rank.granted("ab" * 16, timeout=60)
    daemon.peer.close()
    with pytest.raises(kvxfer.DaemonUnavailable):
        lost.wait(20)
    eventually(lambda: "lost" in repr(client))
    with pytest.raises(kvxfer.DaemonUnavailable):
        rank.granted("ab" * 16, timeout=60).wait(20)


def test_what_nobody_asks_for_is_bounded(
    daemon: FakeDaemon, client: kvxfer.Client, rank: kvxfer.Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvxfer._granted._MAX_KEPT", 8)
    cache = number(daemon, rank)
    for i in range(20):
        lease = daemon.peer.granted(cache, i % BLOCKS, lease_id=f"{i:032x}")
        daemon.peer.lease_ended(lease, generation=100 + i)
        rank.granted(f"{1000 + i:032x}", timeout=60)
    client.ping(timeout=20)
    assert len(rank._granted._there) == len(rank._granted._waiting) == 8 and client._session._leases == {}
    assert rank.granted(f"{19:032x}").poll() and not rank.granted(f"{0:032x}", timeout=60).poll()
    assert vouched(rank)[3] == 119, "it counts whether anybody asked or not"


def test_a_grant_that_makes_no_sense_ends_the_connection(daemon: FakeDaemon, rank: kvxfer.Cache) -> None:
    daemon.peer.granted(number(daemon, rank), BLOCKS)
    eventually(lambda: isinstance(rank._client._session.conn.lost, kvxfer.ProtocolViolation))


def test_a_grant_for_a_cache_that_is_gone_is_ignored(
    daemon: FakeDaemon, client: kvxfer.Client, rank: kvxfer.Cache
) -> None:
    daemon.peer.granted(4242, 1)
    client.ping(timeout=20)
    assert client._session._leases == {}


def test_grants_and_calls_cross(daemon: FakeDaemon, rank: kvxfer.Cache) -> None:
    """Whichever comes first, everybody who asks gets the lease."""
    cache = number(daemon, rank)
    wrong: list[object] = []

    def ask(i: int) -> None:
        try:
            if rank.granted(f"{i:032x}", timeout=60).wait().lease_id != f"{i:032x}":
                wrong.append(i)
        except BaseException as e:
            wrong.append(e)

    threads = [threading.Thread(target=ask, args=(i % 40,)) for i in range(80)]
    for t in threads[:40]:
        t.start()
    for i in range(40):
        daemon.peer.granted(cache, i % BLOCKS, lease_id=f"{i:032x}")
    for t in threads[40:]:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []
