from __future__ import annotations

import errno
import os
import signal
import socket
import struct
import threading
from collections.abc import Callable

import fakedaemon as fd
import pytest
from conftest import BLOCKS, LAYOUT, DaemonProcess, eventually
from fakedaemon import FakeDaemon

import kvxfer
from kvxfer._dial import open_daemon


def commit(daemon: FakeDaemon, cache: kvxfer.Cache, blocks: list[int], generation: int) -> None:
    lease = cache.lease(blocks)
    daemon.peer.lease_ended(daemon.next_id, generation=generation)
    lease.wait(20)


def lose(daemon: FakeDaemon, client: kvxfer.Client) -> None:
    """The daemon closes the connection, and the client has seen it."""
    daemon.peer.close()
    eventually(lambda: "lost" in repr(client))


def vouched(got: fd.Got) -> dict[int, int]:
    return {b: g for b, _, g in struct.iter_unpack("<IIQ", got.array)}


def test_the_loss_of_the_connection_is_no_fence(
    daemon: FakeDaemon, client: kvxfer.Client, cache: kvxfer.Cache
) -> None:
    lease, push = cache.lease([0]), cache.write([1], to="t", layerwise=True)
    fence, layer = lease.revoke(), lease.layer(0)
    daemon.wait_for(fd.REVOKE)
    daemon.peer.close()
    for p in (lease, push, fence):
        with pytest.raises(kvxfer.DaemonUnavailable) as e:
            p.wait(20)
        assert e.value.released is False
    with pytest.raises(kvxfer.DaemonUnavailable):
        layer.wait(20)
    push.layer(0)
    push.finish()
    assert not lease.released and not push.released
    with pytest.raises(kvxfer.DaemonUnavailable) as again:
        lease.revoke().wait(20)
    assert again.value.released is False
    for call in (
        client.ping,
        lambda: cache.lease([2]),
        cache.block_states,
        cache.drop,
        lambda: cache.evict([0]),
    ):
        with pytest.raises(kvxfer.DaemonUnavailable) as e:
            call()
    cache.memory[0] = 1
    assert not client.daemon_exited(0.01)


def test_the_same_daemon(daemon: FakeDaemon, client: kvxfer.Client, cache: kvxfer.Cache) -> None:
    inode = next(iter(daemon.regions.values()))[2]
    region = daemon.wait_for(fd.REGISTER_REGION)[0].body
    commit(daemon, cache, [1, 2, 3, 4], 7)
    commit(daemon, cache, [5], 8)
    cache.evict([2])
    lease = cache.lease([3])  # taken again: no longer vouched for, whatever comes of it
    push = cache.write([1], to="t")
    lose(daemon, client)
    with pytest.raises(kvxfer.DaemonUnavailable):
        lease.wait(20)
    assert not lease.released and not push.released
    daemon.served = lambda v: [b for b in v if b != 4]
    served = client.reconnect(20)
    assert {k: v.tolist() for k, v in served.items()} == {"c0": [1, 5]}
    registered = daemon.wait_for(fd.REGISTER_CACHE, 2)[1]
    assert vouched(registered) == {1: 7, 4: 7, 5: 8}
    again = daemon.wait_for(fd.REGISTER_REGION, 2)[1].body
    assert again == region  # the same id and size ...
    assert [r[2] for r in daemon.regions.values()] == [inode, inode]  # ... and the same memory
    assert lease.released and push.released  # a name is given out again only when its old session is fenced
    assert lease.exception() is not None and lease.exception().released is True
    commit(daemon, cache, [4], 9)
    assert client.reconnect(20)["c0"].tolist() == [1, 4, 5]  # alive: nothing happens
    assert daemon.count(fd.HELLO) == 2


