"""Memory that existed before, as caches and regions: shared, or reached in the client's own process."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import kvxfer
import numpy as np
import pytest

from conftest import Attach, Start, StartWorker
from contents import MODEL, SMALL, Bytes, allocate, choose, moved, pieces, random_bytes
from daemon import PATIENCE, Daemon, until
from worker import CallError

Pair = tuple[Daemon, Daemon]

BIG = kvxfer.Layout(layers=4, kv_heads=8, head_dim=64, dtype="float32", block_tokens=16)
"""Blocks of 256 KiB."""
BLOCKS = 256
"""64 MiB of them: malloc gives an array of that size a mapping of its own."""


def array(layout: kvxfer.Layout, blocks: int, seed: int) -> Bytes:
    """A numpy array as [layer][plane][block][byte], filled."""
    a = np.empty((layout.layers, layout.planes, blocks, layout.plane_block_bytes), np.uint8)
    a[:] = random_bytes(layout, blocks, seed)
    return a


def register(
    client: kvxfer.Client, name: str, a: Bytes, adopt: str, layout: kvxfer.Layout = BIG
) -> kvxfer.Cache:
    """A cache in an array of :func:`array`."""
    return client.register_cache(
        name, model=MODEL, layout=layout, tensors=a, num_blocks=a.shape[2], adopt=adopt
    )


WAYS = {
    "share": ("share", "full"),
    "process": ("process", "live-client-only"),
}


PROVIDERS = ["tcp", "shm"]
"""Arrays begin inside a page: each provider has to find them behind the begin of what it maps."""


@pytest.mark.parametrize("target_way", WAYS)
@pytest.mark.parametrize("source_way", WAYS)
@pytest.mark.parametrize(("pair", "provider"), [(p, p) for p in PROVIDERS], indirect=["pair"], ids=PROVIDERS)
def test_bytes(
    pair: Pair, attach: Attach, rng: random.Random, provider: str, source_way: str, target_way: str
) -> None:
    """Out of one array into another, and back, pushed and pulled: each holds exactly what it must."""
    prefill, decode = attach(pair[0]), attach(pair[1])
    a, b = array(BIG, BLOCKS, rng.getrandbits(32)), array(BIG, BLOCKS, rng.getrandbits(32))
    assert a.ctypes.data % 4096 == 16, "the array begins behind malloc's header"
    before = (a.ctypes.data, a.copy())
    source = register(prefill, "source", a, WAYS[source_way][0])
    target = register(decode, "target", b, WAYS[target_way][0])
    assert (source.guarantee, target.guarantee) == (WAYS[source_way][1], WAYS[target_way][1])
    assert (a.ctypes.data, True) == (before[0], np.array_equal(a, before[1]))
    for pushed in (True, False):
        for here, there, x, y in ((source, target, a, b), (target, source, b, a)):
            blocks, to = choose(rng, BLOCKS, 40), choose(rng, BLOCKS, 40)
            want, sent = moved(x, blocks, y, to), x.copy()
            if pushed:
                lease = there.lease(to)
                done = here.write(blocks, to=lease.ticket).wait()
                got = lease.wait()
                assert done.bytes == got.bytes == 40 * BIG.block_bytes
                guarantees = (done.guarantee, got.guarantee)
            else:
                with here.lease(blocks, mode="read") as offer:
                    done = there.read(to, source=offer.ticket).wait()
                    end, used = offer.next_holder().wait(), offer.wait()
                guarantees = (end.guarantee, done.guarantee)
                assert used.guarantee == end.guarantee
            assert done.provider == provider
            assert guarantees == (here.guarantee, there.guarantee)
            assert np.array_equal(y, want)
            assert np.array_equal(x, sent)
            assert np.array_equal(pieces(there), y), "the cache and the array are the same memory"
            there.evict(to)
    source.drop()
    target.drop()
    a[:] = 1
    b[:] = 2


SIZE = 40 << 20
"""Bytes of a buffer that malloc gives a mapping of its own."""


def buffer(rng: random.Random, size: int = SIZE) -> Bytes:
    """Random bytes, which begin behind malloc's header."""
    a = np.frombuffer(rng.randbytes(1 << 16), np.uint8)
    out = np.empty(size, np.uint8)
    out[:] = np.resize(a, size)
    return out


