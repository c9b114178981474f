"""Clients and daemons that cannot see each other's processes: what is promised holds all the same."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import kvxfer
import pytest

from conftest import Attach, Start
from containers import ContainedDaemon, ContainedWorker, children, needs_containers, only_child
from contents import SMALL, allocate
from daemon import PATIENCE, Daemon, until
from footprint import counts
from worker import Worker, digest

LONG = 600.0
LAYOUT = dataclasses.asdict(SMALL)
Contained = Callable[[Daemon], ContainedWorker]


@pytest.fixture
def contained(daemon: Start, tmp_path: Path) -> Iterator[Contained]:
    """Start clients in containers: ``contained(daemon)``. They are killed at the end."""
    needs_containers()
    with contextlib.ExitStack() as stack:

        def start(d: Daemon) -> ContainedWorker:
            w = ContainedWorker(d.socket, tmp_path / f"run-{len(list(tmp_path.iterdir()))}")
            stack.callback(w.kill)
            return w

        yield start


def lease_and_write(source: Worker, target: kvxfer.Cache, to: list[int], blocks: list[int]) -> kvxfer.Lease:
    """A transfer whose source is a worker's cache "mine"."""
    lease = target.lease(to, ttl=PATIENCE)
    number = source.call("write", cache="mine", blocks=blocks, ticket=lease.ticket, layerwise=False)
    assert source.call("wait_push", push=number) == lease.wait().bytes
    return lease


def test_client_in_a_container(pair: tuple[Daemon, Daemon], attach: Attach, contained: Contained) -> None:
    """It has no right but to the socket and needs none: it transfers both ways and sees its daemon."""
    prefill, decode = pair
    w, other = contained(prefill), allocate(attach(decode), "other", seed=1)
    around = w.call("surroundings")
    assert around["pid"] < 20, "it sees a pid namespace of its own"
    assert around["capabilities"] == 0
    assert around["watched"]
    assert around["daemon_exited"] is False, "its daemon has no number in its namespace"
    w.call("allocate", name="mine", layout=LAYOUT, num_blocks=8, seed=7)

    lease_and_write(w, other, [30, 2], [1, 5])
    assert digest(other, [30, 2]) == w.call("digest", cache="mine", blocks=[1, 5])
    number, ticket = w.call("lease", cache="mine", blocks=[3, 0])
    sent = other.write([4, 9], to=ticket, timeout=PATIENCE).wait()
    assert w.call("wait_lease", lease=number) == sent.bytes
    assert digest(other, [4, 9]) == w.call("digest", cache="mine", blocks=[3, 0])


@pytest.mark.parametrize("what", ["client", "container"])
def test_container_is_killed(
    pair: tuple[Daemon, Daemon], attach: Attach, contained: Contained, what: str
) -> None:
    """The daemon hears of it by the process, although a child in the container holds the connection open."""
    prefill, decode = pair
    w, target = contained(prefill), allocate(attach(decode), "target")
    w.call("allocate", name="mine", layout=LAYOUT, num_blocks=8)
    lease = target.lease([4, 5], ttl=LONG)
    number = w.call("write", cache="mine", blocks=[0, 1], ticket=lease.ticket, layerwise=True)
    w.call("layers", push=number, layers=[2])
    lease.wait_layer(2, PATIENCE)
    init = only_child(w.process.pid)
    client = w.client_pid
    if what == "client":
        w.call("fork")
        (heir,) = children(client)
        w.kill_client()
    else:
        os.kill(init, signal.SIGKILL)
    with pytest.raises(kvxfer.ClientGone) as e:
        lease.wait(PATIENCE)
    assert e.value.released is True
    if what == "client":
        os.kill(heir, 0)  # it still holds the connection
    until("the daemon to forget the client", lambda: counts(prefill) == (0, 0, 0))


def test_daemon_dies_before_a_container(
    nodes: tuple[Daemon, Daemon], attach: Attach, contained: Contained
) -> None:
    """A client that cannot see its daemon's process knows whether it has exited, and what it may reuse."""
    prefill, decode = nodes
    source = allocate(attach(prefill), "source", seed=2)
    w = contained(decode)
    w.call("allocate", name="mine", layout=LAYOUT, num_blocks=8)
    whole, ticket = w.call("lease", cache="mine", blocks=[6, 1])
    source.write([0, 1], to=ticket).wait()
    w.call("wait_lease", lease=whole)
    torn, ticket = w.call("lease", cache="mine", blocks=[2, 3], ttl=LONG)
    push = source.write([2, 3], to=ticket, layerwise=True, timeout=LONG)
    push.layer(0)
    until("bytes to arrive", lambda: w.call("visible", lease=torn) == [0])
    decode.settle()
    decode.kill()
    with pytest.raises(kvxfer.PeerLost):
        push.wait(PATIENCE)
    assert w.call("released", lease=torn)  # by the exit alone: nobody has connected again
    assert w.call("surroundings")["daemon_exited"] is True
    decode.start()
    assert w.call("reconnect") == {"mine": [1, 6]}
    assert digest(source, [1, 0]) == w.call("digest", cache="mine", blocks=[1, 6])


def test_daemon_in_a_container(daemon: Start, tmp_path: Path, run_dir: Path) -> None:
    """Its clients' processes have no number in its namespace, and it knows of their death all the same."""
    needs_containers(root=True)
    d = ContainedDaemon("n0", tmp_path / "n0", run_dir)
    w = None
    try:
        d.start()
        with d.connect() as client:
            assert client.process_watched
            assert not client.daemon_exited()
            target = allocate(client, "target")
            w = Worker(str(d.socket))
            assert w.call("surroundings")["watched"]
            w.call("allocate", name="mine", layout=LAYOUT, num_blocks=8, seed=3)
            lease_and_write(w, target, [30, 2], [1, 5])
            assert digest(target, [30, 2]) == w.call("digest", cache="mine", blocks=[1, 5])
            lease = target.lease([4], ttl=LONG)
            number = w.call("write", cache="mine", blocks=[0], ticket=lease.ticket, layerwise=True)
            w.call("layers", push=number, layers=[0])
            lease.wait_layer(0, PATIENCE)
            heir = w.call("fork")
            w.kill()
            with pytest.raises(kvxfer.ClientGone):
                lease.wait(PATIENCE)
            os.kill(heir, signal.SIGKILL)
            until("the client to be forgotten", lambda: client.status().clients == 1)
            assert "cannot be watched" not in d.log()

            d.settle()
            d.kill()
            assert client.daemon_exited(PATIENCE)
            d.start()
            assert {k: v.tolist() for k, v in client.reconnect(PATIENCE).items()} == {"target": [2, 30]}
        d.stop()
    finally:
        if w is not None:
            w.kill()
        if d.process is not None and d.process.poll() is None:
            d.process.kill()
            d.process.wait()
