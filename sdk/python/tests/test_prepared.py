"""Prepared lists: bound once, posted many times, over the ring and over the socket."""

from __future__ import annotations

import functools
import random
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import fakedaemon as fd
import pytest
from conftest import DaemonProcess, eventually
from fakedaemon import FakeDaemon
from test_fork import in_child

import kvxfer

WAYS = ("ring", "socket")


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def client(daemon: FakeDaemon, way: str) -> Iterator[kvxfer.Client]:
    with kvxfer.connect(daemon.path, process="test", ring=way == "ring") as c:
        yield c


@pytest.fixture
def region(client: kvxfer.Client) -> kvxfer.Region:
    return client.allocate_region("r0", 8192)


class Posts:
    """What the fake daemon does with posts, whatever way they come."""

    def __init__(self, daemon: FakeDaemon, way: str) -> None:
        self.daemon, self.way = daemon, way
        self.held: list[int] = []

    def decide(self, what: tuple[int, int, int] | None) -> None:
        """Every post from now on ends with that; None: it is held."""
        if self.way == "ring":

            def on_ring(_p: int, cookie: int, _t: int) -> tuple[int, int, int] | None:
                if what is None:
                    self.held.append(cookie)
                return what

            self.daemon.rings[0].on_post = on_ring
            return

        def on_socket(peer: fd.Peer, got: fd.Got) -> None:
            for _, cookie, _ in struct.iter_unpack("<QQQ", got.array):
                if what is None:
                    self.held.append(cookie)
                else:
                    peer.posted(cookie, what[0], bool(what[1]), what[2])

        self.daemon.on[fd.POST] = on_socket

    def end(self, cookie: int, code: int = 0, wrote: bool = False) -> None:
        if self.way == "ring":
            self.daemon.rings[0].end(cookie, code, int(wrote))
        else:
            self.daemon.peer.posted(cookie, code, wrote)

    def stop(self) -> None:
        """Nothing is read any more, as by a stopped process."""
        self.daemon.running.clear()
        for r in self.daemon.rings:
            r.running.clear()

    def go_on(self) -> None:
        self.daemon.running.set()
        for r in self.daemon.rings:
            r.running.set()

    def all(self) -> list[tuple[int, int, int]]:
        if self.way == "ring":
            return self.daemon.rings[0].posts
        return [x for g in self.daemon.wait_for(fd.POST) for x in struct.iter_unpack("<QQQ", g.array)]


@pytest.fixture
def posts(daemon: FakeDaemon, way: str) -> Iterator[Posts]:
    p = Posts(daemon, way)
    yield p
    p.go_on()


def test_the_life_of_a_list(
    daemon: FakeDaemon, client: kvxfer.Client, region: kvxfer.Region, way: str, posts: Posts
) -> None:
    prepared = region.prepare([(0, 0, 4096), (4096, 8192, 64)], to="kvx1.x", timeout=20)
    number = daemon.next_id
    got = daemon.wait_for(fd.PREPARE)[0]
    assert (got.body["mode"], got.body["ticket"], "cache" in got.body) == ("write", "kvx1.x", False)
    assert got.array == struct.pack("<6Q", 0, 0, 4096, 4096, 8192, 64)
    assert 19_000 <= got.body["timeout_ms"] <= 20_000
    assert (prepared.provider, prepared.reason, prepared.operations) == ("shm", "one host", 1)
    assert (prepared.bytes, prepared.way, bool(prepared.why_socket)) == (4096, way, way == "socket")
    assert not prepared.poll() and client.completed() == []
    post = prepared.post(timeout=2.5)
    result = post.wait(20)
    assert (result.bytes, post.poll(), post.exception()) == (4096, True, None) and result.seconds > 0
    prepared.run()
    prepared.run(timeout=7)
    assert [(p, t) for p, _, t in posts.all()] == [(number, round(t * 1e9)) for t in (2.5, 1, 7)]
    end = prepared.finish(notification=b"note")
    assert daemon.wait_for(fd.PUSH_FINISH)[0].array == b"note"
    assert end.peer == "node-b" and prepared.wait() == end and client.completed() == [prepared]
    prepared.wait_released(20)


