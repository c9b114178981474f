"""Daemons whose clocks are hours and days apart: they tell each other durations, never points in time."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from functools import cache
from pathlib import Path

import kvxfer
import pytest

from conftest import Attach, Start, providers
from daemon import PATIENCE, Daemon, NatsServer, until
from transfers import allocate, begin, move

HOUR = 3600


@cache
def missing() -> str:
    """Why clocks cannot be set apart here; empty where they can."""
    if os.geteuid() != 0:
        return "making a time namespace needs root"
    if shutil.which("unshare") is None or not Path("/proc/self/ns/time").exists():
        return "unshare (util-linux) or the kernel has no time namespaces"
    done = subprocess.run([*ahead(HOUR), "true"], capture_output=True, text=True)
    return done.stderr.strip() if done.returncode != 0 else ""


def ahead(seconds: int) -> tuple[str, ...]:
    """A command that runs another whose host has been up for so much longer."""
    return ("unshare", "--time", "--monotonic", str(seconds), "--boottime", str(seconds))


@pytest.fixture
def apart(nats: NatsServer, daemon: Start, request: pytest.FixtureRequest) -> list[Daemon]:
    """Three nodes: as the host, hours ahead, months ahead."""
    if missing():
        if os.environ.get("CI") == "true" and os.geteuid() == 0:
            pytest.fail(missing())
        pytest.skip(missing())
    prefixes = {"early": (), "late": ahead(7 * HOUR), "latest": ahead(2000 * HOUR)}
    args = ["--nats", nats.url, "--heartbeat", "200ms", *providers(request)]
    return [daemon(name, *args, prefix=p) for name, p in prefixes.items()]


@pytest.mark.parametrize(("apart", "provider"), [("tcp", "tcp"), ("shm", "shm")], indirect=["apart"])
def test_clocks_apart(apart: list[Daemon], attach: Attach, rng: random.Random, provider: str) -> None:
    """Transfers, leases that expire, transfers that time out, and nodes that vanish: all in their time."""
    started = [int(Path(f"/proc/{d.pid}/timens_offsets").read_text().split()[1]) for d in apart]
    assert started == [0, 7 * HOUR, 2000 * HOUR], "the clocks are not apart: the test shows nothing"
    clients = [attach(d) for d in apart]
    names = sorted(d.name for d in apart)
    for client in clients:
        until("all to be seen", lambda c=client: sorted(c.status().nodes) == names)  # type: ignore[misc]
    caches = [allocate(client, f"cache-{i}") for i, client in enumerate(clients)]
    for i, j in ((0, 1), (1, 0), (0, 2), (2, 1), (1, 2)):
        assert move(caches[i], caches[j], rng).provider == provider
        with caches[i].lease([3], mode="read", ttl=PATIENCE) as offer:
            assert caches[j].read([5], source=offer.ticket, timeout=PATIENCE).wait().provider == provider
            assert offer.wait().holders == 1

    for i, j in ((0, 2), (2, 0)):
        source, target = caches[i], caches[j]
        began = time.monotonic()
        expired = target.lease([0], ttl=0.4)
        with pytest.raises(kvxfer.LeaseExpired):
            source.write([0], to=expired.ticket, layerwise=True, timeout=PATIENCE).wait()
        expired.wait_released(PATIENCE)
        assert time.monotonic() - began >= 0.4
        began = time.monotonic()
        late = target.lease([0])
        push = source.write([0], to=late.ticket, layerwise=True, timeout=0.4)
        with pytest.raises(kvxfer.DeadlineExceeded):
            push.wait(PATIENCE)
        assert time.monotonic() - began >= 0.4
        late.wait_released(PATIENCE)

    # Nobody vanishes who lives, and who is killed does.
    for client in clients:
        assert sorted(client.status().nodes) == names
    push, lease = begin(caches[0], caches[2])
    apart[2].kill()
    with pytest.raises(kvxfer.PeerLost):
        push.wait(PATIENCE)
    until("the killed one to vanish", lambda: "latest" not in clients[0].status().nodes)
    assert sorted(clients[1].status().nodes) == ["early", "late"]
    lease.wait_released(PATIENCE)


def test_restart_in_another_time(apart: list[Daemon], attach: Attach, rng: random.Random) -> None:
    """A node that comes back with its clock days behind serves what it had."""
    source, target = allocate(attach(apart[0]), "source"), allocate(client := attach(apart[2]), "target")
    move(source, target, rng)
    before = bytes(target.memory)
    served = len(target.block_states().blocks)
    apart[2].settle()
    apart[2].kill()
    apart[2].prefix = ()
    apart[2].start()
    assert len(client.reconnect(PATIENCE)["target"]) == served
    assert bytes(target.memory) == before
    move(source, target, rng)
