"""``kvxfer bench``: its fields are whole and agree, and it leaves nothing behind.

No speed is asserted.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from daemon import BINARY, PATIENCE, command, until

FIELDS = {
    "bench", "case", "op", "way", "blocks", "block_bytes", "samples", "median_s", "gbps",
    "limit_gbps", "limit_how", "ratio", "limit1_gbps", "ratio1", "limit2_gbps", "ratio2", "contiguous_gbps",
    "submit_us_p50", "submit_us_p99", "cpu_s_per_gb", "rss_bytes", "other_cpu", "busy",
}  # fmt: skip
OF_SUBMIT = {"submit_us_p50", "submit_us_p99"}
OF_TRANSFERS = OF_SUBMIT | {"way", "cpu_s_per_gb", "rss_bytes"}
OF_HOST = {"limit1_gbps", "ratio1", "limit2_gbps", "ratio2"}
OF_LIMITS = {"limit_gbps", "limit_how", "ratio", "contiguous_gbps"}


def close(a: float, b: float) -> bool:
    """Whether two numbers agree as far as a report's digits go."""
    return a == pytest.approx(b, rel=0.01)


def check(record: dict[str, Any], absent: set[str], busy: int = 0) -> None:
    """A record has every field, null where nothing was measured, and its numbers agree."""
    assert set(record) == FIELDS
    assert {k for k, v in record.items() if v is None} == absent
    assert record["busy"] == busy
    assert record["samples"] >= 3
    assert close(record["gbps"], record["blocks"] * record["block_bytes"] / record["median_s"] / 1e9)
    assert 0 <= record["other_cpu"] <= 1
    numbers = {k for k, v in record.items() if isinstance(v, (int, float))} - {"other_cpu", "busy"}
    assert all(record[k] > 0 for k in numbers)
    for n in ("", "1", "2"):
        if f"ratio{n}" not in absent:
            assert close(record[f"ratio{n}"], record["gbps"] / record[f"limit{n}_gbps"])
    if "submit_us_p50" not in absent:
        assert record["submit_us_p50"] <= record["submit_us_p99"]
        assert record["submit_us_p50"] <= record["median_s"] * 1e6 * 1.01


def bench(*args: str, tmp: Path) -> list[dict[str, Any]]:
    """Run it, and check that nothing is left."""
    done = command("bench", *args, "--rounds", "3", "--seconds", "0.1", "--json", env={"TMPDIR": str(tmp)})
    assert done.returncode == 0, done.stderr
    assert not list(tmp.iterdir())
    records: list[dict[str, Any]] = json.loads(done.stdout)
    for r in records:
        what = r["op"] + (" prepared" if r["way"] == "prepared" else "")
        assert f"{r['case']} {what}: " in done.stderr, "progress"
    return records


@pytest.mark.parametrize("provider", ["tcp", "shm"])
def test_transfers(provider: str, run_dir: Path, tmp_path: Path) -> None:
    """Both kinds of transfer through two daemons, beside the machine's limit."""
    records = bench(provider, "--case", "64x4KiB,1x8B", "--out", str(tmp_path / "out.json"), tmp=run_dir)
    assert [(r["bench"], r["case"], r["op"]) for r in records] == [
        (provider, case, op) for case in ("1x8B", "64x4KiB") for op in ("write", "read")
    ]
    for r in records:
        check(r, absent=OF_HOST)
        assert r["way"] == "transfers"
        assert 1 << 20 < r["rss_bytes"] < 1 << 32
    assert json.loads((tmp_path / "out.json").read_text()) == records


def test_without_limits(run_dir: Path) -> None:
    """What is not measured is null."""
    (record,) = bench("shm", "--case", "64x4KiB", "--op", "read", "--no-limit", tmp=run_dir)
    check(record, absent=OF_LIMITS | OF_HOST)


