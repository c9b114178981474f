"""Real daemons and a real NATS server as child processes of a test."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import kvxfer

ROOT = Path(__file__).resolve().parents[2]
BINARY = ROOT / "bin" / "kvxfer-race"
NOFENCE_BINARY = ROOT / "bin" / "kvxfer-nofence"
NEXT_BINARY = ROOT / "bin" / "kvxfer-next"
PLAIN_BINARY = ROOT / "bin" / "kvxfer"
NATS_SERVER = ROOT / "bin" / "nats-server"

PATIENCE = 60.0
"""Seconds after which a wait counts as failed. Nothing that works takes anywhere near it."""


def until(
    what: str, condition: Callable[[], object], patience: float = PATIENCE, pause: float = 0.01
) -> None:
    """Wait until the condition holds, looking every ``pause`` seconds; fail naming what was waited for."""
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {patience:.0f} s for {what}")
        time.sleep(pause)


class Daemon:
    """One ``kvxfer serve``. ``args`` win over the defaults; ``prefix`` is a command that runs it."""

    def __init__(
        self,
        name: str,
        state: Path,
        run: Path,
        *args: str,
        prefix: Sequence[str] = (),
        env: dict[str, str] | None = None,
        binary: Path = BINARY,
        logs: Path | None = None,
    ) -> None:
        self.name, self.state, self._binary = name, state, binary
        self.socket = run / f"{name}.sock"
        self.trace_file = (logs or state) / "trace.jsonl"
        self.log_path = (logs or state) / "log.txt"
        self._args, self.prefix, self._env = args, prefix, env or {}
        self.info: dict[str, Any] = {}
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, wait: bool = True) -> Daemon:
        """Start the process, by default until it serves."""
        command = [
            *self.prefix, str(self._binary), "serve", "--node", self.name, "--state-dir", str(self.state),
            "--socket", str(self.socket), "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0",
            "--trace-file", str(self.trace_file), *self._args,
        ]  # fmt: skip
        # A race that the detector finds ends the daemon, and with it the test. Its pause at the exit is for
        # reports of other threads, which halt_on_error does not need.
        env = {**os.environ, "GORACE": "halt_on_error=1 exitcode=66 atexit_sleep_ms=0", **self._env}
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env
            )
        if wait:
            self.wait_ready()
        return self

    @property
    def pid(self) -> int:
        """The daemon's process id. A prefix must become the daemon by exec."""
        assert self.process is not None
        return self.process.pid

    def _own_pid(self) -> int:
        """The daemon's process id as the daemon sees it."""
        return self.pid

    @property
    def reachable(self) -> bool:
        """Whether its HTTP port can be asked from here: not in a network namespace of its own."""
        return self.prefix[:1] != ("ip",) and bool(self.info.get("http_addr"))

    @property
    def running(self) -> bool:
        """Whether it has served and not ended."""
        return self.process is not None and self.process.poll() is None and bool(self.info)

    def replace(self, binary: Path) -> Daemon:
        """Start another build of it, where this one has ended."""
        self._binary = binary
        return self.start()

    def wait_ready(self) -> None:
        """Wait until the node says that it serves."""
        path = self.state / "node.json"

        def ready() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, (
                f"{self.name} ended with {self.process.returncode}:\n{self.log()}"
            )
            with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
                self.info = json.loads(path.read_text())
                return bool(self.info["pid"] == self._own_pid())
            return False

        until(f"daemon {self.name} to serve", ready)

    def connect(self, **kwargs: Any) -> kvxfer.Client:
        """A client of this daemon."""
        return kvxfer.connect(str(self.socket), **kwargs)

    def get(self, path: str) -> tuple[int, str]:
        """GET from the daemon's HTTP port."""
        try:
            with urllib.request.urlopen(f"http://{self.info['http_addr']}{path}", timeout=PATIENCE) as r:
                return r.status, r.read().decode()
        except urllib.error.HTTPError as e:
            with e:
                return e.code, e.read().decode()

    def settle(self) -> None:
        """Have in the journal what was committed until now: a commit is late, and a kill would lose it. The
        registration of a cache waits for all that was before it."""
        with self.connect() as client:
            layout = kvxfer.Layout(layers=1, kv_heads=1, head_dim=8, dtype="uint8", block_tokens=1)
            client.allocate_cache("settle", model="settle", layout=layout, num_blocks=1).drop()

    def kill(self) -> None:
        """End it as a crash does."""
        assert self.process is not None
        self.signal(signal.SIGKILL)
        self.process.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        assert self.process is not None
        if self.process.poll() is None:  # else the number may be another's
            os.kill(self.pid, number)

    def freeze(self) -> None:
        """Stop it by SIGSTOP, and wait until each of its threads stands. SIGCONT lets it go on."""
        self.signal(signal.SIGSTOP)
        tasks = Path(f"/proc/{self.pid}/task")

        def stands() -> bool:
            return all(t.read_text().rpartition(")")[2].split()[0] == "T" for t in tasks.glob("*/stat"))

        until(f"{self.name} to stand", stands)

    def wait_end(self) -> int:
        """Wait until it has ended by itself, and return its exit code."""
        process = self.process
        assert process is not None
        until(f"daemon {self.name} to end", lambda: process.poll() is not None)
        self.process = None  # nothing is left to be stopped
        assert "DATA RACE" not in self.log(), self.log()
        return process.returncode

    def stop(self, expect: int | None = 0) -> None:
        """End it by SIGTERM; its exit code is checked, which also tells of a race or a panic."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            try:
                self.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.signal(signal.SIGQUIT)  # the Go runtime prints every goroutine
                try:
                    self.process.wait(PATIENCE)
                finally:
                    self.process.kill()
                raise AssertionError(f"{self.name} did not end:\n{self.log()}") from None
        code = self.process.returncode
        assert expect is None or code in (expect, -signal.SIGKILL), (
            f"{self.name} ended with {code}:\n{self.log()}"
        )
        assert "DATA RACE" not in self.log(), self.log()

    def log(self) -> str:
        """What the daemon has logged."""
        return self.log_path.read_text(errors="replace")

    def spans(self) -> list[dict[str, Any]]:
        """Every span in the daemon's trace file."""
        out: list[dict[str, Any]] = []
        if not self.trace_file.exists():
            return out
        for line in self.trace_file.read_text().split("\n")[:-1]:  # the last one may still be being written
            for resource in json.loads(line)["resourceSpans"]:
                for scope in resource["scopeSpans"]:
                    out += [{**span, "resource": attributes(resource["resource"])} for span in scope["spans"]]
        return out


