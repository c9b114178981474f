"""Faults of RDMA between two daemons: each is a typed error or a finished transfer with the right bytes.

After each fault both daemons move blocks over verbs again (Duo.well), and no memory is in quarantine. The
order matters only for the time: daemons are started anew as rarely as can be.
"""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import kernel
import network
from conftest import Pair
from duo import SETTINGS, Duo, End
from latewriter import PATIENCE, STDERR
from test_late_writes import build

LOGS = kernel.BUILD / "logs"
RAILS = ("eth0", "eth1")
LIMIT = 256 << 10
"""Bytes that a confined daemon may lock: less than its clients' memory."""


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


@pytest.fixture(autouse=True)
def no_quarantine(stage: Duo) -> Iterator[None]:
    """No fence has failed: all memory can be used again."""
    yield
    assert stage.quarantined() == 0


def until(what: str, cond: object, timeout: float = PATIENCE) -> None:
    """Wait for a condition."""
    assert callable(cond)
    end = time.monotonic() + timeout
    while not cond():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def good(end: End, provider: str = "verbs") -> None:
    """A transfer that ended well, over a provider."""
    assert (end.source, end.target, end.provider) == ("good", "good", provider), end


def finishes(duo: Duo, number: int) -> None:
    """A step goes on and ends well over verbs, and both daemons work behind it."""
    duo.there.go_on(number)
    good(duo.there.end(number))
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
    """The source's own rail is taken down. What b sends there waits in QEMU and in rdma_rxe, as on a
    port that is paused: neither completes nor fails, and b gives the rail up by itself."""
    number = duo.there.begin()
    duo.machines["a"].link("eth0", up=False)
    finishes(duo, number)
    duo.machines["a"].link("eth0", up=True)
    duo.used_again("rxe0")


def test_both_rails_lost_for_a_while(duo: Duo) -> None:
    """Nothing gets through any more; the transfer waits, and finishes when there is a rail again."""
    a, b = duo.machines["a"], duo.machines["b"]
    for rail in RAILS:
        a.netem(rail, delay_ms=40)
    number = duo.there.begin()
    duo.there.begun(number)
    for rail in RAILS:
        b.cable(rail, plugged=False)
    sent = [duo.packets("a", rail) for rail in ("rxe0", "rxe1")]
    duo.there.go_on(number)
    until("no queue pair has given up", lambda: duo.exceeded("a") > 0)
    for rail in RAILS:
        b.cable(rail, plugged=True)
        a.netem(rail)
    good(duo.there.end(number))
    assert sent != [duo.packets("a", rail) for rail in ("rxe0", "rxe1")]
    duo.well()


@pytest.mark.parametrize("deaf", ["a", "b"])
def test_one_direction_lost(duo: Duo, deaf: str) -> None:
    """A rail loses every packet, or every answer, until its queue pairs have given up: no transfer fails."""
    other = duo.machines["b" if deaf == "a" else "a"]
    before = duo.exceeded("a")
    number = duo.there.begin()
    other.netem("eth0", loss_percent=100)
    duo.there.go_on(number)
    good(duo.there.end(number))
    until("no queue pair has given up", lambda: duo.there.push() and duo.exceeded("a") > before)
    other.netem("eth0")
    duo.used_again("rxe0")


def test_bad_rail(duo: Duo) -> None:
    """One rail loses, doubles and reorders packets, both ways: bytes are right, written and read."""
    for machine in duo.machines.values():
        machine.netem("eth1", delay_ms=5, jitter_ms=3, loss_percent=5, duplicate_percent=5, reorder_percent=5)
    for _ in range(2):
        duo.well()
        assert duo.there.pull() == "good over verbs"
    for machine in duo.machines.values():
        machine.netem("eth1")
    duo.well()


def test_stopped_daemon(duo: Duo) -> None:
    """The target's daemon stands still in mid-transfer, shorter and longer than a peer may be silent."""
    number = duo.there.begin()
    duo.daemons["b"].signal(signal.SIGSTOP)
    duo.there.go_on(number)
    time.sleep(1)
    duo.daemons["b"].signal(signal.SIGCONT)
    good(duo.there.end(number))
    number = duo.there.begin()
    duo.daemons["b"].signal(signal.SIGSTOP)
    duo.there.go_on(number)
    lost = duo.daemons["a"].said().count("peer link down")
    until("the peer is not lost", lambda: duo.daemons["a"].said().count("peer link down") > lost)
    duo.daemons["b"].signal(signal.SIGCONT)
    end = duo.there.end(number)
    # Its device has taken the bytes, so the target may have had them all and the source not know.
    assert end.source in ("good", "PeerLost"), end
    assert end.target in ("good", "PeerLost", "LeaseRevoked"), end
    duo.well()


