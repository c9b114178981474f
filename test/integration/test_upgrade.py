"""Two versions of the daemon work together, or refuse each other by type.

``bin/kvxfer-next`` plays the next version: it speaks protocol 1 to 2, knows a feature that nobody else does,
puts unknown fields into all JSON of its frames, tickets and registry entries, and writes newer records.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import random
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kvxfer
import numpy as np
import pytest
from kvxfer import _wire as wire

import raw
from conftest import Attach, Start
from contents import MODEL, SMALL, allocate, choose, moved, pieces, random_bytes
from daemon import BINARY, NEXT_BINARY, PATIENCE, Daemon, NatsServer, until
from rawpeer import dial, grant_of, hello

LONG = 600.0
"""Seconds for what must end before its time."""

UNKNOWN = {"deep": [1, "two", None]}
INSTANCE_KEY = b"what this engine's processes know"


@pytest.fixture
def both(nats: NatsServer, daemon: Start, request: pytest.FixtureRequest) -> tuple[Daemon, Daemon]:
    """A daemon of this version and one of the next; a parameter names their provider."""
    args = ["--nats", nats.url, "--providers", request.param]
    return daemon("old", *args), daemon("next", *args, binary=NEXT_BINARY)


def push(source: kvxfer.Cache, target: kvxfer.Cache, rng: random.Random) -> None:
    """Blocks pushed layer by layer, every byte compared."""
    blocks, to = choose(rng, 32, 6), choose(rng, 32, 6)
    want = moved(pieces(source), blocks, pieces(target), to)
    lease = target.lease(to, ttl=PATIENCE)
    sent = source.write(blocks, to=lease.ticket, layerwise=True, timeout=PATIENCE)
    for layer in range(SMALL.layers):
        sent.layer(layer)
    lease.wait_layer(0, PATIENCE)
    sent.finish(b"note")
    sent.wait()
    assert lease.wait(PATIENCE).notification == b"note"
    assert np.array_equal(pieces(target), want)


def pull(source: kvxfer.Cache, target: kvxfer.Cache, rng: random.Random) -> None:
    """Blocks pulled under a read lease, every byte compared."""
    blocks, to = choose(rng, 32, 6), choose(rng, 32, 6)
    want = moved(pieces(source), blocks, pieces(target), to)
    with source.lease(blocks, mode="read", ttl=PATIENCE) as offer:
        target.read(to, source=offer.ticket, timeout=PATIENCE).wait()
        offer.wait(PATIENCE)
    assert np.array_equal(pieces(target), want)


def find(source: kvxfer.Cache, target: kvxfer.Cache, reader: kvxfer.Client, rng: random.Random) -> None:
    """Published blocks found on the other node, opened and read."""
    (block, at), key = choose(rng, 32, 2), secrets.token_bytes(16)
    source.publish([block], [key])
    found: list[kvxfer.Holder] = []

    def known() -> bool:
        found[:] = reader.lookup([key], like=target).holders
        return bool(found)

    until("the published block to be found", known)
    target.read([at], source=found[0], keys=[key], timeout=PATIENCE).wait()
    assert np.array_equal(pieces(target)[:, :, at], pieces(source)[:, :, block])


def rank(client: kvxfer.Client, r: int, seed: int | None = None, **about: Any) -> kvxfer.Cache:
    """A rank's cache of 8 blocks."""
    layout = dataclasses.replace(SMALL, tp_rank=r, tp_size=2)
    cache = client.allocate_cache(f"rank-{r}-{seed}", model=MODEL, layout=layout, num_blocks=8, **about)
    if seed is not None:
        pieces(cache)[:] = random_bytes(layout, 8, seed)
    return cache


