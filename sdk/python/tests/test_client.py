from __future__ import annotations

import gc
import logging
import os
import re
import socket
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import fakedaemon as fd
import pytest
from conftest import BLOCKS, LAYOUT, DaemonProcess, eventually
from fakedaemon import FakeDaemon

import kvxfer
from kvxfer import _connect


def test_hello(daemon: FakeDaemon, client: kvxfer.Client) -> None:
    body = daemon.wait_for(fd.HELLO)[0].body
    assert body["process"] == "test" and body["pid"] == os.getpid() and body["tenant"] == ""
    assert client.tenant == "default"
    assert (client.node, client.epoch, client.version, client.boot_id) == ("node-a", "e0" * 16, 1, "boot-1")
    assert client.process_watched
    assert client.ping() >= 0
    status = client.status()
    assert (status.node, status.providers, status.nodes, status.clients) == ("node-a", ("tcp",), (), 1)
    assert "node-a" in repr(client) and "connected" in repr(client)


def test_no_daemon(tmp_path: Path) -> None:
    path = str(tmp_path / "nobody.sock")
    with pytest.raises(kvxfer.DaemonUnavailable) as e:
        kvxfer.connect(path)
    assert path in str(e.value) and "kvxfer serve" in str(e.value)
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(path)
    with pytest.raises(kvxfer.DaemonUnavailable, match="Connection refused"):
        kvxfer.connect(path)


