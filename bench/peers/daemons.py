"""kvxfer's daemons for a run: two nodes over TCP, one for both clients of the same host."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from cases import HOST, LOCAL, REMOTE, SIDES
from pair import PATIENCE, FailedError, child, environment, tail


class Daemons:
    """Nodes on loop-back, each with a state directory of its own, the first with the registry's server in
    itself."""

    def __init__(
        self, binary: Path, directory: Path, transport: str, cpus: Mapping[str, int] | None = None
    ) -> None:
        self.directory = directory
        self._processes: list[subprocess.Popen[bytes]] = []
        self.sockets: dict[str, str] = {}
        """By side."""
        provider = "shm" if transport == HOST else transport
        try:
            for side in (LOCAL,) if transport == HOST else SIDES:
                nats = ["--nats", self._url] if self._processes else ["--nats-listen", "127.0.0.1:0"]
                cpu = None if cpus is None or transport == HOST else cpus[side]
                self._start(binary, side, ["--providers", provider, *nats], cpu)
        except BaseException:
            self.stop()
            raise
        self.sockets.setdefault(REMOTE, self.sockets[LOCAL])

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(p.pid for p in self._processes)

    def _start(self, binary: Path, name: str, arguments: list[str], cpu: int | None) -> None:
        state, log = self.directory / name, self.directory / f"daemon-{name}.log"
        state.mkdir(mode=0o700)
        socket = str(self.directory / f"{name}.sock")
        command = [str(binary), "serve", "--node", name, "--state-dir", str(state), "--socket", socket]
        command += ["--listen", "127.0.0.1:0", "--http", "off", "--log-level", "warn", *arguments]
        with log.open("wb") as stderr:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                env=environment({}),
                preexec_fn=child(cpu),
            )
        self._processes.append(process)
        self.sockets[name] = socket
        end = time.monotonic() + PATIENCE
        while True:
            try:
                info = json.loads((state / "node.json").read_text())
            except (FileNotFoundError, json.JSONDecodeError):
                info = {}
            if info.get("pid") == process.pid:
                if len(self._processes) == 1:
                    self._url: str = info["nats_url"]
                return
            if process.poll() is not None:
                raise FailedError(f"the daemon ended with status {process.returncode}{tail(log)}")
            if time.monotonic() > end:
                raise FailedError(f"the daemon does not serve within {PATIENCE:.0f} s{tail(log)}")
            time.sleep(0.005)

    def stop(self) -> None:
        """Ends them, the one with the registry last."""
        for process in reversed(self._processes):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes = []
