"""The ring alone: its bounds, its bells, and when it is not used."""

from __future__ import annotations

import os
import threading
import time
from types import SimpleNamespace

import fakedaemon as fd
import pytest
from conftest import eventually
from fakedaemon import FakeDaemon

import kvxfer
from kvxfer._ring import Ring


@pytest.fixture
def prepared(client: kvxfer.Client) -> kvxfer.Prepared:
    return client.allocate_region("r0", 8192).prepare([(0, 0, 8)], to="t", timeout=120)


def test_one_ring_for_all(daemon: FakeDaemon, client: kvxfer.Client, prepared: kvxfer.Prepared) -> None:
    other = client.allocate_region("r1", 64).prepare([(0, 0, 8)], to="t")
    assert daemon.count(fd.RING) == 1 and daemon.rings[0].entries == 256
    assert prepared.way == other.way == "ring" and prepared.why_socket == ""
    prepared.run()
    other.run()
    assert len({p for p, _, _ in daemon.rings[0].posts}) == 2


def test_posts_wait_for_a_place(daemon: FakeDaemon, prepared: kvxfer.Prepared) -> None:
    ring = daemon.rings[0]
    ring.on_post = lambda _p, cookie, _t: None
    posts = [prepared.post(timeout=60) for _ in range(256)]
    for call in (prepared.post, prepared.run):
        with pytest.raises(kvxfer.DeadlineExceeded, match="256 posts are out") as e:
            call(0.02)
        assert not e.value.may_have_written and e.value.released
    got: list[kvxfer.Post] = []
    thread = threading.Thread(target=lambda: got.append(prepared.post(timeout=60)))
    thread.start()
    eventually(lambda: len(ring.posts) == 256)
    ring.end(ring.posts[9][1])
    thread.join(20)
    assert posts[9].poll() and not posts[0].poll()
    eventually(lambda: len(ring.posts) == 257)
    for _, cookie, _ in ring.posts:
        if cookie != ring.posts[9][1]:
            ring.end(cookie)
    for p in (*posts, *got):
        assert p.wait().bytes == 4096
    ring.on_post = lambda _p, cookie, _t: (0, 0, 4096)
    prepared.finish()


def test_a_wait_behind_a_full_ring_ends_with_the_connection(
    daemon: FakeDaemon, prepared: kvxfer.Prepared
) -> None:
    daemon.rings[0].on_post = lambda _p, cookie, _t: None
    for _ in range(256):
        prepared.post(timeout=60)
    failed: list[BaseException] = []

    def post() -> None:
        try:
            prepared.post(timeout=60)
        except kvxfer.KvxferError as e:
            failed.append(e)

    threads = [threading.Thread(target=post) for _ in range(3)]
    for t in threads:
        t.start()
    daemon.peer.close()
    for t in threads:
        t.join(20)
        assert not t.is_alive()
    assert [type(e) for e in failed] == [kvxfer.DaemonUnavailable] * 3


def test_a_missed_bell_costs_a_moment(daemon: FakeDaemon, prepared: kvxfer.Prepared) -> None:
    """Without a fence the daemon may overlook that the client has just gone to sleep: so the first sleep is
    short, and only the second one lasts."""
    ring = daemon.rings[0]
    ring.on_post = lambda _p, cookie, _t: None
    slept: list[float] = []

    class Poller:
        def poll(self, milliseconds: float) -> list[object]:
            slept.append(milliseconds)
            eventually(lambda: ring.posts)
            ring.end(ring.posts[-1][1], bell=False)
            return []

    way = prepared._way
    assert isinstance(way, Ring)
    way._poller = Poller()  # type: ignore[assignment]
    assert prepared.post(timeout=60).wait().bytes == 4096
    assert slept == [pytest.approx(1.0)]


def test_a_long_sleep_ends_with_the_bell(daemon: FakeDaemon, prepared: kvxfer.Prepared) -> None:
    daemon.rings[0].pace = 0.01
    for _ in range(5):
        prepared.run(timeout=60)


def test_many_sleep_and_all_wake(daemon: FakeDaemon, prepared: kvxfer.Prepared) -> None:
    ring = daemon.rings[0]
    ring.on_post = lambda _p, cookie, _t: None
    way = prepared._way
    for _ in range(10):
        ring.posts.clear()
        posts = [prepared.post(timeout=60) for _ in range(6)]
        done = [threading.Event() for _ in posts]

        def wait(i: int, posts: list[kvxfer.Post] = posts, done: list[threading.Event] = done) -> None:
            posts[i].wait()
            done[i].set()

        threads = [threading.Thread(target=wait, args=(i,)) for i in range(6)]
        for t in threads:
            t.start()
        eventually(lambda: len(way._waiting) == 5 and len(ring.posts) == 6)
        for i in (3, 0, 5, 1, 4, 2):
            ring.end(ring.posts[i][1])
            assert done[i].wait(20)
        for t in threads:
            t.join(20)
        assert way._waiting == [] and not way.out


