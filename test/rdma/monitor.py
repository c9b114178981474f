"""QEMU's monitor: what happens to a machine from outside."""

from __future__ import annotations

import json
import socket
import threading


class MonitorError(Exception):
    """QEMU refused a command, or is gone."""


class Monitor:
    """One QMP connection over a connected socket; commands are answered in order."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._file = sock.makefile("rb")
        self._lock = threading.Lock()
        self._greeted = False

    def do(self, command: str, **arguments: object) -> object:
        """Give a command and return its answer."""
        with self._lock:
            if not self._greeted:
                self._line()
                self._exchange("qmp_capabilities", {})
                self._greeted = True
            return self._exchange(command, arguments)

    def _exchange(self, command: str, arguments: dict[str, object]) -> object:
        try:
            self._sock.sendall(json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n")
        except OSError as e:
            raise MonitorError(f"{command}: QEMU is gone") from e
        while True:
            said = self._line()  # events come in between
            if "return" in said:
                return said["return"]
            if "error" in said:
                raise MonitorError(f"{command}: {said['error']}")

    def _line(self) -> dict[str, object]:
        line = self._file.readline()
        if not line:
            raise MonitorError("QEMU is gone")
        said: dict[str, object] = json.loads(line)
        return said

    def close(self) -> None:
        """Hang up."""
        self._file.close()
        self._sock.close()
