"""What the tests share."""

from __future__ import annotations

import os
import random

import pytest

from record import Cell, Record
from spread import Spread


@pytest.fixture
def rng() -> random.Random:
    """A generator whose seed a failure shows; KVXFER_SEED repeats it."""
    seed = int(os.environ.get("KVXFER_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"KVXFER_SEED={seed}")
    return random.Random(seed)


def cell(
    transport: str, case: str, op: str, column: str, way: str, median: float | None, error: str = ""
) -> Cell:
    """A cell whose time is median us, or one that failed."""
    if median is None:
        return Cell(transport, case, op, column, way, error=error)
    time = Spread(0.9 * median, median, 1.2 * median, 30)
    return Cell(
        *(transport, case, op, column, way),
        time_us=time,
        submit_us=median / 2,
        cpu_s_per_gb=0.5,
        rss_bytes=50 << 20,
        register_us=400.0,
        prepare_us=90.0,
        first_us=5 * median,
        others=0.02,
        found=True,
    )


@pytest.fixture
def record() -> Record:
    """A run of two transports and two lists with everything that can be in one."""
    cells = []
    for transport in ("tcp", "host"):
        for case, scale in (("1x4KiB", 1.0), ("1024x4KiB", 300.0)):
            for op in ("write", "read"):
                here = transport, case, op
                cells += [
                    cell(*here, "kvxfer-prepared", "prepared", None, "no prepared transfers"),
                    cell(*here, "kvxfer-raw", "raw", 20 * scale),
                    cell(*here, "nixl", "tcp" if transport == "tcp" else "shm by copy", 12 * scale),
                    cell(*here, "nixl", "tcp, SGL" if transport == "tcp" else "shm, its choice", 30 * scale),
                ]
                if transport == "host":
                    cells.append(cell(*here, "mooncake", "", None, "it has nothing"))
    return Record(
        command="make bench-peers",
        machine={"cpus": 2, "model": "a <processor> & more", "kernel": "6.1", "machine": "x86_64"},
        versions={"kvxfer": "0.1.0", "NIXL": "1.5.1"},
        cells=cells,
        at_rest={"tcp/kvxfer-raw/raw": 0.004, "tcp/nixl/tcp": 1.0},
        marks={"iperf3, 1 connection": Spread(3.9, 4.0, 4.2, 9)},
        ucx=[{"way": "tcp", "bytes": 4096, "put_us": 6.0, "get_us": 8.0, "put_gbps": 1.5}],
        notes=["plain UCX (shm by copy): it ended"],
        seconds=840.0,
        date="2026-11-21",
    )
