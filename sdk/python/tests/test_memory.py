from __future__ import annotations

import fcntl
import os
import sys
from typing import Any

import fakedaemon as fd
import numpy
import pytest
from conftest import BLOCKS, LAYOUT
from fakedaemon import FakeDaemon

import kvxfer
from kvxfer import _memory

GOOD: dict[str, Any] = {"layers": 2, "kv_heads": 3, "head_dim": 8, "dtype": "float16", "block_tokens": 4}


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("layers", 0, "allowed 1..1024"),
        ("layers", 1025, "allowed 1..1024"),
        ("kv_heads", -1, "allowed 1..1024"),
        ("head_dim", 16385, "allowed 1..16384"),
        ("block_tokens", 4097, "allowed 1..4096"),
        ("block_tokens", 1.5, "is no integer"),
        ("tp_size", 0, "allowed 1..1024"),
        ("tp_rank", 1, "allowed 0..0"),
        ("tp_rank", -1, "allowed 0..0"),
        ("dtype", "complex64", "float8_e4m3fn"),
        ("order", "DNH", "allowed HND, NHD, MLA"),
    ],
)
def test_layout_names_the_field(field: str, value: Any, allowed: str) -> None:
    with pytest.raises(kvxfer.InvalidArgument) as e:
        kvxfer.Layout(**{**GOOD, field: value})
    assert e.value.field == f"layout.{field}" and allowed in e.value.detail


def test_layout_arithmetic() -> None:
    layout = kvxfer.Layout(**{**GOOD, "layers": numpy.int32(2)})
    assert (layout.plane_block_bytes, layout.piece_bytes, layout.block_bytes) == (192, 384, 768)
    mla = kvxfer.Layout(**{**GOOD, "kv_heads": 1, "order": "MLA"})
    assert (mla.plane_block_bytes, mla.piece_bytes, mla.block_bytes) == (64, 64, 128)
    with pytest.raises(kvxfer.InvalidArgument, match="allowed 1 with order MLA"):
        kvxfer.Layout(**{**GOOD, "order": "MLA"})
    for n in (0, -1, (1 << 24) + 1, "3"):
        with pytest.raises(kvxfer.InvalidArgument) as e:
            layout._check_num_blocks(n)  # type: ignore[arg-type]
        assert e.value.field == "num_blocks"
    big = kvxfer.Layout(layers=1024, kv_heads=1024, head_dim=16384, dtype="float32", block_tokens=4096)
    with pytest.raises(kvxfer.InvalidArgument, match=r"allowed 1\.\.8192"):
        big._check_num_blocks(8193)


def test_memory_is_sealed_allocated_and_shared(daemon: FakeDaemon, cache: kvxfer.Cache) -> None:
    got = daemon.wait_for(fd.REGISTER_REGION)[0]
    assert got.body["kind"] == "memfd" and len(got.body["id"]) == 32
    ((number, (memfd, size, _)),) = daemon.regions.items()
    assert size % 4096 == 0 and size >= BLOCKS * LAYOUT.block_bytes == len(cache.memory)
    assert (
        fcntl.fcntl(memfd, fcntl.F_GET_SEALS) == fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    )
    stat = os.fstat(memfd)
    assert stat.st_size == size and stat.st_blocks * 512 >= size
    with daemon.region_map(number) as theirs:
        theirs[17] = 42
        assert cache.memory[17] == 42
        cache.memory[18:20] = b"ab"
        assert theirs[18:20] == b"ab"


@pytest.mark.parametrize("order", ["HND", "NHD", "MLA"])
@pytest.mark.parametrize(
    "dtype", ["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8", "uint8"]
)
def test_layer_views(client: kvxfer.Client, order: str, dtype: str) -> None:
    heads = 1 if order == "MLA" else 3
    layout = kvxfer.Layout(layers=3, kv_heads=heads, head_dim=4, dtype=dtype, block_tokens=2, order=order)
    cache = client.allocate_cache("v", model="m", layout=layout, num_blocks=5)
    shape = {"HND": (2, 5, 3, 2, 4), "NHD": (2, 5, 2, 3, 4), "MLA": (5, 2, 4)}[order]
    views = [cache.layer(i) for i in range(3)]
    for i, x in enumerate(views):
        assert x.shape == shape and x.flags.writeable and x.flags.c_contiguous
        x[...] = i + 1
    # [layer][plane][block]: every layer is one run of bytes.
    step = layout.piece_bytes * 5
    for i, x in enumerate(views):
        assert bytes(cache.memory[i * step : (i + 1) * step]) == x.tobytes()
    for bad in (-1, 3, 1.0, "0"):
        with pytest.raises(kvxfer.InvalidArgument, match=r"allowed 0\.\.2"):
            cache.layer(bad)  # type: ignore[arg-type]


def test_dtypes_that_numpy_lacks(client: kvxfer.Client) -> None:
    for dtype, shown in (("bfloat16", "uint16"), ("float8_e5m2", "uint8"), ("float32", "float32")):
        layout = kvxfer.Layout(**{**GOOD, "dtype": dtype})
        assert client.allocate_cache(dtype, model="m", layout=layout, num_blocks=2).layer(0).dtype == shown