def test_blocks(daemon: FakeDaemon, client: kvxfer.Client, cache: kvxfer.Cache) -> None:
    with cache.prepare([2, 0], to="t") as prepared:
        prepared.run()
    got = daemon.wait_for(fd.PREPARE)[0]
    assert got.array == fd.u32s(2, 0) and got.body["mode"] == "write" and "region" not in got.body
    cache.publish([5, 6], [b"a", b"b"])
    vouched = cache._vouched.packed()
    daemon.on[fd.PREPARE] = lambda peer, got: peer.error(got, 6, "BlocksBusy")
    with pytest.raises(kvxfer.BlocksBusy):
        cache.prepare([5], source="t")
    assert cache._vouched.packed() == vouched, "nothing was changed"
    del daemon.on[fd.PREPARE]
    with cache.prepare([5], source="t") as prepared:
        assert cache._vouched.packed() == vouched[16:], "its bytes are given up"
        prepared.run()
        daemon.on[fd.PUSH_FINISH] = lambda peer, got: peer.transfer_ended(got.body["transfer"], generation=42)
    assert struct.unpack("<IIQ", cache._vouched.packed()[:16]) == (5, 0, 42), "committed"


def test_posts_overlap_and_end_in_any_order(region: kvxfer.Region, posts: Posts, rng: random.Random) -> None:
    prepared = region.prepare([(0, 0, 4096)], to="t")
    posts.decide(None)
    mine = [prepared.post(timeout=60) for _ in range(100)]
    eventually(lambda: len(posts.held) == 100)
    assert not any(p.poll() for p in mine)
    order = list(zip(posts.held, mine, strict=True))
    rng.shuffle(order)
    for cookie, post in order:
        posts.end(cookie)
        assert post.wait(20).bytes == 4096
        assert post.wait(0).bytes == 4096, "as often as wanted"
    posts.decide((0, 0, 1))
    assert sum(p.wait().bytes for p in [prepared.post() for _ in range(1000)]) == 1000
    prepared.finish()


def test_leaving(daemon: FakeDaemon, region: kvxfer.Region, posts: Posts) -> None:
    with region.prepare([(0, 0, 8)], to="t") as unused:
        pass
    assert daemon.count(fd.PUSH_CANCEL) == 1 and unused.released
    assert isinstance(unused.exception(), kvxfer.Cancelled)
    with region.prepare([(0, 0, 8)], to="t") as used:
        used.post()
    assert used.wait().blocks == 3 and used.released
    with pytest.raises(ZeroDivisionError), region.prepare([(0, 0, 8)], to="t") as failed:
        failed.run()
        _ = 1 / 0
    assert isinstance(failed.exception(), kvxfer.Cancelled) and failed.released
    with region.prepare([(0, 0, 8)], to="t") as finished:
        finished.run()
        finished.finish(b"by hand")
    assert daemon.count(fd.PUSH_FINISH) == 2


def test_after_the_end_no_post_is_taken(region: kvxfer.Region, posts: Posts) -> None:
    """The call has returned: from then on no byte may be asked for."""
    cancelled, finished = (region.prepare([(0, 0, 8)], to="t") for _ in range(2))
    for p in (cancelled, finished):
        p.run()
    cancelled.cancel()
    finished.finish()
    count = len(posts.all())
    for call in ("post", "run"):
        with pytest.raises(kvxfer.Cancelled):
            getattr(cancelled, call)()
        with pytest.raises(kvxfer.Closed, match="finished"):
            getattr(finished, call)()
    with pytest.raises(kvxfer.InvalidArgument, match="already"):
        finished.finish()
    with pytest.raises(kvxfer.Cancelled):
        cancelled.finish()
    assert len(posts.all()) == count


def test_finish_waits_for_posts(daemon: FakeDaemon, region: kvxfer.Region, posts: Posts) -> None:
    prepared = region.prepare([(0, 0, 8)], to="t")
    posts.decide(None)
    post = prepared.post(timeout=60)
    eventually(lambda: posts.held)
    done: list[kvxfer.TransferResult] = []
    thread = threading.Thread(target=lambda: done.append(prepared.finish()))
    thread.start()
    eventually(lambda: prepared._ending)
    with pytest.raises(kvxfer.Closed):
        prepared.post()
    assert daemon.count(fd.PUSH_FINISH) == 0
    posts.end(posts.held[0])
    thread.join(20)
    assert done and post.poll() and daemon.count(fd.PUSH_FINISH) == 1


