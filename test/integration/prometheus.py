"""Prometheus' own server and its checker, from PATH or as `make` unpacked them from Debian's package."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from daemon import PATIENCE, ROOT, free_port, until

UNPACKED = ROOT / "build" / "prometheus" / "usr" / "bin"


def tool(name: str) -> str:
    """The path of ``prometheus`` or ``promtool``; without it the test is skipped, in CI it fails."""
    path = shutil.which(name) or shutil.which(name, path=UNPACKED)
    if path is None:
        missing = f"{name} is neither in PATH nor in {UNPACKED} (make puts Debian's package there)"
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)
    return path


def promtool(*args: str, text: str | None = None) -> None:
    """Run ``promtool``; whatever it finds fault with fails the test."""
    done = subprocess.run(
        [tool("promtool"), *args],
        input=text if text is not None else "",
        capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr


class Prometheus:
    """A server that scrapes the targets every second."""

    def __init__(self, run: Path, targets: Sequence[str]) -> None:
        self._url = f"http://127.0.0.1:{free_port()}"
        self._run = run
        self._process: subprocess.Popen[bytes] | None = None
        self._config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
            "scrape_configs": [{"job_name": "kvxfer", "static_configs": [{"targets": list(targets)}]}],
        }

    def start(self) -> Prometheus:
        """Start it and wait until it answers."""
        config = self._run / "prometheus.yml"
        config.write_text(json.dumps(self._config))  # which is YAML, too
        with (self._run / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    tool("prometheus"), f"--config.file={config}",
                    f"--storage.tsdb.path={self._run / 'tsdb'}",
                    f"--web.listen-address={self._url.removeprefix('http://')}",
                ],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

        def answers() -> bool:
            assert self._process is not None
            assert self._process.poll() is None, (self._run / "prometheus.log").read_text()
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(f"{self._url}/-/ready", timeout=PATIENCE),
            ):
                return True
            return False

        until("Prometheus to answer", answers)
        return self

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """The labels and the value of each series that the expression gives now."""
        try:
            with urllib.request.urlopen(
                f"{self._url}/api/v1/query?" + urllib.parse.urlencode({"query": expression}), timeout=PATIENCE
            ) as r:
                answer: dict[str, Any] = json.load(r)
        except urllib.error.HTTPError as e:
            with e:
                raise AssertionError(f"{expression}: {e.read().decode()}") from None
        assert answer["status"] == "success", answer
        return [(x["metric"], float(x["value"][1])) for x in answer["data"]["result"]]

    def value(self, expression: str) -> float | None:
        """The value of the one series that the expression gives; None where there is none yet."""
        found = self.query(expression)
        assert len(found) <= 1, found
        return found[0][1] if found else None

    def kill(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
