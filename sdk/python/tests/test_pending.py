from __future__ import annotations

import asyncio
import os
import select
import threading
from typing import Any, TypeVar

import fakedaemon as fd
import pytest
from conftest import eventually
from fakedaemon import FakeDaemon

import kvxfer
from kvxfer._pending import Completed, Pending

T = TypeVar("T")


def test_await(daemon: FakeDaemon, cache: kvxfer.Cache) -> None:
    async def main() -> None:
        threads = threading.active_count()
        pushes = [cache.write([i], to="t") for i in range(5)]
        first = daemon.next_id - 4
        lease = cache.lease([0])
        tasks = [asyncio.ensure_future(_await(p)) for p in pushes] + [
            asyncio.ensure_future(_await(p)) for p in pushes
        ]
        layer = asyncio.ensure_future(_await(lease.layer(1)))
        await asyncio.sleep(0)
        assert threading.active_count() == threads  # no thread per await
        daemon.peer.layers(daemon.next_id, 1)
        await layer
        for i in range(5):
            daemon.peer.transfer_ended(first + i, blocks=i)
        results = await asyncio.gather(*tasks)
        assert [r.blocks for r in results] == [0, 1, 2, 3, 4] * 2
        assert (await pushes[2]).blocks == 2  # again, when it has ended already
        daemon.peer.lease_ended(daemon.next_id, error={"code": 23, "name": "LeaseRevoked"})
        with pytest.raises(kvxfer.LeaseRevoked):
            await lease

    asyncio.run(main())


async def _await(p: kvxfer.Pending[T]) -> T:
    return await p


def test_a_cancelled_await_ends_only_the_waiting(daemon: FakeDaemon, cache: kvxfer.Cache) -> None:
    push = cache.write([0], to="t")

    async def main() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(_await(push), 0.01)

    asyncio.run(main())
    assert push._watchers == [] and not push.poll() and daemon.count(fd.PUSH_CANCEL) == 0
    daemon.peer.transfer_ended(daemon.next_id)  # and the loop is closed by now
    assert push.wait(20).blocks == 3


def test_a_closed_loop_disturbs_nobody(
    daemon: FakeDaemon, client: kvxfer.Client, cache: kvxfer.Cache
) -> None:
    push = cache.write([0], to="t")
    loop = asyncio.new_event_loop()
    waiter = push.__await__()

    async def step() -> None:
        waiter.send(None)

    loop.run_until_complete(step())
    loop.close()
    daemon.peer.transfer_ended(daemon.next_id)
    assert push.wait(20).blocks == 3
    client.ping()
    waiter.close()


def test_async_context_manager(daemon: FakeDaemon, cache: kvxfer.Cache) -> None:
    def revoke(peer: fd.Peer, got: fd.Got) -> None:
        peer.ok(got)
        peer.lease_ended(got.body["lease"], error={"code": 23, "name": "LeaseRevoked"})

    daemon.on[fd.REVOKE] = revoke

    async def main() -> None:
        async with cache.lease([0]) as lease:
            assert not lease.poll()
        assert lease.released
        async with cache.lease([1]) as other:
            daemon.peer.lease_ended(daemon.next_id)
            await other
        assert daemon.count(fd.REVOKE) == 1

    asyncio.run(main())


def test_fileno_becomes_readable(daemon: FakeDaemon, client: kvxfer.Client, cache: kvxfer.Cache) -> None:
    push = cache.write([0], to="t")
    number = push.fileno()
    assert push.fileno() == number
    assert select.select([push], [], [], 0)[0] == []
    daemon.peer.transfer_ended(daemon.next_id)
    assert select.select([push], [], [], 20)[0] == [push]
    assert select.select([push], [], [], 0)[0] == [push]  # and stays so
    after = cache.lease([0])
    daemon.peer.lease_ended(daemon.next_id)
    after.wait(20)
    assert select.select([after.fileno()], [], [], 0)[0]
    client.completed()  # which holds them, too
    del push
    eventually(lambda: not os.path.exists(f"/proc/self/fd/{number}"))


def test_completed_reports_each_thing_once(
    daemon: FakeDaemon, client: kvxfer.Client, cache: kvxfer.Cache
) -> None:
    assert client.completed() == []
    push = cache.write([0], to="t")
    transfer = daemon.next_id
    lease = cache.lease([1])
    fence, layer = lease.revoke(), lease.layer(0)
    held = push.when_released
    daemon.peer.layers(daemon.next_id, 0)
    daemon.peer.lease_ended(daemon.next_id, error={"code": 23, "name": "LeaseRevoked"})
    daemon.peer.transfer_ended(transfer, released=False)
    daemon.peer.released(transfer)
    seen: list[kvxfer.Pending[object]] = []

    def all_there() -> bool:
        seen.extend(client.completed())
        return len(seen) >= 5

    eventually(all_there)
    assert {id(p) for p in seen} == {id(p) for p in (push, lease, fence, layer, held)} and len(seen) == 5
    assert client.completed() == []


