"""Makes pages that exist already pages of a memfd, at the same addresses.

A memfd is filled with the pages' contents and mapped over them, a part at a time, so that memory does not
double. Contents and addresses stay. Nobody may write to the pages meanwhile; reading is safe, because the
kernel puts each part in the old one's place in one step.

Only whole pages can be replaced, and arrays seldom begin at one: malloc puts its own header first. A page
that holds something else besides must stay what it is, since another thread may write that something
meanwhile, and since after a fork parent and child would share it. Who owns the rest of an edge page cannot
be seen in /proc/self/maps, where neighbouring mappings melt into one. So an edge inside a page is taken only
when malloc's own header says that the block is a mapping of its own, or when the whole mapping is no larger
than the pages of the array.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass

from ._extent import Extent
from ._faults import NotSupported, ResourceExhausted
from ._memory import SEALS, check_available

#: Bytes that exist twice for a moment.
CHUNK = 64 << 20

_PAGE = mmap.PAGESIZE
_MEMFD = "kvxfer:adopted:"

# Flags of the size in the header of glibc's malloc: the block is a mapping of its own, and the two others.
_IS_MMAPPED, _FLAGS = 2, 7

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
]  # fmt: skip
_MAP_FIXED = 0x10
_MAP_FAILED = ctypes.c_void_p(-1).value


def span(e: Extent) -> tuple[int, int]:
    """The whole pages that hold an extent: from, to."""
    return e.addr // _PAGE * _PAGE, -(-(e.addr + e.size) // _PAGE) * _PAGE


def share(op: str, field: str, name: str, e: Extent) -> int:
    """Turns the extent's pages into a sealed memfd's and returns its descriptor; its byte 0 is at span(e)[0].

    After a failure the contents are what they were, the pages perhaps a memfd's, and the call may be
    repeated.

    Raises:
        NotSupported: these pages cannot be shared; says why, and what can.
        ResourceExhausted: no memory, descriptor or mapping is left.
    """
    lo, hi = span(e)
    why = _refusal(e, lo, hi)
    if why:
        raise NotSupported(
            f"{why}; allowed private memory of its own pages: one that begins and ends at a page, or a large"
            " array that malloc gave a mapping of its own",
            op=op,
            field=field,
        )
    try:
        fd = os.memfd_create(f"{_MEMFD}{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        raise _exhausted(op, name, hi - lo, error) from error
    try:
        os.ftruncate(fd, hi - lo)
        for at in range(lo, hi, CHUNK):
            n = min(CHUNK, hi - at)
            check_available(op, field, n)
            _copy(fd, at - lo, at, n)
            _replace(fd, at - lo, at, n)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
    except BaseException as error:
        os.close(fd)  # what is mapped keeps its part of the object
        if isinstance(error, OSError):
            raise _exhausted(op, name, hi - lo, error) from error
        raise
    return fd


def _exhausted(op: str, name: str, size: int, error: OSError) -> ResourceExhausted:
    return ResourceExhausted(
        f"{size} bytes of memory could not be shared: {error.strerror}", op=op, region=name, field="tensors"
    )


def _copy(fd: int, offset: int, at: int, n: int) -> None:
    """Writes n bytes of memory into the memfd, which allocates them: zeros too."""
    view = memoryview((ctypes.c_char * n).from_address(at)).cast("B")
    done = 0
    while done < n:
        done += os.pwrite(fd, view[done:], offset + done)


def _replace(fd: int, offset: int, at: int, n: int) -> None:
    """Maps a part of the memfd over memory."""
    prot, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | _MAP_FIXED
    ctypes.set_errno(0)
    if _libc.mmap(at, n, prot, flags, fd, offset) == _MAP_FAILED:
        code = ctypes.get_errno() or errno.EINVAL
        raise OSError(code, os.strerror(code))


# Whether pages may be replaced.


@dataclass(frozen=True)
class _Mapping:
    lo: int
    hi: int
    perms: str
    inode: int
    path: str

    def refusal(self) -> str:
        """Why its pages must stay what they are; "" when they need not."""
        if not self.perms.startswith("rw"):
            return "a part of it is not mapped for reading and writing"
        if self.path.startswith(f"/memfd:{_MEMFD}"):  # adopted before
            return ""
        if self.path in ("[heap]", "[stack]"):
            # malloc uses the pages for something else later, and a fork must not share that.
            return f"it lies in the process's {self.path.strip('[]')}"
        if self.perms[3] != "p" or self.inode != 0 or (self.path and not self.path.startswith("[anon:")):
            return f"it is a file or shared already ({self.path or 'without a name'})"
        return ""


def _mappings(lo: int, hi: int) -> Iterator[_Mapping]:
    """This process's mappings that have a part in lo..hi, in order."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as f:
        for line in f:
            where, perms, _, _, inode, *path = line.rstrip("\n").split(" ", 5)
            first, _, end = where.partition("-")
            if int(first, 16) < hi and int(end, 16) > lo:
                yield _Mapping(int(first, 16), int(end, 16), perms, int(inode), "".join(path).strip())


def _refusal(e: Extent, lo: int, hi: int) -> str:
    found = list(_mappings(lo, hi))
    at = lo
    for m in found:
        if m.lo > at:
            break
        why = m.refusal()
        if why:
            return why
        at = m.hi
    if at < hi:
        return "a part of it is not mapped"
    if (e.addr, e.addr + e.size) == (lo, hi) or (len(found) == 1 and (found[0].lo, found[0].hi) == (lo, hi)):
        return ""
    block = _own_mapping(e.block)
    if block is not None and block[0] <= lo and hi <= block[1]:
        return ""
    return "its first or last page may hold something else besides"


def _own_mapping(block: int) -> tuple[int, int] | None:
    """The pages of a block of memory that malloc keeps in a mapping of its own, by glibc's header before it.

    The header is {bytes before it in the mapping, bytes of the block with flags}, and free unmaps exactly
    what it says. What is no such header could look like one only by an accident that names whole mapped
    pages.
    """
    if not any(m.lo <= block - 16 and m.perms.startswith("r") for m in _mappings(block - 16, block)):
        return None
    head = ctypes.string_at(block - 16, 16)
    before, size = (int.from_bytes(head[i : i + 8], "little") for i in (0, 8))
    if size & _FLAGS != _IS_MMAPPED:
        return None
    lo = block - 16 - before
    hi = block - 16 + (size & ~_FLAGS)
    if lo % _PAGE or hi % _PAGE or not 0 < lo < block < hi:
        return None
    at = lo
    for m in _mappings(lo, hi):
        if m.lo > at or m.refusal():
            return None
        at = m.hi
    return (lo, hi) if at >= hi else None
