"""Renewal: who keeps which deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import fakedaemon as fd
import pytest
from fakedaemon import FakeDaemon

import kvxfer


def test_renewal_moves_the_end(daemon: FakeDaemon, client: kvxfer.Client, cache: kvxfer.Cache) -> None:
    lease = cache.lease([0], ttl=0.3)
    layer = lease.layer(1)
    got: list[str] = []

    def wait(what: Callable[[], object], name: str) -> threading.Thread:
        def work() -> None:
            what()
            got.append(name)

        thread = threading.Thread(target=work)
        thread.start()
        return thread

    waiting, layer_waiting = wait(lease.wait, "lease"), wait(lambda: lease.wait_layer(2), "layer")
    renewal = lease.renew(60)
    renewal.wait(20)
    assert daemon.wait_for(fd.RENEW)[0].body == {"lease": daemon.next_id, "ttl_ms": 60_000}
    assert renewal in client.completed()
    assert lease._deadline is not None
    # Beyond the first end, with its grace and that of a wait: neither the lease nor who waits has given up.
    first_end = threading.Event()
    client._session.conn.call_at(time.monotonic() + 1.5, first_end.set)
    assert first_end.wait(20)
    assert not lease.poll() and not layer.poll() and waiting.is_alive() and layer_waiting.is_alive()
    daemon.peer.lease_ended(daemon.next_id)
    waiting.join(20)
    layer_waiting.join(20)
    assert sorted(got) == ["layer", "lease"]


def test_the_end_may_come_forward(daemon: FakeDaemon, cache: kvxfer.Cache) -> None:
    lease = cache.lease([0], ttl=3600)
    lease.renew(0.05).wait(20)
    start = time.monotonic()
    with pytest.raises(kvxfer.DeadlineExceeded) as e:
        lease.wait()
    assert e.value.released is False and time.monotonic() - start < 60
    daemon.wait_for(fd.REVOKE)


def test_a_refused_renewal_changes_nothing(daemon: FakeDaemon, cache: kvxfer.Cache) -> None:
    lease = cache.lease([0], ttl=3600)
    deadline = lease._deadline
    daemon.on[fd.RENEW] = lambda peer, got: peer.error(got, 22, "LeaseExpired")
    with pytest.raises(kvxfer.LeaseExpired):
        lease.renew(5).wait(20)
    assert lease._deadline == deadline and not lease.poll()
    for bad in (0, -1, 86_401, float("nan"), "5"):
        with pytest.raises(kvxfer.InvalidArgument, match="ttl"):
            lease.renew(bad)  # type: ignore[arg-type]


def test_what_has_ended_is_not_renewed(daemon: FakeDaemon, cache: kvxfer.Cache) -> None:
    lease = cache.lease([0])
    daemon.peer.lease_ended(daemon.next_id)
    lease.wait(20)
    with pytest.raises(kvxfer.NotFound):
        lease.renew(5).wait(0)
    other = cache.lease([0], mode="read")
    daemon.peer.lease_ended(daemon.next_id, error=fd.REVOKED)
    with pytest.raises(kvxfer.LeaseRevoked):
        other.wait(20)
    with pytest.raises(kvxfer.LeaseRevoked):
        other.renew(5).wait(0)
    assert daemon.count(fd.RENEW) == 0


def test_renewing_at_a_stopped_daemon_ends(daemon: FakeDaemon, cache: kvxfer.Cache) -> None:
    """A renewal extends the lease only while its own answer is awaited, whoever goes on renewing."""
    lease = cache.lease([0], ttl=0.1)
    daemon.running.clear()
    renewals = [lease.renew(3600, timeout=0.2)]
    start = time.monotonic()
    while not lease.poll():
        assert time.monotonic() - start < 60
        renewals.append(lease.renew(3600, timeout=0.2))
        time.sleep(0.05)
    assert isinstance(lease.exception(), kvxfer.DeadlineExceeded) and not lease.released
    with pytest.raises(kvxfer.DeadlineExceeded) as e:
        renewals[0].wait(20)
    assert e.value.released is None
    daemon.running.set()
    daemon.wait_for(fd.REVOKE)


def test_a_lost_daemon_renews_nothing(daemon: FakeDaemon, cache: kvxfer.Cache) -> None:
    lease = cache.lease([0])
    daemon.on[fd.RENEW] = lambda peer, got: peer.close()
    with pytest.raises(kvxfer.DaemonUnavailable):
        lease.renew(5).wait(20)
    with pytest.raises(kvxfer.DaemonUnavailable) as e:
        lease.wait(20)
    assert e.value.released is False
    with pytest.raises(kvxfer.DaemonUnavailable):
        lease.renew(5).wait(20)


def test_many_renewals_keep_one_timer(daemon: FakeDaemon, client: kvxfer.Client, cache: kvxfer.Cache) -> None:
    lease = cache.lease([0], ttl=600)
    before = len(client._session.conn._timers)
    for _ in range(50):
        lease.renew(600, timeout=0.001).exception()
    client.ping(timeout=20)
    end = time.monotonic() + 20
    while len(client._session.conn._timers) > before:  # those of the renewals themselves pass
        assert time.monotonic() < end
        time.sleep(0.01)
