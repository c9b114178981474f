from __future__ import annotations

import gc
import os
import random
from typing import Any

import fakedaemon as fd
import numpy
import pytest
from adopting import LARGE, PAGE, all_given_back, fill
from conftest import LAYOUT
from fakedaemon import FakeDaemon

import kvxfer
from kvxfer import _adopted, _places

__all__ = ["all_given_back"]


BLOCKS = 4 * LARGE // LAYOUT.block_bytes // 4


def arrays() -> Any:
    return numpy.zeros((LAYOUT.layers, BLOCKS * LAYOUT.piece_bytes), numpy.uint8)


def test_register_cache(daemon: FakeDaemon, client: kvxfer.Client, rng: random.Random) -> None:
    a = arrays()
    want = fill(a, rng)
    for tensors in (a, list(a), tuple(a)):
        cache = client.register_cache("kv", model="m", layout=LAYOUT, tensors=tensors, num_blocks=BLOCKS)
        assert cache.guarantee == "full" and bytes(cache.memory) == want
        assert cache.layer(1).shape == LAYOUT.layer_shape(BLOCKS)
        cache.layer(2)[...] = 3
        assert (a[2].view(numpy.float32) == 3).all()
        fill_again = numpy.frombuffer(want, numpy.uint8).reshape(a.shape)
        a[:] = fill_again
        cache.drop()
        with pytest.raises(kvxfer.Closed):
            cache.memory  # noqa: B018
    got = daemon.wait_for(fd.REGISTER_REGION, 3)[0].body
    assert got == {
        "name": "kv", "id": got["id"], "kind": "memfd", "size": a.nbytes, "offset": a.ctypes.data % PAGE,
    }  # fmt: skip


def test_register_cache_the_second_way(daemon: FakeDaemon, client: kvxfer.Client) -> None:
    layout = kvxfer.Layout(layers=2, kv_heads=1, head_dim=4, dtype="int8", block_tokens=2)
    a = numpy.zeros(3 * layout.block_bytes, numpy.int8)
    with pytest.raises(kvxfer.NotSupported):
        client.register_cache("kv", model="m", layout=layout, tensors=a, num_blocks=3)
    cache = client.register_cache("kv", model="m", layout=layout, tensors=a, num_blocks=3, adopt="process")
    assert cache.guarantee == "live-client-only"
    ((memfd, _, _),) = daemon.regions.values()
    os.pwrite(memfd, b"\x05", a.ctypes.data)
    assert a[0] == cache.memory[0] == 5
    got = daemon.wait_for(fd.REGISTER_REGION)[0].body
    assert (got["kind"], got["addr"], got["size"]) == ("process", a.ctypes.data, a.nbytes)


@pytest.mark.parametrize(
    ("change", "field", "why"),
    [
        ({"tensors": bytearray(10)}, "tensors", "10 bytes, allowed"),
        ({"tensors": [bytearray(10)] * 3}, "tensors", "3 tensors, allowed one of all layers, or 4"),
        ({"tensors": [bytearray(10)] * 4}, "tensors[0]", "10 bytes, allowed"),
        ({"tensors": 3}, "tensors", "a int"),
        ({"adopt": "maybe"}, "adopt", "allowed share, process, auto"),
        ({"name": "a b"}, "name", "allowed 1..64"),
        ({"num_blocks": 0}, "num_blocks", "allowed 1.."),
        ({"layout": None}, "layout", "a Layout"),
        ({"timeout": 0}, "timeout", "allowed 0.001"),
    ],
)
def test_arguments(client: kvxfer.Client, change: dict[str, Any], field: str, why: str) -> None:
    good = {"name": "kv", "model": "m", "layout": LAYOUT, "tensors": None, "num_blocks": BLOCKS}
    with pytest.raises(kvxfer.InvalidArgument, match=why.replace("[", r"\[")) as e:
        client.register_cache(**{**good, "tensors": bytearray(8), **change})
    assert e.value.field == field


