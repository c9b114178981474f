"""A peer by hand: the control connection and the lanes, as docs/protocol.md has them."""

from __future__ import annotations

import base64
import json
import secrets
import socket
import struct
from typing import Any

from kvxfer import _wire as wire

from daemon import PATIENCE, Daemon

BIND, FIN = 0x80, 0x82
LANE_HELLO = struct.Struct("<4sHHHHIQ32s8x")
LANE_ANSWER = struct.Struct("<4sHH8x")
PARAMS = struct.Struct("<HH4xQ32s")


def dial(d: Daemon) -> socket.socket:
    """A connection to the daemon's peer port."""
    host, port = d.info["peer_addr"].rsplit(":", 1)
    return socket.create_connection((host, int(port)), PATIENCE)


def hello(d: Daemon, **changes: Any) -> dict[str, Any]:
    """The HELLO of a peer that means this daemon."""
    return {
        "min_version": 1, "max_version": 1, "tenant": "default", "software": "raw 1",
        "node": "raw", "epoch": secrets.token_hex(16), "providers": ["tcp"],
        "want_node": d.name, "want_epoch": d.info["epoch"], **changes,
    }  # fmt: skip


def grant_of(ticket: str) -> dict[str, Any]:
    """What a ticket says of its lease."""
    body = ticket.split(".", 1)[1]
    grant: dict[str, Any] = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))["grants"][0]
    return grant


class RawPeer:
    """A control connection, greeted."""

    def __init__(self, d: Daemon, **changes: Any) -> None:
        self._sock = dial(d)
        self._parser = wire.Parser()
        self._frames: list[wire.Frame] = []
        self._request = 0
        kind, answer = self.ask(wire.HELLO, hello(d, **changes))
        assert kind == wire.HELLO_OK, answer
        version, self.lanes, self.session, self.secret = PARAMS.unpack(
            base64.b64decode(answer["provider_params"])
        )
        assert version == 1

    def __enter__(self) -> RawPeer:
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.close()

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._sock.sendall(data)

    def receive(self) -> wire.Frame:
        """The next frame but PING, which is answered; EOFError where the daemon has closed."""
        while True:
            while not self._frames:
                data = self._sock.recv(1 << 16)
                if not data:
                    raise EOFError
                self._frames += self._parser.feed(data)
            frame = self._frames.pop(0)
            if frame.kind != wire.PING:
                return frame
            self.send(wire.head(wire.OK, frame.request, None, 0))

    def ask(self, kind: int, body: dict[str, Any], array: bytes = b"") -> tuple[int, dict[str, Any]]:
        """A request's answer: its kind (OK, HELLO_OK or ERROR) and its body."""
        self._request += 1
        self.send(wire.head(kind, self._request, body, len(array)) + array)
        frame = self.receive()
        assert frame.request == self._request, (frame, frame.body())
        return frame.kind, frame.body()


def lane_hello(session: int, secret: bytes, lane: int = 0, version: int = 1) -> bytes:
    """How a lane opens."""
    return LANE_HELLO.pack(b"KVXL", version, version, lane, 0, 0, session, secret)


def open_lane(d: Daemon, first: bytes) -> tuple[socket.socket, int]:
    """A lane that opens with these bytes, and the status that it is answered with."""
    s = dial(d)
    s.sendall(first)
    answer = b""
    while len(answer) < LANE_ANSWER.size:
        data = s.recv(LANE_ANSWER.size - len(answer))
        if not data:
            raise EOFError(f"closed after {len(answer)} bytes")
        answer += data
    magic, _, status = LANE_ANSWER.unpack(answer)
    assert magic == b"KVXA"
    return s, status
