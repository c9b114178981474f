"""Faults of RDMA between two daemons: each is a typed error or a finished transfer with the right bytes.

After each fault both daemons move blocks over verbs again, and no memory is in quarantine (Duo.well).
"""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import kernel
from conftest import Pair
from duo import SETTINGS, Duo
from latewriter import PATIENCE, STDERR
from test_late_writes import build

LOGS = kernel.BUILD / "logs"
RAILS = ("eth0", "eth1")


@pytest.fixture(scope="module")
def guest_files() -> Mapping[str, Path]:
    """Daemons, their clients, and what takes the right to lock memory away."""
    return {
        "/usr/bin/kvxfer": build("kvxfer", "./cmd/kvxfer"),
        "/usr/bin/latewriter": build("latewriter", "./test/rdma/latewriter", cgo=False),
        "/usr/bin/confine": build("confine", "./test/rdma/confine", cgo=False),
    }


@pytest.fixture(scope="module")
def stage(pair: Pair) -> Iterator[Duo]:
    """Two daemons; tests that need others start them anew."""
    logs = LOGS / "faults"
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    duo = Duo(pair, logs)
    try:
        yield duo
    finally:
        duo.close()
        for machine in pair:
            (logs / f"clients-{machine.role}.log").write_text(
                machine.run(f"cat {STDERR}; rm -f {STDERR}", check=False).out
            )


@pytest.fixture(scope="module")
def duo(stage: Duo) -> Duo:
    """Two daemons with the usual settings."""
    return stage.start().open()


def until(what: str, cond: object, timeout: float = PATIENCE) -> None:
    """Wait for a condition."""
    assert callable(cond)
    end = time.monotonic() + timeout
    while not cond():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def finishes(duo: Duo, number: int) -> None:
    """A step goes on and ends well over verbs, and both daemons work behind it."""
    duo.there.go_on(number)
    end = duo.there.end(number)
    assert (end.source, end.target, end.provider) == ("good", "good", "verbs"), end
    duo.well()


def test_cable_pulled(duo: Duo) -> None:
    """One of two rails is lost in mid-transfer: it finishes on the other, and comes back."""
    duo.well()
    number = duo.there.begin()
    duo.machines["b"].cable("eth1", plugged=False)
    finishes(duo, number)
    assert duo.active("b", "rxe1") == 0
    assert duo.active("b", "rxe0") == 1
    duo.machines["b"].cable("eth1", plugged=True)
    until("the port is not up again", lambda: duo.active("b", "rxe1") == 1)
    duo.used_again("rxe1")


def test_link_down_at_the_source(duo: Duo) -> None:
    """The source's own rail is taken down."""
    number = duo.there.begin()
    duo.machines["a"].link("eth0", up=False)
    finishes(duo, number)
    duo.machines["a"].link("eth0", up=True)
    duo.used_again("rxe0")


def test_both_rails_lost_for_a_while(duo: Duo) -> None:
    """Nothing gets through in either direction; the transfer waits and finishes when there is a rail again."""
    a, b = duo.machines["a"], duo.machines["b"]
    for rail in RAILS:
        a.netem(rail, delay_ms=40)
    number = duo.there.begin()
    duo.there.begun(number)
    for rail in RAILS:
        b.cable(rail, plugged=False)
    duo.there.go_on(number)
    until("no lane has failed", lambda: duo.daemons["a"].said().count("lane failed") >= 0)
    for rail in RAILS:
        b.cable(rail, plugged=True)
        a.netem(rail)
    end = duo.there.end(number)
    assert (end.source, end.target, end.provider) == ("good", "good", "verbs"), end
    duo.well()


@pytest.mark.parametrize("deaf", ["a", "b"])
def test_one_direction_lost(duo: Duo, deaf: str) -> None:
    """A rail loses every packet, or every answer, for longer than all retries; the queue pairs' errors
    cost no transfer."""
    other = duo.machines["b" if deaf == "a" else "a"]
    number = duo.there.begin()
    other.netem("eth0", loss_percent=100)
    finishes(duo, number)
    other.netem("eth0")
    duo.used_again("rxe0")


def test_bad_rail(duo: Duo) -> None:
    """One rail loses, doubles and reorders packets, both ways: bytes are right, written and read."""
    for machine in duo.machines.values():
        machine.netem(
            "eth1", delay_ms=5, jitter_ms=3, loss_percent=5, duplicate_percent=5, reorder_percent=5
        )
    for _ in range(4):
        duo.well()
        assert duo.there.pull() == "good over verbs"
    for machine in duo.machines.values():
        machine.netem("eth1")
    duo.well()


def test_stopped_daemon(duo: Duo) -> None:
    """The target's daemon stands still, shorter and longer than a peer may be silent."""
    number = duo.there.begin()
    duo.daemons["b"].signal(signal.SIGSTOP)
    duo.there.go_on(number)
    time.sleep(1)
    duo.daemons["b"].signal(signal.SIGCONT)
    end = duo.there.end(number)
    assert (end.source, end.target, end.provider) == ("good", "good", "verbs"), end

    number = duo.there.begin()
    duo.daemons["b"].signal(signal.SIGSTOP)
    duo.there.go_on(number)
    sent = duo.there.source.send("results", {"ids": [number], "ms": int(PATIENCE * 1000)})
    print(sent.result(2 * PATIENCE))
    duo.daemons["b"].signal(signal.SIGCONT)