def test_what_the_daemon_refuses_is_given_back(daemon: FakeDaemon, client: kvxfer.Client) -> None:
    a = arrays()
    for kind in (fd.REGISTER_REGION, fd.REGISTER_CACHE):
        daemon.on[kind] = lambda peer, got: peer.error(got, 8, "MemoryRejected", field="seals")
        with pytest.raises(kvxfer.MemoryRejected):
            client.register_cache("kv", model="m", layout=LAYOUT, tensors=a, num_blocks=BLOCKS)
        del daemon.on[kind]
    cache = client.register_cache("kv", model="m", layout=LAYOUT, tensors=a, num_blocks=BLOCKS)
    cache.drop()


def test_regions(daemon: FakeDaemon, client: kvxfer.Client) -> None:
    """An ordinary region: it is advertised, written and read like an allocated one."""
    a = bytearray(1000)
    with pytest.raises(kvxfer.NotSupported) as e:
        client.register_region("r", a)
    assert e.value.field == "buffer"
    del e  # its traceback holds the buffer
    region = client.register_region("r", a, adopt="process")
    assert type(region) is kvxfer.Region
    assert (region.name, region.size, region.guarantee) == ("r", 1000, "live-client-only")
    assert "'r' 1000 bytes" in repr(region)
    region.array[:3] = (1, 2, 3)
    assert bytes(a[:3]) == bytes(region.memory[:3]) == b"\1\2\3"
    (number,) = daemon.regions
    adv = region.advertise("read", [(0, 3)])
    region.writev([(0, 0, 3)], to="t")
    with pytest.raises(kvxfer.InvalidArgument):
        region.readv([(999, 0, 2)], source="t")
    for kind in (fd.ADVERTISE, fd.SCATTER):
        assert daemon.wait_for(kind)[0].body["region"] == number
    daemon.on[fd.DEREGISTER_REGION] = lambda peer, got: None
    with pytest.raises(kvxfer.DeadlineExceeded):
        region.deregister(timeout=0.05)
    with pytest.raises(BufferError):
        a.clear()
    daemon.on[fd.DEREGISTER_REGION] = lambda peer, got: peer.error(got, 4, "NotFound")
    region.deregister()
    assert adv.released
    region.deregister()
    gc.collect()
    a.clear()
    with pytest.raises(kvxfer.Closed):
        region.memory  # noqa: B018


def test_errors_made_here_name_the_guarantee(daemon: FakeDaemon, client: kvxfer.Client) -> None:
    """As the daemon's own do: the caller decides by it what the memory's release means."""
    a = bytearray(1000)
    region = client.register_region("r", a, adopt="process")
    strong = client.allocate_region("s", 1000)
    adv, full = region.advertise(), strong.advertise()
    scatter = region.readv([(0, 0, 1)], source="t")
    daemon.peer.close()
    for p in (adv, scatter):
        with pytest.raises(kvxfer.DaemonUnavailable, match="guarantee: live-client-only") as e:
            p.wait(20)
        assert e.value.guarantee == "live-client-only"
    with pytest.raises(kvxfer.DaemonUnavailable) as e:
        full.wait(20)
    assert e.value.guarantee == "full"
    client.reconnect(20)
    assert adv.released and scatter.released


def test_what_events_say_of_the_guarantee(daemon: FakeDaemon, client: kvxfer.Client) -> None:
    layout = kvxfer.Layout(layers=1, kv_heads=1, head_dim=4, dtype="int8", block_tokens=2)
    a = bytearray(3 * layout.block_bytes)
    cache = client.register_cache("kv", model="m", layout=layout, tensors=a, num_blocks=3, adopt="process")
    weak: dict[str, Any] = {"guarantee": "live-client-only"}
    lease = cache.lease([0])
    daemon.peer.lease_ended(daemon.next_id, **weak)
    assert lease.wait(20).guarantee == "live-client-only"
    failed = cache.lease([1])
    daemon.peer.lease_ended(daemon.next_id, error={"code": 30, "name": "MemoryFault", **weak})
    with pytest.raises(kvxfer.MemoryFault) as e:
        failed.wait(20)
    assert e.value.guarantee == "live-client-only"
    offer = cache.lease([0], mode="read")
    daemon.peer.holder_ended(daemon.next_id, **weak)
    assert offer.next_holder().wait(20).guarantee == "live-client-only"
    daemon.peer.lease_ended(daemon.next_id, generation=0, **weak)
    assert offer.wait(20) == kvxfer.OfferResult(1, 0, 64, "live-client-only")
    push = cache.write([0], to="t")
    daemon.peer.transfer_ended(daemon.next_id, **weak)
    assert push.wait(20).guarantee == "live-client-only"
    daemon.on[fd.EVICT] = lambda peer, got: peer.error(got, 6, "BlocksBusy", **weak)
    with pytest.raises(kvxfer.BlocksBusy, match="guarantee: live-client-only"):
        cache.evict([0])