def command(*args: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run ``kvxfer`` to its end, with no settings but these."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("KVXFER_")}
    return subprocess.run(
        [str(BINARY), *args],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE,
        env={**clean, "GORACE": "atexit_sleep_ms=0", **(env or {})},
    )  # fmt: skip


def free_port() -> int:
    """A port that can be had again after a restart."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def unused_port(rng: random.Random) -> int:
    """A port below those that the kernel gives out, so that it can be had again."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = rng.randrange(first - 12000, first)
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue


def attributes(holder: dict[str, Any]) -> dict[str, Any]:
    """OTLP attributes as a plain dictionary."""
    return {a["key"]: next(iter(a["value"].values())) for a in holder.get("attributes", [])}


class NatsServer:
    """A real NATS server with JetStream as a process of its own."""

    def __init__(self, store: Path) -> None:
        self.port = free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self._store = store
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> NatsServer:
        """Start it and wait until it accepts connections."""
        self.process = subprocess.Popen(
            [str(NATS_SERVER), "-a", "127.0.0.1", "-p", str(self.port), "-js", "-sd", str(self._store)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

        def accepts() -> bool:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return True
            return False

        until("the NATS server", accepts)
        return self

    def entries(self) -> list[str]:
        """The keys that the registry holds: ``node.NAME``, ``cache.NODE.EPOCH.NAME``."""
        with socket.create_connection(("127.0.0.1", self.port), PATIENCE) as s, s.makefile("rb") as answers:

            def ask(verb: str, **body: str) -> dict[str, Any]:
                raw = json.dumps(body)
                s.sendall(f"PUB $JS.API.STREAM.{verb}.KV_kvxfer in {len(raw)}\r\n{raw}\r\n".encode())
                for line in answers:
                    if line.startswith(b"MSG "):
                        answer: dict[str, Any] = json.loads(answers.read(int(line.split()[-1])))
                        return answer
                raise AssertionError("the NATS server closed the connection")

            def there(subject: str) -> bool:
                last = ask("MSG.GET", last_by_subj=subject)
                # A removed key leaves a message for a while, whose header says so.
                return "message" in last and b"KV-Operation" not in base64.b64decode(
                    last["message"].get("hdrs", "")
                )

            s.sendall(b"CONNECT {}\r\nSUB in 1\r\n")
            subjects = ask("INFO", subjects_filter=">").get("state", {}).get("subjects") or {}
            return [subject.removeprefix("$KV.kvxfer.") for subject in subjects if there(subject)]

    def entry(self, key: str) -> dict[str, Any]:
        """What the registry holds under a key."""
        raw = json.dumps({"last_by_subj": f"$KV.kvxfer.{key}"})
        with socket.create_connection(("127.0.0.1", self.port), PATIENCE) as s, s.makefile("rb") as answers:
            s.sendall(
                b"CONNECT {}\r\nSUB in 1\r\n"
                + f"PUB $JS.API.STREAM.MSG.GET.KV_kvxfer in {len(raw)}\r\n{raw}\r\n".encode()
            )
            for line in answers:
                if line.startswith(b"MSG "):
                    message = json.loads(answers.read(int(line.split()[-1])))["message"]
                    entry: dict[str, Any] = json.loads(base64.b64decode(message["data"]))
                    return entry
        raise AssertionError("the NATS server closed the connection")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """End it."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
