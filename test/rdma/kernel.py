"""Debian's own kernel and packages: what the virtual machines are made of.

Everything lies below ``build/rdma``; what is there is used without the network. The kernel is whatever
``linux-image-amd64`` depends on now: the archive keeps no version for long.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "rdma"

#: What a Debian machine must have, and a file by which it is seen to be there.
PACKAGES = {
    "qemu-system-x86": "/usr/bin/qemu-system-x86_64",
    "seabios": "/usr/share/seabios/bios-256k.bin",
    "busybox-static": "/bin/busybox",
    "rdma-core": "/etc/rdma",
    "ibverbs-providers": "/etc/libibverbs.d/rxe.driver",
    "ibverbs-utils": "/usr/bin/ibv_devinfo",
    "perftest": "/usr/bin/ib_write_bw",
    "iproute2": "/usr/bin/rdma",
    "libibverbs-dev": "/usr/include/infiniband/verbs.h",
    "kmod": "/usr/sbin/depmod",
}


class UnavailableError(Exception):
    """The machines cannot be built here; the message says what to do."""


def _apt(*args: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    return subprocess.run(["apt-get", "-q", *args], cwd=cwd, env=env, text=True, capture_output=True)


def packages() -> None:
    """Install what is missing, where that is possible; raises Unavailable where it is not."""
    if os.uname().machine != "x86_64":
        raise UnavailableError(
            f"the machines are x86_64, and emulating them on {os.uname().machine} was never tried"
        )
    missing = [name for name, file in PACKAGES.items() if not Path(file).exists()]
    if not missing:
        return
    advice = f"install {' '.join(missing)} (Debian's names), for example with apt-get install"
    if shutil.which("apt-get") is None:
        raise UnavailableError(f"{advice}; the machines need Debian's kernel, so also apt-get and dpkg")
    if os.geteuid() != 0:
        raise UnavailableError(advice)
    install = ("install", "-y", "--no-install-recommends", *missing)
    if _apt(*install).returncode != 0:
        _apt("update")
        done = _apt(*install)
        if done.returncode != 0:
            raise UnavailableError(f"{advice}; apt-get said: {done.stderr.strip()[-500:]}")
    missing = [name for name in missing if not Path(PACKAGES[name]).exists()]
    if missing:
        raise UnavailableError(f"{' '.join(missing)} is installed but not where Debian 12 has it: {PACKAGES}")


def _newest() -> str:
    said = subprocess.run(["apt-cache", "depends", "linux-image-amd64"], text=True, capture_output=True)
    found = re.search(r"Depends: (linux-image-\S+)", said.stdout)
    if found is None:
        raise UnavailableError("apt-cache knows no linux-image-amd64: a Debian archive for amd64 is needed")
    return found[1]


def kernel() -> Path:
    """The unpacked kernel package: a directory with boot/vmlinuz-VERSION and lib/modules/VERSION."""
    there = BUILD / "kernel"
    if (there / ".complete").exists():
        return there
    BUILD.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(there, ignore_errors=True)
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise UnavailableError("apt-get and dpkg-deb are needed to fetch Debian's kernel (about 70 MB)")
    load = BUILD / "download"
    shutil.rmtree(load, ignore_errors=True)
    load.mkdir()
    said = ""
    for attempt in range(2):
        if attempt == 1:
            _apt("update")
        name = _newest()
        for package in (name, f"{name}-unsigned"):
            got = _apt("download", package, cwd=load)
            said = got.stderr.strip()
            if got.returncode == 0:
                break
        else:
            continue
        break
    debs = list(load.glob("*.deb"))
    if not debs:
        raise UnavailableError(f"Debian's kernel cannot be had: {said[-500:]}")
    subprocess.run(["dpkg-deb", "-x", str(debs[0]), str(there)], check=True)
    if not (there / "lib").exists():  # a package of a merged /usr
        (there / "lib").symlink_to("usr/lib")
    subprocess.run(["/usr/sbin/depmod", "-b", str(there), version(there)], check=True)
    shutil.rmtree(load)
    (there / ".complete").touch()
    return there


def go_build(package: str) -> Path:
    """Build a command as a static program, which needs nothing in a guest."""
    out = BUILD / package.rsplit("/", 1)[1]
    env = {**os.environ, "CGO_ENABLED": "0"}
    subprocess.run(["go", "build", "-trimpath", "-o", out, package], cwd=ROOT, env=env, check=True)
    return out


def version(unpacked: Path) -> str:
    """The kernel's release, as uname -r says it."""
    return next(p.name for p in (unpacked / "lib" / "modules").iterdir())


def image(unpacked: Path) -> Path:
    """The bootable file."""
    return unpacked / "boot" / f"vmlinuz-{version(unpacked)}"
