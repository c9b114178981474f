"""Connections that say what no SDK would."""

from __future__ import annotations

import secrets
import socket
from pathlib import Path
from typing import Any

from kvxfer import _wire as wire

from daemon import PATIENCE

HELLO = {"min_version": 1, "max_version": 1, "software": "raw 1", "process": "raw"}


class RawClient:
    """The local protocol by hand."""

    def __init__(self, path: Path) -> None:
        self._sock = socket.socket(socket.AF_UNIX)
        self._sock.settimeout(PATIENCE)
        self._sock.connect(str(path))
        self._parser = wire.Parser()
        self._frames: list[wire.Frame] = []
        self._request = 0

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.close()

    def send(self, data: bytes, fds: tuple[int, ...] = ()) -> None:
        """Send bytes as they are."""
        socket.send_fds(self._sock, [data], list(fds))

    def receive(self) -> wire.Frame:
        """The next frame; EOFError where the daemon has closed."""
        while not self._frames:
            data = self._sock.recv(1 << 16)
            if not data:
                raise EOFError
            self._frames += self._parser.feed(data)
        return self._frames.pop(0)

    def ask(self, kind: int, body: dict[str, Any], fds: tuple[int, ...] = ()) -> tuple[int, dict[str, Any]]:
        """A request's answer: its kind (OK, HELLO_OK or ERROR) and its body."""
        self._request += 1
        self.send(wire.head(kind, self._request, body, 0, fds=len(fds)), fds)
        frame = self.receive()
        assert frame.request == self._request
        return frame.kind, frame.body()

    def hello(self) -> None:
        """Open the connection."""
        kind, _ = self.ask(wire.HELLO, HELLO)
        assert kind == wire.HELLO_OK

    def register(self, fd: int, size: int) -> tuple[int, dict[str, Any]]:
        """Hand a descriptor over as a region."""
        body = {"name": "region", "id": secrets.token_hex(16), "kind": "memfd", "size": size}
        return self.ask(wire.REGISTER_REGION, body, (fd,))
