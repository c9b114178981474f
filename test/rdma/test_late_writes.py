"""The promise, watched between two machines: memory that its owner took back is never written again.

Two daemons in two virtual machines, whose payload is delayed, lost, doubled and reordered on the way.
KVXFER_ROUNDS is the number of transfers whose memory is taken back, over all providers together. KVXFER_SEED
repeats a run's choices, though not its timing. volley.py has the ways.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

import kernel
import network
from conftest import Pair
from latewriter import STDERR, LateWriter
from serving import PEER_PORT, Daemon
from volley import EVENTS, SIZE, Stage
from weather import ROCE_PORT, Sky, Weather

VARIANTS = {
    "tcp": ("tcp", []),
    "verbs": ("verbs", []),
    "verbs, no windows": ("verbs", ["--rdma-windows", "off"]),
}
"""Provider and settings of the daemons: with and without memory windows there are two ways to fence."""
ROUNDS = int(os.environ.get("KVXFER_ROUNDS") or 1056)
LOGS = kernel.BUILD / "logs"

SKIES = (
    Sky(delay=300, rate=20),
    Sky(delay=400, jitter=100),
    Sky(delay=300, jitter=20, loss=1, rate=40),
    Sky(delay=300, jitter=50, duplicate=5, reorder=5),
    Sky(delay=700, jitter=100, loss=0.5, duplicate=2, reorder=2),
)
CALM = 6
"""Volleys that are under one sky."""
OFTEN = {"stop": 12, "stop own": 8, "cut": 8, "rail": 8}
"""Volleys with an event, per hundred."""
RARE = ("kill", "crash", "crash own", "kill own")
"""At least one of each, and three of each in a thousand rounds of a variant."""

# The control: ways in which nothing but the fence stands between the bytes that are under way and the memory.
# A cancellation comes from the source, over tcp behind the bytes.
GATED = {
    "tcp": {"push": ("revoke", "evict", "ttl"), "raw": ("revoke", "ttl")},
    "verbs": {"push": ("revoke", "evict", "ttl"), "raw": ("revoke", "ttl")},
}
CONTROL_VOLLEYS = 40

StartStage = Callable[..., Stage]


def build(name: str, package: str, *args: str, cgo: bool = True) -> Path:
    """A binary of the machines."""
    out = kernel.BUILD / "bin" / name
    env = {**os.environ, "CGO_ENABLED": "1" if cgo else "0"}
    subprocess.run(
        ["go", "build", "-trimpath", *args, "-o", out, package], cwd=kernel.ROOT, env=env, check=True
    )
    return out


@pytest.fixture(scope="module")
def guest_files() -> Mapping[str, Path]:
    """What the machines run: daemons with and without fences, and their clients."""
    return {
        "/usr/bin/kvxfer": build("kvxfer", "./cmd/kvxfer"),
        "/usr/bin/kvxfer-nofence": build("kvxfer-nofence", "./cmd/kvxfer", "-tags", "kvxfer_nofence"),
        "/usr/bin/latewriter": build("latewriter", "./test/rdma/latewriter", cgo=False),
    }


@pytest.fixture
def rng() -> random.Random:
    """Randomness whose seed is printed; KVXFER_SEED repeats it."""
    seed = int(os.environ.get("KVXFER_SEED", time.time_ns()))
    print(f"seed {seed} (KVXFER_SEED={seed} repeats it)")
    return random.Random(seed)


@pytest.fixture
def stage(pair: Pair, rng: random.Random, request: pytest.FixtureRequest) -> Iterator[StartStage]:
    """Make a stage: ``stage(provider)``. What its daemons and clients say is kept until the next run."""
    logs = LOGS / request.node.name
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    started: list[Daemon] = []
    clients: list[LateWriter] = []

    def start(variant: str, binary: str = "kvxfer") -> Stage:
        provider, settings = VARIANTS[variant]
        # Control messages of verbs go over a link of their own, in fair weather; tcp has but one port.
        devices = ["eth0"] if provider == "tcp" else ["eth0", "eth1"]
        links = {True: [r.netdev for r in network.ends("b")], False: ["eth1"]}  # everything, or a rail
        link = 0 if provider == "tcp" else 2
        port, protocol, turns = (PEER_PORT, "tcp", 3) if provider == "tcp" else (ROCE_PORT, "udp", 1)
        pair.a.run("rm -rf /tmp/source.* /tmp/owner.*")
        pair.b.run("rm -rf /tmp/source.* /tmp/owner.*")
        for machine, name in ((pair.a, "source"), (pair.b, "owner")):
            address = network.ends(machine.role)[link].ipv4
            daemon = Daemon(machine, name, address, logs, "--providers", provider, *settings, binary=binary)
            started.append(daemon.start())

        def cut(everything: bool, down: bool) -> None:
            for dev in links[everything]:
                pair.b.cable(dev, not down)

        weather = Weather(pair.a, devices, protocol, port)
        made = Stage(started[0], started[1], weather, rng, cut, turns=turns)
        clients.extend((made.source, made.owner))
        return made

    yield start
    for client in clients:
        client.close()
    for daemon in started:
        daemon.kill()
    for machine in pair:
        said = machine.run(f"cat {STDERR}; rm -f {STDERR}", check=False).out
        (logs / f"clients-{machine.role}.log").write_text(said)
    pair.a.run("for d in eth0 eth1; do tc qdisc del dev $d root; done", check=False)


def plan(rng: random.Random, volleys: int, variant: str) -> list[str]:
    """The events of so many volleys, "" where each transfer is ended in a way of its own.

    A process that is killed with windows bound takes rdma_rxe 51 seconds for each queue pair: it waits for
    the windows, which are destroyed behind it.
    """
    never = {"tcp": "rail", "verbs": "crash own"}.get(variant)
    names = [e for e in EVENTS if e != never]
    events = [e for e in names if e in OFTEN for _ in range(-(-volleys * OFTEN[e] // 100))]
    events += [e for e in names if e in RARE for _ in range(max(1, 3 * volleys * SIZE // 1000))]
    events = rng.sample(events, len(events))[:volleys]
    return rng.sample(events + [""] * (volleys - len(events)), volleys)


def play(s: Stage, events: list[str]) -> None:
    """Volleys, under a sky that changes."""
    sky = 0
    for i, event in enumerate(events):
        if i % CALM == 0:
            s.weather.change(SKIES[sky % len(SKIES)])
            sky += 1
        began = time.monotonic()
        s.volley(event)
        print(f"  {time.monotonic() - began:5.1f} s  {event or 'ways':10} {s.weather.sky}", flush=True)
    s.settle()


def tell(s: Stage, name: str, began: float) -> None:
    """What has been seen."""
    print(
        f"{name}: {s.rounds} rounds in {time.monotonic() - began:.0f} s, carried by {dict(s.providers)},"
        f" {s.under_way} with bytes under way, {s.in_the_middle} in the middle"
    )
    print(f"  longest revoke or evict in ms, by event: {s.longest}")
    for what, count in sorted(s.seen.items()):
        print(f"  {count:5} {what}")


@pytest.mark.timeout(300 + ROUNDS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_no_late_write(stage: StartStage, rng: random.Random, variant: str) -> None:
    """However memory is taken back, and whatever happens meanwhile: no byte lands afterwards."""
    s = stage(variant)
    began = time.monotonic()
    play(s, plan(rng, -(-ROUNDS // (SIZE * len(VARIANTS))), variant))
    tell(s, variant, began)
    assert not s.late, f"bytes that changed in memory that was taken back: {dict(s.late)}"
    assert set(s.providers) == {VARIANTS[variant][0]}
    # Otherwise the test has watched nothing. How many there are depends on the machine.
    assert s.under_way > s.rounds // 40


@pytest.mark.parametrize("provider", GATED)
def test_late_writes_are_found(stage: StartStage, provider: str) -> None:
    """The control: the same volleys, with daemons that do not fence, find late bytes in each way in which
    nothing but the fence protects."""
    s = stage(provider, "kvxfer-nofence")
    assert "must not be used" in s.near.said()
    want = {f"{kind}: {way}" for kind, ways in GATED[provider].items() for way in ways}
    began = time.monotonic()
    s.weather.change(SKIES[0])
    for _ in range(CONTROL_VOLLEYS):
        s.volley("", GATED[provider])
        if want <= set(s.late):
            break
    else:
        s.settle()
    tell(s, f"{provider} without fences", began)
    print(f"  late bytes: {dict(s.late)}")
    assert want <= set(s.late), f"not found in {s.rounds} rounds: {want - set(s.late)}"