def test_without_numpy(cache: kvxfer.Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(kvxfer.NotSupported, match=r"kvxfer\[numpy\]"):
        cache.layer(0)
    cache.memory[0] = 9
    assert cache.lease([0, 1]).blocks.tolist() == [0, 1]


def test_drop_fences_and_gives_the_memory_back(
    daemon: FakeDaemon, client: kvxfer.Client, cache: kvxfer.Cache
) -> None:
    view = cache.layer(0)
    lease = cache.lease([1])
    cache.drop()
    assert [g.body for g in daemon.wait_for(fd.DROP_CACHE)] == [{"cache": 102}]
    assert daemon.regions == {}
    with pytest.raises(kvxfer.LeaseRevoked) as e:
        lease.wait(20)
    assert e.value.released and lease.released
    view[...] = 1  # stays valid
    cache.drop()
    for use in (lambda: cache.layer(0), lambda: cache.memory, lambda: cache.lease([1]), cache.block_states):
        with pytest.raises(kvxfer.Closed):
            use()
    assert daemon.count(fd.DROP_CACHE) == 1
    client.allocate_cache("c0", model="m", layout=LAYOUT, num_blocks=1)


def test_drop_without_an_answer_can_be_repeated(daemon: FakeDaemon, cache: kvxfer.Cache) -> None:
    daemon.on[fd.DROP_CACHE] = lambda peer, got: None
    with pytest.raises(kvxfer.DeadlineExceeded) as e:
        cache.drop(timeout=0.05)
    assert e.value.released is False
    daemon.on[fd.DROP_CACHE] = lambda peer, got: peer.error(got, 4, "NotFound")
    cache.drop()
    assert daemon.regions == {}


def test_allocation_failures(
    daemon: FakeDaemon, client: kvxfer.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(kvxfer.ResourceExhausted, match="are available"):
        client.allocate_cache("x", model="m", layout=LAYOUT, num_blocks=1 << 24)
    monkeypatch.setattr(_memory, "check_available", lambda op, field, size: None)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(kvxfer.ResourceExhausted, match="No space left"):
        client.allocate_cache("x", model="m", layout=LAYOUT, num_blocks=4)
    monkeypatch.undo()
    daemon.on[fd.REGISTER_REGION] = lambda peer, got: peer.error(got, 8, "MemoryRejected", field="seals")
    with pytest.raises(kvxfer.MemoryRejected) as e:
        client.allocate_cache("x", model="m", layout=LAYOUT, num_blocks=4)
    assert e.value.field == "seals"
    for g in daemon.wait_for(fd.REGISTER_REGION):
        os.close(g.fds[0])
    del daemon.on[fd.REGISTER_REGION]
    daemon.on[fd.REGISTER_CACHE] = lambda peer, got: peer.error(got, 5, "AlreadyExists", region="x")
    with pytest.raises(kvxfer.AlreadyExists):
        client.allocate_cache("x", model="m", layout=LAYOUT, num_blocks=4)
    daemon.wait_for(fd.DEREGISTER_REGION)
    client.ping()
    assert daemon.regions == {}
    assert len(os.listdir("/proc/self/fd")) == open_before


def test_a_registration_that_comes_too_late_is_undone(daemon: FakeDaemon, client: kvxfer.Client) -> None:
    for kind in (fd.REGISTER_REGION, fd.REGISTER_CACHE):
        late: list[tuple[fd.Peer, fd.Got]] = []
        daemon.on[kind] = lambda peer, got, late=late: late.append((peer, got))  # type: ignore[misc]
        with pytest.raises(kvxfer.DeadlineExceeded):
            client.allocate_cache("x", model="m", layout=LAYOUT, num_blocks=4, timeout=0.1)
        del daemon.on[kind]
        daemon.answer(*late[0])
    daemon.wait_for(fd.DEREGISTER_REGION, 2)
    daemon.wait_for(fd.DROP_CACHE, 1)
    client.ping()
    assert daemon.regions == {}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", ""),
        ("name", "a/b"),
        ("name", "x" * 65),
        ("model", ""),
        ("model", "m" * 1025),
        ("model", 3),
        ("revision", "é" * 513),
        ("compat", None),
        ("layout", None),
        ("num_blocks", 0),
    ],
)
def test_arguments_of_a_cache(client: kvxfer.Client, field: str, value: Any) -> None:
    good: dict[str, Any] = {"name": "n", "model": "m", "layout": LAYOUT, "num_blocks": 1}
    with pytest.raises(kvxfer.InvalidArgument) as e:
        client.allocate_cache(**{**good, field: value})
    assert e.value.field == field


def test_block_states(cache: kvxfer.Cache) -> None:
    s = cache.block_states()
    assert (s.total, s.free, s.leased, s.committed, s.revoking, s.held) == (16, 13, 1, 2, 0, 0)
    assert (s.blocks.tolist(), s.states.tolist(), s.generations.tolist()) == ([3, 4, 5], [1, 2, 2], [9, 7, 8])
    assert numpy.asarray(s.generations).sum() == 24
