"""The machines themselves: commands, files, signals, networks, and that none outlives its test."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

import kernel
import network
from conftest import Pair
from vm import VM, GuestError

#: Index of the GID that an address gives, behind the link-local one.
GID = {"ipv4": 1, "ipv6": 2}


def test_commands(one: VM) -> None:
    """Output, status and environment come back; a failure and a time-out raise."""
    assert one.run(["echo", "a b"]) == (0, "a b\n", "")
    assert one.run("echo $WHAT >&2; exit 3", env={"WHAT": "x"}, check=False) == (3, "", "x\n")
    with pytest.raises(GuestError, match="ended with 1"):
        one.run(["false"])
    with pytest.raises(GuestError, match="took more than"):
        one.run(["sleep", "1000"], timeout=0.2)
    with pytest.raises(GuestError, match="not found"):
        one.run(["nosuchcommand"])


def test_many_commands_at_once(one: VM) -> None:
    """Streams are kept apart, also with much output."""
    ps = [one.start(f"for i in $(seq 200); do echo {n} $i; done") for n in range(40)]
    for n, p in enumerate(ps):
        r = p.wait()
        assert r.out == "".join(f"{n} {i}\n" for i in range(1, 201))
    assert len(one.run("head -c 8000000 /dev/zero").out) == 8_000_000


def test_signals(one: VM) -> None:
    """A process is stopped, continued and ended with all it started."""
    p = one.start("trap 'echo term; exit 7' TERM; echo up; while :; do sleep 0.05; echo tick; done")
    p.wait_for("tick")
    p.kill(signal.SIGSTOP)
    one.run("until ps -o stat,args | grep '^T.*trap .echo'; do sleep 0.05; done")
    assert p.running
    p.kill(signal.SIGCONT)
    p.kill(signal.SIGTERM)
    r = p.wait()
    assert r.rc == 7
    assert r.out.endswith("term\n")
    p = one.start(["sleep", "1000"])
    p.kill()
    assert p.wait().rc == -signal.SIGKILL


def test_install(one: VM, tmp_path: Path) -> None:
    """Binaries come with their libraries, also over one that runs."""
    one.install({"/usr/bin/mine": Path("/bin/sleep")})
    p = one.start(["mine", "1000"])
    one.install({"/usr/bin/mine": Path("/bin/echo")})
    assert one.run(["mine", "x"]).out == "x\n"
    assert p.running
    p.kill()
    p.wait()


def test_input(one: VM) -> None:
    """Input reaches a command, and its end too."""
    p = one.start(["cat"], stdin=True)
    p.input(b"hello")
    p.wait_for("hello")
    p.input(b"")
    assert p.wait().rc == 0


def test_files(one: VM) -> None:
    """Files go in and come out whole."""
    data = os.urandom(1_000_003)
    one.put("/tmp/a/b", data, 0o600)
    assert one.get("/tmp/a/b") == data
    one.put("/tmp/a/b", b"")
    assert one.get("/tmp/a/b") == b""
    with pytest.raises(GuestError, match="no such file"):
        one.get("/tmp/none")


def test_devices(one: VM) -> None:
    """rxe0 works alone; rxe_a and rxe_b have addresses of both families."""
    said = one.run(["ibv_devinfo", "-v"]).out
    for rail in (network.ONE, *network.WIRE):
        assert f"hca_id:\t{rail.rdma}\n" in said
        assert f"::ffff:{rail.ipv4}, RoCE v2" in said
        assert f"{rail.ipv6}, RoCE v2" in said


def write_bw(pair: Pair, rail: int, gid_index: int, count: int) -> float:
    """Run perftest from a to b over a rail; returns how long the client took, in seconds."""
    b, port = network.ends("b"), 18500 + 10 * rail + gid_index
    args = f"ib_write_bw -d {b[rail].rdma} -x {gid_index} -s 65536 -n {count} -F -p {port}"
    server = pair.b.start(args)
    pair.b.run(f"until netstat -ltn | grep -q :{port}; do sleep 0.05; done")
    began = time.monotonic()
    pair.a.run(f"{args} {b[2].ipv4}")
    took = time.monotonic() - began
    assert server.wait().rc == 0
    return took


def sent(vm: VM, dev: str) -> int:
    """How many bytes left a device."""
    return int(vm.run(["cat", f"/sys/class/net/{dev}/statistics/tx_bytes"]).out)


@pytest.mark.parametrize("rail", [0, 1])
@pytest.mark.parametrize("family", ["ipv4", "ipv6"])
def test_both_rails_carry(pair: Pair, rail: int, family: str) -> None:
    """Each rail carries RoCE over IPv4 and IPv6, by its own cable alone."""
    before = [sent(pair.a, d) for d in ("eth0", "eth1")]
    write_bw(pair, rail, GID[family], 50)
    moved = [sent(pair.a, d) - n for d, n in zip(("eth0", "eth1"), before, strict=True)]
    assert moved[rail] > 50 * 65536
    assert moved[1 - rail] < 65536


@pytest.mark.parametrize("family", ["ipv4", "ipv6"])
def test_netem_meets_roce_alone(pair: Pair, family: str) -> None:
    """Delayed are RoCE packets of both families, and nothing else."""
    pair.a.netem("eth0", delay_ms=500)
    try:
        assert write_bw(pair, 0, GID[family], 5) > 0.5
        said = pair.a.run(["tc", "-s", "qdisc", "show", "dev", "eth0"]).out.split("netem")[1]
        assert "Sent 0 bytes" not in said
        pair.a.netem("eth0", delay_ms=100_000)
        pair.a.run(["ping", "-c", "3", "-i", "0.2", getattr(network.ends("b")[0], family)], timeout=90)
    finally:
        pair.a.drop_delayed("eth0")


def test_cable(pair: Pair) -> None:
    """A pulled cable takes the carrier and the RDMA port's state, and nothing else; put back it works."""
    state = "/sys/class/infiniband/rxe1/ports/1/state"
    pair.b.cable("eth1", plugged=False)
    pair.b.run(f"until grep -q DOWN {state}; do sleep 0.05; done")
    pair.a.run(["ping", "-c", "1", "-W", "1", network.ends("b")[0].ipv4])
    assert pair.a.run(["ping", "-c", "1", "-W", "1", network.ends("b")[1].ipv4], check=False).rc == 1
    pair.b.cable("eth1", plugged=True)
    pair.b.run(f"until grep -q ACTIVE {state}; do sleep 0.05; done")
    write_bw(pair, 1, GID["ipv6"], 5)