def test_the_daemon_sleeps_when_idle(daemon: FakeDaemon, prepared: kvxfer.Prepared) -> None:
    ring = daemon.rings[0]
    for _ in range(3):
        eventually(lambda: ring.map[320] == 1)
        prepared.run(timeout=60)


def test_a_ring_that_the_daemon_left(daemon: FakeDaemon, prepared: kvxfer.Prepared) -> None:
    ring = daemon.rings[0]
    ring.on_post = lambda _p, cookie, _t: None
    post = prepared.post(timeout=60)
    eventually(lambda: ring.posts)
    ring.close()
    with pytest.raises(kvxfer.DaemonUnavailable, match="reads the ring no more") as e:
        post.wait()
    assert e.value.released is False
    with pytest.raises(kvxfer.DaemonUnavailable):
        prepared.post()


@pytest.mark.parametrize("completed", [5, 1 << 63])
def test_counts_that_cannot_be(daemon: FakeDaemon, prepared: kvxfer.Prepared, completed: int) -> None:
    ring = daemon.rings[0]
    ring.on_post = lambda _p, cookie, _t: None
    post = prepared.post(timeout=60)
    ring.put(192, completed)
    with pytest.raises(kvxfer.ProtocolViolation, match="1 posts"):
        post.wait()
    with pytest.raises(kvxfer.ProtocolViolation):
        prepared.run()


def test_ends_that_nobody_asked_for(daemon: FakeDaemon, prepared: kvxfer.Prepared) -> None:
    """What a caller left behind by Ctrl-C ends later; nobody wants to know."""
    ring = daemon.rings[0]
    ring.on_post = lambda _p, cookie, _t: None
    post = prepared.post(timeout=60)
    eventually(lambda: ring.posts)
    left = prepared._way.out.pop(post._cookie)
    assert left is post
    ring.on_post = lambda _p, cookie, _t: (0, 0, 4096)
    ring.end(post._cookie)
    prepared.run(timeout=60)
    assert not post.poll()


def test_long_lists_sleep_at_once(daemon: FakeDaemon, client: kvxfer.Client) -> None:
    region = client.allocate_region("big", 64)

    def bind(peer: fd.Peer, got: fd.Got) -> None:
        number = peer.daemon.number()
        peer.ok(got, {"transfer": number, "transfer_id": "cd" * 16, "trace_id": fd.TRACE_ID})
        peer.prepared(number, bytes=1 << 30)

    daemon.on[fd.PREPARE] = bind
    prepared = region.prepare([(0, 0, 8)], to="t")
    assert not prepared._looks
    daemon.rings[0].pace = 0.002
    spent = time.thread_time()
    for _ in range(50):
        prepared.run(timeout=60)
    assert time.thread_time() - spent < 50 * 0.002, "it slept"


def test_a_refused_ring(daemon: FakeDaemon) -> None:
    def refuse(peer: fd.Peer, got: fd.Got) -> None:
        for f in got.fds:
            os.close(f)
        peer.error(got, 7, "ResourceExhausted", detail="no ring left")

    daemon.on[fd.RING] = refuse
    with kvxfer.connect(daemon.path) as client:
        region = client.allocate_region("r", 64)
        for _ in range(2):
            with region.prepare([(0, 0, 8)], to="t") as p:
                assert p.way == "socket" and "no ring left" in p.why_socket
                p.run()
    assert daemon.count(fd.RING) == 1, "it is asked for once"


@pytest.mark.parametrize(("name", "way"), [("off", "socket"), ("on", "ring"), ("", "ring")])
def test_the_environment(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, name: str, way: str) -> None:
    monkeypatch.setenv("KVXFER_RING", name)
    with kvxfer.connect(daemon.path) as client:
        assert client.allocate_region("r", 64).prepare([(0, 0, 8)], to="t").way == way
    monkeypatch.setenv("KVXFER_RING", "maybe")
    with pytest.raises(kvxfer.InvalidArgument) as e:
        kvxfer.connect(daemon.path)
    assert e.value.field == "KVXFER_RING"
    with pytest.raises(kvxfer.InvalidArgument) as e:
        kvxfer.connect(daemon.path, ring="no")  # type: ignore[arg-type]
    assert e.value.field == "ring"


def test_other_processors_keep_to_the_socket(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvxfer._ring.os.uname", lambda: SimpleNamespace(machine="aarch64"))
    with kvxfer.connect(daemon.path) as client:
        p = client.allocate_region("r", 64).prepare([(0, 0, 8)], to="t")
        assert p.way == "socket" and "aarch64" in p.why_socket
    assert daemon.count(fd.RING) == 0


def test_a_new_ring_behind_reconnect(daemon: FakeDaemon, client: kvxfer.Client) -> None:
    region = client.allocate_region("r", 64)
    old = region.prepare([(0, 0, 8)], to="t")
    daemon.peer.close()
    eventually(lambda: not client._session.conn.alive)
    client.reconnect()
    with region.prepare([(0, 0, 8)], to="t") as p:
        p.run()
    assert daemon.count(fd.RING) == 2 and old.released
    with pytest.raises(kvxfer.DaemonUnavailable):
        old.run()
