"""How a program gets a client."""

from __future__ import annotations

import os
import sys

from . import _trace
from ._arguments import check_duration, check_name
from ._client import Client
from ._faults import InvalidArgument, NotSupported


def default_socket() -> str:
    """KVXFER_SOCKET; else /run/kvxfer/kvxfer.sock for root, $XDG_RUNTIME_DIR/kvxfer/kvxfer.sock where that is
    set, /tmp/kvxfer-<uid>/kvxfer.sock."""
    named = os.environ.get("KVXFER_SOCKET")
    if named:
        return named
    if os.getuid() == 0:
        return "/run/kvxfer/kvxfer.sock"
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return f"{runtime}/kvxfer/kvxfer.sock" if runtime else f"/tmp/kvxfer-{os.getuid()}/kvxfer.sock"


def connect(
    socket: str | os.PathLike[str] | None = None,
    *,
    timeout: float = 5.0,
    tenant: str = "",
    process: str | None = None,
    ring: bool = True,
) -> Client:
    """Attaches this process to its node's daemon.

    Args:
        socket: path of the daemon's Unix socket. None: the environment's KVXFER_SOCKET; else
            /run/kvxfer/kvxfer.sock for root, $XDG_RUNTIME_DIR/kvxfer/kvxfer.sock where that is set,
            /tmp/kvxfer-<uid>/kvxfer.sock.
        timeout: seconds to connect, and for the answer to each later request that has no time-out of its own.
        tenant: 1..64 of [A-Za-z0-9_.-], one that the daemon lets this user name; empty: the daemon's own.
        process: this process's name in traces; None: the program's name.
        ring: whether posts of prepared lists may travel in memory that is shared with the daemon; False, or
            KVXFER_RING=off in the environment: they travel over the socket.

    Raises:
        InvalidArgument: names the argument, or KVXFER_RING.
        DaemonUnavailable: nobody listens there, or no answer in time.
        VersionMismatch, FeatureRequired, PermissionDenied: the daemon and this client cannot work together.
    """
    if sys.byteorder != "little":
        raise NotSupported("this host is big-endian", op="connect")
    if tenant:
        check_name("connect", "tenant", tenant)
    if not isinstance(ring, bool):
        raise InvalidArgument(f"{ring!r:.80}, allowed True or False", op="connect", field="ring")
    named = os.environ.get("KVXFER_RING", "")
    if named not in ("", "on", "off"):
        raise InvalidArgument(f"{named!r:.80}, allowed on or off", op="connect", field="KVXFER_RING")
    if process is None:
        process = os.path.basename(sys.argv[0] if sys.argv else "") or "python"
    path = os.fspath(default_socket() if socket is None else socket)
    return Client(
        path,
        check_duration("connect", timeout),
        tenant,
        _trace.clip(process, 128),
        ring and named != "off",
    )
