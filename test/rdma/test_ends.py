"""No machine outlives its test."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from vm import VM


def running(pid: int) -> bool:
    """Whether a process is there and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pid: int) -> None:
    """Wait for a process's end."""
    deadline = time.monotonic() + 60
    while running(pid):
        assert time.monotonic() < deadline, "QEMU outlived its owner"
        time.sleep(0.05)


def test_ends_with_its_host(machines: None, tmp_path: Path) -> None:
    """A machine whose owner is killed is gone soon after, also in mid-boot."""
    script = (
        "import sys, time\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "import vm\n"
        "v = vm.VM('orphan')\n"
        "print(v.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    env = {**os.environ, "TMPDIR": str(tmp_path)}  # what it cannot remove any more
    owner = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=env)
    try:
        assert owner.stdout is not None
        qemu = int(owner.stdout.readline())
    finally:
        owner.kill()
        owner.wait()
        if owner.stdout:
            owner.stdout.close()
    gone(qemu)
    shutil.rmtree(tmp_path)


def test_powers_off_when_its_host_hangs_up(machines: None) -> None:
    """The agent ends the machine by itself."""
    vm = VM("orphan", memory_mib=512, cpus=1).booted()
    try:
        vm.hang_up()
        gone(vm.pid)
        assert not vm.alive
    finally:
        vm.close()
