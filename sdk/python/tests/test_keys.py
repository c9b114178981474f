"""Content keys: publish, lookup and the chain."""

from __future__ import annotations

import array
import hashlib
import random
import struct
from collections.abc import Callable
from typing import Any

import fakedaemon as fd
import numpy
import pytest
from conftest import LAYOUT
from fakedaemon import FakeDaemon

import kvxfer
from kvxfer import _blocks


def vouched(cache: kvxfer.Cache) -> dict[int, int]:
    return {b: g for b, _, g in struct.iter_unpack("<IIQ", cache._vouches())}


def test_publish(daemon: FakeDaemon, cache: kvxfer.Cache) -> None:
    assert cache.publish([4, 1], [b"k" * 32, b"l" * 32]) == 11
    got = daemon.wait_for(fd.PUBLISH)[0]
    assert got.body["key_bytes"] == 32 and got.array == fd.u32s(4, 1) + b"k" * 32 + b"l" * 32
    assert vouched(cache) == {1: 11, 4: 11}
    cache.publish(numpy.array([2]), numpy.full((1, 8), 7, numpy.uint8))
    assert daemon.wait_for(fd.PUBLISH, 2)[1].array == fd.u32s(2) + b"\7" * 8
    daemon.on[fd.PUBLISH] = lambda peer, got: peer.error(got, 6, "BlocksBusy")
    with pytest.raises(kvxfer.BlocksBusy):
        cache.publish([4], [b"x"])
    assert vouched(cache) == {1: 11, 2: 11, 4: 11}
    cache.evict([4, 1])
    assert vouched(cache) == {2: 11}


def test_what_may_have_been_published_is_not_vouched_for(daemon: FakeDaemon, cache: kvxfer.Cache) -> None:
    cache.publish([4], [b"x"])
    daemon.running.clear()
    with pytest.raises(kvxfer.DeadlineExceeded):
        cache.publish([4], [b"y"], timeout=0.05)
    assert vouched(cache) == {}
    daemon.running.set()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ([], r"0 keys, allowed 1\.\."),
        ([b""], r"keys of 0 bytes, allowed 1\.\.255"),
        ([b"x" * 256], r"keys of 256 bytes"),
        ([b"ab", b"a"], r"keys\[1\] has 1 bytes and keys\[0\] has 2"),
        ([b"ab", "ab"], r"keys\[1\] is a str"),
        (b"abc", r"a bytes, allowed a sequence"),
        (None, r"a NoneType"),
        (numpy.zeros((2, 3), "u4"), r"an array of uint32 \(2, 3\), allowed uint8"),
        (numpy.zeros(3, "u1"), r"an array of uint8 \(3,\)"),
        (numpy.zeros((2, 0), "u1"), r"keys of 0 bytes"),
        ([b"a", b"b", b"c"], r"3 keys for 2 blocks"),
    ],
)
def test_keys_are_checked(client: kvxfer.Client, cache: kvxfer.Cache, keys: Any, message: str) -> None:
    with pytest.raises(kvxfer.InvalidArgument, match=message) as e:
        cache.publish([0, 1], keys)
    assert (e.value.field, e.value.op) == ("keys", "publish")
    if "blocks" not in message:
        with pytest.raises(kvxfer.InvalidArgument, match=message):
            client.lookup(keys, like=cache)


def test_lookup(daemon: FakeDaemon, client: kvxfer.Client, cache: kvxfer.Cache) -> None:
    keys = [bytes([i]) * 32 for i in range(5)]
    assert client.lookup(keys, like=cache) == kvxfer.Lookup(0, (), ())
    got = daemon.wait_for(fd.LOOKUP)[0]
    layout = LAYOUT._to_wire()
    assert got.body == {"model": "m", "layout": layout, "key_bytes": 32, "timeout_ms": 1000}
    assert got.array == b"".join(keys)
    daemon.holders = [
        {"node": "node-b", "epoch": "ef" * 16, "addr": "[::1]:7420", "cache": "p", "blocks": 3, "new": 1},
        {"node": "node-a", "epoch": "e0" * 16, "addr": "[::1]:7421", "cache": "q", "blocks": 1},
    ]
    daemon.unasked = ["node-z"]
    found = client.lookup(
        keys, model="m2", revision="r", compat="int4", layout=LAYOUT, local_only=True, timeout=20
    )
    got = daemon.wait_for(fd.LOOKUP, 2)[1]
    assert list(got.body) == [
        "model",
        "revision",
        "compat",
        "layout",
        "key_bytes",
        "local_only",
        "timeout_ms",
    ]
    assert (found.prefix, found.unasked, len(found.holders)) == (3, ("node-z",), 2)
    best = found.holders[0]
    assert best == kvxfer.Holder("node-b", "ef" * 16, "[::1]:7420", "p", 3)
    pull = cache.read([1, 2, 3], source=best, keys=keys[: found.prefix])
    assert daemon.wait_for(fd.OPEN)[0].array == b"".join(keys[:3])
    pull.cancel()


