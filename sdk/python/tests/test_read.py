"""Read leases and pulls."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import select
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

import fakedaemon as fd
import pytest
from conftest import BLOCKS, LAYOUT, DaemonProcess, eventually
from fakedaemon import FakeDaemon

import kvxfer

HOLDER = kvxfer.Holder("node-b", "ef" * 16, "[::1]:7420", "prefill-0", 3)
KEYS = [bytes([i]) * 32 for i in range(3)]


def vouched(cache: kvxfer.Cache) -> dict[int, int]:
    return {b: g for b, _, g in struct.iter_unpack("<IIQ", cache._vouches())}


def test_a_read_lease(daemon: FakeDaemon, client: kvxfer.Client, cache: kvxfer.Cache) -> None:
    cache.publish([1, 2], KEYS[:2])
    offer = cache.lease([2, 1], mode="read", readers=2, ttl=20)
    got = daemon.wait_for(fd.LEASE)[0]
    assert (got.body["mode"], got.body["readers"], got.array) == ("read", 2, fd.u32s(2, 1))
    assert (offer.ticket, offer.readers, offer.lease_id) == (fd.TICKET, 2, fd.LEASE_ID)
    assert vouched(cache) == {1: 11, 2: 11}, "what is read is not given up"
    lease = daemon.next_id
    first = offer.next_holder()
    assert first is offer.next_holder() and not first.poll() and not offer.released
    daemon.peer.holder_ended(lease, b"got it")
    end = first.wait(20)
    assert end == kvxfer.HolderResult("node-b", "tcp", "cd" * 16, 64, b"got it", None)
    daemon.peer.holder_ended(lease, error={"code": 25, "name": "PeerLost", "peer": "node-c"})
    eventually(lambda: offer._ends)
    (failed,) = offer.holders()
    assert isinstance(failed.error, kvxfer.PeerLost) and offer.holders() == []
    last = offer.next_holder()
    daemon.peer.lease_ended(lease, generation=0)
    assert offer.wait(20) == kvxfer.OfferResult(holders=1, failed=1, bytes=64)
    assert offer.released
    with pytest.raises(kvxfer.NotFound):
        last.wait(20)
    assert {first, last, offer} == set(client.completed())
    assert vouched(cache) == {1: 11, 2: 11}


def test_a_read_lease_is_fenced_on_leaving(daemon: FakeDaemon, cache: kvxfer.Cache) -> None:
    def revoke(peer: fd.Peer, got: fd.Got) -> None:
        peer.ok(got)
        peer.holder_ended(got.body["lease"], error=fd.REVOKED)
        peer.lease_ended(got.body["lease"], error=fd.REVOKED)

    daemon.on[fd.REVOKE] = revoke
    with cache.lease([0], mode="read") as offer:
        waiting = offer.next_holder()
    assert offer.released and isinstance(waiting.wait(20).error, kvxfer.LeaseRevoked)
    with pytest.raises(kvxfer.LeaseRevoked):
        offer.wait(0)
    with pytest.raises(kvxfer.LeaseRevoked):
        offer.next_holder().wait(0)


def test_a_fence_that_failed_leaves_the_memory_held(spawn: Callable[..., DaemonProcess]) -> None:
    """EVENT_LEASE with Internal is the one end that fences nothing: only the daemon's exit does."""
    old = spawn()
    with kvxfer.connect(old.path) as client:
        cache = client.allocate_cache("c", model="m", layout=LAYOUT, num_blocks=BLOCKS)
        lease = cache.lease([0])
        fence = lease.revoke()
        body = {"lease": lease._number, "error": {"code": 1, "name": "Internal", "detail": "fence failed"}}
        frame = kvxfer._wire.Frame(fd.EVENT_LEASE, json=json.dumps(body).encode())
        client._session.on_event(frame)
        with pytest.raises(kvxfer.Internal) as e:
            lease.wait(20)
        assert e.value.released is False and not lease.released
        with pytest.raises(kvxfer.Internal):
            fence.wait(20)
        old.kill()
        lease.wait_released(20)
        assert lease.released and e.value.released is True


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"mode": "both"}, 'mode.*allowed "write" or "read"'),
        ({"mode": "read", "readers": 0}, r"readers.*allowed 1\.\.65535"),
        ({"mode": "read", "readers": 65536}, r"readers.*allowed 1\.\.65535"),
        ({"mode": "write", "readers": 2}, r"readers.*allowed 1\.\.1"),
    ],
)
def test_terms_are_checked(cache: kvxfer.Cache, args: dict[str, Any], message: str) -> None:
    with pytest.raises(kvxfer.InvalidArgument, match=message):
        cache.lease([0], **args)