def test_refused_calls_change_nothing(daemon: FakeDaemon, client: kvxfer.Client, cache: kvxfer.Cache) -> None:
    commit(daemon, cache, [1, 2], 7)
    daemon.on[fd.LEASE] = lambda peer, got: peer.error(got, 6, "BlocksBusy")
    daemon.on[fd.EVICT] = lambda peer, got: peer.error(got, 6, "BlocksBusy")
    with pytest.raises(kvxfer.BlocksBusy):
        cache.lease([1])
    with pytest.raises(kvxfer.BlocksBusy):
        cache.evict([1, 2])
    daemon.on[fd.LEASE] = lambda peer, got: peer.error(got, 1, "Internal")  # may have changed something
    with pytest.raises(kvxfer.Internal):
        cache.lease([2])
    lose(daemon, client)
    assert client.reconnect(20)["c0"].tolist() == [1]


def test_it_waits_until_the_old_session_is_gone(
    daemon: FakeDaemon, client: kvxfer.Client, cache: kvxfer.Cache
) -> None:
    busy = 3

    def register(peer: fd.Peer, got: fd.Got) -> None:
        nonlocal busy
        busy -= 1
        if busy >= 0:
            peer.error(got, 5, "AlreadyExists")
        else:
            daemon.answer(peer, got)

    daemon.on[fd.REGISTER_CACHE] = register
    lose(daemon, client)
    assert list(client.reconnect(20)) == ["c0"]
    assert busy == -1
    cache.lease([0])


def test_a_failed_reconnect_can_be_repeated(
    daemon: FakeDaemon, client: kvxfer.Client, cache: kvxfer.Cache
) -> None:
    commit(daemon, cache, [1], 7)
    other = client.allocate_cache("c1", model="m", layout=LAYOUT, num_blocks=BLOCKS)
    lose(daemon, client)

    def refuse(peer: fd.Peer, got: fd.Got) -> None:
        if got.body["name"] == "c1":
            peer.error(got, 8, "MemoryRejected")
        else:
            daemon.answer(peer, got)

    daemon.on[fd.REGISTER_CACHE] = refuse
    with pytest.raises(kvxfer.MemoryRejected):
        client.reconnect(20)
    with pytest.raises(kvxfer.DaemonUnavailable):
        cache.lease([0])
    del daemon.on[fd.REGISTER_CACHE]
    assert {k: v.tolist() for k, v in client.reconnect(20).items()} == {"c0": [1], "c1": []}
    other.lease([0])
    cache.lease([0])


def test_without_a_daemon_it_ends_by_its_time(daemon: FakeDaemon, client: kvxfer.Client) -> None:
    os.rename(daemon.path, daemon.path + ".away")
    lose(daemon, client)
    with pytest.raises(kvxfer.DaemonUnavailable):
        client.reconnect(0.05)
    os.rename(daemon.path + ".away", daemon.path)
    client.reconnect(20)
    client.ping()


def test_a_restarted_daemon(spawn: Callable[..., DaemonProcess]) -> None:
    old = spawn("01" * 16)
    with kvxfer.connect(old.path) as client:
        cache = client.allocate_cache("c", model="m", layout=LAYOUT, num_blocks=BLOCKS)
        cache.memory[:4] = b"keep"
        lease = cache.lease([0])
        assert not client.daemon_exited()
        waiting = threading.Thread(target=lease.wait_released)
        waiting.start()
        old.kill()
        with pytest.raises(kvxfer.DaemonUnavailable) as e:
            lease.wait(20)
        waiting.join(30)
        assert lease.released and e.value.released is True and client.daemon_exited()
        new = threading.Timer(0.2, lambda: spawn("02" * 16))
        new.start()  # reconnect is called before there is a daemon
        assert client.reconnect(20)["c"].tolist() == []
        new.join()
        assert client.epoch == "02" * 16 and not client.daemon_exited() and bytes(cache.memory[:4]) == b"keep"
        cache.lease([0])


