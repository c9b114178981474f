"""What a client claims of its memory when its daemon comes back: served is what both sides know, no more."""

from __future__ import annotations

import dataclasses
import os
import secrets
import struct
import time
from typing import Any

import kvxfer
import pytest
from kvxfer import _wire as wire

from conftest import Attach
from contents import MODEL, SMALL, allocate, pieces
from daemon import PATIENCE, Daemon
from raw import RawClient, memfd
from test_restart import Books, transfer

Nodes = tuple[Daemon, Daemon]


def test_written_meanwhile(nodes: Nodes, attach: Attach) -> None:
    """Blocks that a client uses for something else while its daemon is away are not served again."""
    prefill, decode = (attach(d) for d in nodes)
    source = allocate(prefill, "source", seed=1)
    books = Books(decode, allocate(decode, "target"))
    transfer(source, [1, 2, 3, 4], books, [10, 11, 12, 13])
    lost = books.lease([20, 21])
    push = source.write([5, 6], to=lost.ticket, layerwise=True)
    push.layer(0)
    lost.wait_layer(0, PATIENCE)
    nodes[1].settle()
    nodes[1].kill()
    lost.wait_released(PATIENCE)  # before that nothing may be written there
    for blocks in ([11], [13, 20]):
        with pytest.raises(kvxfer.DaemonUnavailable):
            books.cache.evict(blocks)
        books.forget(blocks)
    pieces(books.cache)[:, :, [11, 13, 20, 21]] = 99
    nodes[1].start()
    books.reconnect()
    assert sorted(books.committed) == [10, 12]
    assert (pieces(books.cache)[:, :, [11, 13, 20, 21]] == 99).all()
    transfer(source, [7, 8], books, [11, 20])
    books.check([10, 11, 12, 20])


class Owner:
    """A cache of a client by hand, which can say anything of it."""

    BLOCKS = 8

    def __init__(self) -> None:
        self.fd = memfd(self.BLOCKS * SMALL.block_bytes)
        self.id = secrets.token_hex(16)

    def register(
        self, raw: RawClient, vouches: list[tuple[int, int]], **changes: Any
    ) -> tuple[int, list[int] | str]:
        """Register as it is or with changes; the cache's number and the blocks served, or the error."""
        about: dict[str, Any] = {
            "id": self.id, "fd": self.fd, "layout": SMALL, "num_blocks": self.BLOCKS, "model": MODEL,
            **changes,
        }  # fmt: skip
        size = os.fstat(about["fd"]).st_size
        body = {"name": "region", "id": about["id"], "kind": "memfd", "size": size}
        kind, region = raw.ask(wire.REGISTER_REGION, body, (about["fd"],))
        assert kind == wire.OK, region
        body = {
            "name": "mine", "region": region["region"], "model": about["model"],
            "num_blocks": about["num_blocks"], "layout": dataclasses.asdict(about["layout"]),
        }  # fmt: skip
        array = b"".join(struct.pack("<IIQ", block, 0, generation) for block, generation in vouches)
        frame = raw.ask_frame(wire.REGISTER_CACHE, body, array)
        for _ in range(2000):  # the daemon may not have seen yet that the owner before is gone
            if frame.kind != wire.ERROR or frame.body()["name"] != "AlreadyExists":
                break
            time.sleep(0.01)
            frame = raw.ask_frame(wire.REGISTER_CACHE, body, array)
        if frame.kind == wire.ERROR:
            return 0, frame.body()["name"]
        return frame.body()["cache"], list(memoryview(frame.array).cast("I"))


CLAIMS: dict[str, tuple[dict[str, Any], list[int]]] = {
    "as it is": ({}, [0, 1]),
    "another id": ({"id": secrets.token_hex(16)}, []),
    "another model": ({"model": "another"}, []),
    "another layout": ({"layout": dataclasses.replace(SMALL, kv_heads=1, head_dim=64)}, []),
    "another size": ({"num_blocks": Owner.BLOCKS - 1}, []),
    "other memory": ({"fd": None}, []),
}


def test_claims(nodes: Nodes, attach: Attach) -> None:
    """Of false claims none is served: other generations, memory, layouts; blocks evicted or torn."""
    source = allocate(attach(nodes[0]), "source", seed=2)
    decode = nodes[1]

    def grant(raw: RawClient, cache: int, blocks: list[int]) -> dict[str, Any]:
        body = {"cache": cache, "mode": "write", "ttl_ms": 600000}
        kind, granted = raw.ask(wire.LEASE, body, array=struct.pack(f"<{len(blocks)}I", *blocks))
        assert kind == wire.OK, granted
        return granted

    for name, (changes, want) in CLAIMS.items():
        owner = Owner()
        with RawClient(decode.socket) as raw:
            raw.hello()
            cache, served = owner.register(raw, [(0, 1), (1, 1 << 40)])
            assert served == [], "of new memory nothing is"
            generations = [1]
            for blocks in ([0, 1], [1, 2, 3]):
                granted = grant(raw, cache, blocks)
                source.write(blocks, to=granted["ticket"]).wait()
                generations.append(granted["generation"])
            assert raw.ask(wire.EVICT, {"cache": cache}, array=struct.pack("<I", 3))[0] == wire.OK
            generations.append(grant(raw, cache, [2])["generation"])
            decode.settle()
            decode.kill()
        decode.start()
        _, old, new, torn = generations
        false = [(0, new), (1, old), (2, new), (2, torn), (3, new), (4, new), (5, 0), (6, 1 << 63)]
        with RawClient(decode.socket) as raw:
            raw.hello()
            if changes == {"fd": None}:
                changes = {"fd": memfd(Owner.BLOCKS * SMALL.block_bytes)}
            _, served = owner.register(raw, [(0, old), (1, new), *false[2:]], **changes)
            assert served == want, name
        if want:  # the same once more, with the false ones in the place of the true
            decode.kill()
            decode.start()
            with RawClient(decode.socket) as raw:
                raw.hello()
                assert owner.register(raw, false)[1] == []
        for fd in {owner.fd, changes.get("fd", owner.fd)}:
            os.close(fd)