def test_pull(daemon: FakeDaemon, client: kvxfer.Client, cache: kvxfer.Cache) -> None:
    cache.publish([1, 5], KEYS[:2])
    pull = cache.read(
        [5, 6],
        source="kvx1.x",
        timeout=20,
        notification=b"thanks",
        transfer_id="ab" * 16,
        attempt=2,
        provider="tcp",
        instance="e",
    )
    got = daemon.wait_for(fd.PULL)[0]
    assert got.array == fd.u32s(5, 6)
    assert {k: got.body[k] for k in ("ticket", "timeout_ms", "notification")} == {
        "ticket": "kvx1.x",
        "timeout_ms": 20_000,
        "notification": base64.b64encode(b"thanks").decode(),
    }
    assert (got.body["transfer_id"], got.body["attempt"], got.body["instance"]) == ("ab" * 16, 2, "e")
    assert got.body["provider"] == "tcp"
    assert vouched(cache) == {1: 11}, "what the own blocks held is given up with the call"
    assert not pull.poll() and pull.trace_id == fd.TRACE_ID
    daemon.peer.transfer_ended(daemon.next_id, generation=21)
    result = pull.wait(20)
    assert (result.generation, result.guarantee, result.provider) == (21, "full", "tcp")
    assert vouched(cache) == {1: 11, 5: 21, 6: 21} and pull.released
    assert client.completed() == [pull]


def test_a_failed_pull_vouches_for_nothing(daemon: FakeDaemon, cache: kvxfer.Cache) -> None:
    cache.publish([5], KEYS[:1])
    pull = cache.read([5], source="t")
    error = {"code": 23, "name": "LeaseRevoked", "may_have_written": True}
    daemon.peer.transfer_ended(daemon.next_id, released=False, error=error)
    with pytest.raises(kvxfer.LeaseRevoked) as e:
        pull.wait(20)
    assert e.value.may_have_written and e.value.released is False and not pull.released
    daemon.peer.released(daemon.next_id)
    pull.wait_released(20)
    assert e.value.released is True and vouched(cache) == {}


def test_a_refused_pull_changes_nothing(daemon: FakeDaemon, cache: kvxfer.Cache) -> None:
    cache.publish([5], KEYS[:1])
    daemon.on[fd.PULL] = lambda peer, got: peer.error(got, 6, "BlocksBusy")
    with pytest.raises(kvxfer.BlocksBusy):
        cache.read([5], source="t")
    assert vouched(cache) == {5: 11}
    for bad in (7, None, b"kvx1."):
        with pytest.raises(kvxfer.InvalidArgument, match="source"):
            cache.read([5], source=bad)  # type: ignore[arg-type]
    with pytest.raises(kvxfer.InvalidArgument, match="keys"):
        cache.read([5], source="t", keys=KEYS)
    with pytest.raises(kvxfer.InvalidArgument, match="keys"):
        cache.read([5], source=HOLDER)
    with pytest.raises(kvxfer.InvalidArgument, match="3 keys for 1 blocks"):
        cache.read([5], source=HOLDER, keys=KEYS)


