"""Fixtures: daemons in directories of their own, ended and checked after every test."""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from daemon import Daemon, NatsServer

Start = Callable[..., Daemon]


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """Randomness whose seed is printed; KVXFER_SEED repeats it."""
    seed = int(os.environ.get("KVXFER_SEED", time.time_ns()))
    print(f"seed {seed} (KVXFER_SEED={seed} repeats it)")
    return random.Random(seed)


@pytest.fixture
def run_dir() -> Iterator[Path]:
    """A directory with a short path, for sockets."""
    with tempfile.TemporaryDirectory(prefix="kvx-") as d:
        yield Path(d)


@pytest.fixture
def daemon(tmp_path: Path, run_dir: Path) -> Iterator[Start]:
    """Start daemons: ``daemon("name", "--flag", ...)``. Each must end cleanly."""
    started: list[Daemon] = []

    def start(name: str, *args: str, wait: bool = True, **kwargs: object) -> Daemon:
        d = Daemon(name, tmp_path / name, run_dir, *args, **kwargs)  # type: ignore[arg-type]
        started.append(d)
        return d.start(wait)

    yield start
    errors: list[BaseException] = []
    for d in reversed(started):
        try:
            d.stop()
        except AssertionError as e:
            errors.append(e)
    if errors:
        raise errors[0]


@pytest.fixture
def pair(daemon: Start) -> tuple[Daemon, Daemon]:
    """A prefill and a decode node that share the decode node's embedded registry."""
    decode = daemon("decode", "--nats-listen", "127.0.0.1:0")
    prefill = daemon("prefill", "--nats", decode.info["nats_url"])
    return prefill, decode


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[NatsServer]:
    """A real NATS server."""
    server = NatsServer(tmp_path / "nats").start()
    yield server
    server.kill()
