from __future__ import annotations

import random
import socket
import threading
from pathlib import Path
from typing import Any

import fakedaemon as fd
import pytest
from fakedaemon import FakeDaemon

import kvxfer
from kvxfer import _wire as wire


@pytest.mark.parametrize(
    ("field", "offset", "value"),
    [
        ("magic", 0, b"X"),
        ("version", 4, b"\2"),
        ("json_length", 16, (wire.MAX_JSON + 1).to_bytes(4, "little")),
        ("array_length", 20, (wire.MAX_ARRAY + 1).to_bytes(4, "little")),
        ("fd_count", 24, b"\x11"),
    ],
)
def test_header_refuses(field: str, offset: int, value: bytes) -> None:
    b = bytearray(fd.pack(fd.OK, 1))
    b[offset : offset + len(value)] = value
    with pytest.raises(kvxfer.ProtocolViolation) as e:
        list(wire.Parser().feed(bytes(b)))
    assert e.value.field == field


def test_what_is_reserved_or_unknown_is_ignored() -> None:
    b = bytearray(fd.pack(0xEE, 9, {"x": 1}, b"abc", flags=0xFFFF))
    b[26:32] = b"\xff" * 6
    (f,) = wire.Parser().feed(bytes(b))
    assert (f.kind, f.request, f.body(), f.array) == (0xEE, 9, {"x": 1}, b"abc")


@pytest.mark.parametrize("raw", [b"[1]", b"{", b"\xff\xfe", b"1", b'"x"', b"[" * 100_000, b"9" * 5000])
def test_bodies_that_are_no_object(raw: bytes) -> None:
    with pytest.raises(kvxfer.ProtocolViolation):
        wire.Frame(1, json=raw).body()


def test_fields_are_checked() -> None:
    for body in (
        {},
        {"lease": -1},
        {"lease": True},
        {"lease": "1"},
        {"lease": 1 << 64},
        {"lease": 1.0},
        {"lease": None},
    ):
        with pytest.raises(kvxfer.ProtocolViolation):
            wire.get_id(body, "lease")
    assert wire.get({"x": None}, "x", "d") == "d" and wire.get({}, "x", 3) == 3
    wrong: list[tuple[object, Any]] = [("1", 1), (1, "a"), (1, True), (True, 1), ([], "")]
    for value, default in wrong:
        with pytest.raises(kvxfer.ProtocolViolation):
            wire.get({"x": value}, "x", default)
    assert wire.get_strings({"x": None}, "x") == ()
    with pytest.raises(kvxfer.ProtocolViolation):
        wire.get_strings({"x": [1]}, "x")


def test_arrays_of_odd_sizes() -> None:
    for n in range(40):
        for fn, ok in (
            (lambda b: wire.u32s("x", b), n % 4 == 0),
            (wire.block_entries, n % 16 == 0),
            (wire.layers_visible, n >= 8 and n % 4 == 0),
        ):
            try:
                fn(bytes(n))
                assert ok, n
            except kvxfer.ProtocolViolation:
                assert not ok, n


def test_parser_on_garbage(rng: random.Random) -> None:
    for _ in range(500):
        good = b"".join(
            fd.pack(rng.randrange(256), rng.getrandbits(64), {"n": i}, rng.randbytes(rng.randrange(40)))
            for i in range(rng.randrange(4))
        )
        stream = bytearray(good + rng.randbytes(rng.randrange(64)))
        for _ in range(rng.randrange(3)):
            if stream:
                stream[rng.randrange(len(stream))] ^= 1 << rng.randrange(8)
        parser = wire.Parser()
        try:
            while stream:
                n = rng.randrange(1, 50)
                for f in parser.feed(bytes(stream[:n])):
                    f.body()
                del stream[:n]
        except kvxfer.ProtocolViolation:
            pass


def _violations() -> list[bytes]:
    return [
        b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
        fd.pack(fd.OK, 99),  # answers nothing
        fd.pack(fd.PING, 5),  # no answer and no event
        fd.pack(fd.EVENT_LEASE, 0, {"lease": "x"}),
        fd.pack(fd.EVENT_LEASE, 0, [1]),
        fd.pack(fd.EVENT_LAYERS, 0, None, b"123"),
        fd.pack(fd.EVENT_TRANSFER, 0, {}),
        fd.pack(fd.EVENT_RELEASED, 0, {"transfer": -1}),
        fd.pack(fd.EVENT_LAYERS, 0, None, bytes(8), fds=1),
        fd.pack(fd.ERROR, 0, {"code": "x"}),
        fd.pack(fd.ERROR, 0, {"code": []}),
    ]


@pytest.mark.parametrize("raw", _violations())
def test_a_daemon_that_breaks_the_protocol_ends_everything_typed(daemon: FakeDaemon, raw: bytes) -> None:
    with kvxfer.connect(daemon.path) as client:
        daemon.on[fd.PING] = lambda peer, got: peer.sock.sendall(raw)
        with pytest.raises(kvxfer.ProtocolViolation):
            client.ping(timeout=20)
        with pytest.raises(kvxfer.ProtocolViolation):
            client.status()
        assert daemon.peer.closed.wait(20)


def test_an_error_without_a_request_ends_the_connection_with_its_reason(daemon: FakeDaemon) -> None:
    with kvxfer.connect(daemon.path) as client:
        body = {"code": 7, "name": "ResourceExhausted", "detail": "you do not read"}
        daemon.on[fd.PING] = lambda peer, got: peer.send(fd.ERROR, 0, body)
        with pytest.raises(kvxfer.ResourceExhausted, match="you do not read"):
            client.ping(timeout=20)


def test_events_of_a_newer_daemon_are_ignored(daemon: FakeDaemon, client: kvxfer.Client) -> None:
    daemon.peer.send(0x7F, 0, {"x": 1})
    daemon.peer.lease_ended(4711)
    daemon.peer.layers(4711, 1)
    daemon.peer.transfer_ended(4711)
    daemon.peer.released(4711)
    client.ping()


@pytest.mark.parametrize("answer", ["garbage", "nothing", "close", "random"])
def test_connect_to_something_else(tmp_path: Path, rng: random.Random, answer: str) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        held: list[socket.socket] = []

        def serve() -> None:
            s, _ = listener.accept()
            held.append(s)
            if answer == "garbage":
                s.sendall(b"220 mail.example.org ESMTP\r\n" * 4)
            elif answer == "random":
                s.sendall(b"\0" + rng.randbytes(200))
            elif answer == "close":
                s.close()

        t = threading.Thread(target=serve)
        t.start()
        expected = kvxfer.ProtocolViolation if answer in ("garbage", "random") else kvxfer.DaemonUnavailable
        with pytest.raises(expected):
            kvxfer.connect(path, timeout=0.3 if answer == "nothing" else 20)
        t.join()
        for s in held:
            s.close()
