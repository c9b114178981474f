from __future__ import annotations

import struct
import threading
import types

import fakedaemon as fd
import pytest
from conftest import eventually
from fakedaemon import FakeDaemon

import kvxfer


def lease_id(daemon: FakeDaemon) -> int:
    return daemon.next_id


def test_commit(daemon: FakeDaemon, client: kvxfer.Client, cache: kvxfer.Cache) -> None:
    lease = cache.lease([3, 1, 2], ttl=20)
    got = daemon.wait_for(fd.LEASE)[0]
    assert got.body["mode"] == "write" and got.body["ttl_ms"] == 20_000
    assert got.array == fd.u32s(3, 1, 2)
    assert (lease.ticket, lease.generation, lease.blocks.tolist()) == (fd.TICKET, 7, [3, 1, 2])
    assert not lease.poll() and not lease.released and lease.visible_layers() == []
    second = lease.layer(2)
    daemon.peer.layers(lease_id(daemon), 0, 2)
    second.wait(20)
    lease.wait_layer(0, timeout=20)
    assert lease.visible_layers() == [0, 2]
    with pytest.raises(kvxfer.DeadlineExceeded):
        lease.wait_layer(1, timeout=0)
    with pytest.raises(kvxfer.DeadlineExceeded) as e:
        lease.wait(timeout=0.01)
    assert e.value.released is False
    daemon.peer.lease_ended(lease_id(daemon), b"first token")
    result = lease.wait(20)
    assert result == kvxfer.LeaseResult(3, 4096, b"first token", "node-b", "tcp", "ab" * 16, 7)
    assert lease.released and lease.transfer_id == "ab" * 16 and lease.exception() is None
    lease.wait_layer(3, timeout=0)
    assert lease.visible_layers() == [0, 1, 2, 3]
    lease.revoke().wait(20)
    assert daemon.count(fd.REVOKE) == 0
    assert second in client.completed() and client.completed() == []


def test_a_ticket_is_never_shown(cache: kvxfer.Cache) -> None:
    lease = cache.lease([0])
    assert "secret" not in repr(lease) and "secret" not in str(lease)


def test_failure_is_typed_and_fenced(daemon: FakeDaemon, cache: kvxfer.Cache) -> None:
    lease = cache.lease([0])
    waiting = lease.layer(1)
    daemon.peer.layers(lease_id(daemon), 0)
    error = {
        "code": 22,
        "name": "LeaseExpired",
        "may_have_written": True,
        "retryable": True,
        "peer": "node-b",
    }
    daemon.peer.lease_ended(lease_id(daemon), error=error)
    with pytest.raises(kvxfer.LeaseExpired) as e:
        lease.wait(20)
    assert e.value.released is True and e.value.may_have_written and e.value.peer == "node-b"
    assert lease.released
    for layer in (0, 1):
        with pytest.raises(kvxfer.LeaseExpired):
            lease.wait_layer(layer, timeout=20)
    assert isinstance(waiting.exception(), kvxfer.LeaseExpired)


def test_leaving_revokes_and_waits_for_the_fence(daemon: FakeDaemon, cache: kvxfer.Cache) -> None:
    def revoke(peer: fd.Peer, got: fd.Got) -> None:
        peer.ok(got)
        peer.lease_ended(got.body["lease"], error={"code": 23, "name": "LeaseRevoked"})

    daemon.on[fd.REVOKE] = revoke
    with cache.lease([0]) as lease:
        pass
    assert lease.released
    with pytest.raises(kvxfer.LeaseRevoked):
        lease.wait(0)
    with pytest.raises(ZeroDivisionError), cache.lease([0]) as lease:
        raise ZeroDivisionError
    assert lease.released


def test_leaving_a_committed_lease_revokes_nothing(daemon: FakeDaemon, cache: kvxfer.Cache) -> None:
    with cache.lease([0]) as lease:
        daemon.peer.lease_ended(lease_id(daemon))
        lease.wait(20)
    assert daemon.count(fd.REVOKE) == 0