def test_prepared(run_dir: Path) -> None:
    """One prepared transfer, run again and again through two daemons."""
    records = bench("tcp", "--way", "prepared", "--case", "64x4KiB", "--no-limit", tmp=run_dir)
    assert [(r["op"], r["way"]) for r in records] == [("write", "prepared"), ("read", "prepared")]
    for r in records:
        check(r, absent=OF_LIMITS | OF_HOST | OF_SUBMIT)


def test_host(run_dir: Path) -> None:
    """One daemon with both clients, beside one thread and two, and a process that computes."""
    records = bench("host", "--busy", "1", "--case", "64x4KiB", "--op", "write", tmp=run_dir)
    assert not processes(f"{BINARY} bench busy")
    assert [(r["bench"], r["case"], r["way"], r["op"]) for r in records] == [
        ("host", "64x4KiB", way, "write") for way in ("transfers", "prepared")
    ]
    for r in records:
        check(r, absent=OF_SUBMIT if r["way"] == "prepared" else set(), busy=1)
        assert r["limit_gbps"] == max(r["limit1_gbps"], r["limit2_gbps"])


def test_copy(run_dir: Path) -> None:
    """The machine alone."""
    records = bench("copy", "--case", "64x4KiB", tmp=run_dir)
    assert [r["op"] for r in records] == ["memcpy-1", "stream-1", "memcpy-2", "stream-2", "go-1"]
    for r in records:
        check(r, absent=OF_TRANSFERS | OF_HOST)
        assert r["limit_gbps"] == max(o["gbps"] for o in records if o["op"] == r["limit_how"])


def processes(word: str) -> list[str]:
    """The command lines of processes that mention a word."""
    found = []
    for p in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = p.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it has ended
        if word in line:
            found.append(line)
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_ended_early(number: signal.Signals, run_dir: Path) -> None:
    """However a run ends, none of its processes is left; but for SIGKILL, no file is."""
    args = [str(BINARY), "bench", "tcp", "--case", "1x8B,64x1MiB", "--op", "write", "--seconds", "600"]
    process = subprocess.Popen(
        [*args, "--rounds", "10000", "--no-limit"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "TMPDIR": str(run_dir), "GORACE": "atexit_sleep_ms=0"},
    )  # fmt: skip
    try:
        until("two daemons and two clients", lambda: len(processes(str(run_dir))) == 4)
        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.wait()
    if number == signal.SIGKILL:
        until("its processes to end", lambda: not processes(str(run_dir)))
        return
    assert (process.returncode, out) == (1, ""), err
    assert "interrupted" in err
    assert not processes(str(run_dir))
    assert not list(run_dir.iterdir())


def test_many(run_dir: Path) -> None:
    """What comes in large numbers: every part has its points, and nothing is left."""
    done = command(
        "bench", "many", "--seconds", "0.1", "--json", "--blocks", "100,2000", "--in-flight", "1,100",
        "--clients", "1,16", "--peers", "2,20", "--bulk", "32", env={"TMPDIR": str(run_dir)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not list(run_dir.iterdir())
    records: list[dict[str, Any]] = json.loads(done.stdout)
    assert [(r["part"], r["n"], r["how"]) for r in records] == [
        ("blocks", 100, ""), ("blocks", 2000, ""), ("queued", 800_000, ""), ("in-flight", 1, ""),
        ("in-flight", 100, ""), ("clients", 1, ""), ("clients", 16, ""), ("peers", 2, ""), ("peers", 20, ""),
        ("small", 1, "alone"), ("small", 32, "behind-other"), ("small", 32, "behind-own"),
    ]  # fmt: skip
    for r in records:
        assert r["samples"] >= 2
        if r["part"] == "queued":
            assert r["rss_bytes"] < 1024
            assert r["gbps"] is None
            continue
        assert r["us_p50"] <= r["us_p99"]
        assert r["transfers_per_s"] > 0
        assert (r["ns_per_block"] is not None) == (r["part"] == "blocks")
        assert (r["rss_bytes"] is not None) == (r["part"] == "peers")
        assert (r["of_best"] is not None) == (r["part"] != "small")