@pytest.mark.parametrize("peer_way", WAYS)
@pytest.mark.parametrize("own_way", WAYS)
@pytest.mark.parametrize(("pair", "provider"), [(p, p) for p in PROVIDERS], indirect=["pair"], ids=PROVIDERS)
def test_regions(
    pair: Pair, attach: Attach, rng: random.Random, provider: str, own_way: str, peer_way: str
) -> None:
    """Ranges of raw memory, its first and its last byte among them, written and read."""
    near, far = attach(pair[0]), attach(pair[1])
    a, b = buffer(rng), buffer(rng)
    assert a.ctypes.data % 4096 == 16
    own = near.register_region("own", a, adopt=WAYS[own_way][0])
    peer = far.register_region("peer", b[5:], adopt=WAYS[peer_way][0])
    assert (own.size, peer.size) == (SIZE, SIZE - 5)
    assert (own.guarantee, peer.guarantee) == (WAYS[own_way][1], WAYS[peer_way][1])
    step = SIZE // 50
    ranges = [(0, SIZE - 8, 3), (SIZE - 2, 0, 2)]  # (own offset, the peer's, length)
    ranges += [(i * step, i * step + rng.randrange(9, 99), rng.randrange(1, step // 2)) for i in range(1, 49)]
    total = sum(n for _, _, n in ranges)
    want = b.copy()
    for x, y, n in ranges:
        want[5 + y : 5 + y + n] = a[x : x + n]
    sent = a.copy()
    with peer.advertise("write", uses=1) as adv:
        done = own.writev(ranges, to=adv.ticket, notification=b"there").wait()
        end = adv.next_holder().wait()
    assert np.array_equal(b, want)
    assert np.array_equal(a, sent)
    assert (done.bytes, end.bytes, end.notification, done.provider) == (total, total, b"there", provider)
    assert (done.guarantee, end.guarantee) == (own.guarantee, peer.guarantee)

    b[:] = buffer(rng)
    for x, y, n in ranges:
        sent[x : x + n] = b[5 + y : 5 + y + n]
    want = b.copy()
    with peer.advertise("read") as adv:
        done = own.readv(ranges, source=adv.ticket).wait()
    assert np.array_equal(a, sent)
    assert np.array_equal(b, want)
    assert (done.bytes, done.provider, done.guarantee) == (total, provider, own.guarantee)
    with pytest.raises(kvxfer.OutOfBounds) as e, peer.advertise("write") as adv:
        own.writev([(0, SIZE - 5, 1)], to=adv.ticket).wait()
    assert e.value.guarantee == own.guarantee
    assert np.array_equal(b, want), "the bytes of the array behind and before the region"
    own.deregister()
    peer.deregister()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("pair", PROVIDERS, indirect=True)
def test_a_region_taken_back_is_never_written(
    pair: Pair, attach: Attach, rng: random.Random, way: str
) -> None:
    """Taken back in the middle, by each way to do so, and then used for something else."""
    near, far = attach(pair[0]), attach(pair[1])
    own = near.allocate_region("own", SIZE)
    own.memory[:] = b"\1" * SIZE
    b = buffer(rng)
    ends = ("unadvertise", "deregister", "close", "reconnect")
    for i, how in enumerate(ends):
        peer = far.register_region("peer", b, adopt=WAYS[way][0])
        adv = peer.advertise("write")
        b[:] = 0
        pushes = [own.writev([(0, 0, SIZE)], to=adv.ticket) for _ in range(4)]
        until("the first byte", lambda: b.any() or all(p.poll() for p in pushes))  # noqa: B023
        if how == "unadvertise":
            adv.unadvertise(PATIENCE)
        elif how == "deregister":
            peer.deregister(PATIENCE)
        elif how == "close":
            far.close()
        else:
            far._session.conn._sock.shutdown(2)  # the daemon lives
            until("the loss", lambda: "lost" in repr(far))  # noqa: B023
            far.reconnect(PATIENCE)
            assert adv.released
        b[:] = 200 + i
        for p in pushes:
            with contextlib.suppress(kvxfer.LeaseRevoked, kvxfer.ClientGone, kvxfer.TicketInvalid):
                p.wait(PATIENCE)
            p.wait_released(PATIENCE)
        near.ping()
        assert b.min() == b.max() == 200 + i
        if how == "close":
            far = attach(pair[1])
        else:
            peer.deregister(PATIENCE)


def test_small_arrays_the_second_way(pair: Pair, attach: Attach, rng: random.Random) -> None:
    """An array in malloc's heap is not shared, at no byte's border; asked for, it is reached in place."""
    prefill, decode = attach(pair[0]), attach(pair[1])
    a, b = array(SMALL, 3, 1), array(SMALL, 3, 2)
    for client in (prefill, decode):
        with pytest.raises(kvxfer.NotSupported):
            register(client, "kv", a, "share", SMALL)
    source, target = (
        register(prefill, "source", a, "auto", SMALL),
        register(decode, "target", b, "auto", SMALL),
    )
    assert source.guarantee == target.guarantee == "live-client-only"
    want = moved(a, [2, 0], b, [1, 2])
    with target.lease([1, 2]) as lease:
        source.write([2, 0], to=lease.ticket).wait()
        lease.wait()
    assert np.array_equal(b, want)


def test_beside_an_allocated_cache(pair: Pair, attach: Attach, rng: random.Random) -> None:
    """Adopted, reached and allocated memory are one cache to the other side."""
    prefill, decode = attach(pair[0]), attach(pair[1])
    source = allocate(prefill, "source", BIG, 8, seed=3)
    a = array(BIG, BLOCKS, 4)
    for way, _ in WAYS.values():
        target = register(decode, "target", a, way)
        want = moved(pieces(source), [1, 7, 2], a, [0, BLOCKS - 1, 9])
        lease = target.lease([0, BLOCKS - 1, 9])
        push = source.write([1, 7, 2], to=lease.ticket, layerwise=True)
        for layer in range(BIG.layers):
            push.layer(layer)
            lease.wait_layer(layer, PATIENCE)
        push.finish()
        lease.wait()
        assert np.array_equal(a, want)
        target.drop()


def test_layers_of_one_allocation(pair: Pair, attach: Attach) -> None:
    """A list of the slices of one array, as engines keep a cache."""
    decode = attach(pair[1])
    a = array(BIG, BLOCKS, 5)
    cache = decode.register_cache("kv", model=MODEL, layout=BIG, tensors=list(a), num_blocks=BLOCKS)
    source = allocate(decode, "source", BIG, 2, seed=6)
    want = moved(pieces(source), [1], a, [17])
    lease = cache.lease([17])
    source.write([1], to=lease.ticket).wait()
    lease.wait()
    assert np.array_equal(a, want)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("pair", PROVIDERS, indirect=True)
def test_taken_back_it_is_never_written(pair: Pair, attach: Attach, rng: random.Random, way: str) -> None:
    """Revoked in the middle and fenced, then given another content: no byte of that changes any more."""
    prefill, decode = attach(pair[0]), attach(pair[1])
    source = allocate(prefill, "source", BIG, 64, seed=7)
    a = array(BIG, BLOCKS, 8)
    target = register(decode, "target", a, WAYS[way][0])
    for _ in range(5):
        blocks, to = choose(rng, 64, 32), choose(rng, BLOCKS, 32)
        lease = target.lease(to)
        push = source.write(blocks, to=lease.ticket)
        until("the first layer", lambda lease=lease: lease.visible_layers() or lease.poll())  # type: ignore[misc]
        lease.revoke().wait(PATIENCE)
        a[:, :, to] = 200
        with contextlib.suppress(kvxfer.LeaseRevoked):
            push.wait(PATIENCE)
        push.wait_released(PATIENCE)
        prefill.ping()
        assert (a[:, :, to] == 200).all()
        if target.block_states().committed:  # it was faster
            target.evict(to)


def test_after_a_restart_the_array_still_holds_it(daemon: Start, attach: Attach) -> None:
    """Both ways: what was committed is served again under the new daemon, for the same memory."""
    node = daemon("decode", "--nats-listen", "127.0.0.1:0")
    client = attach(node)
    source = allocate(client, "source", BIG, 4, seed=9)
    arrays = {way: array(BIG, BLOCKS, 10) for way in WAYS}
    caches = {way: register(client, way, arrays[way], WAYS[way][0]) for way in WAYS}
    for cache in caches.values():
        lease = cache.lease([5, 6])
        source.write([1, 2], to=lease.ticket).wait()
        lease.wait()
    held = {way: a.copy() for way, a in arrays.items()}
    node.settle()
    node.kill()
    node.start()
    served = client.reconnect(PATIENCE)
    for way, cache in caches.items():
        assert sorted(served[way]) == [5, 6]
        assert np.array_equal(arrays[way], held[way])
        lease = cache.lease([7])
        source.write([3], to=lease.ticket).wait()
        lease.wait()
        assert np.array_equal(arrays[way][:, :, 7], pieces(source)[:, :, 3])


def in_child(check: Callable[[], bool]) -> None:
    """Runs check in a forked child, which leaves nothing else behind."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if check() else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_after_a_fork(pair: Pair, attach: Attach) -> None:
    """The child's handles are disabled; what it writes to adopted pages the parent sees; transfers go on."""
    prefill, decode = attach(pair[0]), attach(pair[1])
    a, b = array(BIG, BLOCKS, 11), array(BIG, BLOCKS, 12)
    source, target = register(prefill, "source", a, "share"), register(decode, "target", b, "process")
    lease = target.lease([1])
    push = source.write([2], to=lease.ticket, layerwise=True)

    def child() -> bool:
        disabled = 0
        for call in (lambda: source.memory, target.drop, prefill.ping, lambda: push.layer(0)):
            try:
                call()
            except kvxfer.ForkedClient:
                disabled += 1
        a[:, :, 2] = 99  # shared
        b[:, :, 1] = 98  # the child's own copy
        return disabled == 4

    want = b.copy()
    in_child(child)
    assert (a[:, :, 2] == 99).all()
    assert np.array_equal(b, want)
    for layer in range(BIG.layers):
        push.layer(layer)
    push.finish()
    push.wait()
    lease.wait()
    want[:, :, 1] = 99
    assert np.array_equal(b, want)


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("pair", PROVIDERS, indirect=True)
def test_the_client_is_killed(pair: Pair, attach: Attach, worker: StartWorker, side: str) -> None:
    """The other side hears a typed end, both daemons live, and no other memory is touched.

    The number of the dead process may go to another one: the daemon's descriptor is bound to the address
    space, not to the number, so nothing of that other one can be reached.
    """
    near, far = (pair[0], pair[1]) if side == "source" else (pair[1], pair[0])
    other = allocate(attach(far), "other", SMALL, 32, seed=13)
    bystander = allocate(attach(near), "bystander", SMALL, 32, seed=14)
    untouched = pieces(bystander).copy()
    w = worker(near)
    w.call("adopt", name="kv", layout=dataclasses.asdict(SMALL), num_blocks=32, seed=15, way="process")
    if side == "source":
        lease = other.lease([3, 4])
        number = w.call("write", cache="kv", blocks=[1, 2], ticket=lease.ticket, layerwise=True)
        w.call("layers", push=number, layers=[0, 1])
        lease.wait_layer(1, PATIENCE)
        pending: kvxfer.Lease | kvxfer.Push = lease
    else:
        _, ticket = w.call("lease", cache="kv", blocks=[3, 4])
        push = other.write([1, 2], to=ticket, layerwise=True, timeout=600)
        push.layer(1)
        until("bytes to arrive", lambda: w.call("visible", lease=0) == [1])
        pending = push
    w.signal(signal.SIGKILL)
    if side == "target":
        push.layer(2)  # into memory that is gone or just going
    with pytest.raises((kvxfer.ClientGone, kvxfer.MemoryFault)) as e:
        pending.wait(PATIENCE)
    assert e.value.released is True
    w.kill()
    for d in (near, far):
        with d.connect() as c:
            until("the daemon to forget it", lambda c=c: c.status().leases + c.status().transfers == 0)  # type: ignore[misc]
    assert np.array_equal(pieces(bystander), untouched)
    again = bystander.lease([0])
    other.write([5], to=again.ticket).wait()
    again.wait()
    assert np.array_equal(pieces(bystander)[:, :, 0], pieces(other)[:, :, 5])


@pytest.mark.parametrize("pair", PROVIDERS, indirect=True)
def test_memory_that_vanishes(pair: Pair, attach: Attach, worker: StartWorker) -> None:
    """A client that unmaps what it handed over: MemoryFault on both sides, and the client goes on."""
    source = allocate(attach(pair[0]), "source", BIG, 8, seed=16)
    w = worker(pair[1])
    w.call("adopt", name="kv", layout=dataclasses.asdict(BIG), num_blocks=64, seed=17, way="process")
    _, ticket = w.call("lease", cache="kv", blocks=[60])
    w.call("unmap", name="kv")
    with pytest.raises(kvxfer.TransferError) as e:
        source.write([1], to=ticket).wait(PATIENCE)
    assert isinstance(e.value, kvxfer.MemoryFault), repr(e.value)
    with pytest.raises(CallError) as there:
        w.call("wait_lease", lease=0)
    assert there.value.name == "MemoryFault"


def resident(pid: int) -> int:
    """Bytes that count for a process, each shared page by its part."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no Pss")


def test_memory_does_not_double(pair: Pair, attach: Attach) -> None:
    """256 MiB are adopted: the client needs no more than a part of it besides, the daemon nothing."""
    decode = attach(pair[1])
    size = 256 << 20
    a = array(BIG, size // BIG.block_bytes, 18)
    gc.collect()
    client, node = resident(os.getpid()), resident(pair[1].pid)
    most, stop = [0], threading.Event()

    def watch() -> None:
        while not stop.is_set():
            most[0] = max(most[0], resident(os.getpid()))

    thread = threading.Thread(target=watch)
    thread.start()
    cache = register(decode, "kv", a, "share")
    stop.set()
    thread.join()
    assert most[0] < client + size // 2
    source = allocate(decode, "source", BIG, 4, seed=19)
    lease = cache.lease(range(4))
    source.write(range(4), to=lease.ticket).wait()
    lease.wait()
    assert np.array_equal(a[:, :, :4], pieces(source))
    assert resident(os.getpid()) < client + size // 2
    assert resident(pair[1].pid) < node + size // 2


IN_A_NAMESPACE = """
import os, sys
import numpy as np, kvxfer
from contents import MODEL, SMALL, allocate, pieces, random_bytes
assert os.getpid() == 1
with kvxfer.connect(sys.argv[1]) as client:
    a = random_bytes(SMALL, 4, 1).copy()
    target = client.register_cache("kv", model=MODEL, layout=SMALL, tensors=a, num_blocks=4, adopt="process")
    source = allocate(client, "source", num_blocks=4, seed=2)
    with target.lease([3]) as lease:
        source.write([1], to=lease.ticket).wait()
        lease.wait()
    assert np.array_equal(a[:, :, 3], pieces(source)[:, :, 1])
print("done")
"""


def test_from_another_pid_namespace(pair: Pair) -> None:
    """The client opens its own memory, so the daemon needs neither its number nor a privilege over it."""
    unshare = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    if shutil.which("unshare") is None or subprocess.run([*unshare, "true"], capture_output=True).returncode:
        pytest.skip("namespaces cannot be made here (unshare)")
    out = subprocess.run(
        [*unshare, sys.executable, "-c", IN_A_NAMESPACE, str(pair[1].socket)],
        cwd=Path(__file__).parent, capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert out.stdout == "done\n", out.stderr
