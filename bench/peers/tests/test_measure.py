"""Rounds with an engine made for tests: worker processes, verification, and engines that fail."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path

import pytest

import pair
from cases import OPS, SIDES, Case
from columns import COLUMNS
from measure import Contender, Rounds
from pair import FailedError, Pair

CASE = Case(16, 4096)


def start(directory: Path, way: str, grants: bool = False, rests: bool = False) -> Pair:
    env = {side: {"PRETENDED": str(directory), "PYTHONPATH": str(Path(__file__).parent)} for side in SIDES}
    return Pair("pretended", way, CASE, env, directory, grants=grants, rests=rests)


def state(pid: int) -> str:
    """The letter of the process's state: T is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def wait_for(pid: int, letters: str) -> None:
    end = time.monotonic() + 30
    while state(pid) not in letters:
        assert time.monotonic() < end, f"state {state(pid)}, not {letters}"
        time.sleep(0.001)


def test_rounds_keep_going_beside_engines_that_fail(tmp_path: Path) -> None:
    ways = {"good": {}, "wrong": {}, "refuses": {}, "mute": {}, "granted": {"grants": True}}
    contenders = []
    for way, how in ways.items():
        directory = tmp_path / way
        directory.mkdir()
        name = "good" if way == "granted" else way
        contenders.append(Contender(COLUMNS[0], way, partial(start, directory, name, **how)))
    rounds = Rounds("tcp", CASE, contenders, rounds=3, seconds=0.03)
    try:
        cells = {"write": {c.way: c for c in rounds.operation("write")}}
        rounds.contenders = [c for c in contenders if c.way in ("good", "granted", "refuses")]
        cells["read"] = {c.way: c for c in rounds.operation("read")}
        rest = rounds.at_rest()
    finally:
        notes = rounds.close()
    assert notes == []
    for op in OPS:
        for way in ("good", "granted"):
            cell = cells[op][way]
            assert cell.error == ""
            assert cell.found
            assert cell.time_us is not None
            assert cell.time_us.n >= 6
            assert cell.cpu_s_per_gb is not None
            assert 0 <= (cell.others or 0) <= 1
            assert cell.register_us == 1
            assert cell.prepare_us == 0.005
        assert "EngineError: not today" in cells[op]["refuses"].error
    assert "WrongBytesError: position 0 of the list" in cells["write"]["wrong"].error
    assert "status 3: not a word" in cells["write"]["mute"].error
    assert set(rest) == {f"{COLUMNS[0].name}/{way}" for way in ("good", "granted")}


def test_an_engine_is_stopped_while_others_work_unless_it_rests(tmp_path: Path) -> None:
    p = start(tmp_path, "good")
    try:
        p.stop()
        for pid in p.pids:
            wait_for(pid, "T")
        p.go()
        p.prepare("write")
        p.run("write", 2)
        assert len(p.samples()[0]) == 2
        p.rests = True
        p.stop()
        p.run("write", 1)
        assert all(state(pid) != "T" for pid in p.pids)
        assert p.footprint() >= 0
        p.close()
        with pytest.raises(FailedError, match="ended with status"):
            p.sides["local"].ask("samples")
    finally:
        p.end()


def test_a_worker_that_says_nothing_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    p = start(tmp_path, "good")
    try:
        p.stop()
        monkeypatch.setattr(pair, "PATIENCE", 0.05)
        with pytest.raises(FailedError, match="does not answer within"):
            p.sides["local"].ask("samples")
    finally:
        p.end()


def test_settings_of_this_process_reach_no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("UCX_TLS", "MC_LOG_LEVEL", "KVXFER_SOCKET", "NIXL_LOG_LEVEL"):
        monkeypatch.setenv(name, "x")
    env = pair.environment({"UCX_TLS": "tcp"})
    assert env["UCX_TLS"] == "tcp"
    assert not {"MC_LOG_LEVEL", "KVXFER_SOCKET", "NIXL_LOG_LEVEL"} & set(env)
    assert env["PATH"] == os.environ["PATH"]