def test_lookup_checks(client: kvxfer.Client, cache: kvxfer.Cache) -> None:
    calls: list[tuple[str, Callable[[], object]]] = [
        ("like", lambda: client.lookup([b"k"], like=cache, model="m")),
        ("like", lambda: client.lookup([b"k"], like="c0")),  # type: ignore[arg-type]
        ("model", lambda: client.lookup([b"k"], layout=LAYOUT)),
        ("layout", lambda: client.lookup([b"k"], model="m")),
        ("timeout", lambda: client.lookup([b"k"], like=cache, timeout=0)),
        ("keys", lambda: client.lookup([b"k"] * 65537, like=cache)),
    ]
    for field, call in calls:
        with pytest.raises(kvxfer.InvalidArgument) as e:
            call()
        assert e.value.field == field


def test_the_chain_is_the_documented_one() -> None:
    tokens = [5, 0, 0xFFFFFFFF, 7, 8, 9, 10]
    keys = kvxfer.chain_keys(tokens, 3, seed=b"salt")
    first = hashlib.sha256(hashlib.sha256(b"salt").digest() + struct.pack("<3I", *tokens[:3])).digest()
    assert keys == [first, hashlib.sha256(first + struct.pack("<3I", *tokens[3:6])).digest()]
    # It never changes: keys of old blocks would be lost.
    assert kvxfer.chain_keys([1, 2, 3, 4], 2)[1].hex() == (
        "02546ae5ba0b3d4e7debb995308f872a8fc312b110b36d3390d866fafb320634"
    )


@pytest.mark.parametrize("numpy_there", [True, False])
def test_chains_agree_up_to_the_first_difference(
    rng: random.Random, monkeypatch: pytest.MonkeyPatch, numpy_there: bool
) -> None:
    if not numpy_there:
        monkeypatch.setattr("kvxfer._keys._numpy", lambda: None)
    for _ in range(50):
        n, size = rng.randrange(0, 100), rng.randrange(1, 9)
        a = [rng.randrange(1 << 32) for _ in range(n)]
        keys = kvxfer.chain_keys(a, size)
        assert len(keys) == n // size == len(set(keys))
        same: list[Any] = [tuple(a), array.array("I", a), array.array("Q", a)]
        if numpy_there:
            same += [numpy.array(a, dtype) for dtype in ("u4", "i8", ">u8")]
        for other in same:
            assert kvxfer.chain_keys(other, size) == keys
        if n:
            at = rng.randrange(n)
            b = list(a)
            b[at] ^= 1
            changed = kvxfer.chain_keys(b, size)
            assert changed[: at // size] == keys[: at // size]
            assert not set(changed[at // size :]) & set(keys)
            assert not set(kvxfer.chain_keys(a, size, seed=b"x")) & set(keys)


@pytest.mark.parametrize(
    ("args", "field", "message"),
    [
        (([1, -1], 1), "token_ids", r"token_ids\[1\] is -1"),
        (([1, 1 << 32], 1), "token_ids", r"token_ids\[1\] is 4294967296, allowed 0\.\.4294967295"),
        (([1, "a"], 1), "token_ids", r"token_ids\[1\] is 'a'"),
        (("ab", 1), "token_ids", "str"),
        ((None, 1), "token_ids", "NoneType"),
        ((numpy.array([0, -3]), 1), "token_ids", r"token_ids\[1\] is -3"),
        ((numpy.array([0.5]), 1), "token_ids", "float64"),
        ((numpy.zeros((2, 2), "i4"), 1), "token_ids", r"\(2, 2\)"),
        (([1], 0), "block_tokens", r"allowed 1\.\.4096"),
        (([1], 1, "salt"), "seed", "str"),
    ],
)
def test_chain_checks(args: Any, field: str, message: str) -> None:
    with pytest.raises(kvxfer.InvalidArgument, match=message) as e:
        kvxfer.chain_keys(*args)
    assert e.value.field == field


def test_without_numpy(monkeypatch: pytest.MonkeyPatch, daemon: FakeDaemon, cache: kvxfer.Cache) -> None:
    monkeypatch.setattr(_blocks, "_numpy", lambda: None)
    cache.publish(range(2), kvxfer.chain_keys(range(8), 4))
    assert daemon.wait_for(fd.PUBLISH)[0].array[:8] == fd.u32s(0, 1)