def instance(clients: list[kvxfer.Client], rng: random.Random) -> None:
    """An engine with a rank on each version, leased at either, written under one ticket."""
    about: dict[str, Any] = {"instance": "engine", "instance_key": INSTANCE_KEY}
    targets = [rank(c, r, **about) for r, c in enumerate(clients)]
    sources = [rank(clients[0], r, seed=rng.getrandbits(32)) for r in range(2)]
    for asker in clients:
        leases: list[kvxfer.Lease] = []

        def granted(ask: Callable[..., kvxfer.Lease] = asker.lease, got: list[kvxfer.Lease] = leases) -> bool:
            try:
                got.append(ask(instance="engine", instance_key=INSTANCE_KEY, blocks=[1, 2], ttl=PATIENCE))
            except kvxfer.NotFound:
                return False
            return True

        until("the ranks to be known", granted)
        transfer = secrets.token_hex(16)
        sent = [s.write([3, 4], to=leases[0].ticket, transfer_id=transfer, timeout=PATIENCE) for s in sources]
        for one in sent:
            one.wait()
        leases[0].wait(PATIENCE)
        for s, t in zip(sources, targets, strict=True):
            assert np.array_equal(pieces(s)[:, :, [3, 4]], pieces(t)[:, :, [1, 2]])


@pytest.mark.parametrize("both", ["tcp", "shm"], indirect=True)
def test_two_versions(
    both: tuple[Daemon, Daemon], nats: NatsServer, attach: Attach, rng: random.Random
) -> None:
    """Everything that crosses daemons, from each version to the other."""
    clients = [attach(d) for d in both]
    assert [c.version for c in clients] == [1, 1]
    caches = [allocate(c, "cache", seed=rng.getrandbits(32)) for c in clients]
    for a, b in ((0, 1), (1, 0)):
        push(caches[a], caches[b], rng)
        pull(caches[a], caches[b], rng)
        find(caches[a], caches[b], clients[b], rng)
    instance(clients, rng)

    for c in clients:
        until("both nodes to be seen", lambda c=c: set(c.status().nodes) == {"old", "next"})  # type: ignore[misc]
    entries = {key.split(".")[1]: nats.entry(key) for key in nats.entries() if key.startswith("node.")}
    assert [entries[d.name]["format"] for d in both] == [1, 2]
    assert [entries[d.name].get("next_field") for d in both] == [None, UNKNOWN]
    assert [entries[d.name]["protocol"]["max"] for d in both] == [1, 2]
    for d in both:
        assert "entry ignored" not in d.log()


@pytest.mark.parametrize("both", ["tcp"], indirect=True)
def test_negotiation(both: tuple[Daemon, Daemon]) -> None:
    """The highest common version and the common features, on both protocols."""
    offer = {"max_version": 9, "optional": ["next_feature", "unheard_of"]}
    for d, version, features, field in zip(
        both, (1, 2), (None, ["next_feature"]), (None, UNKNOWN), strict=True
    ):
        with dial(d) as s:
            s.sendall(wire.head(wire.HELLO, 1, hello(d, **offer), 0))
            kind, peer = answer(s.recv)
        assert kind == wire.HELLO_OK
        with raw.RawClient(d.socket) as c:
            kind, local = c.ask(wire.HELLO, {**raw.HELLO, **offer})
            assert kind == wire.HELLO_OK
        for ok in (peer, local):
            assert (ok["version"], ok.get("optional"), ok.get("next_field")) == (version, features, field)
        with dial(d) as s:
            s.sendall(wire.head(wire.HELLO, 1, hello(d, required=["unheard_of"]), 0))
            kind, refusal = answer(s.recv)
        assert (kind, refusal["name"]) == (wire.ERROR, "FeatureRequired")
        assert "unheard_of" in refusal["detail"]
        with raw.RawClient(d.socket) as c:
            kind, refusal = c.ask(wire.HELLO, {**raw.HELLO, "required": ["unheard_of"]})
            assert (kind, refusal["name"]) == (wire.ERROR, "FeatureRequired")


def answer(recv: Callable[[int], bytes]) -> tuple[int, dict[str, Any]]:
    """The kind and the body of the first frame."""
    parser = wire.Parser()
    while True:
        data = recv(1 << 16)
        assert data, "closed without an answer"
        for frame in parser.feed(data):
            return frame.kind, frame.body()


FAR = {
    "VersionMismatch": ({"KVXFER_NEXT_MIN_VERSION": "2"}, ["1..1", "2..2"]),
    "FeatureRequired": ({"KVXFER_NEXT_REQUIRED": "ring"}, ["ring"]),
}


