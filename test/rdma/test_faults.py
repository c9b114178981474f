"""What fails between two machines ends in a typed error or in a finished transfer, in bounded time."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import network
from conftest import Pair
from latewriter import MS, LateWriter
from serving import Daemon
from test_late_writes import LOGS, build
from vm import GuestError
from weather import ROCE_PORT, Sky, Weather

UNITS = 64
BOUND = 30.0
"""Seconds within which everything here has ended: a peer that does not answer costs a queue pair two of them,
and the transfer's own time is ten."""
# Memory windows make rdma_rxe wait 51 seconds for each queue pair of a process or device that ends.
SETTINGS = ("--providers", "verbs", "--rdma-windows", "off")


@pytest.fixture(scope="module")
def guest_files() -> Mapping[str, Path]:
    """What the machines run."""
    return {
        "/usr/bin/kvxfer": build("kvxfer", "./cmd/kvxfer"),
        "/usr/bin/latewriter": build("latewriter", "./test/rdma/latewriter", cgo=False),
    }


class Two:
    """A source's and an owner's daemon with a client each."""

    def __init__(self, pair: Pair, logs: Path) -> None:
        self.pair, self.logs = pair, logs
        self.daemons: list[Daemon] = []
        self.clients: list[LateWriter] = []
        self.ids = 0

    def start(self, source: tuple[str, ...] = (), owner: tuple[str, ...] = ()) -> None:
        """Start everything; settings of each daemon besides SETTINGS."""
        for machine, name, more in ((self.pair.a, "source", source), (self.pair.b, "owner", owner)):
            machine.run(f"rm -rf /tmp/{name}.state")
            address = network.ends(machine.role)[2].ipv4
            daemon = Daemon(machine, name, address, self.logs, *SETTINGS, *more)
            self.daemons.append(daemon)
            self.clients.append(daemon.start().client(name, "--units", str(UNITS)))
        for client in self.clients:
            client.ready()

    def push(self, meanwhile: Callable[[], object] = lambda: None) -> dict[str, Any]:
        """Write all blocks; ``meanwhile`` is called when it has begun. Returns the owner's end, with the
        source's error, where it has one, as "far"."""
        source, owner = self.clients
        self.ids += 1
        units = list(range(UNITS))
        v = {
            "id": self.ids,
            "kind": "push",
            "way": "keep",
            "units": units,
            "from": units,
            "ttl": MS,
            "mark": 200,
        }
        ticket = owner.ask("open", [v])[0]["ticket"]
        began = time.monotonic()
        source.ask("push", [{**v, "ticket": ticket, "ttl": 10_000}])
        meanwhile()
        (far,) = source.ask("wait", {"ids": [self.ids], "ms": MS})
        if far["end"] != "good":
            owner.ask("take", [{"id": self.ids}])
        (end,) = owner.ask("wait", {"ids": [self.ids], "ms": MS})
        took = time.monotonic() - began
        print(f"  {took:5.1f} s  {end['end']}, {far['end']}: {far.get('error', '')}", flush=True)
        assert took < BOUND
        assert far["end"] != ""
        assert not end.get("wrong"), f"{end['wrong']} bytes are not what the source had"
        assert not owner.late
        return {**end, "far": far}

    def eventually(self) -> None:
        """Transfers go well again, without anybody's help, in bounded time."""
        end = time.monotonic() + BOUND
        while self.push()["far"]["end"] != "good":
            assert time.monotonic() < end


@pytest.fixture
def two(pair: Pair, request: pytest.FixtureRequest) -> Iterator[Two]:
    """Two daemons that are not started."""
    logs = LOGS / request.node.name
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    made = Two(pair, logs)
    yield made
    for client in made.clients:
        client.close()
    for daemon in made.daemons:
        if daemon.process is not None and daemon.process.running:
            daemon.kill()


@pytest.fixture
def slow(pair: Pair) -> Iterator[Weather]:
    """Payload takes a while, so that something can happen meanwhile."""
    weather = Weather(pair.a, ["eth0", "eth1"], "udp", ROCE_PORT)
    weather.change(Sky(delay=100, rate=4))
    yield weather
    weather.clear()


def test_links(two: Two, slow: Weather) -> None:
    """One rail is lost in mid-transfer, then both: it finishes on the other, or ends typed; and goes on."""
    two.start()
    two.eventually()
    machine = two.pair.b

    def plug(plugged: bool, *devices: str) -> None:
        for dev in devices:
            machine.cable(dev, plugged)

    end = two.push(lambda: plug(False, "eth1"))
    assert end["far"]["end"] == "good", "one rail is enough"
    assert end["by"] == "verbs"
    plug(True, "eth1")
    end = two.push(lambda: plug(False, "eth0"))
    assert end["far"]["end"] == "good", "the other rail is enough too"
    plug(True, "eth0")
    two.eventually()
    end = two.push(lambda: plug(False, "eth0", "eth1"))
    assert end["far"]["end"] in ("PeerLost", "DeadlineExceeded", "good")
    plug(True, "eth0", "eth1")
    two.eventually()


def test_mtu_mismatch(two: Two) -> None:
    """The ends of a rail have different MTUs: the smaller one counts."""
    two.pair.b.run("ip link set eth0 mtu 1500 && ip link set eth1 mtu 1500")
    try:
        two.start()
        assert two.push()["far"]["end"] == "good"
    finally:
        two.pair.b.run(f"ip link set eth0 mtu {network.MTU} && ip link set eth1 mtu {network.MTU}")


def test_gids_that_do_not_meet(two: Two) -> None:
    """Each end is told to use a GID that does not reach the other's: a typed error that says so."""
    a, b = network.ends("a"), network.ends("b")
    two.start(("--rdma-gid", a[0].ipv4), ("--rdma-gid", b[1].ipv4))
    end = two.push()
    assert end["far"]["end"] == "PeerUnreachable"
    assert "no rail reaches the peer" in end["far"]["error"]


def test_gid_of_no_port(two: Two) -> None:
    """A GID that no port has: the daemon does not start, and names it."""
    daemon = Daemon(
        two.pair.a, "source", network.ends("a")[2].ipv4, two.logs, *SETTINGS, "--rdma-gid", "192.0.2.1"
    )
    with pytest.raises((AssertionError, GuestError), match=r"192\.0\.2\.1"):
        daemon.start()


def test_device_removed(two: Two, slow: Weather) -> None:
    """A device goes away in mid-transfer: what it had to move goes another way, or ends typed."""
    two.start()
    two.eventually()
    rail = network.ends("b")[1]
    try:
        end = two.push(lambda: two.pair.b.start(["rdma", "link", "delete", rail.rdma]))
        assert end["far"]["end"] in ("good", "PeerLost", "DeadlineExceeded")
        two.eventually()
    finally:
        for daemon in two.daemons:
            daemon.kill()
        two.pair.b.run(f"rdma link add {rail.rdma} type rxe netdev {rail.netdev}", check=False)
