"""Requests that no SDK makes: each is refused by the field that is wrong, and changes nothing."""

from __future__ import annotations

import dataclasses
import os
import secrets
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from kvxfer import _wire as wire

from conftest import Start
from contents import SMALL
from raw import RawClient, memfd

BLOCKS = 8
INVALID, VIOLATION = "InvalidArgument", "ProtocolViolation"


def ids(*blocks: int) -> bytes:
    """A packed block list."""
    return struct.pack(f"<{len(blocks)}I", *blocks)


WRONG_IDS = {
    "none": (b"", INVALID),
    "out of range": (ids(BLOCKS), INVALID),
    "out of range, last": (ids(0, 1, BLOCKS), INVALID),
    "the largest": (ids(0xFFFFFFFF), INVALID),
    "doubled": (ids(1, 1), INVALID),
    "doubled far apart": (ids(3, 0, 1, 2, 3), INVALID),
    "more than there are": (ids(*range(BLOCKS), 0), INVALID),
    "very many": (ids(0) * 100000, INVALID),
    "half a number": (ids(0) + b"\x01", VIOLATION),
}


@pytest.fixture
def client(daemon: Start) -> Iterator[tuple[RawClient, int]]:
    """A greeted connection and its cache."""
    with RawClient(daemon("n0").socket) as raw:
        raw.hello()
        yield raw, raw.cache("mine", BLOCKS, SMALL)


def blocks(raw: RawClient, cache: int) -> dict[str, Any]:
    """The counts of a cache's states."""
    kind, counts = raw.ask(wire.BLOCKS, {"cache": cache})
    assert kind == wire.OK
    return counts


def refused(
    raw: RawClient, kind: int, body: dict[str, Any], name: str, field: str, array: bytes = b""
) -> None:
    """The request is refused; the connection goes on."""
    answer, error = raw.ask(kind, body, array=array)
    assert answer == wire.ERROR, (kind, body)
    assert error["name"] == name, error
    assert not field or error["field"] == field, error
    assert not error.get("may_have_written")
    assert len(error["detail"]) <= 4200
    assert raw.ask(wire.PING, {})[0] == wire.OK


def test_block_ids(client: tuple[RawClient, int]) -> None:
    """Ids that are none, not there, or there twice, in every request that has a block list."""
    raw, cache = client
    ticket = raw.ask(wire.LEASE, {"cache": cache, "mode": "write", "ttl_ms": 600000}, array=ids(0))[1][
        "ticket"
    ]
    for name, (array, error) in WRONG_IDS.items():
        field = "blocks" if error == INVALID else ""
        print(name)
        refused(raw, wire.LEASE, {"cache": cache, "mode": "write", "ttl_ms": 600000}, error, field, array)
        refused(raw, wire.EVICT, {"cache": cache}, error, field, array)
        push = {"cache": cache, "ticket": ticket, "timeout_ms": 600000, "layerwise": True}
        refused(raw, wire.PUSH, push, error, field, array)
    assert blocks(raw, cache) == {"total": BLOCKS, "leased": 1, "committed": 0, "revoking": 0, "held": 0}


def test_numbers_and_names(client: tuple[RawClient, int]) -> None:
    """Times, modes, handles and names outside their ranges."""
    raw, cache = client
    lease = {"cache": cache, "mode": "write", "ttl_ms": 600000}
    push = {"cache": cache, "ticket": "kvx1.e30", "timeout_ms": 600000, "layerwise": True}
    for ms in (0, -1, 86400001, 1 << 62):
        refused(raw, wire.LEASE, {**lease, "ttl_ms": ms}, INVALID, "ttl_ms", ids(0))
        refused(raw, wire.PUSH, {**push, "timeout_ms": ms}, INVALID, "timeout_ms", ids(0))
    wrong: Any
    for wrong in (1 << 64, 0.5, "1", [], {}):
        refused(raw, wire.LEASE, {**lease, "ttl_ms": wrong}, VIOLATION, "ttl_ms", ids(0))
    refused(raw, wire.LEASE, {**lease, "mode": "x" * 5000}, INVALID, "mode", ids(0))
    for other in (0, cache + 1000, (1 << 64) - 1):
        refused(raw, wire.LEASE, {**lease, "cache": other}, "NotFound", "", ids(0))
        refused(raw, wire.EVICT, {"cache": other}, "NotFound", "", ids(0))
        refused(raw, wire.BLOCKS, {"cache": other}, "NotFound", "")
        refused(raw, wire.DROP_CACHE, {"cache": other}, "NotFound", "")
        refused(raw, wire.DEREGISTER_REGION, {"region": other}, "NotFound", "")
        assert raw.ask(wire.REVOKE, {"lease": other})[0] == wire.OK  # it has ended, for all one knows
        assert raw.ask(wire.PING, {})[0] == wire.OK
        for kind in (wire.PUSH_FINISH, wire.PUSH_CANCEL):
            raw.send(wire.head(kind, 0, {"transfer": other}, 0, wire.FLAG_NO_REPLY))
        part = struct.pack("<QIIII", other, 0, 0, 1, 0)
        raw.send(wire.head(wire.PUSH_LAYER, 0, None, len(part), wire.FLAG_NO_REPLY) + part)
    assert blocks(raw, cache)["leased"] == 0


def test_caches(client: tuple[RawClient, int]) -> None:
    """A cache whose layout is no layout, does not fit into its region, or vouches for nonsense."""
    raw, _ = client
    fd = memfd(BLOCKS * SMALL.block_bytes)
    size = os.fstat(fd).st_size
    kind, region = raw.register(fd, size, "other")
    assert kind == wire.OK
    right = {
        "name": "other", "region": region["region"], "model": "m", "num_blocks": BLOCKS,
        "layout": dataclasses.asdict(SMALL),
    }  # fmt: skip
    for field, values in {
        "layers": (0, 1 << 31), "kv_heads": (0, 1 << 31), "head_dim": (0, 1 << 31),
        "block_tokens": (0, 1 << 31), "dtype": ("", "float31"), "order": ("", "DNH"),
        "tp_rank": (1, 1 << 31), "tp_size": (0,),
    }.items():  # fmt: skip
        for value in values:
            layout = {**dataclasses.asdict(SMALL), field: value}
            kind, error = raw.ask(wire.REGISTER_CACHE, {**right, "layout": layout})
            assert (kind, error["name"]) == (wire.ERROR, INVALID), (field, value, error)
            assert error["field"].startswith("layout.tp_" if "tp_" in field else f"layout.{field}")
    for field, values in {
        "num_blocks": (0, size // SMALL.block_bytes + 1, 1 << 24, (1 << 32) - 1),
        "model": ("", "x" * 1025), "revision": ("x" * 1025,), "compat": ("x" * 1025,),
        "name": ("", "a b", "x" * 65, "ä", "../x"),
    }.items():  # fmt: skip
        for value in values:
            refused(raw, wire.REGISTER_CACHE, {**right, field: value}, INVALID, field)
    refused(raw, wire.REGISTER_CACHE, {**right, "name": "mine"}, "AlreadyExists", "")
    refused(raw, wire.REGISTER_CACHE, {**right, "region": 1 << 40}, "NotFound", "")
    refused(raw, wire.REGISTER_CACHE, right, VIOLATION, "", bytes(15))  # a vouch has 16

    vouch = struct.Struct("<IIQ")
    nonsense = [(0, 0), (0, 1), (0, (1 << 64) - 1), (BLOCKS, 1), (0xFFFFFFFF, 7), (1, 3), (1, 3)]
    array = b"".join(vouch.pack(block, 0, generation) for block, generation in nonsense)
    kind, answer = raw.ask(wire.REGISTER_CACHE, right, array=array)
    if kind == wire.OK:  # nothing was committed, so nothing is served
        assert answer["block_bytes"] == SMALL.block_bytes
        assert blocks(raw, answer["cache"])["committed"] == 0
    else:
        assert answer["name"] == INVALID
    os.close(fd)


def test_regions(daemon: Start) -> None:
    """The same memory, name or id a second time, and a region in use."""
    with RawClient(daemon("n0").socket) as raw:
        raw.hello()
        fd = memfd(4096)
        body = {"name": "region", "id": secrets.token_hex(16), "kind": "memfd", "size": 4096}
        assert raw.ask(wire.REGISTER_REGION, body, (fd,))[0] == wire.OK
        for changes in ({"name": "another"}, {"id": secrets.token_hex(16)}):
            kind, error = raw.ask(wire.REGISTER_REGION, {**body, **changes}, (fd,))
            assert (kind, error["name"]) == (wire.ERROR, "AlreadyExists")
        for field, value in {"id": "", "kind": "file", "size": 0, "name": ""}.items():
            fresh = {**body, "name": "n", "id": secrets.token_hex(16)}
            kind, error = raw.ask(wire.REGISTER_REGION, {**fresh, field: value}, (fd,))
            assert (kind, error["name"], error["field"]) == (wire.ERROR, INVALID, field)
        cache = raw.cache("cache", 2, SMALL)
        kind, error = raw.ask(wire.DEREGISTER_REGION, {"region": cache - 1})
        assert kind == wire.ERROR
        os.close(fd)
