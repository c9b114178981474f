"""What the machine does without any engine: plain UCX with single blocks, iperf3 on loop-back, a copy of
memory."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from engines.nixl import ENVIRONMENT
from pair import FailedError, child, environment

TRIES = 40
PORT_WAIT = 0.05


def free_port() -> int:
    """A TCP port of loop-back that nobody listens on now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def both(server: list[str], client: list[str], env: Mapping[str, str], limit: float = 60.0) -> str:
    """What the client prints; it is tried again until its server listens.

    Raises:
        FailedError: it does not work; the text is its last line.
    """
    env = environment(env)
    with subprocess.Popen(
        server, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env, preexec_fn=child(None)
    ) as listening:
        try:
            for _ in range(TRIES):
                time.sleep(PORT_WAIT)
                done = subprocess.run(
                    client, capture_output=True, text=True, env=env, timeout=limit, check=False
                )
                if done.returncode == 0:
                    return done.stdout
            said = (done.stderr or done.stdout).strip().splitlines()
            why = said[-1][:200] if said else f"status {done.returncode}"
            raise FailedError(f"{Path(client[0]).name}: {why}")
        except subprocess.TimeoutExpired:
            raise FailedError(f"{Path(client[0]).name} did not end within {limit:.0f} s") from None
        finally:
            listening.kill()


def iperf3(program: Path, libraries: Path | None, streams: int, seconds: int = 1) -> float:
    """GB/s over loop-back with so many connections."""
    port = str(free_port())
    base = [str(program), "-p", port]
    env = {"LD_LIBRARY_PATH": str(libraries)} if libraries else {}
    text = both(
        [*base, "-s", "-1", "-B", "127.0.0.1"],
        [*base, "-c", "127.0.0.1", "-J", "-t", str(seconds), "-P", str(streams)],
        env,
    )
    return float(json.loads(text)["end"]["sum_received"]["bits_per_second"]) / 8e9


_TESTS = (("put_lat", "ucp_put_lat"), ("put_bw", "ucp_put_bw"), ("get", "ucp_get"))


def ucx(tools: Path, way: str, sizes: list[int], directory: Path) -> list[dict[str, Any]]:
    """Plain UCX's single contiguous blocks.

    Returns:
        For each size: ``put_us`` and ``get_us`` (median, a put is half of a round trip of two), ``put_gbps``
        with many puts under way.
    """
    lines = []
    for size in sizes:
        count = min(max((16 << 20) // size, 30), 2000)
        lines += [f"{name}_{size} -t {test} -s {size} -n {count} -w {count // 10}" for name, test in _TESTS]
    batch = directory / "ucx-batch"
    batch.write_text("\n".join(lines) + "\n")
    port = str(free_port())
    program = str(tools / "bin" / "ucx_perftest")
    env = {"LD_LIBRARY_PATH": str(tools / "lib"), "UCX_MODULES": "^ib", **ENVIRONMENT[way]}
    options = ["-p", port, "-b", str(batch), "-f", "-v"]
    return read_ucx(both([program, *options], [program, "127.0.0.1", *options], env), way, sizes)


def read_ucx(text: str, way: str, sizes: list[int]) -> list[dict[str, Any]]:
    """The rows of ucx_perftest's CSV: name, iterations, 50th percentile in us, mean, overall, MiB/s, overall
    MiB/s.

    Raises:
        FailedError: a row is missing.
    """
    rows = {f[0]: f for f in (line.split(",") for line in text.splitlines()) if len(f) >= 7}
    try:
        return [
            {
                "way": way,
                "bytes": size,
                "put_us": float(rows[f"put_lat_{size}"][2]),
                "get_us": float(rows[f"get_{size}"][2]),
                "put_gbps": float(rows[f"put_bw_{size}"][6]) * 2**20 / 1e9,
            }
            for size in sizes
        ]
    except (KeyError, ValueError) as e:
        raise FailedError(f"ucx_perftest's table lacks {e}") from None


def memory_copy(size: int = 64 << 20) -> float:
    """GB/s of a contiguous copy by one thread, as numpy makes it."""
    source, target = np.ones(size, np.uint8), np.zeros(size, np.uint8)
    best = float("inf")
    for _ in range(3):
        begun = time.perf_counter()
        np.copyto(target, source)
        best = min(best, time.perf_counter() - begun)
    return size / best / 1e9
