"""Reaching the daemon: its socket and its process."""

from __future__ import annotations

import errno
import os
import socket
import struct
import time

from ._faults import DaemonUnavailable, InvalidArgument, PermissionDenied

_SO_PEERPIDFD = 77  # not in the socket module; the same on x86-64 and arm64

HINT = "start one with `kvxfer serve`, or name its socket by the argument or KVXFER_SOCKET"


def dial(path: str, deadline: float) -> socket.socket:
    raw = os.fsencode(path)
    if not 1 <= len(raw) <= 107 or b"\0" in raw:
        raise InvalidArgument(
            f"{path!r} has {len(raw)} bytes, allowed 1..107 without NUL", op="connect", field="socket"
        )
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        while True:
            try:
                sock.connect(path)
                return sock
            except BlockingIOError:  # the daemon's backlog is full: it does not accept
                if time.monotonic() >= deadline:
                    raise DaemonUnavailable(
                        f"the daemon at {path} accepts no connection (is it stopped?)", op="connect"
                    ) from None
                time.sleep(0.01)
    except OSError as e:
        sock.close()
        if e.errno == errno.EACCES:
            raise PermissionDenied(f"no right to open {path}", op="connect", field="socket") from e
        raise DaemonUnavailable(f"no daemon at {path} ({e.strerror}); {HINT}", op="connect") from e
    except BaseException:
        sock.close()
        raise


def open_daemon(sock: socket.socket) -> tuple[int, int]:
    """The daemon's pid, and a pidfd for it; each -1 where the kernel does not tell.

    The kernel (Linux 6.5) hands the pidfd out by the socket, also for a daemon of another pid namespace which
    has no number here. On older ones it is opened by its number, before HELLO is answered, and an answer
    proves that the process lived after that: so the number cannot have been given to another process.
    """
    pid, _, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    pid = pid if pid > 0 else -1
    try:
        return pid, sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError as e:
        if e.errno != errno.ENOPROTOOPT or pid < 0:
            return pid, -1
    try:
        return pid, os.pidfd_open(pid)
    except OSError:
        return pid, -1
