"""Connections that say little, slowly, or what they may not: each is bounded in time and in what it costs.

Whoever comes meanwhile is served.
"""

from __future__ import annotations

import contextlib
import mmap
import random
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import kvxfer
import pytest
from kvxfer import _wire as wire

from conftest import Start
from daemon import PATIENCE, Daemon, until
from footprint import Footprint
from raw import HELLO, RawClient
from rawpeer import BIND, RawPeer, dial, hello, lane_hello, open_lane
from test_garbage import dial_http, dial_socket
from transfers import allocate, move

MANY = 400
"""Connections at a time, more than a daemon lets into their hello."""


def dial_nats(d: Daemon) -> socket.socket:
    """A connection to the embedded registry."""
    host, port = d.info["nats_url"].removeprefix("nats://").rsplit(":", 1)
    return socket.create_connection((host, int(port)), PATIENCE)


def peer_hello(d: Daemon) -> bytes:
    """A peer's whole HELLO."""
    return wire.head(wire.HELLO, 1, hello(d), 0)


def http_request(_: Daemon) -> bytes:
    """A request that never ends."""
    return b"GET /healthz HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 4000


PORTS: dict[str, tuple[Callable[[Daemon], socket.socket], Callable[[Daemon], bytes]]] = {
    "socket": (dial_socket, lambda d: wire.head(wire.HELLO, 1, {**HELLO, "software": "x" * 900}, 0)),
    "peer": (dial, peer_hello),
    "lane": (dial, lambda d: lane_hello(1, secrets.token_bytes(32))),
    "http": (dial_http, http_request),
}


def drip(s: socket.socket, data: bytes) -> float:
    """Send a byte now and then, never the last one; seconds until the other side has closed."""
    began = time.monotonic()
    sent = 0
    s.settimeout(0.05)
    while time.monotonic() < began + PATIENCE:
        if sent < len(data) - 1:
            try:
                s.sendall(data[sent : sent + 1])
            except OSError:
                return time.monotonic() - began
            sent += 1
        try:
            while s.recv(1 << 16):  # an error, before the end
                pass
            return time.monotonic() - began
        except TimeoutError:
            continue
        except OSError:
            return time.monotonic() - began
    raise AssertionError("it is still open")


def work(d: Daemon, rng: random.Random) -> None:
    """What the daemon is for."""
    with d.connect() as client:
        source, target = allocate(client, "source"), allocate(client, "target")
        move(source, target, rng)
        source.drop()
        target.drop()
    assert d.get("/readyz") == (200, "ok\n")


@pytest.fixture
def opened() -> Iterator[contextlib.ExitStack]:
    """What is closed at the end."""
    with contextlib.ExitStack() as stack:
        yield stack


def test_slow_hellos(daemon: Start, opened: contextlib.ExitStack, rng: random.Random) -> None:
    """On every port who never ends its first message is put out; others are served meanwhile.

    On the socket each counts as a client until then, so where that are too many, others get in afterwards.
    """
    d = daemon("n0", "--max-clients", "20")
    work(d, rng)
    before = Footprint.of(d).fds
    took: dict[str, float] = {}

    def one(name: str) -> None:
        port, first = PORTS[name]
        with port(d) as s:
            took[name] = drip(s, first(d))

    threads = [threading.Thread(target=one, args=(name,)) for name in PORTS for _ in range(3)]
    for t in threads:
        t.start()
    work(d, rng)
    silent = [opened.enter_context(dial_socket(d)) for _ in range(20)]

    def full() -> bool:
        try:
            d.connect().close()
        except kvxfer.ResourceExhausted:
            return True
        return False

    until("all places to be taken", full)
    until("somebody to get in", lambda: not full(), pause=0.1)
    for t in threads:
        t.join()
    assert set(took) == set(PORTS)
    print({name: f"{seconds:.1f} s" for name, seconds in took.items()})
    for s in silent:
        assert s.recv(1 << 16)  # it was told why
    opened.close()
    work(d, rng)
    until("their descriptors to be closed", lambda: Footprint.of(d).fds <= before)


def test_many_half_open(daemon: Start, opened: contextlib.ExitStack, rng: random.Random) -> None:
    """More connections than may be in their hello, silent or in its middle: those who speak get in."""
    d = daemon("n0", "--nats-listen", "127.0.0.1:0")
    other = daemon("n1", "--nats", d.info["nats_url"])
    work(d, rng)
    before = Footprint.of(d).fds
    for i in range(MANY):
        for name in ("peer", "lane"):
            port, first = PORTS[name]
            s = opened.enter_context(port(d))
            data = first(d)
            if i % 2:
                s.sendall(data[: rng.randrange(1, len(data))])
            elif name == "lane":
                s.sendall(data[:4])  # enough to be taken for one
    for port in (dial_nats, dial_http):
        for _ in range(40):
            opened.enter_context(port(d))
    with other.connect() as near, d.connect() as far:
        move(allocate(near, "source"), allocate(far, "target"), rng)
    assert d.get("/readyz") == (200, "ok\n")
    opened.close()
    until(
        "their descriptors to be closed", lambda: Footprint.of(d).fds <= before + 12
    )  # and the other's links
    work(d, rng)


LENGTHS = [
    ((1 << 20) + 1, 0),
    (1 << 31, 0),
    (0, (64 << 20) + 1),
    (0, (1 << 32) - 1),
    ((1 << 32) - 1, (1 << 32) - 1),
]


