"""``kvxfer bench verbs`` on SoftRoCE, or with RDMA_DEVICE on this host's own device: its fields are whole.

No speed is asserted: under emulation only the ratio to perftest means something, and here others use the
processors too.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import kernel
from vm import VM

DEVICE = os.environ.get("KVXFER_RDMA_DEVICES", "").split(",")[0]
ARGS = [
    "bench",
    "verbs",
    "--size",
    "64KiB",
    "--case",
    "64x4KiB",
    "--op",
    "write",
    "--rounds",
    "3",
    "--seconds",
    "0.1",
    "--json",
]


def binary() -> Path:
    """The command, without the race detector."""
    out = kernel.BUILD / "kvxfer"
    subprocess.run(["go", "build", "-trimpath", "-o", out, "./cmd/kvxfer"], cwd=kernel.ROOT, check=True)
    return out


@pytest.fixture(scope="module")
def guest_files() -> Mapping[str, Path]:
    """The command."""
    return {"/usr/bin/kvxfer": binary()}


def test_fields(request: pytest.FixtureRequest) -> None:
    """Operations of the provider beside perftest's tools, and lists through two daemons over verbs alone."""
    if DEVICE:
        done = subprocess.run([binary(), *ARGS, "--device", DEVICE], text=True, capture_output=True)
        assert done.returncode == 0, done.stderr
        out = done.stdout
    else:
        vm: VM = request.getfixturevalue("one")
        out = vm.run(["kvxfer", *ARGS, "--device", "rxe0"], timeout=240).out
    report: dict[str, Any] = json.loads(out)
    for end in ("near", "far"):
        assert report[end]["device"] == (DEVICE or "rxe0")
        assert report[end]["mtu"] in (256, 512, 1024, 2048, 4096)
    assert [(m["op"], m["bytes"]) for m in report["messages"]] == [("write", 65536)]
    for m in report["messages"]:
        print(m)
        assert None not in m.values()
        assert m["samples"] == 3
        assert m["gbps"] == pytest.approx(m["messages_per_s"] * 65536 / 1e9, rel=0.01)
        assert m["ratio"] == pytest.approx(m["gbps"] / m["perftest_gbps"], rel=0.01)
        assert m["perftest_how"].startswith("ib_write_bw -q ")
        assert 0 < m["latency_us_p50"] <= m["latency_us_p99"]
    assert [(r["bench"], r["case"], r["op"]) for r in report["lists"]] == [("verbs", "64x4KiB", "write")]
    for r in report["lists"]:
        print(r)
        assert r["samples"] >= 3
        assert r["limit_gbps"] is None
