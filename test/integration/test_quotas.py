"""Too much of everything: the one who asks hears ResourceExhausted, and what everybody has goes on."""

from __future__ import annotations

import contextlib
import os
import random

import kvxfer
import pytest
from kvxfer import _wire as wire

from conftest import Attach, Start
from contents import SMALL
from daemon import PATIENCE, Daemon, until
from footprint import counts
from raw import RawClient, memfd
from test_garbage import dial_http
from test_requests import ids
from transfers import allocate, begin, move

LONG = 600.0


def test_settings(daemon: Start, attach: Attach, rng: random.Random) -> None:
    """Regions, leases and transfers of one client are bounded by settings; another client has its own."""
    d = daemon("n0", "--max-regions", "3", "--max-leases", "4", "--max-transfers", "2")
    other, client = attach(d), attach(d)
    source, target, more = (allocate(other, name) for name in ("source", "target", "more"))
    mine = [allocate(client, f"mine-{i}", num_blocks=8) for i in range(3)]
    with pytest.raises(kvxfer.ResourceExhausted, match="3 regions, allowed 3"):
        allocate(client, "one-more")
    leases = [mine[0].lease([i], ttl=LONG) for i in range(4)]
    with pytest.raises(kvxfer.ResourceExhausted, match="4 leases, allowed 4") as e:
        mine[0].lease([4])
    assert e.value.retryable
    tickets = [target.lease([i], ttl=LONG).ticket for i in range(3)]
    pushes = [mine[1].write([0], to=t, layerwise=True, timeout=LONG) for t in tickets[:2]]
    with pytest.raises(kvxfer.ResourceExhausted, match="2 transfers, allowed 2"):
        mine[2].write([0], to=tickets[2])
    move(source, more, rng)  # another client has its own

    # What ended makes room, and what was refused has left nothing.
    leases[0].revoke().wait(PATIENCE)
    again = mine[0].lease([4])
    pushes[0].cancel()
    pushes[0].wait_released(PATIENCE)
    mine[2].write([0], to=tickets[2]).wait()
    source.write([1], to=again.ticket).wait()
    mine[2].drop()
    allocate(client, "one-more")


def test_queued_requests(daemon: Start) -> None:
    """Requests that are sent without waiting for answers are bounded in number, and answered by id each."""
    d = daemon("n0")
    with RawClient(d.socket) as raw:
        raw.hello()
        cache = raw.cache("cache", 64, SMALL)
        body = {"cache": cache, "mode": "write", "ttl_ms": 600000}
        total = 3000
        for i in range(total):
            raw.send(wire.head(wire.LEASE, 100 + i, body, 4) + ids(i % 64))
        seen: dict[int, str] = {}
        while len(seen) < total:
            frame = raw.receive()
            if frame.request:
                assert frame.request not in seen
                seen[frame.request] = frame.body().get("name", "OK")
        assert set(seen.values()) <= {"OK", "BlocksBusy", "ResourceExhausted"}
        assert 0 < sum(x == "OK" for x in seen.values()) <= 64
        assert raw.ask(wire.PING, {})[0] == wire.OK


SMALLEST = kvxfer.Layout(layers=1, kv_heads=1, head_dim=8, dtype="uint8", block_tokens=1, order="MLA")
"""Eight bytes a block: a lease of very many is a large record in the log, which begins new files then."""


FILES = 96
"""Descriptors that the daemon may have."""


def gather(d: Daemon, crowd: contextlib.ExitStack) -> int:
    """Attach clients until the daemon takes no more; their number."""
    for n in range(FILES):
        try:
            crowd.enter_context(d.connect(timeout=PATIENCE))
        except kvxfer.ResourceExhausted:
            return n
    raise AssertionError("every one was taken")


def test_descriptors(daemon: Start, attach: Attach, rng: random.Random) -> None:
    """A daemon without a free descriptor refuses who comes, by type. Who is there goes on, store included."""
    d = daemon("n0", prefix=("prlimit", f"--nofile={FILES}:{FILES}"))
    client = attach(d)
    source, target, other = (allocate(client, name) for name in ("source", "target", "other"))
    wide = client.allocate_cache("wide", model="m", layout=SMALLEST, num_blocks=1 << 16)
    move(source, target, rng)  # the link exists
    push, lease = begin(source, target)
    with RawClient(d.socket) as raw, contextlib.ExitStack() as crowd:
        raw.hello()
        assert gather(d, crowd) >= 5
        for _ in range(3):
            with pytest.raises(kvxfer.ResourceExhausted, match="descriptor") as e:
                d.connect(timeout=PATIENCE)
            assert e.value.retryable
        # A region's descriptor has no room either: the request is refused, the connection goes on.
        fd = memfd(4096)

        def refused() -> bool:
            crowd.enter_context(dial_http(d))  # takes one for as long as it is silent
            kind, answer = raw.register(fd, 4096)
            if kind == wire.OK:
                assert raw.ask(wire.DEREGISTER_REGION, {"region": answer["region"]})[0] == wire.OK
                return False
            assert answer["name"] == "ResourceExhausted", answer
            return True

        until("a region to be refused", refused)
        assert raw.ask(wire.PING, {})[0] == wire.OK
        # The store changes its files meanwhile.
        for _ in range(24):
            wide.lease(range(1 << 16), ttl=LONG).revoke().wait(PATIENCE)
        move(source, other, rng)
        for layer in range(1, target.layout.layers):
            push.layer(layer)
        push.finish()
        assert push.wait().bytes == lease.wait().bytes
        crowd.close()
        until("room", lambda: counts(d)[0] <= 2)
        kind, error = raw.register(fd, 4096)
        assert kind == wire.OK, error
        os.close(fd)
    with d.connect() as late:
        move(allocate(late, "late"), target, rng)
    assert "block log failed" not in d.log()
    d.settle()
    d.kill()
    d.start()
    served = client.reconnect(PATIENCE)
    assert len(served["target"]) > 0
