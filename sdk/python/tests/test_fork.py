from __future__ import annotations

import os
import select
import signal
import warnings
from collections.abc import Callable

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
    region = client.register_region("r", bytearray(8), adopt="process")

    calls: list[Callable[[], object]] = [
        client.ping,
        client.status,
        client.completed,
        client.reconnect,
        client.daemon_exited,
        lambda: client.span("x"),
        lambda: client.allocate_cache("n", model="m", layout=cache.layout, num_blocks=1),
        lambda: client.register_cache(
            "n", model="m", layout=cache.layout, tensors=bytearray(8), num_blocks=1
        ),
        lambda: client.register_region("n", bytearray(8)),
        lambda: region.region_id,
        region.close,
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
        repr(client), repr(lease), repr(cache)
        with kvxfer.connect(daemon.path, timeout=20) as own:  # connects again and works
            own.ping()
        with span:
            pass

    in_child(check)
    client.ping()
    push.layer(0)
    daemon.wait_for(fd.PUSH_LAYER)
    assert not lease.poll()


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
