from __future__ import annotations

import struct
import threading
import time
from typing import Any

import fakedaemon as fd
import pytest
from conftest import eventually
from fakedaemon import FakeDaemon

import kvxfer


def parts(daemon: FakeDaemon, count: int) -> list[tuple[int, ...]]:
    return [struct.unpack("<QIIII", g.array) for g in daemon.wait_for(fd.PUSH_LAYER, count)]


def test_layerwise(daemon: FakeDaemon, client: kvxfer.Client, cache: kvxfer.Cache) -> None:
    push = cache.write(range(3), to="kvx1.x", layerwise=True, timeout=20)
    got = daemon.wait_for(fd.PUSH)[0]
    assert (got.body["ticket"], got.body["timeout_ms"], got.body["layerwise"]) == ("kvx1.x", 20_000, True)
    assert (push.transfer_id, push.trace_id) == ("cd" * 16, fd.TRACE_ID)
    transfer = daemon.next_id
    push.layer(0)
    push.layer(3, first=1)
    push.layer(2, first=1, count=1)
    push.finish(b"note")
    assert parts(daemon, 3) == [(transfer, 0, 0, 0, 0), (transfer, 3, 1, 0, 0), (transfer, 2, 1, 1, 0)]
    assert daemon.wait_for(fd.PUSH_FINISH)[0].array == b"note"
    assert not push.poll() and not push.released
    daemon.peer.transfer_ended(transfer)
    result = push.wait(20)
    assert result == kvxfer.TransferResult(
        3, 4096, "node-b", "tcp", "the only one", "cd" * 16, fd.TRACE_ID, 10, 30, 15
    )
    assert push.released and push.poll() and client.completed() == [push]
    push.wait_released(0)


def test_all_at_once(daemon: FakeDaemon, cache: kvxfer.Cache) -> None:
    push = cache.write([0], to="t", notification=b"hello")
    finish = daemon.wait_for(fd.PUSH_FINISH)[0]
    assert (finish.body, finish.array) == ({"transfer": daemon.next_id}, b"hello")
    push.finish()
    with pytest.raises(kvxfer.InvalidArgument):
        push.finish(b"other")
    with pytest.raises(kvxfer.InvalidArgument) as e:
        push.layer(0)
    assert e.value.field == "layerwise" and daemon.count(fd.PUSH_FINISH) == 1


def test_arguments(cache: kvxfer.Cache) -> None:
    push = cache.write([0, 1], to="t", layerwise=True)
    bad: list[tuple[dict[str, Any], str, str]] = [
        ({"layer": 4}, "layer", "allowed 0..3"),
        ({"layer": -1}, "layer", "allowed 0..3"),
        ({"layer": "x"}, "layer", "no integer"),
        ({"layer": 0, "first": 2}, "first", "allowed 0..1"),
        ({"layer": 0, "first": 1, "count": 2}, "count", "allowed 1..1"),
        ({"layer": 0, "count": 0}, "count", "allowed 1..2"),
    ]
    for arguments, field, allowed in bad:
        with pytest.raises(kvxfer.InvalidArgument) as e:
            push.layer(**arguments)
        assert e.value.field == field and allowed in e.value.detail
    for note in (bytes(65_537), "text", None):
        with pytest.raises(kvxfer.InvalidArgument) as e:
            push.finish(note)  # type: ignore[arg-type]
        assert e.value.field == "notification"
    push.finish(bytes(65_536))
    with pytest.raises(kvxfer.InvalidArgument, match="already"):
        push.finish()
    with pytest.raises(kvxfer.InvalidArgument, match="after finish"):
        push.layer(0)
    with pytest.raises(kvxfer.InvalidArgument) as e:
        cache.write([0], to=None)  # type: ignore[arg-type]
    assert e.value.field == "to"
    with pytest.raises(kvxfer.InvalidArgument) as e:
        cache.write([0], to="t", layerwise=True, notification=b"x")
    assert e.value.field == "notification"


def test_failure_that_holds_the_memory(daemon: FakeDaemon, cache: kvxfer.Cache) -> None:
    push = cache.write([0], to="t")
    error = {"code": 25, "name": "PeerLost", "peer": "node-b", "may_have_written": True, "retryable": True}
    daemon.peer.transfer_ended(daemon.next_id, released=False, error=error)
    with pytest.raises(kvxfer.PeerLost) as e:
        push.wait(20)
    assert e.value.released is False and e.value.may_have_written and not push.released
    with pytest.raises(kvxfer.DeadlineExceeded) as late:
        push.wait_released(0.01)
    assert late.value.released is False
    held = push.when_released
    daemon.peer.released(daemon.next_id)
    push.wait_released(20)
    assert e.value.released is True and push.released and held.poll()