@pytest.mark.parametrize(
    ("args", "field"),
    [
        ({"transfer_id": "AB" * 16}, "transfer_id"),
        ({"transfer_id": "ab"}, "transfer_id"),
        ({"attempt": 0}, "attempt"),
        ({"provider": "a b"}, "provider"),
        ({"provider": 1}, "provider"),
        ({"attempt": 1 << 32}, "attempt"),
        ({"instance": "a b"}, "instance"),
        ({"notification": b"x" * 65537}, "notification"),
        ({"timeout": 0}, "timeout"),
    ],
)
def test_arguments_are_checked(cache: kvxfer.Cache, args: dict[str, Any], field: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: cache.read([0], source="t", **args),
        lambda: cache.write([0], to="t", **args),
    ]
    for call in calls:
        with pytest.raises(kvxfer.InvalidArgument) as e:
            call()
        assert e.value.field == field


def test_cancel_and_the_deadline(daemon: FakeDaemon, cache: kvxfer.Cache) -> None:
    pull = cache.read([0], source="t")
    pull.cancel()
    assert daemon.wait_for(fd.PUSH_CANCEL)[0].body == {"transfer": daemon.next_id}
    daemon.peer.transfer_ended(daemon.next_id, error={"code": 29, "name": "Cancelled"})
    with pytest.raises(kvxfer.Cancelled):
        pull.wait(20)
    late = cache.read([1], source="t", timeout=0.1)
    daemon.running.clear()
    start = time.monotonic()
    with pytest.raises(kvxfer.DeadlineExceeded) as e:
        late.wait()
    assert time.monotonic() - start < 20
    assert e.value.released is False and e.value.may_have_written and not late.released
    daemon.running.set()
    daemon.wait_for(fd.PUSH_CANCEL, 2)
    daemon.peer.transfer_ended(daemon.next_id, error={"code": 28, "name": "DeadlineExceeded"})
    late.wait_released(20)
    assert e.value.released is True


def test_reading_from_a_holder(daemon: FakeDaemon, client: kvxfer.Client, cache: kvxfer.Cache) -> None:
    pull = cache.read([4, 5, 6], source=HOLDER, keys=KEYS, timeout=20, notification=b"n")
    opened = daemon.wait_for(fd.OPEN)[0]
    assert opened.array == b"".join(KEYS)
    named = {k: opened.body[k] for k in ("node", "epoch", "addr", "cache", "model", "key_bytes", "ttl_ms")}
    assert named == {
        "node": "node-b",
        "epoch": "ef" * 16,
        "addr": "[::1]:7420",
        "cache": "prefill-0",
        "model": "m",
        "key_bytes": 32,
        "ttl_ms": 20_000,
    }
    got = daemon.wait_for(fd.PULL)[0]
    assert got.body["ticket"] == fd.TICKET and got.array == fd.u32s(4, 5, 6)
    assert (
        got.body["notification"] == base64.b64encode(b"n").decode() and 0 < got.body["timeout_ms"] <= 20_000
    )
    eventually(lambda: pull.transfer_id == "cd" * 16)
    daemon.peer.transfer_ended(daemon.next_id, generation=22)
    assert pull.wait(20).generation == 22
    assert vouched(cache) == {4: 22, 5: 22, 6: 22} and client.completed() == [pull]
    assert client._session._asked == set()


def test_what_a_holder_refuses(daemon: FakeDaemon, cache: kvxfer.Cache) -> None:
    cache.publish([4], KEYS[:1])
    daemon.on[fd.OPEN] = lambda peer, got: peer.error(got, 4, "NotFound", detail="evicted")
    pull = cache.read([4], source=HOLDER, keys=KEYS[:1])
    with pytest.raises(kvxfer.NotFound, match="evicted") as e:
        pull.wait(20)
    assert e.value.released is True and not e.value.may_have_written and pull.released
    assert daemon.count(fd.PULL) == 0 and vouched(cache) == {4: 11}
    del daemon.on[fd.OPEN]
    daemon.on[fd.PULL] = lambda peer, got: peer.error(got, 6, "BlocksBusy")
    pull = cache.read([4], source=HOLDER, keys=KEYS[:1])
    with pytest.raises(kvxfer.BlocksBusy):
        pull.wait(20)
    assert pull.released and vouched(cache) == {4: 11} and not cache._client._session._asked


