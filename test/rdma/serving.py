"""``kvxfer serve`` in a machine."""

from __future__ import annotations

import contextlib
import json
import signal
import time
from pathlib import Path
from typing import Any

from latewriter import PATIENCE, LateWriter
from vm import VM, GuestError, Process

PEER_PORT = 7420


class Daemon:
    """A daemon that is killed, stopped and started again. Its registry is its own: tickets carry addresses.

    Attributes:
        socket: for clients, a path in the machine.
        logs: a directory of the host for what it and its clients say.
    """

    def __init__(
        self, machine: VM, name: str, address: str, logs: Path, *args: str, binary: str = "kvxfer"
    ) -> None:
        self.machine, self.name, self.logs = machine, name, logs
        self.state = f"/tmp/{name}.state"
        self.socket = f"/tmp/{name}.sock"
        self.argv = [
            binary, "serve", "--node", name, "--state-dir", self.state, "--socket", self.socket,
            "--http", "off", "--listen", f"{address}:{PEER_PORT}", "--insecure-peers", *args,
        ]  # fmt: skip
        self.process: Process | None = None
        self.pid = 0
        self._starts = 0
        self._clients = 0

    def start(self) -> Daemon:
        """Start it, and wait until it serves."""
        self._starts += 1
        self.machine.run(["rm", "-f", f"{self.state}/node.json"])  # a killed daemon has left its own
        process = self.machine.start(self.argv, log=self.logs / f"{self.name}-{self._starts}.log")
        self.process = process
        end = time.monotonic() + PATIENCE
        while True:
            assert process.running, f"{self.name} did not start:\n{process.output()}"
            with contextlib.suppress(GuestError, json.JSONDecodeError):  # it is not there yet
                info: dict[str, Any] = json.loads(self.machine.get(f"{self.state}/node.json"))
                self.pid = info["pid"]
                return self
            assert time.monotonic() < end, f"{self.name} does not serve:\n{process.output()}"
            time.sleep(0.02)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        assert self.process is not None
        self.process.kill(number)

    def kill(self) -> None:
        """End it as a crash does, and wait for its end."""
        assert self.process is not None
        self.process.kill(signal.SIGKILL)
        end = time.monotonic() + PATIENCE
        while self.process.running:
            assert time.monotonic() < end, f"{self.name} does not die"
            time.sleep(0.005)

    def client(self, role: str, *args: str, name: str = "late") -> LateWriter:
        """A client of it."""
        self._clients += 1
        log = self.logs / f"{self.name}-{role}-{self._clients}.jsonl"
        return LateWriter(
            self.machine, f"{role} {self._clients}", log, role, "--socket", self.socket, "--name", name, *args
        )

    def said(self) -> str:
        """What it has logged, of all its lives."""
        return "".join(
            p.read_text(errors="replace") for p in sorted(self.logs.glob(f"{self.name}-[0-9]*.log"))
        )
