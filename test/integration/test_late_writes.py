"""The promise, watched on real daemons: memory that its owner took back is never written again.

KVXFER_ROUNDS is the number of transfers whose memory is taken back, over both providers together: 1,000
unless it is set. ``make late-writes ROUNDS=10000`` goes farther. KVXFER_SEED repeats a run's choices.
volleys.py has the ways.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import Start, StartWorker
from daemon import BINARY, NOFENCE_BINARY, NatsServer, unused_port
from delayer import Delayer
from volleys import EVENTS, SIZE, Stage

ROUNDS = int(os.environ.get("KVXFER_ROUNDS", 1000))
PROVIDERS = ["tcp", "shm"]

# Volleys with an event, per hundred; what starts processes or waits for a peer's silence is rare.
OFTEN = {"stop": 16, "stop own": 10, "lost": 8, "kill": 2}
RARE = ("crash", "crash own", "kill own", "silent")
"""At least one of each, and one of each in a thousand rounds of a provider."""

# The mutation control: ways in which nothing but the target's gate stands between late bytes and the memory.
# Where the link or a process has ended, its bytes are not read any more. Over tcp bytes are under way, in the
# delayer. Over shm the source stands still, or else it would end its permission to read them, and what the
# target's daemon had still to copy lands late.
GATED: dict[str, tuple[str, dict[str, tuple[str, ...]]]] = {
    "tcp": ("", {"push": ("revoke", "evict", "ttl", "cancel"), "raw": ("revoke", "ttl")}),
    "shm": ("stop", {"push": ("revoke", "evict", "ttl")}),
}
# Copying what is left must take longer than the owner takes to hear of the end.
STAGES: dict[str, dict[str, Any]] = {"tcp": {}, "shm": {"layers": 32, "still": 1.0}}
MUTANT_VOLLEYS = 200

StartStage = Callable[..., Stage]


@pytest.fixture
def stage(
    nats: NatsServer, daemon: Start, worker: StartWorker, rng: random.Random
) -> Iterator[Callable[..., Stage]]:
    """Make a stage: ``stage(provider)``. Every connection between its daemons goes over a delayer."""
    with contextlib.ExitStack() as stack:

        def start(provider: str, binary: Path = BINARY, **kwargs: Any) -> Stage:
            ports = [unused_port(rng) for _ in range(2)]
            delayer = Delayer(ports)
            stack.callback(delayer.close)
            prefill, decode = (
                daemon(
                    name, "--nats", nats.url, "--providers", provider, "--listen", f"127.0.0.1:{port}",
                    "--advertise", f"127.0.0.1:{public}", binary=binary,
                )
                for name, port, public in zip(("prefill", "decode"), ports, delayer.ports, strict=True)
            )  # fmt: skip
            made = Stage((prefill, decode), delayer, worker, rng, provider, **kwargs)
            stack.callback(made.close)
            return made

        yield start


def plan(rng: random.Random, volleys: int) -> list[str]:
    """The events of so many volleys, "" where each transfer is ended in a way of its own."""
    events = [name for name, share in OFTEN.items() for _ in range(-(-volleys * share // 100))]
    events += [name for name in RARE for _ in range(1 + volleys * SIZE // 1000)]
    assert set(events) == set(EVENTS)
    events = rng.sample(events, len(events))[:volleys]
    events += [""] * (volleys - len(events))
    return rng.sample(events, volleys)


@pytest.mark.timeout(300 + ROUNDS)
@pytest.mark.parametrize("provider", PROVIDERS)
def test_no_late_write(stage: StartStage, rng: random.Random, provider: str) -> None:
    """However memory is taken back, and whatever happens meanwhile: no byte lands afterwards."""
    s = stage(provider)
    volleys = -(-ROUNDS // (SIZE * len(PROVIDERS)))
    for event in plan(rng, volleys):
        s.volley(event)
    print(f"{provider}: {s.rounds} rounds, {s.in_the_middle} taken back in the middle")
    for what, count in sorted(s.seen.items()):
        print(f"  {count:5} {what}")
    # Otherwise the test has watched nothing. How many there are depends on the machine.
    assert s.in_the_middle > s.rounds // 100 or volleys < 5


@pytest.mark.parametrize("provider", PROVIDERS)
def test_late_writes_are_found(stage: StartStage, provider: str) -> None:
    """The mutation control: the same volleys with daemons that do not fence find late bytes in each way in
    which nothing but the gate protects."""
    s = stage(provider, NOFENCE_BINARY, count_late=True, **STAGES[provider])
    assert "must not be used" in s.decode.log()
    event, gated = GATED[provider]
    want = {f"{kind}: {way}" for kind, ways in gated.items() for way in ways}
    found: Counter[str] = Counter()
    for _ in range(MUTANT_VOLLEYS):
        s.volley(event, gated)
        found = s.late
        if want <= set(found):
            break
    print(f"{provider}: late bytes in {s.rounds} rounds: {dict(found)}")
    assert want <= set(found), f"not found in {s.rounds} rounds: {want - set(found)}"
