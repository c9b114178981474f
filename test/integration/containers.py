"""Processes in namespaces of their own, as containers have them, made by unshare(1) and setpriv(1)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from daemon import Daemon, until
from worker import Worker

# The first process of a pid namespace is its init: with it all others end. So the client is another, as in a
# container that runs a small one. This one reaps nobody, which some do: a zombie has exited. The shell gives
# background processes no input unless it is told so.
INIT = 'exec 3<&0; "$@" <&3 & exec sleep infinity'
BARE = ("setpriv", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all")
CLIENT = (
    "unshare", "--user", "--map-root-user", "--pid", "--mount", "--net", "--ipc", "--uts",
    "--fork", "--mount-proc", "--kill-child",
)  # fmt: skip
DAEMON = ("unshare", "--pid", "--mount", "--net", "--fork", "--mount-proc", "--kill-child", "sh", "-c")


@cache
def _missing() -> str:
    """Why containers cannot be made here; empty where they can."""
    try:
        done = subprocess.run([*CLIENT, *BARE, "true"], capture_output=True, text=True)
    except FileNotFoundError as e:
        return str(e)
    return "" if done.returncode == 0 else f"{CLIENT[0]}: {done.stderr.strip()}"


def needs_containers(root: bool = False) -> None:
    """Skip where namespaces cannot be made: for a client's any user's rights may do, a daemon's need root."""
    missing = _missing()
    if root and os.geteuid() != 0:
        missing = "namespaces without a user namespace need root"
    if missing:
        if os.environ.get("CI") == "true" and os.geteuid() == 0:
            pytest.fail(missing)
        pytest.skip(missing)


def children(pid: int) -> list[int]:
    """The children of a process."""
    out = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                out.append(int(stat.parent.name))
    return out


def only_child(pid: int) -> int:
    """The one child of a process, when there is one."""
    until("a process in its container", lambda: len(children(pid)) == 1)
    return children(pid)[0]


class ContainedWorker(Worker):
    """A client in a pid, mount, network, ipc, uts and user namespace of its own, without any capability.

    Of the host it has the files alone; the daemon's socket is mounted at another path.
    """

    def __init__(self, path: Path, at: Path) -> None:
        at.mkdir()
        mount = f'mount --bind {path.parent} {at} && exec "$@"'
        inside = ("sh", "-c", mount, "sh", *BARE, "sh", "-c", INIT, "sh")
        super().__init__(str(at / path.name), (*CLIENT, *inside))

    @property
    def client_pid(self) -> int:
        """The client's process id outside."""
        return only_child(only_child(self.process.pid))

    def kill_client(self) -> None:
        """kill -9 of the client's process alone: its children live on."""
        os.kill(self.client_pid, signal.SIGKILL)


class ContainedDaemon(Daemon):
    """A daemon in a pid, mount and network namespace of its own, without its clients' processes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        script = 'ip link set lo up && exec "$@"'
        super().__init__(*args, prefix=(*DAEMON, script, "sh"), **kwargs)

    @property
    def pid(self) -> int:
        return only_child(super().pid)

    @property
    def reachable(self) -> bool:
        return False

    def _own_pid(self) -> int:
        return 1