def test_a_failure_ends_the_list(daemon: FakeDaemon, region: kvxfer.Region, posts: Posts) -> None:
    prepared = region.prepare([(0, 0, 8)], to="t")
    prepared.run()
    posts.decide((23, 1, 0))
    post = prepared.post()
    eventually(post.poll)
    assert type(post.exception()) is kvxfer.LeaseRevoked
    more = {"code": 23, "name": "LeaseRevoked", "peer": "node-b", "detail": "the owner said so"}
    daemon.peer.transfer_ended(daemon.next_id, error=more)
    with pytest.raises(kvxfer.LeaseRevoked) as e:
        post.wait()
    assert e.value.may_have_written and e.value.released is True and e.value.op == "post"
    eventually(prepared.poll)
    for call in (prepared.post, prepared.run, prepared.finish):
        with pytest.raises(kvxfer.LeaseRevoked, match="the owner said so") as e:
            call()
        assert e.value.peer == "node-b"
    # A post that nobody looked at before tells what the transfer's own error says.
    other = region.prepare([(0, 0, 8)], to="t")
    number = daemon.next_id
    post = other.post()
    threading.Timer(0.01, lambda: daemon.peer.transfer_ended(number, error=more)).start()
    with pytest.raises(kvxfer.LeaseRevoked, match="the owner said so"):
        post.wait(20)
    posts.decide((4711, 0, 0))
    other = region.prepare([(0, 0, 8)], to="t")
    with pytest.raises(kvxfer.Internal, match="4711") as unknown:
        other.run()
    assert not unknown.value.may_have_written
    other.cancel()


def test_deadlines_hold_without_the_daemon(region: kvxfer.Region, posts: Posts) -> None:
    prepared = region.prepare([(0, 0, 8)], to="t", timeout=60)
    prepared.run()
    posts.stop()
    first, second = prepared.post(timeout=30), prepared.post(timeout=0.05)
    with pytest.raises(kvxfer.DeadlineExceeded) as e:
        first.wait(0.02)
    assert not first.poll() and e.value.released is False
    begin = time.monotonic()
    with pytest.raises(kvxfer.DeadlineExceeded) as e:
        second.wait()
    assert time.monotonic() - begin >= 0.5, "the daemon may say it itself for so long"
    assert e.value.released is False and e.value.may_have_written and second.exception() is e.value
    with pytest.raises(kvxfer.Cancelled):
        prepared.post()
    posts.go_on()
    with pytest.raises(kvxfer.Cancelled):
        prepared.wait(20)
    prepared.wait_released(20)
    assert first.wait(20).bytes == 4096, "a late word still ends it"
    with pytest.raises(kvxfer.DeadlineExceeded):
        second.wait()


def test_polling_keeps_the_deadline(region: kvxfer.Region, posts: Posts) -> None:
    prepared = region.prepare([(0, 0, 8)], to="t", timeout=60)
    posts.stop()
    post = prepared.post(timeout=0.01)
    eventually(post.poll)
    assert isinstance(post.exception(), kvxfer.DeadlineExceeded)
    posts.go_on()


@pytest.mark.parametrize("how", ["lost", "closed"])
def test_the_end_of_the_connection(
    daemon: FakeDaemon, client: kvxfer.Client, region: kvxfer.Region, posts: Posts, how: str
) -> None:
    prepared = region.prepare([(0, 0, 8)], to="t")
    prepared.run()
    posts.decide(None)
    mine = [prepared.post(timeout=60) for _ in range(3)]
    failed: list[BaseException] = []

    def wait(post: kvxfer.Post) -> None:
        try:
            post.wait()
        except kvxfer.KvxferError as e:
            failed.append(e)

    threads = [threading.Thread(target=wait, args=(p,)) for p in mine[:2]]
    for t in threads:
        t.start()
    eventually(lambda: len(posts.held) == 3)
    daemon.peer.close() if how == "lost" else client.close()
    for t in threads:
        t.join(20)
        assert not t.is_alive()
    wait(mine[2])
    kind = kvxfer.DaemonUnavailable if how == "lost" else kvxfer.Closed
    assert len(failed) == 3 and all(type(e) is kind for e in failed)
    assert all(e.released is False and e.may_have_written for e in failed if isinstance(e, kind))
    for call in (prepared.post, prepared.run, prepared.finish):
        with pytest.raises(kind):
            call()


def test_a_killed_daemon(spawn: Callable[..., DaemonProcess], way: str) -> None:
    process = spawn()
    with kvxfer.connect(process.path, ring=way == "ring") as client:
        region = client.allocate_region("r", 64)
        prepared = region.prepare([(0, 0, 8)], to="t")
        prepared.run(timeout=20)
        process.kill()
        with pytest.raises(kvxfer.DaemonUnavailable):
            while True:
                prepared.run(timeout=20)
        assert client.daemon_exited(20)
        prepared.wait_released(20)


def test_several_threads(client: kvxfer.Client, region: kvxfer.Region, posts: Posts) -> None:
    lists = [region.prepare([(0, 0, 8)], to="t") for _ in range(2)]
    failed: list[BaseException] = []

    def work(n: int) -> None:
        try:
            for i in range(100):
                prepared = lists[(n + i) % 2]
                if n % 2:
                    prepared.run(timeout=60)
                else:
                    for p in [prepared.post(timeout=60) for _ in range(5)]:
                        assert p.wait().bytes == 4096
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
        assert not t.is_alive()
    assert failed == []
    seen = posts.all()
    assert len(seen) == 2 * 100 + 2 * 500 and len({c for _, c, _ in seen}) == len(seen)
    for prepared in lists:
        prepared.finish()