def test_instances(daemon: FakeDaemon, client: kvxfer.Client) -> None:
    """The ranks of an engine hand over what they have, too. What another process may have leased by the time
    its registration is undone stays allocated."""
    layout = kvxfer.Layout(layers=1, kv_heads=1, head_dim=4, dtype="int8", block_tokens=2)
    a, key = bytearray(3 * layout.block_bytes), b"k" * 16

    def register() -> kvxfer.Cache:
        return client.register_cache(
            "kv",
            model="m",
            layout=layout,
            tensors=a,
            num_blocks=3,
            adopt="process",
            instance="engine",
            instance_key=key,
            timeout=0.5,
        )

    with pytest.raises(kvxfer.InvalidArgument) as e:
        key = b""
        register()
    assert e.value.field == "instance_key"
    key = b"k" * 16
    daemon.on[fd.REGISTER_CACHE] = lambda peer, got: peer.error(got, 5, "AlreadyExists")
    with pytest.raises(kvxfer.AlreadyExists):
        register()
    assert not _adopted._unfenced
    daemon.on[fd.REGISTER_CACHE] = lambda peer, got: None
    with pytest.raises(kvxfer.DeadlineExceeded):
        register()
    assert len(_adopted._unfenced) == 1
    _adopted._unfenced.clear()
    del daemon.on[fd.REGISTER_CACHE]
    register()
    body = daemon.wait_for(fd.REGISTER_CACHE)[-1].body
    assert (body["instance"], body["instance_key"]) == ("engine", "a2tra2tra2tra2tra2traw==")


def test_close_gives_everything_back(daemon: FakeDaemon, client: kvxfer.Client) -> None:
    a, b = arrays(), bytearray(100)
    client.register_cache("kv", model="m", layout=LAYOUT, tensors=a, num_blocks=BLOCKS)
    client.register_region("r", b, adopt="process")
    client.close()
    assert daemon.count(fd.DROP_CACHE) == 1 and daemon.count(fd.DEREGISTER_REGION) == 2
    gc.collect()
    b.clear()


def test_a_daemon_that_does_not_answer_keeps_the_memory(
    daemon: FakeDaemon, client: kvxfer.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_places, "_GIVE_BACK", 0.05)
    a = bytearray(100)
    client.register_region("r", a, adopt="process")
    daemon.on[fd.DEREGISTER_REGION] = lambda peer, got: None
    client.close()
    gc.collect()
    with pytest.raises(BufferError):
        a.clear()
    assert len(_adopted._unfenced) == 1
    _adopted._unfenced.clear()


def test_reconnect_hands_it_over_again(spawn: Any) -> None:
    first = spawn()
    a, b = arrays(), bytearray(100)
    with kvxfer.connect(first.path) as client:
        cache = client.register_cache("kv", model="m", layout=LAYOUT, tensors=a, num_blocks=BLOCKS)
        region = client.register_region("r", b, adopt="process")
        first.kill()
        spawn("e1" * 16)
        assert list(client.reconnect(20)) == ["kv"]
        assert (cache.guarantee, region.guarantee) == ("full", "live-client-only")
        cache.layer(0)[...] = 1
        region.advertise()
        region.deregister()
    gc.collect()
    b.clear()


def test_a_daemon_that_has_exited_holds_nothing(spawn: Any) -> None:
    first = spawn()
    b = bytearray(100)
    client = kvxfer.connect(first.path)
    client.register_region("r", b, adopt="process")
    first.kill()
    client.close()
    gc.collect()
    b.clear()