def test_success_may_hold_the_memory_too(daemon: FakeDaemon, cache: kvxfer.Cache) -> None:
    push = cache.write([0], to="t")
    daemon.peer.transfer_ended(daemon.next_id, released=False)
    assert push.wait(20).blocks == 3 and not push.released
    daemon.peer.released(daemon.next_id)
    push.wait_released(20)


def test_after_the_end_layers_are_ignored(
    daemon: FakeDaemon, client: kvxfer.Client, cache: kvxfer.Cache
) -> None:
    push = cache.write([0], to="t", layerwise=True)
    daemon.peer.transfer_ended(daemon.next_id, error={"code": 25, "name": "PeerLost"})
    eventually(push.poll)
    push.layer(0)
    push.finish(b"x")
    push.cancel()
    client.ping()
    assert daemon.count(fd.PUSH_LAYER) == daemon.count(fd.PUSH_FINISH) == daemon.count(fd.PUSH_CANCEL) == 0


def test_cancel(daemon: FakeDaemon, cache: kvxfer.Cache) -> None:
    def cancel(peer: fd.Peer, got: fd.Got) -> None:
        peer.transfer_ended(got.body["transfer"], error={"code": 29, "name": "Cancelled"})

    daemon.on[fd.PUSH_CANCEL] = cancel
    push = cache.write([0], to="t", layerwise=True)
    push.cancel()
    with pytest.raises(kvxfer.Cancelled) as e:
        push.wait(20)
    assert e.value.released is True


def test_the_sdk_keeps_the_deadline(daemon: FakeDaemon, cache: kvxfer.Cache) -> None:
    push = cache.write([0], to="t", layerwise=True, timeout=0.05)
    daemon.running.clear()
    push.layer(0)
    with pytest.raises(kvxfer.DeadlineExceeded) as e:
        push.wait()
    assert e.value.released is False and e.value.may_have_written and not push.released
    daemon.running.set()
    daemon.wait_for(fd.PUSH_CANCEL)
    daemon.peer.transfer_ended(daemon.next_id)
    push.wait_released(20)


def test_a_late_answer_is_cancelled(daemon: FakeDaemon, cache: kvxfer.Cache) -> None:
    daemon.running.clear()
    with pytest.raises(kvxfer.DeadlineExceeded) as e:
        cache.write([0], to="t", layerwise=True, timeout=0.05)
    assert e.value.released is False
    daemon.running.set()
    assert daemon.wait_for(fd.PUSH_CANCEL)[0].body == {"transfer": daemon.next_id}


def test_a_daemon_that_does_not_read_blocks_nobody(
    daemon: FakeDaemon, client: kvxfer.Client, cache: kvxfer.Cache
) -> None:
    push = cache.write(range(16), to="t", layerwise=True)
    daemon.running.clear()
    count = 20_000  # more than any socket buffer holds of 56-byte frames
    for i in range(count):
        push.layer(i % 4)
    assert cache._client._session.conn._queue
    with pytest.raises(kvxfer.DeadlineExceeded):
        client.ping(timeout=0.05)
    daemon.running.set()
    got = parts(daemon, count)
    assert [p[1] for p in got] == [i % 4 for i in range(count)]
    client.ping(timeout=20)


def test_what_waits_for_the_daemon_is_bounded(
    daemon: FakeDaemon, cache: kvxfer.Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvxfer._connection._MAX_QUEUED", 10_000)
    daemon.running.clear()
    push = cache._client
    with pytest.raises(kvxfer.ResourceExhausted, match="does not read"):
        for _ in range(100_000):
            push._session.conn.notify(fd.PUSH_CANCEL, {"transfer": 1})
    daemon.running.set()


def test_threads_share_a_push(daemon: FakeDaemon, cache: kvxfer.Cache) -> None:
    push = cache.write(range(16), to="t", layerwise=True)

    def hand_over(layer: int) -> None:
        for i in range(16):
            push.layer(layer, first=i, count=1)

    threads = [threading.Thread(target=hand_over, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    push.finish()
    daemon.wait_for(fd.PUSH_FINISH)
    got = parts(daemon, 64)
    assert sorted((p[1], p[2]) for p in got) == [(n, i) for n in range(4) for i in range(16)]


def test_errors_of_the_call(daemon: FakeDaemon, cache: kvxfer.Cache) -> None:
    daemon.on[fd.PUSH] = lambda peer, got: peer.error(
        got, 20, "TicketInvalid", field="ticket", detail="unreadable"
    )
    with pytest.raises(kvxfer.TicketInvalid, match="unreadable") as e:
        cache.write([0], to="kvx1.verysecret")
    assert "verysecret" not in str(e.value)
    start = time.monotonic()
    daemon.on[fd.PUSH] = lambda peer, got: None
    with pytest.raises(kvxfer.DeadlineExceeded):
        cache.write([0], to="t", timeout=0.05)
    assert time.monotonic() - start < 20