def test_what_cannot_be_bound(daemon: FakeDaemon, client: kvxfer.Client, region: kvxfer.Region) -> None:
    def refuse(peer: fd.Peer, got: fd.Got) -> None:
        number = peer.daemon.number()
        peer.ok(got, {"transfer": number, "transfer_id": "cd" * 16, "trace_id": fd.TRACE_ID})
        peer.transfer_ended(number, error={"code": 21, "name": "TicketBound", "detail": "taken"})

    daemon.on[fd.PREPARE] = refuse
    with pytest.raises(kvxfer.TicketBound, match="taken") as e:
        region.prepare([(0, 0, 8)], to="t")
    assert e.value.released is True and client.completed() == [], "nobody has it"
    daemon.on[fd.PREPARE] = lambda peer, got: peer.ok(
        got, {"transfer": peer.daemon.number(), "transfer_id": "", "trace_id": fd.TRACE_ID}
    )
    with pytest.raises(kvxfer.DeadlineExceeded) as late:
        region.prepare([(0, 0, 8)], to="t", timeout=0.05)
    assert late.value.released is False
    assert daemon.wait_for(fd.PUSH_CANCEL)[0].body == {"transfer": daemon.next_id}
    daemon.peer.transfer_ended(daemon.next_id, error={"code": 29, "name": "Cancelled"})


def test_arguments(client: kvxfer.Client, cache: kvxfer.Cache, region: kvxfer.Region) -> None:
    bad: list[tuple[dict[str, Any], str]] = [
        ({}, "to"),
        ({"to": "a", "source": "b"}, "to"),
        ({"to": 5}, "to"),
        ({"source": b"x"}, "source"),
        ({"to": "t", "timeout": 0}, "timeout"),
        ({"to": "t", "transfer_id": "x"}, "transfer_id"),
        ({"to": "t", "attempt": 0}, "attempt"),
        ({"to": "t", "provider": "a b"}, "provider"),
    ]
    for arguments, field in bad:
        calls: list[Callable[..., object]] = [
            functools.partial(cache.prepare, [0]),
            functools.partial(region.prepare, [(0, 0, 8)]),
        ]
        for prepare in calls:
            with pytest.raises(kvxfer.InvalidArgument) as e:
                prepare(**arguments)
            assert (e.value.field, e.value.op) == (field, "prepare")
    with pytest.raises(kvxfer.InvalidArgument, match="blocks"):
        cache.prepare([99], to="t")
    with pytest.raises(kvxfer.InvalidArgument, match="ranges"):
        region.prepare([(8191, 0, 2)], to="t")
    prepared = region.prepare([(0, 0, 8)], to="t")
    for timeout in (0, -1, float("nan"), 86_401, "1", None):
        for call in (prepared.post, prepared.run):
            with pytest.raises(kvxfer.InvalidArgument) as e:
                call(timeout)  # type: ignore[arg-type]
            assert (e.value.field, e.value.op) == ("timeout", "post")
    with pytest.raises(kvxfer.InvalidArgument):
        prepared.finish("text")  # type: ignore[arg-type]
    post = prepared.post(timeout=1)
    with pytest.raises(kvxfer.InvalidArgument):
        prepared.post(timeout=60).wait(-1)
    assert post.wait().bytes == 4096
    prepared.finish()


def test_a_fork(client: kvxfer.Client, region: kvxfer.Region, posts: Posts) -> None:
    prepared = region.prepare([(0, 0, 8)], to="t")
    post = prepared.post(timeout=60)
    post.wait()
    before = len(posts.all())

    def check() -> None:
        for call in (prepared.post, prepared.run, prepared.finish, prepared.cancel, prepared.__enter__):
            with pytest.raises(kvxfer.ForkedClient):
                call()
        for also in (post.wait, post.poll, post.exception):
            with pytest.raises(kvxfer.ForkedClient):
                also()
        prepared.__exit__(None, None, None)
        repr(post), repr(prepared)

    in_child(check)
    assert len(posts.all()) == before
    prepared.run()
    prepared.finish()


def test_an_older_daemon(daemon: FakeDaemon) -> None:
    daemon.features = ()
    with kvxfer.connect(daemon.path) as client:
        region = client.allocate_region("r", 64)
        with pytest.raises(kvxfer.NotSupported, match="older"):
            region.prepare([(0, 0, 8)], to="t")
        assert daemon.count(fd.PREPARE) == daemon.count(fd.RING) == 0
