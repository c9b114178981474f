"""The bytes of every frame that the SDK sends, against those of the daemon's own wire package."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import fakedaemon as fd
import pytest
from conftest import LAYOUT
from fakedaemon import FakeDaemon

import kvxfer
from kvxfer import _trace, _wire
from kvxfer._blocks import Vouched

GOLDEN = {
    name: bytes.fromhex(raw)
    for name, raw in (
        line.split()
        for line in Path(__file__).with_name("golden_v1.txt").read_text().splitlines()
        if line[0] != "#"
    )
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
        "hello": fd.HELLO,
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
    lease, layers = _wire.layers_visible(frames[-1].array)
    assert (lease, layers.tolist()) == (103, [0, 3])
