"""Starts and stops the two daemons of the demo."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any


class Daemon:
    """One ``kvxfer serve`` with a state directory of its own; every port is chosen by the kernel."""

    def __init__(self, binary: Path, name: str, state: Path, run: Path, *extra: str) -> None:
        """Start it. ``run`` holds the socket: a path of few characters, since the kernel allows 107."""
        self.name = name
        self.socket = run / f"{name}.sock"
        self.trace_file = state / "trace.jsonl"
        self._ready = state / "node.json"
        self._log_path = state / "log.txt"
        state.parent.mkdir(parents=True, exist_ok=True)
        state.mkdir(mode=0o700)  # the daemon takes no directory that others may enter
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    binary, "serve", "--node", name, "--state-dir", state, "--socket", self.socket,
                    "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0",
                    "--trace-file", self.trace_file, *extra,
                ],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def wait_ready(self, timeout: float = 30.0) -> dict[str, Any]:
        """The daemon's own account of its addresses, as soon as it serves."""
        deadline = time.monotonic() + timeout
        while True:
            if self._process.poll() is not None:
                raise RuntimeError(f"daemon {self.name} ended with {self._process.returncode}:\n{self.log()}")
            if self._ready.exists():
                info: dict[str, Any] = json.loads(self._ready.read_text())
                return info
            if time.monotonic() > deadline:
                raise RuntimeError(f"daemon {self.name} was not ready after {timeout:.0f} s:\n{self.log()}")
            time.sleep(0.02)

    def stop(self, timeout: float = 30.0) -> None:
        """Ask it to drain and end; kill it when it does not."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def log(self) -> str:
        """What it has logged."""
        return self._log_path.read_text(errors="replace")
