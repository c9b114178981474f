"""Daemons on two hosts: addresses of both families, and a network that goes away."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kvxfer
import pytest

from certificates import Certificates
from conftest import Start
from daemon import PATIENCE, Daemon, until
from hosts import INTERFACE, IPV4, IPV6, Host, Pair
from transfers import allocate, begin, move


def needs_namespaces() -> None:
    """Skip where namespaces cannot be made; as root under CI=true they can."""
    if os.geteuid() != 0:
        pytest.skip("making network namespaces needs root")
    if shutil.which("ip") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("ip (iproute2) is not installed")
        pytest.skip("ip (iproute2) is not installed")


@pytest.fixture
def daemon(daemon: Start) -> Start:
    """Daemons that use tcp alone: these hosts share a file system, so shm would find its sockets."""

    def start(name: str, *args: str, **kwargs: Any) -> Daemon:
        return daemon(name, "--providers", "tcp", *args, **kwargs)

    return start


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    """Two hosts with IPv4 and IPv6."""
    needs_namespaces()
    with Pair(IPV4, IPV6) as pair:
        yield pair.hosts


@pytest.fixture
def hosts6() -> Iterator[list[Host]]:
    """Two hosts with IPv6 alone."""
    needs_namespaces()
    with Pair(IPV6) as pair:
        yield pair.hosts


def both_ways(nodes: list[Daemon], rng: random.Random) -> None:
    """Move blocks from each node to the other."""
    with nodes[0].connect() as left, nodes[1].connect() as right:
        here, there = allocate(left, "here"), allocate(right, "there")
        assert move(here, there, rng).provider == "tcp"
        move(there, here, rng)


@pytest.mark.parametrize(
    ("listen", "advertise", "want"),
    [
        (f"{INTERFACE}:0", "", IPV4),  # by interface: the IPv4 address first
        ("{4}:0", "", IPV4),
        ("[{6}]:0", "", IPV6),
        ("0.0.0.0:0", "{4}", IPV4),
        ("[::]:0", INTERFACE, IPV4),
        ("[::]:0", "{6}", IPV6),
    ],
)
def test_addresses(
    hosts: list[Host], daemon: Start, rng: random.Random, listen: str, advertise: str, want: tuple[str, str]
) -> None:
    nodes = []
    for i, host in enumerate(hosts):
        fill = {"{4}": IPV4[i], "{6}": IPV6[i]}
        args = ["--insecure-peers", "--listen", listen] + (["--advertise", advertise] if advertise else [])
        for key, value in fill.items():
            args = [a.replace(key, value) for a in args]
        nodes.append(daemon(f"n{i}", *args, prefix=host.prefix))
        assert nodes[i].info["peer_addr"].rsplit(":", 1)[0].strip("[]") == want[i]
        assert "neither encrypted nor authenticated" in nodes[i].log()
    both_ways(nodes, rng)


def test_ipv6_alone(hosts6: list[Host], daemon: Start, rng: random.Random) -> None:
    near, far = hosts6
    more = ["--insecure-peers", "--nats-listen", f"{INTERFACE}:0"]
    first = daemon("n0", "--listen", f"{INTERFACE}:0", *more, prefix=near.prefix)
    assert first.info["nats_url"].startswith(f"nats://[{IPV6[0]}]:")
    more = ["--insecure-peers", "--nats", first.info["nats_url"]]
    second = daemon("n1", "--listen", INTERFACE, *more, prefix=far.prefix)
    assert second.info["peer_addr"] == f"[{IPV6[1]}]:7420"
    both_ways([first, second], rng)


def test_registry_of_the_other_host(
    hosts: list[Host], daemon: Start, rng: random.Random, tmp_path: Path
) -> None:
    """Over TLS: the certificates name the nodes, whatever addresses they are dialed by."""
    near, far = hosts
    certs = Certificates(tmp_path / "certs", "ca/n0=n0", "ca/n1=n1")
    more = [*certs.flags("ca/n0", "--tls-lanes"), "--insecure-nats", "--nats-listen", f"{INTERFACE}:0"]
    first = daemon("n0", "--listen", INTERFACE, *more, prefix=near.prefix)
    more = [*certs.flags("ca/n1", "--tls-lanes"), "--nats", first.info["nats_url"]]
    second = daemon("n1", "--listen", INTERFACE, *more, prefix=far.prefix)
    for node in (first, second):
        assert "neither encrypted" not in node.log()
        with node.connect() as client:
            until("both to be seen", lambda c=client: sorted(c.status().nodes) == ["n0", "n1"])  # type: ignore[misc]
    both_ways([first, second], rng)


def test_link_down(hosts: list[Host], daemon: Start, rng: random.Random) -> None:
    args = ["--listen", INTERFACE, "--insecure-peers"]
    nodes = [daemon(f"n{i}", *args, prefix=host.prefix) for i, host in enumerate(hosts)]
    with nodes[0].connect() as left, nodes[1].connect() as right:
        source, target = allocate(left, "source"), allocate(right, "target")
        push, lease = begin(source, target)
        hosts[1].link("down")
        began = time.monotonic()
        # The heartbeat finds it after three seconds; the transfer's own time is far longer than this wait.
        with pytest.raises(kvxfer.PeerLost) as lost:
            push.wait(PATIENCE / 2)
        assert lost.value.retryable
        with pytest.raises(kvxfer.PeerLost):
            lease.wait(PATIENCE / 2)
        print(f"both sides knew {time.monotonic() - began:.1f} s after the link went down")
        until("the source's blocks to be released", lambda: push.released)
        states = target.block_states()
        assert (states.free, states.leased) == (target.num_blocks, 0)

        late = target.lease([3], ttl=PATIENCE)  # the owner's daemon works on by itself
        asked = time.monotonic()
        # The dial and the transfer end at one moment: which is noticed first is nobody's promise.
        with pytest.raises((kvxfer.PeerUnreachable, kvxfer.DeadlineExceeded)):
            source.write([0], to=late.ticket, timeout=1.5).wait()
        print(f"unreachable after {time.monotonic() - asked:.1f} s of 1.5 s")
        late.revoke().wait()

        hosts[1].link("up")

        def reachable() -> bool:
            try:
                move(source, target, rng)
            except kvxfer.PeerUnreachable:  # the neighbour is looked up again
                return False
            return True

        until("a transfer over the link that is back", reachable)


def test_nobody_listens(hosts: list[Host], daemon: Start) -> None:
    args = ["--listen", INTERFACE, "--insecure-peers"]
    nodes = [daemon(f"n{i}", *args, prefix=host.prefix) for i, host in enumerate(hosts)]
    with nodes[0].connect() as left, nodes[1].connect() as right:
        source = allocate(left, "source")
        ticket = allocate(right, "target").lease([0]).ticket
        nodes[1].kill()
        with pytest.raises(kvxfer.PeerUnreachable) as refused:
            source.write([0], to=ticket, timeout=PATIENCE).wait()
        assert refused.value.peer == "n1"
        assert not refused.value.may_have_written