def header(kind: int, json: int, array: int, request: int = 9, fds: int = 0) -> bytes:
    """A frame's header with any lengths."""
    return struct.pack("<4sBBHQIIH6x", b"KVXF", 1, kind, 0, request, json, array, fds)


def test_oversized_frames(daemon: Start, opened: contextlib.ExitStack, rng: random.Random) -> None:
    """Lengths beyond the limits end the connection, by their field's name, before anything is kept."""
    d = daemon("n0")
    for json, array in LENGTHS:
        field = "json_length" if json else "array_length"
        with RawClient(d.socket) as raw:
            raw.hello()
            raw.send(header(wire.LEASE, json, array))
            error = raw.receive()
            assert (error.kind, error.request, error.body()["field"]) == (wire.ERROR, 0, field)
            with pytest.raises(EOFError):
                raw.receive()
        with RawPeer(d) as peer:
            peer.send(header(BIND, json, array))
            until_closed(peer)
    with RawPeer(d) as peer:  # on a link a source's array is a notification, no more
        peer.send(header(BIND, 0, (64 << 10) + 1))
        until_closed(peer)
    with RawPeer(d) as peer:
        peer.send(header(BIND, 0, 0, fds=1))
        until_closed(peer)
    with dial(d) as s:  # before it is known, less is allowed
        s.sendall(header(wire.HELLO, 65537, 0))
        assert b"json_length" in s.recv(1 << 16)
    # A length within the limit is a claim: it costs nothing until the bytes come.
    memory = resident(d)
    for _ in range(15):
        raw = opened.enter_context(RawClient(d.socket))
        raw.hello()
        raw.send(header(wire.LEASE, 1 << 20, 64 << 20))
    work(d, rng)
    assert resident(d) < memory + (200 << 20)


def resident(d: Daemon) -> int:
    """Bytes of memory that the daemon uses."""
    return int(Path(f"/proc/{d.pid}/statm").read_text().split()[1]) * mmap.PAGESIZE


def until_closed(peer: RawPeer) -> None:
    """The daemon says what was wrong, or nothing, and closes."""
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            assert peer.receive().kind in (wire.ERROR, wire.OK)


NOT_FOUND, PERMISSION, EXISTS, VERSION, VIOLATION = 4, 9, 5, 40, 42


def test_lanes_without_a_session(daemon: Start, rng: random.Random) -> None:
    """Lanes that nobody announced, with a wrong secret, a second time, cut off, or followed by noise."""
    d = daemon("n0")
    work(d, rng)
    before = Footprint.of(d).fds
    with RawPeer(d) as peer:
        wrong = [
            (lane_hello(peer.session + 1000, peer.secret), NOT_FOUND),
            (lane_hello(0, bytes(32)), NOT_FOUND),
            (lane_hello(peer.session, bytes(32)), PERMISSION),
            (lane_hello(peer.session, peer.secret, lane=peer.lanes), None),
            (lane_hello(peer.session, peer.secret, lane=0xFFFF), None),
            (lane_hello(peer.session, peer.secret, version=9), VERSION),
        ]
        for first, status in wrong:
            s, got = open_lane(d, first)
            assert got == status or (status is None and got != 0), (first, got)
            assert s.recv(1) == b""  # and it is closed
            s.close()
        lane, got = open_lane(d, lane_hello(peer.session, peer.secret))
        assert got == 0
        again, got = open_lane(d, lane_hello(peer.session, peer.secret))
        assert got == EXISTS
        again.close()
        # Noise on a lane ends its session, and the link with it.
        lane.sendall(rng.randbytes(5000))
        lane.close()
        until_closed(peer)
    for cut in (4, 5, 63):
        with dial(d) as s:
            s.sendall(lane_hello(1, bytes(32))[:cut])
    work(d, rng)
    until("their descriptors to be closed", lambda: Footprint.of(d).fds <= before)


def test_garbage_for_the_registry(daemon: Start, opened: contextlib.ExitStack, rng: random.Random) -> None:
    """The embedded NATS server's port: noise, long lines and silence; the nodes keep seeing each other."""
    first = daemon("n0", "--nats-listen", "127.0.0.1:0")
    second = daemon("n1", "--nats", first.info["nats_url"])
    starts = [
        b"", b"CONNECT {", b"CONNECT {}\r\nPUB x 99999999999999\r\n", b"PING\r\n" * 100,
        b"GET / HTTP/1.1\r\n",
        b"CONNECT {}\r\nSUB " + b"a" * 5000 + b" 1\r\n", b"\x16\x03\x01",
        b"CONNECT {}\r\nPUB x 1048577\r\n",
        b"CONNECT {}\r\nHPUB x 5 1\r\n",
    ]  # fmt: skip
    for _ in range(20):
        opened.enter_context(dial_nats(first))
    for i in range(90):
        with dial_nats(first) as s:
            try:
                s.sendall(starts[i % len(starts)] + rng.randbytes(rng.randrange(3000)))
                if i % 2:
                    s.settimeout(0.02)
                    s.recv(1 << 16)
                    s.recv(1 << 16)
            except (OSError, TimeoutError):
                continue
    with first.connect() as near, second.connect() as far:
        for client in (near, far):
            until("both to be seen", lambda c=client: sorted(c.status().nodes) == ["n0", "n1"])  # type: ignore[misc]
        move(allocate(near, "source"), allocate(far, "target"), rng)
