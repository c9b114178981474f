"""Garbage on every port: the daemon lives, serves, and keeps nothing of it."""

from __future__ import annotations

import errno
import os
import random
import re
import signal
import socket
import urllib.request
from collections.abc import Callable
from pathlib import Path

from kvxfer import _wire as wire

from conftest import Start
from daemon import PATIENCE, Daemon, until
from raw import HELLO
from transfers import allocate, move

SILENT, QUICK, NOISY = 40, 2000, 100
"""Connections of each sort, on each port."""


def dial_socket(d: Daemon) -> socket.socket:
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(PATIENCE)
    s.connect(str(d.socket))
    return s


def dial_peer(d: Daemon) -> socket.socket:
    host, port = d.info["peer_addr"].rsplit(":", 1)
    return socket.create_connection((host, int(port)), PATIENCE)


def dial_http(d: Daemon) -> socket.socket:
    host, port = d.info["http_addr"].rsplit(":", 1)
    return socket.create_connection((host, int(port)), PATIENCE)


def noise(rng: random.Random, port: Callable[[Daemon], socket.socket]) -> bytes:
    """What somebody might send: from plain noise to what is right for the first bytes."""
    hello = wire.head(wire.HELLO, 1, HELLO, 0)
    rest = rng.randbytes(rng.randrange(1, 3000))
    starts = [
        b"",
        b"KVXF",
        b"KVXL",
        hello[: rng.randrange(1, len(hello))],
        b"GET / HTTP/1.1\r\n",
        b"\x16\x03\x01",
    ]
    if port is dial_socket:  # a client that was greeted, and goes mad then
        lengths = rng.choice([(1 << 31, 0), (0, 1 << 31), (20, 0), (0, 40)])
        header = wire._HEADER.pack(
            wire.MAGIC, 1, rng.randrange(256), 0, rng.randrange(9), *lengths, rng.randrange(3)
        )
        starts += [hello, hello + header, hello + header]
    return rng.choice(starts) + rest


def shout(d: Daemon, port: Callable[[Daemon], socket.socket], data: bytes, rng: random.Random) -> None:
    """Send it, then leave in one of the ways there are."""
    with port(d) as s:
        try:
            if port is dial_socket and rng.random() < 0.3:
                with Path(os.devnull).open("rb") as null:
                    socket.send_fds(s, [data], [null.fileno()] * rng.randrange(1, 17))
            else:
                s.sendall(data)
            if rng.random() < 0.5:
                s.shutdown(socket.SHUT_WR)
                while s.recv(1 << 16):  # an error, or the end
                    pass
        except OSError as e:  # the daemon was quicker to close
            if e.errno not in (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN):
                raise


def fds(d: Daemon) -> int:
    return sum(1 for _ in Path(f"/proc/{d.pid}/fd").iterdir())


def work(d: Daemon, rng: random.Random) -> None:
    """What the daemon is for, all of it over its own ports."""
    with d.connect() as client:
        source, target = allocate(client, "source"), allocate(client, "target")
        move(source, target, rng)
        source.drop()
        target.drop()
    with urllib.request.urlopen(f"http://{d.info['http_addr']}/readyz", timeout=PATIENCE) as answer:
        assert answer.read() == b"ok\n"


def goroutines(d: Daemon) -> int:
    """How many the daemon has. It ends by that."""
    d.signal(signal.SIGQUIT)  # the Go runtime lists them
    assert d.wait_end() == 2
    return len(re.findall(r"^goroutine \d+ .*\[", d.log(), re.M))


def test_silence_does_not_hold_the_end_up(daemon: Start) -> None:
    d = daemon("n0")
    silent = [port(d) for port in (dial_socket, dial_peer, dial_http) for _ in range(3)]
    d.stop()
    for s in silent:
        s.close()


def test_garbage(daemon: Start, rng: random.Random) -> None:
    d, calm = daemon("n0"), daemon("calm")
    for x in (d, calm):
        work(x, rng)
    with d.connect() as witness, calm.connect() as other:
        before = fds(d)
        silent = [port(d) for port in (dial_socket, dial_peer, dial_http) for _ in range(SILENT)]
        for port in (dial_socket, dial_peer, dial_http):
            for _ in range(QUICK):
                port(d).close()
            assert d.get("/healthz")[0] == 200
            for _ in range(NOISY):
                shout(d, port, noise(rng, port), rng)
        work(d, rng)  # with all that silence around
        for s in silent:
            s.close()
        until("the daemon to have forgotten them", lambda: fds(d) <= before)
        assert "panic" not in d.log()
        work(d, rng)
        work(calm, rng)
        for client in (witness, other):
            until("the other clients to be gone", lambda c=client: c.status().clients == 1)  # type: ignore[misc]
        quiet, now = goroutines(calm), goroutines(d)
    print(f"{now} goroutines, {quiet} in a daemon that had peace")
    assert now <= quiet + 10
