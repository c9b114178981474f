"""The machines' root file system: a cpio archive, uncompressed since decompressing takes long under TCG.

The kernel unpacks archives that are laid one behind the other, so what all machines share is made once and
what a test adds (binaries under test) is a small one behind it.
"""

from __future__ import annotations

import functools
import hashlib
import lzma
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path

import kernel

#: Loaded in this order, with what each needs. Without crc32_generic "rdma link add" fails.
MODULES = [
    "virtio_pci",
    "virtio_console",
    "virtio_net",
    "crc32_generic",
    "dummy",
    "tun",
    "veth",
    "ifb",
    "sch_netem",
    "sch_prio",
    "sch_plug",
    "cls_u32",
    "ib_uverbs",
    "rdma_ucm",
    "rdma_rxe",
]
#: Not in every kernel; a machine without is still useful.
OPTIONAL = {"sch_plug", "ifb"}

#: dash, because the shell of busybox prefers busybox's own ip and tc to those of iproute2.
TOOLS = [
    "/bin/busybox",
    "/bin/dash",
    "/usr/bin/rdma",
    "/usr/sbin/ip",
    "/usr/sbin/tc",
    "/usr/bin/ibv_devinfo",
    "/usr/bin/ibv_rc_pingpong",
    "/usr/bin/ib_write_bw",
    "/usr/bin/ib_read_bw",
    "/usr/bin/ib_write_lat",
    "/usr/bin/ib_read_lat",
]


class Archive:
    """Writes a cpio archive in the kernel's "newc" form."""

    def __init__(self, path: Path) -> None:
        self._f = path.open("wb")
        self._ino = 0
        self._dirs: set[str] = set()

    def _entry(self, name: str, mode: int, data: bytes = b"") -> None:
        self._ino += 1
        raw = name.lstrip("/").encode() + b"\0"
        fields = (self._ino, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(raw), 0)
        head = b"070701" + b"".join(b"%08X" % v for v in fields) + raw
        self._f.write(head + b"\0" * (-len(head) % 4) + data + b"\0" * (-len(data) % 4))

    def _parents(self, name: str) -> None:
        for parent in reversed(Path(name).parents):
            if str(parent) not in ("/", *self._dirs):
                self._dirs.add(str(parent))
                self._entry(str(parent), stat.S_IFDIR | 0o755)

    def add(self, name: str, data: bytes, mode: int = 0o755) -> None:
        """One regular file at the absolute path ``name``."""
        self._parents(name)
        self._entry(name, stat.S_IFREG | mode, data)

    def link(self, name: str, target: str) -> None:
        """One symbolic link."""
        self._parents(name)
        self._entry(name, stat.S_IFLNK | 0o777, target.encode())

    def close(self) -> None:
        """End the archive."""
        self._entry("TRAILER!!!", 0)
        self._f.write(b"\0" * (-self._f.tell() % 512))
        self._f.close()


def libraries(binary: str | Path) -> set[str]:
    """Every library that a binary is linked with, as absolute paths; empty for a static one."""
    said = subprocess.run(["ldd", str(binary)], text=True, capture_output=True).stdout
    return set(re.findall(r"(/\S+) \(0x", said))


PROVIDERS = Path("/usr/lib/x86_64-linux-gnu/libibverbs")


@functools.cache
def shared() -> frozenset[str]:
    """The tools and libraries of this machine that every guest has, under the same paths."""
    files = {*TOOLS, *(str(p) for p in PROVIDERS.glob("librxe-*.so"))}
    for f in list(files):
        files |= libraries(f)
    return frozenset(files)


def _module_files(unpacked: Path) -> list[Path]:
    files: list[Path] = []
    for module in MODULES:
        said = subprocess.run(
            ["/usr/sbin/modprobe", "-d", unpacked, "-S", kernel.version(unpacked), "--show-depends", module],
            text=True,
            capture_output=True,
        )
        if said.returncode != 0 and module not in OPTIONAL:
            raise kernel.UnavailableError(f"the kernel has no module {module}: {said.stderr.strip()}")
        for line in said.stdout.splitlines():
            if line.startswith("insmod ") and (f := Path(line.split()[1])) not in files:
                files.append(f)
    return files


def base(unpacked: Path) -> Path:
    """What every machine has: the agent, busybox, the RDMA tools with their libraries, the kernel modules."""
    agent = kernel.go_build("./test/rdma/guest").read_bytes()
    key = hashlib.sha256(agent)
    key.update(Path(__file__).read_bytes() + kernel.version(unpacked).encode())
    out = kernel.BUILD / f"base-{key.hexdigest()[:16]}.cpio"
    if out.exists():
        return out
    for old in kernel.BUILD.glob("base-*.cpio*"):
        old.unlink()
    part = out.with_suffix(f".{os.getpid()}")
    a = Archive(part)
    a.add("/init", agent)
    applets = subprocess.run(["/bin/busybox", "--list"], text=True, capture_output=True, check=True)
    for name in applets.stdout.split():
        if name not in ("busybox", "sh"):
            a.link(f"/bin/{name}", "busybox")
    a.link("/bin/sh", "dash")
    for name in sorted(shared()):
        a.add(name, Path(name).read_bytes())
    a.add("/etc/libibverbs.d/rxe.driver", Path("/etc/libibverbs.d/rxe.driver").read_bytes(), 0o644)
    a.add("/etc/passwd", b"root:x:0:0:root:/tmp:/bin/sh\n", 0o644)
    a.add("/etc/group", b"root:x:0:\n", 0o644)
    a.add("/etc/hosts", b"127.0.0.1 localhost\n::1 localhost\n", 0o644)
    order: list[str] = []
    for file in _module_files(unpacked):
        data, name = file.read_bytes(), file.name
        if name.endswith(".xz"):
            data, name = lzma.decompress(data), name[:-3]
        a.add(f"/modules/{name}", data, 0o644)
        order.append(name)
    a.add("/modules/order", "\n".join(order).encode(), 0o644)
    a.close()
    part.rename(out)
    return out


def with_libraries(files: Mapping[str, Path]) -> dict[str, Path]:
    """``files`` and what they are linked with, where guests do not have it anyway."""
    libs = {lib for file in files.values() for lib in libraries(file)} - shared()
    return {**{lib: Path(lib) for lib in sorted(libs)}, **files}


def build(unpacked: Path, files: Mapping[str, Path], out: Path) -> None:
    """Write ``out``: the base and ``files`` (the guest's path: the host's), with the libraries they need."""
    extra = out.with_suffix(".extra")
    a = Archive(extra)
    for name, file in with_libraries(files).items():
        a.add(name, file.read_bytes(), file.stat().st_mode & 0o777)
    a.close()
    with out.open("wb") as f:
        for part in (base(unpacked), extra):
            with part.open("rb") as g:
                shutil.copyfileobj(g, f, 1 << 20)
    extra.unlink()
