"""Connections that say what no SDK would."""

from __future__ import annotations

import dataclasses
import fcntl
import mmap
import os
import secrets
import socket
from pathlib import Path
from typing import Any

import kvxfer
from kvxfer import _wire as wire

from daemon import PATIENCE

HELLO = {"min_version": 1, "max_version": 1, "software": "raw 1", "process": "raw"}


SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def memfd(payload: int) -> int:
    """Memory that a daemon takes."""
    size = -(-payload // mmap.PAGESIZE) * mmap.PAGESIZE
    fd = os.memfd_create("raw", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.posix_fallocate(fd, 0, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
    return fd


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
        sent = socket.send_fds(self._sock, [data], list(fds))
        self._sock.sendall(data[sent:])

    def receive(self) -> wire.Frame:
        """The next frame; EOFError where the daemon has closed."""
        while not self._frames:
            data = self._sock.recv(1 << 16)
            if not data:
                raise EOFError
            self._frames += self._parser.feed(data)
        return self._frames.pop(0)

    def ask(
        self, kind: int, body: dict[str, Any], fds: tuple[int, ...] = (), array: bytes = b""
    ) -> tuple[int, dict[str, Any]]:
        """A request's answer: its kind (OK, HELLO_OK or ERROR) and its body."""
        frame = self.ask_frame(kind, body, array, fds)
        return frame.kind, frame.body()

    def ask_frame(
        self, kind: int, body: dict[str, Any], array: bytes = b"", fds: tuple[int, ...] = ()
    ) -> wire.Frame:
        """A request's whole answer."""
        self._request += 1
        self.send(wire.head(kind, self._request, body, len(array), fds=len(fds)) + array, fds)
        frame = self.receive()
        while frame.request == 0 and frame.kind != wire.ERROR:  # an event
            frame = self.receive()
        assert frame.request == self._request, frame
        return frame

    def hello(self) -> None:
        """Open the connection."""
        kind, _ = self.ask(wire.HELLO, HELLO)
        assert kind == wire.HELLO_OK

    def register(self, fd: int, size: int, name: str = "region") -> tuple[int, dict[str, Any]]:
        """Hand a descriptor over as a region."""
        body = {"name": name, "id": secrets.token_hex(16), "kind": "memfd", "size": size}
        return self.ask(wire.REGISTER_REGION, body, (fd,))

    def cache(self, name: str, num_blocks: int, layout: kvxfer.Layout) -> int:
        """Register new memory as a cache; its id."""
        fd = memfd(num_blocks * layout.block_bytes)
        kind, region = self.register(fd, os.fstat(fd).st_size, name)
        os.close(fd)
        assert kind == wire.OK, region
        body = {
            "name": name, "region": region["region"], "model": "m", "num_blocks": num_blocks,
            "layout": dataclasses.asdict(layout),
        }  # fmt: skip
        kind, cache = self.ask(wire.REGISTER_CACHE, body)
        assert kind == wire.OK, cache
        number: int = cache["cache"]
        return number
