from __future__ import annotations

import atexit
import gc
import os
import select
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import fakedaemon as fd
import pytest
from fakedaemon import FakeDaemon

import kvxfer


def in_child(check: Callable[[], None]) -> None:
    """Runs check in a forked child; its failure fails the test."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        # From 3.12 on Python warns of every fork with threads; that is what is tried here.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            check()
            os.write(write, b"ok")
        except BaseException as e:
            os.write(write, repr(e).encode())
        finally:
            os._exit(0)
    os.close(write)
    said = b""
    while select.select([read], [], [], 60)[0] and (chunk := os.read(read, 4096)):
        said += chunk
    os.kill(pid, signal.SIGKILL)
    os.close(read)
    os.waitpid(pid, 0)
    assert said == b"ok", said.decode()


def test_every_handle_is_disabled(daemon: FakeDaemon, client: kvxfer.Client, cache: kvxfer.Cache) -> None:
    lease, push = cache.lease([0]), cache.write([1], to="t", layerwise=True)
    fence = lease.revoke()
    held, layer = lease.when_released, lease.layer(0)
    sock = client._session.conn._sock.fileno()
    span = client.span("step")
    offer, pull, region = (
        cache.lease([4], mode="read"),
        cache.read([5], source="t"),
        client.allocate_region("r", 8),
    )
    adv, scatter, renewal = region.advertise(), region.writev([], to="t"), lease.renew(30)
    holder, granted = offer.next_holder(), cache.granted("ab" * 16, timeout=60)
    selectable = client.fileno()
    adopted = client.register_region("adopted", bytearray(8), adopt="process")

    calls: list[Callable[[], object]] = [
        client.ping,
        client.status,
        client.completed,
        client.fileno,
        client.reconnect,
        lambda: client.allocate_region("n", 8),
        lambda: client.lease(instance="i", instance_key=b"k" * 16, blocks=[0]),
        lambda: client.lookup([b"k"], like=cache),
        lambda: cache.lease([2], mode="read"),
        lambda: cache.read([2], source="t"),
        lambda: cache.publish([2], [b"k"]),
        lambda: cache.granted("ab" * 16),
        lambda: cache.guarantee,
        lambda: lease.renew(5),
        offer.wait,
        offer.holders,
        offer.next_holder,
        offer.revoke,
        offer.__enter__,
        pull.wait,
        pull.cancel,
        lambda: pull.released,
        lambda: region.memory,
        lambda: region.array,
        region.advertise,
        lambda: region.writev([], to="t"),
        lambda: region.readv([], source="t"),
        region.deregister,
        adv.unadvertise,
        lambda: adv.renew(5),
        scatter.poll,
        scatter.cancel,
        renewal.wait,
        holder.poll,
        granted.fileno,
        client.daemon_exited,
        lambda: client.span("x"),
        lambda: client.allocate_cache("n", model="m", layout=cache.layout, num_blocks=1),
        lambda: client.register_cache(
            "n", model="m", layout=cache.layout, tensors=bytearray(8), num_blocks=1
        ),
        lambda: client.register_region("n", bytearray(8)),
        lambda: adopted.memory,
        adopted.deregister,
        lambda: cache.memory,
        lambda: cache.layer(0),
        lambda: cache.lease([2]),
        lambda: cache.write([2], to="t"),
        lambda: cache.evict([2]),
        cache.block_states,
        cache.drop,
        lease.wait,
        lease.poll,
        lease.exception,
        lease.fileno,
        lease.revoke,
        lease.visible_layers,
        lambda: lease.layer(1),
        lambda: lease.wait_layer(1),
        lambda: lease.released,
        lambda: lease.when_released,
        lease.wait_released,
        lambda: lease.__await__().send(None),
        lease.__enter__,
        push.wait,
        push.poll,
        push.cancel,
        push.finish,
        lambda: push.layer(0),
        lambda: push.released,
        push.wait_released,
        push.fileno,
        fence.wait,
        fence.poll,
        held.wait,
        layer.wait,
    ]

    def check() -> None:
        for i, call in enumerate(calls):
            try:
                call()
            except kvxfer.ForkedClient:
                continue
            raise AssertionError(f"call {i} did not raise")
        assert not os.path.exists(f"/proc/self/fd/{sock}"), "the child's copy is closed"
        client.close()
        lease.__exit__(None, None, None)
        adv.__exit__(None, None, None)
        repr(client), repr(lease), repr(cache)
        with kvxfer.connect(daemon.path, timeout=20) as own:  # connects again and works
            own.ping()
        with span:
            pass

    in_child(check)
    client.ping()
    assert select.select([selectable], [], [], 0)[0] and renewal in client.completed()
    push.layer(0)
    daemon.wait_for(fd.PUSH_LAYER)
    assert not lease.poll()


def test_a_child_that_exits_like_a_program_disturbs_nobody(
    daemon: FakeDaemon, client: kvxfer.Client, cache: kvxfer.Cache
) -> None:
    """With atexit and finalizers: the connection, the memory and the descriptors are the parent's."""
    region = client.allocate_region("r", 8)
    lease, scatter = cache.lease([0]), region.writev([], to="t")
    number = scatter.fileno()
    cache.memory[0] = 7
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            for kind in (kvxfer.Client, kvxfer.Cache, kvxfer.Region, kvxfer.Lease, kvxfer.Scatter):
                for thing in [o for o in gc.get_objects() if type(o) is kind]:
                    for name in ("close", "__del__"):
                        getattr(thing, name, lambda: None)()
            gc.collect()
            atexit._run_exitfuncs()
            os.write(write, b"ok")
        finally:
            os._exit(0)
    os.close(write)
    assert select.select([read], [], [], 60)[0] and os.read(read, 4096) == b"ok"
    os.close(read)
    os.waitpid(pid, 0)
    client.ping(timeout=20)
    assert daemon.count(fd.REVOKE) == daemon.count(fd.DROP_CACHE) == 0 and not daemon.peer.closed.is_set()
    assert cache.memory[0] == 7 and len(region.memory) == 8
    daemon.peer.transfer_ended(daemon.next_id)
    assert select.select([number], [], [], 20)[0]
    lease.revoke()
    daemon.wait_for(fd.REVOKE)


def test_the_daemon_sees_the_parent_die(tmp_path: Path) -> None:
    """A child that lives on must not keep the dead parent's connection open."""
    daemon = FakeDaemon(str(tmp_path / "own.sock"))
    code = (
        "import os, sys, time, kvxfer\n"
        f"client = kvxfer.connect({daemon.path!r})\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    sys.stdout.write(f'{os.getpid()}\\n'); sys.stdout.flush(); time.sleep(600)\n"
        "time.sleep(600)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(kvxfer.__file__).parent.parent)}
    parent = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code], stdout=subprocess.PIPE, env=env, text=True
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    try:
        parent.kill()
        parent.wait(20)
        assert daemon.peer.closed.wait(20), "the child keeps the connection open"
        os.kill(child, 0)
    finally:
        os.kill(child, signal.SIGKILL)
        parent.stdout.close()
        daemon.stop()


def test_a_fork_in_the_middle_of_traffic(client: kvxfer.Client) -> None:
    import threading

    stop = threading.Event()
    failed: list[BaseException] = []

    def work() -> None:
        try:
            while not stop.is_set():
                client.ping(timeout=20)
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for t in threads:
        t.start()

    def check() -> None:
        with pytest.raises(kvxfer.ForkedClient):
            client.ping()
        client.close()

    for _ in range(10):
        in_child(check)
    stop.set()
    for t in threads:
        t.join()
    assert failed == []
