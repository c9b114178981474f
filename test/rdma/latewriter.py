"""The clients of the late-write test: ``test/rdma/latewriter`` in a machine, spoken to in lines of JSON."""

from __future__ import annotations

import itertools
import json
import signal
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from vm import VM

PATIENCE = 60.0
"""Seconds after which a wait counts as failed; milliseconds of it are what the programs get."""
MS = int(PATIENCE * 1000)
STDERR = "/tmp/latewriter.err"
"""What all clients of a machine say that is no answer, a file in the machine."""


class LateWriterError(AssertionError):
    """What a client could not do, in its own words."""


class LateWriter:
    """One client in a machine. Any thread may make requests; who wants the answer waits for it."""

    def __init__(self, machine: VM, name: str, log: Path, role: str, *args: str) -> None:
        self.name, self.log = f"{machine.role}: {name}", log
        self.late: list[dict[str, Any]] = []
        self._ids = itertools.count(1)
        self._waiting: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self._ready: Future[Any] = Future()
        self._ended = threading.Event()
        words = " ".join(f"'{w}'" for w in ("latewriter", role, *args))
        # Two streams in one log would cut each other's lines.
        self.process = machine.start(f"exec {words} 2>>{STDERR}", log=log, stdin=True)
        self._reader = threading.Thread(target=self._read, name=self.name, daemon=True)
        self._reader.start()

    def ready(self) -> LateWriter:
        """Wait until it has attached and allocated its memory."""
        self._ready.result(PATIENCE)
        return self

    def send(self, do: str, args: object = None) -> Future[Any]:
        """Make a request; the answer is the future's result, or a LateWriterError."""
        answer: Future[Any] = Future()
        with self._lock:
            number = next(self._ids)
            self._waiting[number] = answer
        self.process.input(json.dumps({"id": number, "do": do, "args": args}).encode() + b"\n")
        return answer

    def ask(self, do: str, args: object = None) -> Any:
        """Make a request and wait for its answer."""
        return self.send(do, args).result(2 * PATIENCE)

    def close(self) -> None:
        """End it in order: it detaches."""
        self.process.input(b"")
        self._ended.wait(PATIENCE)

    def kill(self) -> None:
        """End it as a crash does."""
        self.process.kill(signal.SIGKILL)
        self._ended.wait(PATIENCE)

    def _read(self) -> None:
        at, rest = 0, b""
        while True:
            running = self.process.running
            with self.log.open("rb") as f:
                f.seek(at)
                data = f.read()
            at += len(data)
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._hear(line)
            if not data:
                if not running:
                    break
                self._ended.wait(0.002)
        gone = LateWriterError(f"{self.name} has ended")
        with self._lock:
            left = [f for f in (*self._waiting.values(), self._ready) if not f.done()]
        for future in left:
            future.set_exception(gone)
        self._ended.set()

    def _hear(self, line: bytes) -> None:
        said = json.loads(line)
        if said.get("event") == "ready":
            self._ready.set_result(None)
        elif said.get("event") == "late":
            self.late.append(said)
        else:
            with self._lock:
                answer = self._waiting.pop(said["id"])
            if "error" in said:
                answer.set_exception(LateWriterError(f"{self.name}: {said['error']}"))
            else:
                answer.set_result(said.get("ok"))
