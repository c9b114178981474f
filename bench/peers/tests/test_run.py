"""The command line, plain UCX's table, the lists of packages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cases import CASES, QUICK
from install import HERE, PACKAGES, numpy_line
from marks import both, free_port, memory_copy, read_ucx
from pair import FailedError
from run import command, options


def test_the_command_says_what_was_chosen() -> None:
    assert command(options([])) == "make bench-peers"
    o = options(["--only", "nixl,kvxfer-raw", "--out", "/some/where", "--seconds", "0.5", "--json"])
    assert command(o) == 'make bench-peers ARGS="--only nixl,kvxfer-raw --seconds 0.5"'
    assert [c.name for c in o.columns] == ["kvxfer-raw", "nixl"]
    assert o.cases == list(CASES)


def test_quick_is_less() -> None:
    o = options(["--quick"])
    assert o.cases == list(QUICK)
    assert (o.rounds, o.seconds) == (3, 0.4)
    assert command(o) == 'make bench-peers ARGS="--quick"'
    assert [c.name for c in options(["--quick", "--case", "64x1MiB"]).cases] == ["64x1MiB"]


@pytest.mark.parametrize(
    "words",
    [
        *(["--only", "nobody"], ["--case", "12"], ["--op", "copy"], ["--transport", "rdma"]),
        *(["--rounds", "0"], ["--seconds", "0"], ["--seconds", "nan"]),
    ],
)
def test_what_is_not_allowed_is_said(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        options(words)
    assert re.search(r"allowed|case", capsys.readouterr().err)


UCX = """b.txt,iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr
put_lat_4096,2000,6.100,7.0,7.0,558.0,558.0,142857,142857
put_bw_4096,2000,1.000,1.0,1.0,3906.25,4000.0,1000000,1000000
get_4096,2000,8.200,9.0,9.0,434.0,434.0,111111,111111
"""


def test_plain_ucx_is_read() -> None:
    (row,) = read_ucx(UCX, "tcp", [4096])
    assert row == {
        "way": "tcp",
        "bytes": 4096,
        "put_us": 6.1,
        "get_us": 8.2,
        "put_gbps": pytest.approx(4.194304),
    }
    with pytest.raises(FailedError, match="put_lat_8"):
        read_ucx(UCX, "tcp", [8])


def test_a_tool_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marks.TRIES", 2)
    with pytest.raises(FailedError, match="sh: out of order"):
        both(["sleep", "60"], ["sh", "-c", "echo out of order >&2; exit 1"], {})
    with pytest.raises(FailedError, match="did not end within"):
        both(["sleep", "60"], ["sleep", "60"], {}, limit=0.1)


def test_marks_of_the_machine() -> None:
    assert 1024 <= free_port() < 65536
    assert memory_copy(1 << 20) > 0


def test_packages_are_pinned() -> None:
    for file, _ in PACKAGES.values():
        for line in (HERE / file).read_text().splitlines():
            assert re.fullmatch(r"[a-z0-9-]+==[0-9a-z.]+", line), line
    assert "numpy==" in numpy_line()
    assert Path(HERE / "run.py").exists()