def test_leaving_without_a_fence_keeps_held(
    daemon: FakeDaemon, cache: kvxfer.Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvxfer._grant.FENCE_TIMEOUT", 0.05)
    with pytest.raises(kvxfer.DeadlineExceeded) as e, cache.lease([0]) as lease:
        pass
    assert e.value.released is False and not lease.released
    with pytest.raises(ZeroDivisionError), cache.lease([1]) as other:
        raise ZeroDivisionError
    assert not other.released
    daemon.peer.lease_ended(lease_id(daemon), error={"code": 23, "name": "LeaseRevoked"})
    other.wait_released(20)
    assert other.released and not lease.released


def test_revoke_returns_at_once_and_ends_with_the_fence(daemon: FakeDaemon, cache: kvxfer.Cache) -> None:
    lease = cache.lease([0])
    fence = lease.revoke()
    again = lease.revoke()
    daemon.wait_for(fd.REVOKE)
    assert not fence.poll()
    daemon.peer.lease_ended(lease_id(daemon), error={"code": 23, "name": "LeaseRevoked"})
    fence.wait(20)
    again.wait(20)
    assert lease.released and daemon.count(fd.REVOKE) == 1


def test_a_refused_revoke_is_typed(daemon: FakeDaemon, cache: kvxfer.Cache) -> None:
    daemon.on[fd.REVOKE] = lambda peer, got: peer.error(got, 1, "Internal", detail="broken")
    lease = cache.lease([0])
    with pytest.raises(kvxfer.Internal) as e:
        lease.revoke().wait(20)
    assert e.value.released is False
    with pytest.raises(kvxfer.Internal):  # it is asked again, not remembered
        lease.revoke().wait(20)
    assert daemon.count(fd.REVOKE) == 2


def test_the_sdk_keeps_the_deadline(daemon: FakeDaemon, cache: kvxfer.Cache) -> None:
    lease = cache.lease([0], ttl=0.05)
    waiting = lease.layer(1)
    daemon.running.clear()
    with pytest.raises(kvxfer.DeadlineExceeded) as e:
        lease.wait()
    assert e.value.released is False and e.value.may_have_written
    with pytest.raises(kvxfer.DeadlineExceeded):
        waiting.wait()
    assert not lease.released
    daemon.running.set()
    daemon.wait_for(fd.REVOKE)
    daemon.peer.lease_ended(lease_id(daemon), error={"code": 22, "name": "LeaseExpired"})
    lease.wait_released(20)
    assert e.value.released is True
    assert isinstance(lease.exception(), kvxfer.DeadlineExceeded)  # an outcome never changes


def test_a_late_grant_is_given_back(daemon: FakeDaemon, cache: kvxfer.Cache) -> None:
    daemon.running.clear()
    with pytest.raises(kvxfer.DeadlineExceeded) as e:
        cache.lease([0], timeout=0.05)
    assert e.value.released is False
    daemon.running.set()
    assert daemon.wait_for(fd.REVOKE)[0].body == {"lease": lease_id(daemon)}


def test_errors_of_the_call(daemon: FakeDaemon, cache: kvxfer.Cache) -> None:
    daemon.on[fd.LEASE] = lambda peer, got: peer.error(got, 6, "BlocksBusy", detail="block 3", retryable=True)
    with pytest.raises(kvxfer.BlocksBusy, match="block 3") as e:
        cache.lease([3])
    assert e.value.retryable and e.value.op == "lease"
    daemon.on[fd.LEASE] = lambda peer, got: peer.error(got, 3, "NotSupported", detail=got.body["mode"])
    with pytest.raises(kvxfer.NotSupported, match="read"):
        cache.lease([3], mode="read")
    daemon.on[fd.LEASE] = lambda peer, got: peer.error(got, 999, "FromTheFuture", detail="x")
    with pytest.raises(kvxfer.Internal, match="FromTheFuture: x"):
        cache.lease([3])
    for bad in (0, -1, float("nan"), float("inf"), 86_401, "5"):
        with pytest.raises(kvxfer.InvalidArgument, match=r"allowed 0.001\.\.86400"):
            cache.lease([3], ttl=bad)  # type: ignore[arg-type]


def test_an_event_right_behind_the_answer_is_not_lost(daemon: FakeDaemon, cache: kvxfer.Cache) -> None:
    def grant(peer: fd.Peer, got: fd.Got) -> None:
        answer = fd.pack(fd.OK, got.request, {"lease": 5, "ticket": "t", "generation": 1})
        layers = fd.pack(fd.EVENT_LAYERS, 0, None, struct.pack("<QI", 5, 1))
        ended = fd.pack(fd.EVENT_LEASE, 0, {"lease": 5, "bytes": 1, "generation": 1})
        peer.sock.sendall(answer + layers + ended)

    daemon.on[fd.LEASE] = grant
    for _ in range(20):
        assert cache.lease([0]).wait(20).generation == 1


def test_many_threads(daemon: FakeDaemon, cache: kvxfer.Cache) -> None:
    def grant(peer: fd.Peer, got: fd.Got) -> None:
        number = daemon.number()
        peer.ok(got, {"lease": number, "ticket": f"t{number}", "generation": number})
        peer.lease_ended(number, str(number).encode(), generation=number)

    daemon.on[fd.LEASE] = grant
    wrong: list[object] = []

    def work() -> None:
        for _ in range(50):
            lease = cache.lease([0, 1])
            number = int(lease.ticket[1:])
            result = lease.wait(20)
            if (result.generation, result.notification) != (number, str(number).encode()):
                wrong.append(result)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []
    eventually(lambda: daemon.count(fd.LEASE) == 400)


@pytest.mark.parametrize("early", [True, False])
def test_ctrl_c_gives_a_grant_back(
    daemon: FakeDaemon, cache: kvxfer.Cache, monkeypatch: pytest.MonkeyPatch, early: bool
) -> None:
    """Whether the answer comes before or after the interrupt."""

    class Interrupted(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            if timeout is None:
                return super().wait(20)
            if early:
                assert super().wait(20)
            raise KeyboardInterrupt

    if not early:
        daemon.running.clear()
    with monkeypatch.context() as m:
        m.setattr("kvxfer._call.threading", types.SimpleNamespace(Event=Interrupted))
        with pytest.raises(KeyboardInterrupt):
            cache.lease([0])
    daemon.running.set()
    daemon.wait_for(fd.REVOKE)
