"""What tracing costs a transfer of 1 MiB; ``make trace-cost`` runs it, docs/tracing.md has its figures.

Two pairs of daemons run side by side on one host, each with a client on both nodes: one pair does not trace,
the other exports over OTLP to the Collector's receiver. Each round moves 1 MiB once in each case, in random
order, and takes the time from the lease to the word on both sides that the blocks are there. A round is
compared with itself: whatever else the machine does meets all cases alike. The cases:

- ``off``: the pair that does not trace;
- ``again``: the same once more; what differs here is chance;
- ``unsampled``: the pair that traces, under a caller's traceparent that is not sampled;
- ``on``: the pair that traces, under one that is sampled.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import secrets
import statistics
import tempfile
import time
from pathlib import Path

import kvxfer

from daemon import PATIENCE, PLAIN_BINARY, Daemon
from otlp import Sink

LAYOUT = kvxfer.Layout(layers=4, kv_heads=2, head_dim=64, dtype="float32", block_tokens=16)
BLOCKS = range(16)
"""1 MiB."""
CASES = ("off", "again", "unsampled", "on")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=2000, help="transfers in each case (default 2000)")
    parser.add_argument("--provider", default="tcp", choices=["tcp", "shm"], help="what moves the bytes")
    parser.add_argument("--json", action="store_true", help="one JSON value instead of text")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kvx-") as directory:
        sink = Sink(Path(directory)).start()
        daemons: list[Daemon] = []
        try:
            result = measure(Path(directory), sink, args.provider, args.rounds, daemons)
        finally:
            for d in daemons:
                d.stop()
            sink.stop()
    if args.json:
        print(json.dumps(result))
        return
    print(f"{'case':10} {'median ms':>10} {'of off':>8} {'daemons cpu ms':>15}")
    for case in CASES:
        r = result[case]
        print(f"{case:10} {r['median_ms']:10.4f} {r['of_off_percent']:+7.2f}% {r['cpu_ms']:15.4f}")


def measure(
    directory: Path, sink: Sink, provider: str, rounds: int, daemons: list[Daemon]
) -> dict[str, dict[str, float]]:
    """The medians of each case, and of each round's difference from its own ``off``."""
    rng = random.Random(int(os.environ.get("KVXFER_SEED", "1")))
    env = sink.env()
    del env["OTEL_BSP_SCHEDULE_DELAY"]  # as a daemon exports by default
    caches = {}
    pairs = {}
    for kind, environment in (("quiet", {}), ("traced", env)):
        decode = node(
            directory, f"{kind}-decode", environment, "--nats-listen", "127.0.0.1:0", "--providers", provider
        )
        daemons.append(decode)
        url = decode.info["nats_url"]
        prefill = node(directory, f"{kind}-prefill", environment, "--nats", url, "--providers", provider)
        daemons.append(prefill)
        pairs[kind] = (prefill, decode)
        caches[kind] = [
            d.connect().allocate_cache(name, model="m", layout=LAYOUT, num_blocks=32)
            for d, name in ((prefill, "source"), (decode, "target"))
        ]
    taken: dict[str, list[float]] = {case: [] for case in CASES}
    cpu: dict[str, list[float]] = {case: [] for case in CASES}
    for n in range(rounds + rounds // 10):
        order = list(CASES)
        rng.shuffle(order)
        for case in order:
            kind = "quiet" if case in ("off", "again") else "traced"
            flags = "00" if case == "unsampled" else "01"
            source, target = caches[kind]
            parent = f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-{flags}"
            used = sum(spent(d) for d in pairs[kind])
            begun = time.perf_counter_ns()
            lease = target.lease(BLOCKS, ttl=PATIENCE, traceparent=parent)
            push = source.write(BLOCKS, to=lease.ticket, timeout=PATIENCE)
            push.wait()
            lease.wait()
            end = time.perf_counter_ns()
            if n >= rounds // 10:  # before that everything warms up
                taken[case].append((end - begun) / 1e6)
                cpu[case].append((sum(spent(d) for d in pairs[kind]) - used) / 1e6)
    out = {}
    for case in CASES:
        differences = [x - y for x, y in zip(taken[case], taken["off"], strict=True)]
        off = statistics.median(taken["off"])
        out[case] = {
            "median_ms": statistics.median(taken[case]),
            "of_off_percent": 100 * statistics.median(differences) / off,
            "cpu_ms": statistics.mean(cpu[case]),
        }
    return out


def node(directory: Path, name: str, env: dict[str, str], *args: str) -> Daemon:
    """A daemon as users run it, without a trace file."""
    d = Daemon(name, directory / name, directory, "--trace-file", "", *args, env=env, binary=PLAIN_BINARY)
    return d.start()


def spent(d: Daemon) -> int:
    """The daemon's CPU time so far, in nanoseconds: that of all its threads."""
    total = 0
    for task in Path(f"/proc/{d.pid}/task").iterdir():
        total += int((task / "schedstat").read_text().split()[0])
    return total


if __name__ == "__main__":
    main()