def test_a_full_backlog_does_not_hang(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(0)
        waiting = []
        while True:
            s = socket.socket(socket.AF_UNIX)
            waiting.append(s)
            s.setblocking(False)
            try:
                s.connect(path)
            except BlockingIOError:
                break
        with pytest.raises(kvxfer.DaemonUnavailable, match="accepts no connection"):
            kvxfer.connect(path, timeout=0.05)
        for s in waiting:
            s.close()


def test_default_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KVXFER_SOCKET", raising=False)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert _connect.default_socket() == "/run/kvxfer/kvxfer.sock"
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    assert _connect.default_socket() == "/tmp/kvxfer-1000/kvxfer.sock"
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1000")
    assert _connect.default_socket() == "/run/user/1000/kvxfer/kvxfer.sock"
    monkeypatch.setenv("KVXFER_SOCKET", "/x/y")
    assert _connect.default_socket() == "/x/y"
    with pytest.raises(kvxfer.DaemonUnavailable, match="/x/y"):
        kvxfer.connect()


def test_arguments_of_connect(tmp_path: Path) -> None:
    for path in ("", "/" + "x" * 107, "/a\0b"):
        with pytest.raises(kvxfer.InvalidArgument) as e:
            kvxfer.connect(path)
        assert e.value.field == "socket"
    with pytest.raises(kvxfer.InvalidArgument) as e:
        kvxfer.connect("/x", tenant="a b")
    assert e.value.field == "tenant"
    with pytest.raises(kvxfer.InvalidArgument):
        kvxfer.connect("/x", timeout=0)


@pytest.mark.parametrize(
    ("code", "name"),
    [(40, "VersionMismatch"), (41, "FeatureRequired"), (9, "PermissionDenied"), (60, "Draining")],
)
def test_a_refused_hello_is_typed(daemon: FakeDaemon, code: int, name: str) -> None:
    def refuse(peer: fd.Peer, got: fd.Got) -> None:
        peer.error(got, code, name, detail="no")
        peer.close()

    daemon.on[fd.HELLO] = refuse
    with pytest.raises(getattr(kvxfer, name)):
        kvxfer.connect(daemon.path)


def test_a_feature_that_the_daemon_requires(daemon: FakeDaemon) -> None:
    body = {"version": 1, "required": ["ring", "x" * 10_000, *"abcdefgh"]}
    daemon.on[fd.HELLO] = lambda peer, got: peer.send(fd.HELLO_OK, got.request, body)
    with pytest.raises(kvxfer.FeatureRequired, match=r"requires 'ring', 'x+', 'a'") as e:
        kvxfer.connect(daemon.path)
    assert len(str(e.value)) < 300


def test_a_version_that_was_not_offered(daemon: FakeDaemon) -> None:
    daemon.on[fd.HELLO] = lambda peer, got: peer.send(fd.HELLO_OK, got.request, {"version": 2})
    with pytest.raises(kvxfer.VersionMismatch, match=r"chose 2, this side speaks 1\.\.1"):
        kvxfer.connect(daemon.path)
    daemon.on[fd.HELLO] = lambda peer, got: peer.ok(got, {"version": 1})
    with pytest.raises(kvxfer.ProtocolViolation):
        kvxfer.connect(daemon.path)


def test_close_ends_everything_and_is_idempotent(daemon: FakeDaemon, client: kvxfer.Client) -> None:
    cache = client.allocate_cache("c", model="m", layout=LAYOUT, num_blocks=BLOCKS)
    view = cache.layer(0)
    lease, push = cache.lease([0]), cache.write([1], to="t", layerwise=True)
    waiting = threading.Thread(target=_swallow, args=(lease,))
    waiting.start()
    client.close()
    client.close()
    waiting.join(20)
    for p in (lease, push):
        with pytest.raises(kvxfer.Closed) as e:
            p.wait(20)
        assert e.value.released is False
    view[...] = 1
    for use in (
        client.ping,
        client.status,
        lambda: cache.lease([0]),
        lambda: cache.layer(0),
        client.reconnect,
    ):
        with pytest.raises(kvxfer.Closed):
            use()
    with pytest.raises(kvxfer.Closed):
        client.allocate_cache("d", model="m", layout=LAYOUT, num_blocks=1)
    push.layer(0)
    assert "closed" in repr(client)
    with pytest.raises(kvxfer.Closed):
        lease.revoke().wait(20)
    assert daemon.peer.closed.wait(20)


def _swallow(p: kvxfer.Lease) -> None:
    try:
        p.wait(20)
    except kvxfer.KvxferError:
        pass


def test_an_unclosed_client_warns_and_closes(daemon: FakeDaemon) -> None:
    client = kvxfer.connect(daemon.path)
    client.allocate_cache("c", model="m", layout=LAYOUT, num_blocks=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del client
        gc.collect()
    assert [w.category for w in caught] == [ResourceWarning]
    assert daemon.peer.closed.wait(20)


def test_nothing_leaks(daemon: FakeDaemon) -> None:
    def once() -> None:
        with kvxfer.connect(daemon.path) as client:
            cache = client.allocate_cache("c", model="m", layout=LAYOUT, num_blocks=BLOCKS)
            lease, push = cache.lease([0]), cache.write([1], to="t")
            lease.fileno(), push.fileno()
            daemon.peer.lease_ended(daemon.next_id - 1)
            lease.wait(20)
        assert daemon.peer.closed.wait(20)
        for memfd, _, _ in daemon.regions.values():
            os.close(memfd)
        daemon.regions.clear()

    def fds() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    once()
    before = fds()
    for _ in range(5):
        once()
    eventually(lambda: fds() == before)


def test_an_idle_client_sleeps(client: kvxfer.Client, cache: kvxfer.Cache) -> None:
    client.ping()
    thread = client._session.conn._thread
    switches = Path(f"/proc/self/task/{thread.native_id}/status")

    def woken() -> int:
        found = re.findall(r"ctxt_switches:\s+(\d+)", switches.read_text())
        return sum(int(n) for n in found)

    eventually(lambda: woken() == (threading.Event().wait(0.2), woken())[1])


def test_no_ticket_in_logs_or_errors(
    daemon: FakeDaemon, client: kvxfer.Client, cache: kvxfer.Cache, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="kvxfer")
    lease = cache.lease([0])
    cache.write([1], to=fd.TICKET)
    daemon.peer.close()
    with pytest.raises(kvxfer.DaemonUnavailable) as e:
        lease.wait(20)
    assert "secret" not in str(e.value) + caplog.text + repr(lease)
    assert caplog.text.count("the connection to the daemon ended") == 1


def test_a_daemon_that_is_stopped(spawn: Callable[[], DaemonProcess]) -> None:
    import signal

    process = spawn()
    with kvxfer.connect(process.path) as client:
        cache = client.allocate_cache("c", model="m", layout=LAYOUT, num_blocks=BLOCKS)
        push = cache.write([0], to="t", layerwise=True, timeout=0.1)
        lease = cache.lease([1], ttl=0.1)
        process.signal(signal.SIGSTOP)
        for n in range(4):
            push.layer(n)
        for what in (push, lease):
            with pytest.raises(kvxfer.DeadlineExceeded) as e:
                what.wait()
            assert e.value.released is False
        for call in (
            lambda: client.ping(timeout=0.05),
            lambda: client.status(timeout=0.05),
            lambda: cache.evict([0], timeout=0.05),
            lambda: cache.block_states(timeout=0.05),
            lambda: cache.drop(timeout=0.05),
            lambda: cache.lease([2], timeout=0.05),
            lambda: lease.revoke(timeout=0.05).wait(),
        ):
            with pytest.raises(kvxfer.DeadlineExceeded):
                call()
        with pytest.raises(kvxfer.DaemonUnavailable, match="is it stopped"):
            kvxfer.connect(process.path, timeout=0.1)
        assert not client.daemon_exited()
        process.kill()
        assert client.daemon_exited(20)
        push.wait_released(20)
        lease.wait_released(20)
