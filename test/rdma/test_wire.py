"""The wire of one machine: RoCE packets between two of its devices pass a program that can hold them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

import kernel
import network
from vm import VM, Process

GID = {"ipv4": 1, "ipv6": 2}


@pytest.fixture(scope="module")
def guest_files() -> Mapping[str, Path]:
    """The program between the devices."""
    return {"/usr/bin/copier": kernel.go_build("./test/rdma/tapwire/copier")}


@pytest.fixture(scope="module")
def wire(one: VM) -> Process:
    """The wire, connected."""
    p = one.start(["copier", "tap0", "tap1"], stdin=True)
    p.wait_for("open\n")
    for dev in ("rxe_a", "rxe_b"):
        one.run(f"until grep -q ACTIVE /sys/class/infiniband/{dev}/ports/1/state; do sleep 0.05; done")
    return p


def tell(wire: Process, command: str) -> str:
    """Give the wire a command and return its answer."""
    lines = wire.output().count("\n")
    wire.input(f"{command}\n".encode())
    return wire.wait_for_lines(lines + 1)[lines]


def roce(wire: Process) -> int:
    """How many RoCE frames came to the wire."""
    return int(json.loads(tell(wire, "stats"))["RoCE"])


def start(one: VM, family: str, port: int, count: int) -> tuple[Process, Process]:
    """Start perftest from rxe_a to rxe_b; returns server and client."""
    args = f"-x {GID[family]} -s 65536 -n {count} -F -p {port}"
    server = one.start(f"ib_write_bw -d {network.WIRE[1].rdma} {args}")
    one.run(f"until netstat -ltn | grep -q :{port}; do sleep 0.05; done")
    return server, one.start(f"ib_write_bw -d {network.WIRE[0].rdma} {args} 127.0.0.1")


@pytest.mark.parametrize("family", ["ipv4", "ipv6"])
def test_every_packet_crosses(one: VM, wire: Process, family: str) -> None:
    """The kernel sends between its own two addresses over the wire: every packet is counted."""
    before = roce(wire)
    server, client = start(one, family, 18600 + GID[family], 50)
    assert client.wait().rc == 0
    assert server.wait().rc == 0
    assert roce(wire) - before >= 50 * 65536 // 4096


@pytest.mark.parametrize("family", ["ipv4", "ipv6"])
def test_held_packets_hold_the_run(one: VM, wire: Process, family: str) -> None:
    """What is held does not arrive and the run waits; after the release it ends well. Likewise a cut."""
    for stop, go_on, port in (("hold", "release", 18610), ("cut", "mend", 18620)):
        before = roce(wire)
        server, client = start(one, family, port + GID[family], 200)
        one_message = 65536 // 4096
        while roce(wire) < before + 10 * one_message:
            assert client.running
        assert tell(wire, stop) == "done"
        # Frames still come: both ends repeat what is not acknowledged.
        stats = json.loads(tell(wire, "stats"))
        while roce(wire) < stats["RoCE"] + 50:
            assert client.running
        assert client.running
        now = json.loads(tell(wire, "stats"))
        assert now["Delivered"] == stats["Delivered"]
        assert tell(wire, go_on) == "done"
        assert client.wait().rc == 0
        assert server.wait().rc == 0


def test_faults(one: VM, wire: Process) -> None:
    """A run ends well through loss, duplicates and reordering."""
    assert tell(wire, "faults 7 0s 0s 0.01 0.01 0.02") == "done"
    server, client = start(one, "ipv4", 18630, 20)
    assert client.wait(120).rc == 0
    assert server.wait(120).rc == 0
    assert tell(wire, "faults 7 0s 0s 0 0 0") == "done"
    assert json.loads(tell(wire, "stats"))["Lost"] > 0