def test_smaller_mtu(duo: Duo) -> None:
    """One side's MTU becomes smaller: the lower one is agreed on, at the latest when the queue pairs
    of before have failed for it."""
    b = duo.machines["b"]
    duo.well()
    number = duo.there.begin()
    for rail in RAILS:
        b.run(f"ip link set {rail} mtu 1500")
    duo.there.go_on(number)
    good(duo.there.end(number))
    duo.well()
    for rail in RAILS:
        b.run(f"ip link set {rail} mtu {network.MTU}")
    duo.well()


def test_device_removed(duo: Duo) -> None:
    """A device is removed in mid-transfer at the target, and another one without any at the source: the
    removal ends, the transfers go on over the devices that are left."""
    a, b = duo.machines["a"], duo.machines["b"]
    number = duo.there.begin()
    removal = b.start("rdma link delete rxe1")
    duo.there.go_on(number)
    good(duo.there.end(number))
    assert removal.wait(PATIENCE).rc == 0
    duo.well()
    a.run("rdma link delete rxe1", timeout=PATIENCE)
    duo.well()
    for machine in (a, b):
        machine.run("rdma link add rxe1 type rxe netdev eth1")


def test_nothing_gets_through(duo: Duo) -> None:
    """Both rails are lost for longer than a session waits: the transfer ends with PeerLost, the next one with
    PeerUnreachable. Meanwhile: settings that name what is not there are refused."""
    b = duo.machines["b"]
    number = duo.there.begin()
    for rail in RAILS:
        duo.machines["a"].netem(rail, loss_percent=100)
        b.netem(rail, loss_percent=100)
    duo.there.go_on(number)
    for settings, words in (
        (("--rdma-gid", "10.99.0.1"), ("verbs is named and cannot be used", "10.99.0.1")),
        (("--rdma-pkey", "0x8001"), ("verbs is named and cannot be used", "0x8001")),
        (("--rdma-devices", "mlx5_0"), ("verbs is named and cannot be used", "rxe0")),
    ):
        argv = ["kvxfer", "serve", "--node", "odd", "--state-dir", "/tmp/odd", "--http", "off",
                "--socket", "/tmp/odd.sock", "--listen", "127.0.0.1:7999", "--insecure-peers",
                "--providers", "verbs", *settings]  # fmt: skip
        refused = b.run(argv, timeout=PATIENCE, check=False)
        assert refused.rc != 0
        for word in ("ConfigInvalid", *words):
            assert word in refused.err + refused.out, refused
    end = duo.there.end(number)
    assert end.source == "PeerLost", end
    number = duo.there.begin()
    duo.there.go_on(number)
    end = duo.there.end(number)
    assert end.source == "PeerUnreachable", end
    for rail in RAILS:
        duo.machines["a"].netem(rail)
        b.netem(rail)
    duo.well()


def test_ipv6_only(stage: Duo) -> None:
    """Rails without IPv4: their GIDs are IPv6 addresses."""
    for role, machine in stage.machines.items():
        for rail in network.ends(role)[:2]:
            machine.run(f"ip -4 addr flush dev {rail.netdev}")
    try:
        stage.start().open().well()
    finally:
        for role, machine in stage.machines.items():
            for rail in network.ends(role)[:2]:
                machine.run(f"ip addr add {rail.ipv4}/24 dev {rail.netdev}")


def test_addresses_that_do_not_meet(stage: Duo) -> None:
    """Each side may use one rail, and not the same: verbs alone ends with PeerUnreachable, with tcp beside it
    the transfer says why it went there."""
    a, b = ("--rdma-gid", network.ends("a")[0].ipv4), ("--rdma-gid", network.ends("b")[1].ipv4)
    both = ("--providers", "verbs,tcp")
    stage.start((*both, *a), (*both, *b)).open()
    end = stage.there.push(only="verbs")
    assert end.source == "PeerUnreachable", end
    assert "no rail reaches the peer" in end.error, end
    end = stage.there.push()
    good(end, "tcp")
    assert "no rail reaches the peer" in end.reason, end


def test_memory_that_may_not_be_locked(stage: Duo) -> None:
    """The receiver may lock next to nothing: with tcp beside it the transfer goes there and says why; alone,
    the memory is refused, and the limit is named."""
    both = ("--providers", "verbs,tcp")
    stage.start(both, both, confined=LIMIT).open()
    end = stage.there.push()
    good(end, "tcp")
    assert "RLIMIT_MEMLOCK" in end.reason, end
    stage.start(SETTINGS, SETTINGS, confined=LIMIT)
    why = stage.refused()
    assert "ResourceExhausted" in why, why
    assert "RLIMIT_MEMLOCK" in why, why