def test_the_client_is_selectable(daemon: FakeDaemon, client: kvxfer.Client, cache: kvxfer.Cache) -> None:
    number = client.fileno()
    assert client.fileno() == number
    for _ in range(2):
        assert select.select([client], [], [], 0)[0] == []
        push, lease = cache.write([0], to="t"), cache.lease([1])
        daemon.peer.lease_ended(daemon.next_id)
        daemon.peer.transfer_ended(daemon.next_id - 1)
        push.wait(20), lease.wait(20)
        assert select.select([client], [], [], 0)[0] == [client]
        assert set(client.completed()) == {push, lease}
        assert select.select([client], [], [], 0)[0] == [] and client.completed() == []
    with kvxfer.connect(daemon.path) as other:  # asked for when there is something already
        mine = other.allocate_cache("c1", model="m", layout=cache.layout, num_blocks=1).lease([0])
        daemon.peer.lease_ended(daemon.next_id)
        mine.wait(20)
        assert select.select([other.fileno()], [], [], 0)[0]
        assert other.completed() == [mine] and not select.select([other.fileno()], [], [], 0)[0]
        assert other.fileno() != number


def test_what_is_handed_out_after_its_end_is_reported(
    daemon: FakeDaemon, client: kvxfer.Client, cache: kvxfer.Cache
) -> None:
    """A loop over completed() must not wait for what had ended before it was asked for."""
    push, lease = cache.write([0], to="t"), cache.lease([1])
    daemon.peer.layers(daemon.next_id, 0)
    lease.wait_layer(0, timeout=20)
    daemon.peer.transfer_ended(daemon.next_id - 1)
    push.wait_released(20)
    assert client.completed() == [push]
    held, layer = push.when_released, lease.layer(0)
    assert select.select([client], [], [], 0)[0] and client.completed() == [held, layer]
    assert push.when_released is held and lease.layer(0) is layer and client.completed() == []


def test_completed_knows_what_anybody_has_seen_end() -> None:
    class Owner:
        def check_fork(self) -> None:
            pass

        def completed(self, pending: Pending[Any]) -> None:
            seen.append((pending._done, select.select([number], [], [], 0)[0]))
            completed.add(pending)

    seen: list[tuple[bool, list[Any]]] = []
    completed = Completed()
    pending: Pending[int] = Pending(Owner(), "test", None)
    number = pending.fileno()
    pending._finish(1)
    assert seen == [(False, [])]
    assert completed.take() == [pending] and pending.poll() and select.select([pending], [], [], 0)[0]


def test_without_a_reader_completed_is_bounded(
    daemon: FakeDaemon, client: kvxfer.Client, cache: kvxfer.Cache
) -> None:
    lease = cache.lease([0])
    for i in range(5000):
        client._completed.add(lease.layer(i % 4))
    assert len(client.completed()) == 4096
    for _ in range(5000):
        client._completed.add(lease)
    assert len(client.completed()) == 5000


def test_repr_shows_the_state(daemon: FakeDaemon, cache: kvxfer.Cache) -> None:
    push = cache.write([0], to="t")
    assert repr(push) == "<kvxfer.Push write pending>"
    daemon.peer.transfer_ended(daemon.next_id, released=False, error={"code": 25, "name": "PeerLost"})
    eventually(push.poll)
    assert repr(push) == "<kvxfer.Push write PeerLost held>"


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf"), "1", 1e9])
def test_timeouts_are_checked(cache: kvxfer.Cache, timeout: float) -> None:
    with pytest.raises(kvxfer.InvalidArgument, match=r"allowed 0\.\.86400"):
        cache.lease([0]).wait(timeout)


def test_a_wait_that_ends_early_says_what_may_be_written(client: kvxfer.Client, cache: kvxfer.Cache) -> None:
    """The thing itself goes on, so a writer's bytes may land or have landed."""
    lease = cache.lease([2])
    region = client.allocate_region("raw", 100)
    writes: dict[kvxfer.Pending[Any], bool] = {
        cache.write([1], to="t", layerwise=True): True,
        lease: True,
        lease.layer(0): True,
        cache.lease([3], mode="read"): False,
        region.advertise("write"): True,
        region.advertise("read"): False,
    }
    for pending, want in writes.items():
        with pytest.raises(kvxfer.DeadlineExceeded) as e:
            pending.wait(0.001)
        assert e.value.may_have_written == want, pending
        assert not pending.poll()
