"""Fixtures: daemons in directories of their own, ended and checked after every test."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import kvxfer
import pytest

from daemon import Daemon, NatsServer
from footprint import check_clean
from worker import Worker

Start = Callable[..., Daemon]
Attach = Callable[..., kvxfer.Client]
StartWorker = Callable[[Daemon], Worker]


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
    """Start daemons: ``daemon("name", "--flag", ...)``. Each must end cleanly.

    The clients are gone when they end, so whatever a test has done, nothing of a client may be left in them.
    """
    started: list[Daemon] = []

    def start(name: str, *args: str, wait: bool = True, **kwargs: object) -> Daemon:
        state = kwargs.pop("state", tmp_path / name)
        d = Daemon(name, state, run_dir, *args, **kwargs)  # type: ignore[arg-type]
        started.append(d)
        return d.start(wait)

    yield start
    errors: list[BaseException] = []
    for d in reversed(started):
        try:
            if d.running:
                d.signal(signal.SIGCONT)
                check_clean(d)
            d.stop()
        except AssertionError as e:
            errors.append(e)
    if errors:
        raise errors[0]


def providers(request: pytest.FixtureRequest) -> list[str]:
    """The arguments for the providers that a test names by indirect parametrization; none: the default."""
    return ["--providers", request.param] if hasattr(request, "param") else []


@pytest.fixture
def pair(daemon: Start, request: pytest.FixtureRequest) -> tuple[Daemon, Daemon]:
    """A prefill and a decode node that share the decode node's embedded registry."""
    decode = daemon("decode", "--nats-listen", "127.0.0.1:0", *providers(request))
    prefill = daemon("prefill", "--nats", decode.info["nats_url"], *providers(request))
    return prefill, decode


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[NatsServer]:
    """A real NATS server."""
    server = NatsServer(tmp_path / "nats").start()
    yield server
    server.kill()


@pytest.fixture
def nodes(nats: NatsServer, daemon: Start, request: pytest.FixtureRequest) -> tuple[Daemon, Daemon]:
    """A prefill and a decode node whose registry outlives both."""
    args = ["--nats", nats.url, *providers(request)]
    return daemon("prefill", *args), daemon("decode", *args)


@pytest.fixture
def attach(daemon: Start) -> Iterator[Attach]:
    """Connect clients: ``attach(daemon)``. They are closed before the daemons end."""
    with contextlib.ExitStack() as stack:
        yield lambda d, **kwargs: stack.enter_context(d.connect(**kwargs))


@pytest.fixture
def worker(daemon: Start) -> Iterator[StartWorker]:
    """Start client processes: ``worker(daemon)``. They are killed at the end."""
    with contextlib.ExitStack() as stack:

        def start(d: Daemon) -> Worker:
            w = Worker(str(d.socket))
            stack.callback(w.kill)
            return w

        yield start
