"""Providers that a host cannot use."""

from __future__ import annotations

from pathlib import Path

import pytest

from daemon import command


def test_named_provider_that_cannot_be_used(run_dir: Path) -> None:
    """Who names a provider gets it or no daemon."""
    place = ["--state-dir", str(run_dir / "state"), "--socket", str(run_dir / "s"), "--listen", "127.0.0.1:0"]
    # Excluded devices make every host one without RDMA.
    done = command("serve", *place, "--http", "off", "--providers", "verbs,tcp", "--rdma-exclude", "*")
    assert done.returncode == 1, done.stderr
    assert 'field=\\"providers\\"' in done.stderr or 'field="providers"' in done.stderr
    assert "verbs is named and cannot be used: " in done.stderr
    assert not (run_dir / "state" / "node.json").exists()


@pytest.mark.parametrize(
    ("setting", "value", "allowed"),
    [
        ("rdma-timeout", "0", "1 to 31"),
        ("rdma-gid", "eth0", "an IPv4 or IPv6 address"),
        ("rdma-devices", "mlx5_0:0", "a port of 1 to 255"),
    ],
)
def test_wrong_setting(setting: str, value: str, allowed: str) -> None:
    """A setting of RDMA that cannot be meant ends the start, also on a host without RDMA."""
    done = command("serve", f"--{setting}", value)
    assert done.returncode == 2, done.stderr
    assert setting in done.stderr
    assert allowed in done.stderr
