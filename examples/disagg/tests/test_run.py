"""The demo's command line: bad input names the setting, and nobody's files are removed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import run


def parse(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *args: str) -> None:
    """The command line with a program and a directory that exist, unless args say otherwise."""
    out = str(tmp_path / "out")
    monkeypatch.setattr(sys, "argv", ["run.py", "--bin", sys.executable, "--out", out, *args])
    run.arguments()


@pytest.mark.parametrize(
    ("flag", "value", "says"),
    [
        ("--prompt", "{}/missing", "No such file"),
        ("--prompt", "{}", "UTF-8 text"),
        ("--prompt", "{}/latin", "UTF-8 text"),
        ("--prompt", "{}/empty", "is empty"),
        ("--bin", "{}/missing", "make build"),
        ("--bin", "{}", "make build"),
        ("--out", "{}/empty/x", "can be written"),
        ("--out", "{}/taken", "not of the demo"),
        ("--block-tokens", "0", "1..1024"),
        ("--tokens", "1025", "1..1024"),
    ],
)
def test_bad_input_names_the_setting(
    flag: str,
    value: str,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "latin").write_bytes(b"\xff\xfe")
    (tmp_path / "empty").write_text(" \n")
    (tmp_path / "taken" / "decode").mkdir(parents=True)
    (tmp_path / "taken" / "decode" / "mine").touch()
    with pytest.raises(SystemExit) as end:
        parse(monkeypatch, tmp_path, flag, value.format(tmp_path))
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert f"{flag}: " in said
    assert says in said


def test_only_the_demo_s_own_files_are_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "decode").mkdir(parents=True)
    (out / "decode" / "daemon.lock").touch()
    (out / "prefill").mkdir()
    (out / "prefill" / "log.txt").write_text("a daemon that did not start")
    (out / "mine").write_text("kept")
    parse(monkeypatch, tmp_path)
    assert not (out / "decode").exists()
    assert not (out / "prefill").exists()
    assert (out / "mine").read_text() == "kept"
