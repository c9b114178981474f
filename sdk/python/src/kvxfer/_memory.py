"""Memory that a daemon may map: a sealed, fully allocated memfd."""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
from typing import Any

from ._faults import ResourceExhausted

# A daemon refuses memory that could shrink under it. It maps the memory writable, so writes must not be
# sealed.
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class Memory:
    """A memfd and its mapping.

    Attributes:
        id: 32 hex digits, random: other memory never passes for this one.
        size: bytes, a multiple of the page size.
        fd: the memfd, -1 once closed.
        map: the mapping.
        guarantee: "full", or "live-client-only" where the promise that memory which was taken back is never
            written again holds only while this process lives.
    """

    map: mmap.mmap | memoryview
    guarantee = "full"

    def __init__(
        self, name: str, payload: int, op: str = "allocate_cache", field: str = "num_blocks"
    ) -> None:
        page = mmap.PAGESIZE
        self.size = (payload + page - 1) // page * page
        self.id = secrets.token_hex(16)
        self.fd = -1
        check_available(op, field, self.size)
        fd = os.memfd_create(f"kvxfer:{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, self.size)
            # Every page now: sparse ones would be charged to whoever touches them first, and could be missing
            # then.
            os.posix_fallocate(fd, 0, self.size)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
            self.map = mmap.mmap(fd, self.size)
        except OSError as e:
            os.close(fd)
            raise ResourceExhausted(
                f"{self.size} bytes of memory could not be allocated: {e.strerror}",
                op=op,
                region=name,
                field=field,
            ) from e
        self.fd = fd

    def to_wire(self) -> dict[str, Any]:
        """What REGISTER_REGION says of it."""
        return {"id": self.id, "kind": "memfd", "size": self.size}

    def close(self) -> None:
        """Gives the memory up; views that still exist keep their mapping alive."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)
        assert isinstance(self.map, mmap.mmap)
        try:
            self.map.close()
        except BufferError:
            pass

    def give_up(self) -> None:
        """Gives it up before it is known to be fenced: nobody else gets these pages."""
        self.close()

    def __del__(self) -> None:
        if getattr(self, "fd", -1) >= 0:
            os.close(self.fd)


def check_available(op: str, field: str, size: int) -> None:
    """A memfd has no limit of its own: without this check a wrong number calls the kernel's out-of-memory
    killer."""
    try:
        with open("/proc/meminfo", encoding="ascii") as f:
            kib = {line.split(":")[0]: int(line.split()[1]) for line in f}
        available = (kib["MemAvailable"] + kib["SwapFree"]) << 10
    except (OSError, KeyError, ValueError, IndexError):
        return
    if size > available:
        raise ResourceExhausted(f"{size} bytes are needed, {available} are available", op=op, field=field)
