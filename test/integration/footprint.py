"""What a daemon holds for its clients and peers, seen from outside; when they are gone it must be, too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from daemon import Daemon, until

PAGE = "/memfd:kvxfer-shm-page"
"""Of these a session of shm keeps its own and the peer's, as long as the link lives: no client's memory."""


class Footprint(NamedTuple):
    """Descriptors, and clients' memory, of this node or a peer's: mapped, and open."""

    fds: int
    mapped: int
    open: int

    @staticmethod
    def of(d: Daemon) -> Footprint:
        """A daemon's, now."""
        links = []
        for fd in Path(f"/proc/{d.pid}/fd").iterdir():
            try:
                links.append(str(fd.readlink()))
            except FileNotFoundError:  # closed meanwhile
                continue
        maps = Path(f"/proc/{d.pid}/maps").read_text()
        return Footprint(
            len(links),
            maps.count("/memfd:") - maps.count(PAGE),
            sum(x.startswith("/memfd:") and not x.startswith(PAGE) for x in links),
        )


def threads(d: Daemon) -> int:
    """Threads of the daemon. The Go runtime keeps those that it has made: this only finds leaks."""
    return len(list(Path(f"/proc/{d.pid}/task").iterdir()))


def counts(d: Daemon) -> tuple[int, int, int]:
    """Clients, leases and transfers by the daemon's own word."""
    code, body = d.get("/status")
    assert code == 200
    status = json.loads(body)
    return status["clients"], status["leases"], status["transfers"]


def is_clean(d: Daemon) -> bool:
    """Whether nothing of any client is left."""
    held = Footprint.of(d)
    return held.mapped == held.open == 0 and (not d.reachable or counts(d) == (0, 0, 0))


def check_clean(d: Daemon) -> None:
    """Wait until nothing of any client is left; it must be alive for that."""
    assert d.process is not None
    assert d.process.poll() is None, f"{d.name} has ended with {d.process.returncode}:\n{d.log()}"
    try:
        until(f"{d.name} to hold nothing", lambda: is_clean(d))
    except AssertionError as e:
        raise AssertionError(
            f"{e}: {Footprint.of(d)}, clients, leases, transfers: {counts(d) if d.reachable else 'unknown'}"
        ) from None