def test_link_down_and_up(pair: Pair) -> None:
    """Taken down by the guest, a device comes back with its addresses of both families."""
    pair.b.link("eth1", up=False)
    pair.b.run("until grep -q DOWN /sys/class/infiniband/rxe1/ports/1/state; do sleep 0.05; done")
    pair.b.link("eth1", up=True)
    pair.b.run("until grep -q ACTIVE /sys/class/infiniband/rxe1/ports/1/state; do sleep 0.05; done")
    for index in GID.values():
        write_bw(pair, 1, index, 5)


def test_freeze(pair: Pair) -> None:
    """A frozen machine does nothing and goes on afterwards."""
    p = pair.b.start("while :; do echo tick; sleep 0.05; done")
    p.wait_for("tick")
    pair.b.freeze()
    assert pair.a.run(["ping", "-c", "1", "-W", "1", network.ends("b")[0].ipv4], check=False).rc == 1
    seen = p.output()
    pair.b.thaw()
    p.wait_for(seen + "tick")
    p.kill()
    p.wait()


def test_kernel_is_kept() -> None:
    """What was fetched once is used again without the network."""
    if not (kernel.BUILD / "kernel" / ".complete").exists():
        pytest.skip("no kernel was fetched")
    assert kernel.image(kernel.kernel()).exists()