def test_cancelling_at_every_stage_of_a_read_from_a_holder(
    daemon: FakeDaemon, client: kvxfer.Client, cache: kvxfer.Cache
) -> None:
    opens: list[fd.Got] = []
    daemon.on[fd.OPEN] = lambda peer, got: opens.append(got)
    pull = cache.read([4], source=HOLDER, keys=KEYS[:1])
    pull.cancel()
    with pytest.raises(kvxfer.Cancelled) as e:
        pull.wait(20)
    assert e.value.released is True
    eventually(lambda: opens)
    daemon.peer.ok(opens[0], {"ticket": "t"})
    client.ping(timeout=20)
    assert daemon.count(fd.PULL) == 0

    daemon.on[fd.OPEN] = FakeDaemon.answer
    pulls: list[fd.Got] = []
    daemon.on[fd.PULL] = lambda peer, got: pulls.append(got)
    pull = cache.read([4], source=HOLDER, keys=KEYS[:1])
    eventually(lambda: pulls)
    pull.cancel()
    assert daemon.count(fd.PUSH_CANCEL) == 0 and not pull.poll() and not pull.released
    FakeDaemon.answer(daemon.peer, pulls[0])
    assert daemon.wait_for(fd.PUSH_CANCEL)[0].body == {"transfer": daemon.next_id}
    daemon.peer.transfer_ended(daemon.next_id, error={"code": 29, "name": "Cancelled"})
    with pytest.raises(kvxfer.Cancelled):
        pull.wait(20)


def test_a_lost_daemon_at_every_stage_of_a_read_from_a_holder(
    daemon: FakeDaemon, client: kvxfer.Client, cache: kvxfer.Cache
) -> None:
    daemon.on[fd.OPEN] = lambda peer, got: peer.close()
    pull = cache.read([4], source=HOLDER, keys=KEYS[:1])
    with pytest.raises(kvxfer.DaemonUnavailable) as e:
        pull.wait(20)
    assert e.value.released is True and pull.released, "the daemon was not told of the own blocks"
    client.reconnect(20)
    daemon.on[fd.OPEN] = FakeDaemon.answer
    daemon.on[fd.PULL] = lambda peer, got: peer.close()
    pull = cache.read([4], source=HOLDER, keys=KEYS[:1])
    with pytest.raises(kvxfer.DaemonUnavailable) as e:
        pull.wait(20)
    assert e.value.released is False and not pull.released, "here it was"
    client.reconnect(20)
    pull.wait_released(20)


def test_a_holder_that_never_answers(daemon: FakeDaemon, cache: kvxfer.Cache) -> None:
    daemon.on[fd.OPEN] = lambda peer, got: None
    pull = cache.read([4], source=HOLDER, keys=KEYS[:1], timeout=0.05)
    with pytest.raises(kvxfer.DeadlineExceeded) as e:
        pull.wait()
    assert e.value.released is True and daemon.count(fd.PULL) == 0


def test_pull_and_read_lease_are_pending_things(daemon: FakeDaemon, cache: kvxfer.Cache) -> None:
    async def main() -> None:
        pull = cache.read([0], source="t")
        transfer = daemon.next_id
        async with cache.lease([1], mode="read") as offer:
            lease = daemon.next_id
            daemon.peer.transfer_ended(transfer, generation=9)
            assert (await pull).generation == 9
            daemon.peer.holder_ended(lease, b"x")
            assert (await offer.next_holder()).notification == b"x"
            daemon.peer.lease_ended(lease)
            assert (await offer).holders == 1
        assert select.select([pull.fileno(), offer.fileno()], [], [], 0)[0] == [pull.fileno(), offer.fileno()]

    asyncio.run(main())


