from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fakedaemon import FakeDaemon

import kvxfer

LAYOUT = kvxfer.Layout(layers=4, kv_heads=2, head_dim=8, dtype="float32", block_tokens=4)
BLOCKS = 16


def eventually(what: Callable[[], object], seconds: float = 20.0) -> None:
    """Waits for a condition; the bound is generous, so that a slow machine changes nothing."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "the condition never came true"
        time.sleep(0.002)


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """No thread of the SDK outlives its test."""
    yield
    gc.collect()
    eventually(lambda: not [t for t in threading.enumerate() if t.name == "kvxfer"])


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[FakeDaemon]:
    d = FakeDaemon(str(tmp_path / "d.sock"))
    yield d
    d.stop()


@pytest.fixture
def client(daemon: FakeDaemon) -> Iterator[kvxfer.Client]:
    with kvxfer.connect(daemon.path, process="test") as c:
        yield c


@pytest.fixture
def cache(client: kvxfer.Client) -> kvxfer.Cache:
    return client.allocate_cache("c0", model="m", layout=LAYOUT, num_blocks=BLOCKS)


@pytest.fixture
def rng() -> random.Random:
    """Random numbers of a printed seed; KVXFER_SEED repeats a run."""
    seed = int(os.environ.get("KVXFER_SEED") or random.SystemRandom().getrandbits(32))
    print(f"KVXFER_SEED={seed}")
    return random.Random(seed)


class DaemonProcess:
    """The fake daemon as a process of its own."""

    def __init__(self, path: str, epoch: str) -> None:
        script = str(Path(__file__).with_name("fakedaemon.py"))
        self.path = path
        self.process = subprocess.Popen(
            [sys.executable, script, path, epoch], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(20)
        for f in (self.process.stdin, self.process.stdout):
            assert f is not None
            f.close()
        if os.path.exists(self.path):
            os.unlink(self.path)


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Callable[..., DaemonProcess]]:
    started: list[DaemonProcess] = []

    def start(epoch: str = "e0" * 16) -> DaemonProcess:
        p = DaemonProcess(str(tmp_path / "p.sock"), epoch)
        started.append(p)
        return p

    yield start
    for p in started:
        if p.process.returncode is None:
            p.kill()
