"""The bytes of every frame that the SDK sends, against those of the daemon's own wire package."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

import fakedaemon as fd
import pytest
from conftest import LAYOUT
from fakedaemon import FakeDaemon

import kvxfer
from kvxfer import _trace, _wire
from kvxfer._blocks import Vouched
from kvxfer._errors import error_of

GOLDEN = {
    name: bytes.fromhex(raw)
    for name, raw in (
        line.split()
        for line in Path(__file__).with_name("golden_v1.txt").read_text().splitlines()
        if line[0] != "#"
    )
}


# What the daemon's own tests hold: every kind of both protocols, more than the SDK sends.
DAEMON = {
    path.stem: bytes.fromhex(path.read_text().replace("\n", ""))
    for path in (Path(__file__).parents[3] / "internal/wire/testdata/v1").glob("*.hex")
}


def test_frames_sent(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "token_hex", lambda n: bytes(range(n)).hex())
    monkeypatch.setattr(_trace, "new_trace_id", lambda: fd.TRACE_ID)
    monkeypatch.setattr(_trace, "new_span_id", lambda: fd.PARENT_ID)
    with monkeypatch.context() as m:
        m.setattr(os, "getpid", lambda: 4242)
        client = kvxfer.connect(daemon.path, process="test", tenant="default")
    with client:
        cache = client.allocate_cache(
            "c0",
            model="m",
            revision="r1",
            compat="int4",
            layout=LAYOUT,
            num_blocks=8 * 4096 // LAYOUT.block_bytes,
        )
        lease = cache.lease([3, 1, 2], ttl=20)
        lease.revoke()
        push = cache.write([0, 1], to="kvx1.abc", layerwise=True)
        push.layer(3, first=1, count=1)
        push.finish(b"tok")
        push.cancel()
        cache.evict([3])
        cache.block_states()
        client.ping()
        client.status()
        cache.drop()
    kinds = {
        "hello_prepared": fd.HELLO,
        "region": fd.REGISTER_REGION,
        "lease": fd.LEASE,
        "revoke": fd.REVOKE,
        "push": fd.PUSH,
        "layer": fd.PUSH_LAYER,
        "finish": fd.PUSH_FINISH,
        "cancel": fd.PUSH_CANCEL,
        "evict": fd.EVICT,
        "blocks": fd.BLOCKS,
        "ping": fd.PING,
        "status": fd.STATUS,
        "drop": fd.DROP_CACHE,
        "deregister": fd.DEREGISTER_REGION,
    }
    for name, kind in kinds.items():
        assert daemon.wait_for(kind)[0].raw == GOLDEN[name], name
    registered = daemon.wait_for(fd.REGISTER_CACHE)[0]
    assert registered.raw[32:].replace(b'"num_blocks":32', b'"num_blocks":16') == GOLDEN["cache"][32:-32]


def test_frames_of_reading_regions_instances_and_keys(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_trace, "new_trace_id", lambda: fd.TRACE_ID)
    monkeypatch.setattr(_trace, "new_span_id", lambda: fd.PARENT_ID)
    names: dict[str, Any] = {"transfer_id": "cd" * 16, "attempt": 2, "instance": "engine"}
    key = b"0123456789abcdef"
    with kvxfer.connect(daemon.path) as client:
        cache = client.allocate_cache(
            "c0", model="m", layout=LAYOUT, num_blocks=16, instance="decode", instance_key=key
        )
        region = client.allocate_region("r0", 4096)
        offer = cache.lease([3, 1], mode="read", readers=3, ttl=20)
        offer.renew(30)
        region.advertise("write", [(0, 16), (64, 32)], uses=2)
        cache.read([0, 1], source="kvx1.abc", notification=b"tok", **names)
        region.readv(
            [(0, 4096, 8), (8, 1 << 40, 16)],
            source="kvx1.abc",
            notification=b"tok",
            traceparent=f"00-{fd.TRACE_ID}-{fd.PARENT_ID}-01",
            **names,
        )
        cache.write([2], to="kvx1.abc", layerwise=True, **names)
        keys = [b"aaaa", b"bbbb"]
        cache.publish([5, 4], keys)
        client.lookup(keys, like=cache, local_only=True, timeout=0.5)
        client.lease(instance="decode", instance_key=key, blocks=[3, 1])
        holder = kvxfer.Holder("node-b", "ef" * 16, "[::1]:7420", "p", 2)
        cache.read([6, 7], source=holder, keys=keys, timeout=20).cancel()
        daemon.wait_for(fd.OPEN)
    leases = daemon.wait_for(fd.LEASE, 2)
    sent = {
        "cache_instance": daemon.wait_for(fd.REGISTER_CACHE)[0],
        "lease_read": leases[0],
        "renew": daemon.wait_for(fd.RENEW)[0],
        "advertise": daemon.wait_for(fd.ADVERTISE)[0],
        "pull": daemon.wait_for(fd.PULL)[0],
        "scatter": daemon.wait_for(fd.SCATTER)[0],
        "push_identity": daemon.wait_for(fd.PUSH)[0],
        "publish": daemon.wait_for(fd.PUBLISH)[0],
        "lookup": daemon.wait_for(fd.LOOKUP)[0],
        "lease_instance": leases[1],
        "open": daemon.wait_for(fd.OPEN)[0],
    }
    for name, got in sent.items():
        assert got.raw == GOLDEN[name], name


def test_frames_of_prepared_lists(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_trace, "new_span_id", lambda: fd.PARENT_ID)
    names: dict[str, Any] = {"transfer_id": "cd" * 16, "attempt": 2, "instance": "engine"}
    for ring in (True, False):
        with kvxfer.connect(daemon.path, ring=ring) as client:
            daemon.next_id = 100
            cache = client.allocate_cache("c0", model="m", layout=LAYOUT, num_blocks=16)
            with cache.prepare([2, 1], to="kvx1.abc", timeout=20, **names) as prepared:
                prepared.run(timeout=1.5)
    (post,) = daemon.wait_for(fd.POST)
    assert post.raw == GOLDEN["post"]
    assert daemon.wait_for(fd.RING)[0].raw == GOLDEN["ring"]
    (where, prepare) = daemon.wait_for(fd.PREPARE)[0], GOLDEN["prepare"]
    assert where.raw[:32] == prepare[:32] and where.array == prepare[-8:]
    (want,) = _wire.Parser().feed(prepare)
    want_body = want.body()
    assert list(where.body) == list(want_body)
    assert 19_000 <= where.body.pop("timeout_ms") <= want_body.pop("timeout_ms")
    assert where.body == want_body
    (frame,) = _wire.Parser().feed(GOLDEN["event_posted"])
    assert list(_wire.POSTED_ENTRY.iter_unpack(frame.array)) == [(1, 23 | 1 << 32, 4096, 1500)]
    (frame,) = _wire.Parser().feed(GOLDEN["event_prepared"])
    assert _wire.get_id(frame.body(), "transfer") == 103 and frame.body()["provider"] == "shm"


def test_vouches_and_spans() -> None:
    v = Vouched(16)
    v.put(fd.u32s(9), 1 << 40)
    v.put(fd.u32s(3), 7)
    assert GOLDEN["cache"].endswith(v.packed())
    (frame,) = _wire.Parser().feed(GOLDEN["spans"])
    assert _wire.head(_wire.SPANS, 0, frame.body(), 0, _wire.FLAG_NO_REPLY) == GOLDEN["spans"]


def test_frames_received() -> None:
    stream = b"".join(GOLDEN.values())
    for step in (1, 7, 1000, len(stream)):
        parser = _wire.Parser()
        frames = [f for i in range(0, len(stream), step) for f in parser.feed(stream[i : i + step])]
        assert len(frames) == len(GOLDEN)
    (visible,) = (f for f in frames if f.kind == fd.EVENT_LAYERS)
    lease, layers = _wire.layers_visible(visible.array)
    assert (lease, layers.tolist()) == (103, [0, 3])


def test_frame_of_a_named_provider(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_trace, "new_span_id", lambda: fd.PARENT_ID)
    with kvxfer.connect(daemon.path) as client:
        region = client.allocate_region("r0", 4096)
        context = f"00-{fd.TRACE_ID}-{fd.PARENT_ID}-01"
        region.writev([(0, 8, 16)], to="kvx1.abc", traceparent=context, provider="tcp")
        assert daemon.wait_for(fd.SCATTER)[0].raw == GOLDEN["scatter_provider"]


@pytest.mark.parametrize("name", sorted(DAEMON))
def test_frames_of_the_daemon(name: str) -> None:
    raw = DAEMON[name]
    (frame,) = _wire.Parser().feed(raw)
    assert frame.kind == raw[5]
    flags = int.from_bytes(raw[6:8], "little")
    body = frame.body() if frame.json else None
    head = _wire.head(frame.kind, frame.request, body, len(frame.array), flags, frame.fds)
    assert head + bytes(frame.array) == raw, "read and written again it is the same"
    if frame.kind == fd.EVENT_LAYERS:
        _wire.layers_visible(frame.array)
    said = frame.body() if frame.kind == fd.ERROR else _wire.get_error(frame.body())
    if said:
        error = error_of(said)
        assert type(error).__name__ == said["name"]
        assert (error.field, error.retryable) == (said.get("field", ""), said.get("retryable", False))
