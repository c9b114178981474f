"""Three real NATS servers that form a cluster, as processes of their own."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from daemon import NATS_SERVER, PATIENCE, free_port, until

SIZE = 3


class NatsCluster:
    """Servers ``s0`` to ``s2``; each can be killed and started again, with or without what it had stored."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self._clients, self._routes, self._monitors = (
            [free_port() for _ in range(SIZE)],
            [free_port() for _ in range(SIZE)],
            [free_port() for _ in range(SIZE)],
        )
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * SIZE
        self.url = ",".join(f"nats://127.0.0.1:{p}" for p in self._clients)

    def start(self, *servers: int) -> None:
        """Start servers and wait until they accept connections."""
        routes = ",".join(f"nats://127.0.0.1:{p}" for p in self._routes)
        for i in servers:
            self._processes[i] = subprocess.Popen(
                [
                    str(NATS_SERVER), "-n", f"s{i}", "-a", "127.0.0.1", "-p", str(self._clients[i]),
                    "-m", str(self._monitors[i]),
                    "-js", "-sd", str(self._base / f"s{i}"), "--cluster_name", "kvxfer",
                    "--cluster", f"nats://127.0.0.1:{self._routes[i]}", "--routes", routes,
                ],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        for i in servers:
            until(f"NATS server s{i}", lambda i=i: self._accepts(i))  # type: ignore[misc]

    def _accepts(self, i: int) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._clients[i]), 1):
            return True
        return False

    def kill(self, *servers: int) -> None:
        """End servers as a crash does. A second call does nothing."""
        for i in servers:
            process = self._processes[i]
            if process is not None:
                process.kill()
                process.wait()
                self._processes[i] = None

    def forget(self) -> None:
        """Kill all servers and remove what they stored."""
        self.kill(*range(SIZE))
        shutil.rmtree(self._base)

    def _running(self) -> int:
        return next(i for i in range(SIZE) if self._processes[i] is not None)

    def meta_leader(self) -> int:
        """The server that leads the cluster's own state."""
        found: list[int] = []

        def known() -> bool:
            url = f"http://127.0.0.1:{self._monitors[self._running()]}/jsz"
            with (
                contextlib.suppress(urllib.error.URLError, OSError),
                urllib.request.urlopen(url, timeout=PATIENCE) as answer,
            ):
                name = json.load(answer).get("meta_cluster", {}).get("leader")
                found.extend([int(name[1:])] if name else [])
            return bool(found)

        until("a leader of the cluster", known)
        return found[0]

    def stream(self) -> dict[str, Any]:
        """What the cluster says about the registry's bucket, once that has a leader."""
        found: list[dict[str, Any]] = []

        def known() -> bool:
            found.extend(self._stream_info())
            return bool(found)

        until("a leader of the bucket", known)
        return found[0]

    def _stream_info(self) -> list[dict[str, Any]]:
        at = ("127.0.0.1", self._clients[self._running()])
        with (
            contextlib.suppress(OSError, ValueError),
            socket.create_connection(at, 2) as s,
            s.makefile("rb") as answers,
        ):
            s.sendall(
                b"CONNECT {}\r\nSUB in 1\r\nPUB $JS.API.STREAM.INFO.KV_kvxfer in 24\r\n"
                b'{"subjects_filter": ">"}\r\n'
            )
            for line in answers:
                if line.startswith(b"MSG "):
                    info: dict[str, Any] = json.loads(answers.read(int(line.split()[-1])))
                    return [info] if info.get("cluster", {}).get("leader") else []
        return []

    def wait_whole(self) -> None:
        """Wait until every server keeps the bucket again: one that was started has to be given it."""

        def whole() -> bool:
            replicas = self.stream()["cluster"].get("replicas") or []
            return len(replicas) == SIZE - 1 and all(r["current"] and not r.get("offline") for r in replicas)

        until("the bucket to be whole", whole, pause=0.1)

    def stream_leader(self) -> int:
        """The server that leads the registry's bucket."""
        return int(self.stream()["cluster"]["leader"][1:])