@pytest.mark.parametrize("name", FAR)
def test_nothing_in_common(nats: NatsServer, daemon: Start, attach: Attach, name: str) -> None:
    """A daemon that is too far away is refused by type, at once, by whoever meets it; logs say it once."""
    env, says = FAR[name]
    error: type[kvxfer.KvxferError] = getattr(kvxfer, name)
    near = daemon("near", "--nats", nats.url)
    far = daemon("far", "--nats", nats.url, binary=NEXT_BINARY, env=env)

    with pytest.raises(error) as refused:
        far.connect()
    assert all(text in str(refused.value) for text in says)
    assert not refused.value.retryable

    cache = allocate(attach(near), "cache", seed=1)
    before = pieces(cache).copy()
    for _ in range(3):  # near dials far
        with pytest.raises(error) as refused:
            cache.write([0], to=ticket(far), timeout=LONG).wait(PATIENCE)
        assert all(text in str(refused.value) for text in says)
        assert (refused.value.peer, refused.value.retryable, refused.value.released) == ("far", False, True)
        assert not refused.value.may_have_written

    lease = cache.lease([1], ttl=LONG)
    with raw.RawClient(far.socket) as c:  # far dials near
        kind, ok = c.ask(wire.HELLO, {**raw.HELLO, "max_version": 2, "optional": ["ring"]})
        assert kind == wire.HELLO_OK, ok
        mine = c.cache("mine", 32, SMALL)
        for _ in range(3):
            body = {"cache": mine, "ticket": lease.ticket, "timeout_ms": 600_000}
            kind, ok = c.ask(wire.PUSH, body, array=(0).to_bytes(4, "little"))
            assert kind == wire.OK, ok
            event = c.receive()
            assert event.kind == wire.EVENT_TRANSFER
            assert event.body()["error"]["name"] == name, event.body()
            assert all(text in event.body()["error"]["detail"] for text in says)
    assert np.array_equal(pieces(cache), before)
    lease.revoke().wait(PATIENCE)

    # Of three attempts each way.
    for d, peer in ((near, "far"), (far, "near")):
        lines = [x for x in d.log().splitlines() if name in x and ("dial failed" in x or "peer refused" in x)]
        assert len(lines) == 1, lines
        assert "level=WARN" in lines[0]
        assert f"peer={peer}" in lines[0]


def ticket(d: Daemon) -> str:
    """A ticket of a node that nobody here can ask for one."""
    grant = {
        "node": d.name, "epoch": d.info["epoch"], "addr": d.info["peer_addr"], "lease": secrets.token_hex(16),
        "secret": base64.b64encode(secrets.token_bytes(16)).decode(), "blocks": 1,
    }  # fmt: skip
    text = json.dumps({"grants": [grant]}).encode()
    made = "kvx1." + base64.urlsafe_b64encode(text).decode().rstrip("=")
    assert grant_of(made) == grant
    return made


def test_state_directory(nats: NatsServer, daemon: Start, attach: Attach) -> None:
    """The next version serves what this one stored. What the next one stored this one does not read: it says
    so, lays it aside and begins an empty store. A rollback works, and costs what the blocks held."""
    args = ("--nats", nats.url)
    source = allocate(attach(daemon("source", *args)), "source", seed=2)
    node = daemon("node", *args)
    client = attach(node)
    target = allocate(client, "target")

    def fill(block: int) -> None:
        lease = target.lease([block], ttl=PATIENCE)
        source.write([block], to=lease.ticket, timeout=PATIENCE).wait()
        lease.wait(PATIENCE)

    def restart(binary: Path) -> list[int]:
        node.stop()
        node.replace(binary)
        served = client.reconnect(PATIENCE)["target"].tolist()
        for block in served:
            assert np.array_equal(pieces(target)[:, :, block], pieces(source)[:, :, block])
        return list(served)

    fill(3)
    assert restart(NEXT_BINARY) == [3]
    fill(4)
    assert restart(NEXT_BINARY) == [3, 4]

    assert restart(BINARY) == []
    (line,) = (x for x in node.log().splitlines() if "block store recovered" in x and "VersionMismatch" in x)
    assert "format version 3, this daemon reads 1 to 2" in line
    (aside,) = (node.state / "blocks").glob("aside.*")
    assert str(aside) in line
    fill(5)
    assert restart(BINARY) == [5]
    assert restart(NEXT_BINARY) == [5]