def test_random_histories_of_pulls_vouch_for_what_was_committed(
    daemon: FakeDaemon, cache: kvxfer.Cache, rng: random.Random
) -> None:
    model: dict[int, int] = {}
    for generation in range(100, 260):
        blocks = rng.sample(range(BLOCKS), rng.randrange(1, 5))
        refused, failed = rng.random() < 0.2, rng.random() < 0.3
        daemon.on[fd.PULL] = (
            (lambda peer, got: peer.error(got, 6, "BlocksBusy")) if refused else FakeDaemon.answer
        )
        holder = rng.random() < 0.5
        try:
            if holder:
                pull = cache.read(blocks, source=HOLDER, keys=[b"k%02d" % b for b in blocks])
            else:
                pull = cache.read(blocks, source="t")
            if not refused:
                model = {b: g for b, g in model.items() if b not in blocks}
                eventually(lambda p=pull: p.transfer_id)  # type: ignore[misc]
                error: dict[str, Any] = {"error": {"code": 25, "name": "PeerLost"}} if failed else {}
                daemon.peer.transfer_ended(daemon.next_id, generation=generation, **error)
            pull.wait(20)
            model |= dict.fromkeys(blocks, generation)
        except (kvxfer.BlocksBusy, kvxfer.PeerLost):
            pass
        assert vouched(cache) == model


def test_many_threads_on_one_client(
    daemon: FakeDaemon, client: kvxfer.Client, cache: kvxfer.Cache, rng: random.Random
) -> None:
    """Calls of every kind at once; each caller gets its own answer, and completed() each thing once."""
    client.completed()

    def answer(peer: fd.Peer, got: fd.Got) -> None:
        number = daemon.number()
        if got.kind in (fd.LEASE, fd.ADVERTISE):
            peer.ok(
                got, {"lease": number, "ticket": f"t{number}", "generation": number, "lease_id": "ab" * 16}
            )
            if got.body["mode"] == "read":
                peer.holder_ended(number, str(number).encode())
            peer.lease_ended(number, str(number).encode(), generation=number)
        else:
            more = {
                "transfer_id": f"{number:032x}",
                "trace_id": fd.TRACE_ID,
                "parent_id": "",
                "sampled": False,
            }
            peer.ok(got, {"transfer": number, **more})
            peer.transfer_ended(number, generation=number, transfer_id=f"{number:032x}")

    for kind in (fd.LEASE, fd.PUSH, fd.PULL, fd.SCATTER, fd.ADVERTISE):
        daemon.on[kind] = answer
    region = client.allocate_region("r", 4096)
    wrong: list[object] = []
    made: list[kvxfer.Pending[Any]] = []
    seeds = [rng.getrandbits(32) for _ in range(12)]

    def work(seed: int) -> None:
        own = random.Random(seed)
        try:
            for _ in range(40):
                what = own.randrange(5)
                if what == 0:
                    lease = cache.lease([own.randrange(BLOCKS)])
                    made.append(lease)
                    if lease.wait(20).notification != lease.ticket[1:].encode():
                        wrong.append(lease)
                elif what == 1:
                    offer = cache.lease([own.randrange(BLOCKS)], mode="read")
                    made.append(offer)
                    if (
                        offer.wait(20).holders != 1
                        or offer.holders()[0].notification != offer.ticket[1:].encode()
                    ):
                        wrong.append(offer)
                elif what == 2:
                    pull = cache.read([own.randrange(BLOCKS)], source="t")
                    made.append(pull)
                    if pull.wait(20).transfer_id != pull.transfer_id:
                        wrong.append(pull)
                elif what == 3:
                    scatter = region.writev([(0, 0, 8)], to="t")
                    made.append(scatter)
                    if scatter.wait(20).transfer_id != scatter.transfer_id:
                        wrong.append(scatter)
                else:
                    client.ping(timeout=20)
        except BaseException as e:
            wrong.append(e)

    threads = [threading.Thread(target=work, args=(s,)) for s in seeds]
    seen: list[kvxfer.Pending[Any]] = []
    for t in threads:
        t.start()
    while any(t.is_alive() for t in threads):
        select.select([client], [], [], 0.2)
        seen += client.completed()
    for t in threads:
        t.join()
    seen += client.completed()
    assert wrong == []
    assert len(seen) == len(made) and {id(p) for p in seen} == {id(p) for p in made}