def test_another_daemon_does_not_fence_for_a_stopped_one(spawn: Callable[..., DaemonProcess]) -> None:
    old = spawn("01" * 16)
    with kvxfer.connect(old.path) as client:
        cache = client.allocate_cache("c", model="m", layout=LAYOUT, num_blocks=BLOCKS)
        lease = cache.lease([0])
        old.signal(signal.SIGSTOP)
        os.unlink(old.path)
        client._session.conn._sock.shutdown(2)  # the connection breaks, the process does not
        with pytest.raises(kvxfer.DaemonUnavailable):
            lease.wait(20)
        spawn("02" * 16)
        client.reconnect(20)
        assert client.epoch == "02" * 16 and not lease.released
        os.rename(old.path, old.path + ".new")  # kill() removes the socket of its path
        old.kill()
        lease.wait_released(20)
        assert lease.released
        client.ping()
        os.rename(old.path + ".new", old.path)


def test_memory_is_not_given_back_while_a_stopped_daemon_may_touch_it(
    spawn: Callable[..., DaemonProcess],
) -> None:
    old = spawn("01" * 16)
    with kvxfer.connect(old.path) as client:
        region = client.allocate_region("r", 100)
        adv = region.advertise()
        old.signal(signal.SIGSTOP)
        os.unlink(old.path)
        client._session.conn._sock.shutdown(2)  # the connection breaks, the process does not
        with pytest.raises(kvxfer.DaemonUnavailable):
            adv.wait(20)
        spawn("02" * 16)
        client.reconnect(20)
        for _ in range(2):
            with pytest.raises(kvxfer.DeadlineExceeded, match="former daemon") as e:
                region.deregister(timeout=0.5)
            assert e.value.released is False and not adv.released
        region.array[0] = 1  # it is there still
        os.rename(old.path, old.path + ".new")  # kill() removes the socket of its path
        old.kill()
        adv.wait_released(20)
        region.deregister(timeout=20)
        os.rename(old.path + ".new", old.path)


def test_a_daemon_that_has_just_died(
    daemon: FakeDaemon, client: kvxfer.Client, cache: kvxfer.Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process is gone, the end of its connection not yet read: reconnect waits for it."""
    asked = threading.Event()
    old = client._session.conn

    def exited(timeout: float) -> bool:
        asked.set()
        return True

    monkeypatch.setattr(old, "daemon_exited", exited)
    daemon.epoch = "99" * 16
    again = threading.Thread(target=client.reconnect, args=(20,))
    again.start()
    assert asked.wait(20), "the connection was taken for alive"
    daemon.peer.close()
    again.join()
    assert client.epoch == "99" * 16
    cache.lease([0])


def test_where_the_daemon_cannot_be_watched(
    daemon: FakeDaemon, client: kvxfer.Client, cache: kvxfer.Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvxfer._connection.open_daemon", lambda sock: (-1, -1))
    with kvxfer.connect(daemon.path) as other:
        with pytest.raises(kvxfer.NotSupported):
            other.daemon_exited()
        mine = other.allocate_cache("c9", model="m", layout=LAYOUT, num_blocks=1)
        lease = mine.lease([0])
        lose(daemon, other)
        daemon.epoch = "99" * 16
        other.reconnect(20)
        assert lease.released  # a node's next daemon starts only when the one before is gone


class OldKernel:
    """A socket whose kernel has no pidfd for its peer; the peer's number is as given."""

    def __init__(self, pid: int, error: int = errno.ENOPROTOOPT) -> None:
        self.pid, self.error = pid, error

    def getsockopt(self, _level: int, name: int, size: int = 0) -> bytes:
        if name == socket.SO_PEERCRED:
            return struct.pack("3i", self.pid, 0, 0)
        raise OSError(self.error, os.strerror(self.error))


def test_the_daemon_is_found_by_its_socket(daemon: FakeDaemon) -> None:
    """No number that is another process's, or nobody's, is taken for the daemon's."""
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(daemon.path)
        pid, pidfd = open_daemon(s)
        os.close(pidfd)
        assert pid == os.getpid()
    assert open_daemon(OldKernel(0)) == (-1, -1)  # type: ignore[arg-type]
    assert open_daemon(OldKernel(os.getpid(), errno.EINVAL)) == (os.getpid(), -1)  # type: ignore[arg-type]
    pid, pidfd = open_daemon(OldKernel(os.getpid()))  # type: ignore[arg-type]
    os.close(pidfd)
    assert pid == os.getpid()
