"""Installs what is compared below build/peers: ``install.py DIRECTORY``, with the Python that the peers'
wheels are for.

What cannot be had is told, and left out by the run; it is no error.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
STATUS = "installed.json"
NUMPY = "numpy"
PACKAGES = {
    "nixl": ("requirements-nixl.txt", "from nixl._api import nixl_agent"),
    "mooncake": ("requirements-mooncake.txt", "from mooncake.engine import TransferEngine"),
    "ucx": ("requirements-ucx.txt", ""),
}
"""By name: the list of its packages, and what must work when they are there."""
DEBIAN = ("iperf3", "libiperf0", "libsctp1")


def python_of(directory: Path) -> Path:
    return directory / "venv" / "bin" / "python"


def numpy_line() -> str:
    """numpy as the demo's list pins it: the same version everywhere."""
    lines = (HERE.parent.parent / "examples" / "disagg" / "requirements.txt").read_text().splitlines()
    return "\n".join(line for line in lines if line.startswith("numpy")) + "\n"


def last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][-200:] if lines else "it says nothing"


def pip(directory: Path, name: str, requirements: Path) -> str:
    """Installs a list. Returns why not, or ""."""
    done = subprocess.run(
        [
            *(str(python_of(directory)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
            *("--no-deps", "-r", str(requirements)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return ""
    (directory / f"{name}.log").write_text(done.stdout + done.stderr)
    return f"its package could not be installed (what pip said is in {name}.log)"


def wheel(directory: Path, name: str) -> str:
    """Installs one of PACKAGES and tries it. Returns why not, or ""."""
    file, works = PACKAGES[name]
    print(f"installing {name} below {directory}", file=sys.stderr)
    why = pip(directory, name, HERE / file)
    if why or not works:
        return why
    done = subprocess.run(
        [str(python_of(directory)), "-c", works], capture_output=True, text=True, check=False
    )
    return "" if done.returncode == 0 else f"it is installed and does not load: {last(done.stderr)}"


def iperf3(directory: Path) -> str:
    """Unpacks Debian's package where PATH has none. Returns why not, or ""."""
    if shutil.which("iperf3"):
        return ""
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        return "neither iperf3 nor apt is here"
    place = directory / "iperf3"
    place.mkdir(exist_ok=True)
    get = ["apt-get", "-q", "download", *DEBIAN]
    for command in (get, ["apt-get", "-q", "update"], get):
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
        if done.returncode == 0 and command is get:
            break
    else:
        return "apt has no iperf3"
    for package in sorted(place.glob("*.deb")):
        subprocess.run(["dpkg-deb", "-x", package.name, "."], cwd=place, check=True)
        package.unlink()
    return ""


def main() -> None:
    """Installs all of it, unless this very list was installed before."""
    directory = Path(sys.argv[1]).resolve()
    wanted = [*((HERE / file).read_text() for file, _ in PACKAGES.values()), numpy_line(), *DEBIAN]
    key = hashlib.sha256("\0".join([*wanted, sys.version]).encode()).hexdigest()
    status = directory / STATUS
    if status.exists() and json.loads(status.read_text()).get("key") == key:
        return
    directory.mkdir(parents=True, exist_ok=True)
    if not python_of(directory).exists():
        venv.create(directory / "venv", with_pip=True)
    base = directory / "requirements-numpy.txt"
    base.write_text(numpy_line())
    if why := pip(directory, NUMPY, base):
        sys.exit(f"{NUMPY}: {why}")
    missing = {name: wheel(directory, name) for name in PACKAGES} | {"iperf3": iperf3(directory)}
    found = {name: why for name, why in missing.items() if why}
    for name, why in found.items():
        print(f"{name}: {why}", file=sys.stderr)
    # What failed is tried again the next time.
    status.write_text(json.dumps({"key": "" if found else key, "missing": found}) + "\n")


if __name__ == "__main__":
    main()
