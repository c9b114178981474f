"""A real OTLP receiver, the OpenTelemetry Collector's own, and what docs/tracing.md says arrives there."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
from pathlib import Path
from typing import Any

from daemon import ROOT, attributes, free_port, until

BINARY = ROOT / "bin" / "otlpsink"
TYPES = {"string": "stringValue", "int64": "intValue", "bool": "boolValue"}
"""The names that docs/tracing.md has for types, and OTLP's for values."""


def documented() -> tuple[set[str], dict[str, str]]:
    """The names of spans, and the keys of attributes with their types, in docs/tracing.md."""
    page = (ROOT / "docs" / "tracing.md").read_text()

    def rows(table: str) -> list[list[str]]:
        text = page.split(f"<!-- {table} -->")[1].split(f"<!-- /{table} -->")[0]
        return [[c.strip().strip("`") for c in row.split("|")] for row in text.strip().splitlines()[2:]]

    return {row[2] for row in rows("spans")}, {row[1]: row[2] for row in rows("keys")}


class Sink:
    """``bin/otlpsink``: OTLP over gRPC and over HTTP into a file."""

    def __init__(self, directory: Path) -> None:
        self._file, self._log = directory / "otlp.jsonl", directory / "otlpsink.txt"
        self._ports = {"grpc": free_port(), "http/protobuf": free_port()}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Sink:
        """Start it and wait until it takes connections."""
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    str(BINARY), "--out", str(self._file),
                    "--grpc", f"127.0.0.1:{self._ports['grpc']}",
                    "--http", f"127.0.0.1:{self._ports['http/protobuf']}",
                ],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

        def accepts() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, self._log.read_text()
            with contextlib.suppress(OSError):
                for port in self._ports.values():
                    socket.create_connection(("127.0.0.1", port), 1).close()
                return True
            return False

        until("the OTLP receiver", accepts)
        return self

    def stop(self) -> None:
        """End it."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait()
            self.process = None

    def env(self, protocol: str = "http/protobuf", **more: str) -> dict[str, str]:
        """The environment of a daemon that exports here."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self._ports[protocol]}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
            "OTEL_BSP_SCHEDULE_DELAY": "50",
            "no_proxy": "127.0.0.1",
            **more,
        }

    def text(self) -> str:
        """What has arrived, as OTLP JSON lines."""
        return self._file.read_text()

    def spans(self) -> list[dict[str, Any]]:
        """Every span that has arrived, with the attributes of its resource and of its scope."""
        out: list[dict[str, Any]] = []
        for line in self.text().split("\n")[:-1]:  # the last one may still be being written
            for resource in json.loads(line)["resourceSpans"]:
                for scope in resource["scopeSpans"]:
                    about = {
                        "resource": attributes(resource["resource"]),
                        "scope": scope["scope"],
                    }
                    out += [{**span, **about} for span in scope["spans"]]
        return out
